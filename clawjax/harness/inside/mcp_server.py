"""A small MCP server; runs inside a sandbox, standard library only.

  python3 mcp_server.py files FOLDER [--http PORT]     search and read files
  python3 mcp_server.py corpus FOLDER [--http PORT]    retrieve documents
  python3 mcp_server.py table FILE.csv [--http PORT]   a task's own example
  ... --check        answers one request to itself and exits (health check)

Over stdio (one JSON-RPC message a line) or streamable HTTP (POST /mcp, answers
as JSON). `corpus` is the closed world's web: `web_search` ranks the documents
of a folder by BM25, `web_fetch` returns one. Nothing outside FOLDER is read.
"""

import collections
import csv
import http.server
import json
import math
import os
import pathlib
import re
import sys

VERSIONS = ('2025-06-18', '2025-03-26', '2024-11-05')
WORD = re.compile(r'\w+')


def tool(name, description, **properties):
  """A tool's listing; all properties are required strings."""
  return {
    'name': name,
    'description': description,
    'inputSchema': {
      'type': 'object',
      'properties': {
        k: {'type': 'string', 'description': v} for k, v in properties.items()
      },
      'required': list(properties),
    },
  }


class Folder:
  """Text files below a folder, by relative path."""

  def __init__(self, root):
    self.root = pathlib.Path(root).resolve()

  def names(self):
    """Relative paths of all files, sorted."""
    return sorted(
      str(p.relative_to(self.root))
      for p in self.root.rglob('*')
      if p.is_file() and not p.is_symlink()
    )

  def text(self, name):
    """Content of a file; ValueError for what is not below the folder."""
    path = (self.root / name.lstrip('/')).resolve()
    if not path.is_relative_to(self.root) or not path.is_file():
      raise ValueError(f'no document {name}')
    return path.read_text(errors='replace')


class Files(Folder):
  """`search_files` and `read_file`."""

  tools = (
    tool('search_files', 'Find lines that contain a text.', query='the text'),
    tool('read_file', 'Read a file.', path='relative path'),
  )

  def search_files(self, query):
    found = [
      f'{name}:{i}: {line}'
      for name in self.names()
      for i, line in enumerate(self.text(name).splitlines(), 1)
      if query in line or query in name
    ]
    return '\n'.join(found[:100]) or 'nothing found'

  def read_file(self, path):
    return self.text(path)


class Corpus(Folder):
  """`web_search` and `web_fetch` over a folder of documents."""

  tools = (
    tool('web_search', 'Search the web.', query='search words'),
    tool('web_fetch', 'Fetch a page by its address.', url='address'),
  )

  def web_search(self, query):
    """The ten best documents by BM25 (k1 = 1.2, b = 0.75)."""
    bags = {
      n: collections.Counter(WORD.findall(self.text(n).lower()))
      for n in self.names()
    }
    mean = sum(sum(b.values()) for b in bags.values()) / max(1, len(bags))
    scores = collections.Counter()
    for word in set(WORD.findall(query.lower())):
      having = [n for n, bag in bags.items() if bag[word]]
      idf = math.log(1 + (len(bags) - len(having) + 0.5) / (len(having) + 0.5))
      for n in having:
        tf, size = bags[n][word], sum(bags[n].values())
        scores[n] += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * size / mean))
    lines = [f'{n}: {self.text(n)[:160]!r}' for n, _ in scores.most_common(10)]
    return '\n'.join(lines) or 'nothing found'

  def web_fetch(self, url):
    return self.text(re.sub(r'^[a-z]+://', '', url))


class Table:
  """`lookup`: rows of a CSV file whose column has a value."""

  tools = (
    tool('lookup', 'Rows with a value.', column='column', value='value'),
  )

  def __init__(self, path):
    self.path = path

  def lookup(self, column, value):
    with open(self.path, newline='') as file:
      rows = [r for r in csv.DictReader(file) if r.get(column) == value]
    return json.dumps(rows)


SERVERS = {'files': Files, 'corpus': Corpus, 'table': Table}


def answer(server, message):
  """The reply to one JSON-RPC message, or None for a notification."""
  method, params = message.get('method'), message.get('params') or {}
  if 'id' not in message:
    return None
  reply = {'jsonrpc': '2.0', 'id': message['id']}
  if method == 'initialize':
    asked = params.get('protocolVersion')
    reply['result'] = {
      'protocolVersion': asked if asked in VERSIONS else VERSIONS[0],
      'capabilities': {'tools': {}},
      'serverInfo': {'name': type(server).__name__.lower(), 'version': '1'},
    }
  elif method == 'ping':
    reply['result'] = {}
  elif method == 'tools/list':
    reply['result'] = {'tools': list(server.tools)}
  elif method == 'tools/call':
    name, failed = params.get('name'), False
    try:
      if name not in [t['name'] for t in server.tools]:
        raise ValueError(f'no tool {name}')
      text = getattr(server, name)(**(params.get('arguments') or {}))
    except (OSError, TypeError, ValueError) as e:
      text, failed = f'error: {e}', True
    content = [{'type': 'text', 'text': text}]
    reply['result'] = {'content': content, 'isError': failed}
  else:
    reply['error'] = {'code': -32601, 'message': f'no method {method}'}
  return reply


def stdio(server):
  """One message a line until stdin ends."""
  for line in sys.stdin:
    try:
      message = json.loads(line)
    except ValueError:
      continue
    if (reply := answer(server, message)) is not None:
      print(json.dumps(reply), flush=True)


def serve_http(server, port):
  """Streamable HTTP without streams: a JSON answer to each POST."""

  class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args):
      pass

    def _send(self, status, body=b''):
      self.send_response(status)
      self.send_header('Content-Type', 'application/json')
      self.send_header('Content-Length', str(len(body)))
      self.end_headers()
      self.wfile.write(body)

    def do_GET(self):
      self._send(200 if self.path == '/health' else 405, b'')

    do_DELETE = do_GET

    def do_POST(self):
      length = int(self.headers.get('Content-Length', 0))
      try:
        message = json.loads(self.rfile.read(length))
      except ValueError:
        self._send(400)
        return
      reply = answer(server, message)
      if reply is None:
        self._send(202)
      else:
        self._send(200, json.dumps(reply).encode())

  http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()


def main(argv):
  if len(argv) < 2 or argv[0] not in SERVERS:
    print(__doc__, file=sys.stderr)
    return 2
  server = SERVERS[argv[0]](argv[1])
  if '--check' in argv:
    reply = answer(server, {'id': 1, 'method': 'tools/list'})
    there = os.path.exists(argv[1])
    print(json.dumps({'ok': there, 'tools': len(reply['result']['tools'])}))
    return 0 if there else 1
  if '--http' in argv:
    serve_http(server, int(argv[argv.index('--http') + 1]))
  else:
    stdio(server)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
