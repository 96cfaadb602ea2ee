"""The white-box agent loop; runs inside a sandbox, standard library only.

  python3 loop.py --base-url URL --model NAME [options] INSTRUCTION ...

One conversation over OpenAI Chat Completions with five kinds of tools: bash,
search (file names and contents), fetch (a document of a local corpus, or a
workspace file), python (a code interpreter) and file operations (read, write,
edit, list). Everything that a black-box harness hides is an argument here: the
prompt, the tools, how long an observation may be, and what happens when the
context is full (the oldest observations are shortened first).
"""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

PROMPT = (
  'You are an agent that works in the folder {cwd}. Use the tools to do what '
  'the user asks; when it is done, answer without a tool call.'
)
CUT = '\n[... {n} characters left out ...]\n'


def schema(description, required, **properties):
  """A tool's description and JSON schema."""
  return {
    'description': description,
    'parameters': {
      'type': 'object',
      'properties': {k: {'type': v} for k, v in properties.items()},
      'required': list(required),
    },
  }


TOOLS = {
  'bash': schema('Run a shell command.', ['command'], command='string'),
  'search': schema(
    'Find files by name pattern, or lines that contain a text.',
    ['query'],
    query='string',
    path='string',
  ),
  'fetch': schema(
    'Read a document of the local corpus by name.', ['name'], name='string'
  ),
  'python': schema('Run Python code.', ['code'], code='string'),
  'read': schema('Read a file.', ['path'], path='string'),
  'write': schema(
    'Write a file.', ['path', 'content'], path='string', content='string'
  ),
  'edit': schema(
    'Replace one occurrence of a text in a file.',
    ['path', 'old', 'new'],
    path='string',
    old='string',
    new='string',
  ),
  'list': schema('List a folder.', [], path='string'),
}


def shorten(text, limit):
  """Head and tail of a text that is too long."""
  if len(text) <= limit:
    return text
  half = max(1, limit // 2)
  return text[:half] + CUT.format(n=len(text) - 2 * half) + text[-half:]


class Tools:
  """The five kinds of tools, on the current folder."""

  def __init__(self, corpus, timeout_s):
    self.corpus, self.timeout_s = pathlib.Path(corpus), timeout_s

  def _run(self, argv):
    try:
      done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=self.timeout_s,
      )
    except subprocess.TimeoutExpired:
      return f'error: not done after {self.timeout_s} s'
    text = done.stdout.decode('utf-8', 'replace')
    return text + (f'\n[exit code {done.returncode}]' * bool(done.returncode))

  def bash(self, command):
    return self._run(['/bin/sh', '-c', command])

  def python(self, code):
    return self._run([sys.executable or 'python3', '-I', '-c', code])

  def search(self, query, path='.'):
    lines = []
    for folder, _, names in os.walk(path):
      for name in sorted(names):
        file = os.path.join(folder, name)
        if fnmatch.fnmatch(name, query):
          lines.append(file)
          continue
        try:
          with open(file, encoding='utf-8') as f:
            lines += [
              f'{file}:{i}: {line.rstrip()}'
              for i, line in enumerate(f, 1)
              if query in line
            ]
        except (OSError, UnicodeDecodeError):
          continue
        if len(lines) > 200:
          return '\n'.join(lines[:200])
    return '\n'.join(lines) or 'nothing found'

  def fetch(self, name):
    if '..' in name.split('/'):
      return 'error: no such document'
    return (self.corpus / name.lstrip('/')).read_text(errors='replace')

  def read(self, path):
    return pathlib.Path(path).read_text(errors='replace')

  def write(self, path, content):
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return f'wrote {len(content)} characters'

  def edit(self, path, old, new):
    text = pathlib.Path(path).read_text()
    if text.count(old) != 1:
      return f'error: the text occurs {text.count(old)} times, wanted 1'
    pathlib.Path(path).write_text(text.replace(old, new))
    return 'edited'

  def list(self, path='.'):
    return '\n'.join(
      e.name + '/' * e.is_dir() for e in sorted(pathlib.Path(path).iterdir())
    )

  def call(self, name, arguments, offered):
    """The observation of one call; never raises."""
    if name not in offered:
      return f'error: unknown tool {name}; there are {", ".join(offered)}'
    try:
      values = json.loads(arguments or '{}')
      return getattr(self, name)(**values)
    except (OSError, TypeError, ValueError) as e:
      return f'error: {e}'


class ContextFull(Exception):
  """The endpoint says that the prompt does not fit."""


def ask(options, messages, tools):
  """One request; the assistant's message. One retry on a fault."""
  body = {'model': options.model, 'messages': messages, 'tools': tools}
  body |= {'max_tokens': options.max_tokens}
  request = urllib.request.Request(
    options.base_url + '/v1/chat/completions',
    json.dumps(body).encode(),
    {'Content-Type': 'application/json', 'Authorization': 'Bearer none'},
  )
  for attempt in range(2):
    try:
      with urllib.request.urlopen(request, timeout=options.request_s) as reply:
        return json.load(reply)['choices'][0]['message']
    except urllib.error.HTTPError as e:
      text = e.read().decode('utf-8', 'replace')
      if 'context' in text and e.code in (400, 413):
        raise ContextFull(text) from e
      if attempt or e.code < 500:
        raise SystemExit(f'endpoint: {e.code} {text[:300]}') from e
    except OSError as e:
      if attempt:
        raise SystemExit(f'endpoint: {e}') from e


def make_room(messages, limit):
  """Shortens the oldest long observation; whether there was one."""
  for message in messages:
    if message['role'] == 'tool' and len(message['content']) > limit:
      message['content'] = shorten(message['content'], limit // 2)
      return True
  return False


def replay(message):
  """An assistant message as it goes back, nothing added."""
  kept = {'role': 'assistant', 'content': message.get('content') or ''}
  for key in ('reasoning_content', 'tool_calls'):
    if message.get(key):
      kept[key] = message[key]
  return kept


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--base-url', required=True)
  parser.add_argument('--model', default='policy')
  parser.add_argument('--tools', default=','.join(TOOLS))
  parser.add_argument('--prompt', default=PROMPT)
  parser.add_argument('--corpus', default='/corpus')
  parser.add_argument('--max-turns', type=int, default=50)
  parser.add_argument('--max-tokens', type=int, default=2048)
  parser.add_argument('--observation', type=int, default=8000)
  parser.add_argument('--tool-s', type=float, default=60)
  parser.add_argument('--request-s', type=float, default=3600)
  parser.add_argument('turns', nargs='+')
  options = parser.parse_args()
  offered = [t for t in options.tools.split(',') if t in TOOLS]
  tools = [
    {'type': 'function', 'function': {'name': name, **TOOLS[name]}}
    for name in offered
  ]
  hands = Tools(options.corpus, options.tool_s)
  system = options.prompt.replace('{cwd}', os.getcwd())
  messages = [{'role': 'system', 'content': system}]
  for turn in options.turns:
    messages.append({'role': 'user', 'content': turn})
    for _ in range(options.max_turns):
      try:
        answer = ask(options, messages, tools)
      except ContextFull as e:
        if make_room(messages, 400):
          continue
        print(f'context full: {str(e)[:200]}', file=sys.stderr)
        return 3
      messages.append(replay(answer))
      calls = answer.get('tool_calls') or []
      if not calls:
        print(answer.get('content') or '', flush=True)
        break
      for call in calls:
        function = call['function']
        text = hands.call(function['name'], function['arguments'], offered)
        print(f'{function["name"]}: {shorten(text, 400)}', flush=True)
        messages.append(
          {
            'role': 'tool',
            'tool_call_id': call['id'],
            'content': shorten(text, options.observation),
          }
        )
    else:
      print('too many turns', file=sys.stderr)
      return 4
  return 0


if __name__ == '__main__':
  sys.exit(main())
