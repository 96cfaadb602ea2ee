"""MCP: our servers by the official client, and model-issued calls for real."""

import pickle
import sys

import pytest

from clawjax import harness
from clawjax.errors import HarnessError
from clawjax.harness import mcp
from tests.harness.conftest import call
from tests.rollout.hi import make_task

SERVER = str(mcp._FOLDER / 'mcp_server.py')


@pytest.fixture
def corpus(tmp_path):
  folder = tmp_path / 'corpus'
  folder.mkdir()
  (folder / 'oslo.txt').write_text('Oslo is the capital of Norway. fjord\n')
  (folder / 'rome.txt').write_text('Rome is the capital of Italy.\n')
  (folder / 'cats.txt').write_text('Cats sleep.\n')
  return folder


def test_ranking_and_bounds(corpus):
  import importlib.util

  spec = importlib.util.spec_from_file_location('mcp_server', SERVER)
  server = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(server)
  documents = server.Corpus(corpus)
  lines = documents.web_search('capital of norway').splitlines()
  assert [line.split(':')[0] for line in lines] == ['oslo.txt', 'rome.txt']
  assert documents.web_fetch('https://rome.txt').startswith('Rome')
  for name in ('../x', '/etc/passwd', '../../etc/passwd'):
    with pytest.raises(ValueError, match='no document'):
      documents.text(name)


async def test_official_client(corpus):
  client = pytest.importorskip('mcp')
  from mcp.client.stdio import StdioServerParameters, stdio_client

  parameters = StdioServerParameters(
    command=sys.executable, args=[SERVER, 'corpus', str(corpus)]
  )
  async with stdio_client(parameters) as (read, write):
    async with client.ClientSession(read, write) as session:
      await session.initialize()
      tools = (await session.list_tools()).tools
      assert [t.name for t in tools] == ['web_search', 'web_fetch']
      result = await session.call_tool('web_fetch', {'url': 'cats.txt'})
      assert result.content[0].text == 'Cats sleep.\n'


@pytest.mark.slow
@pytest.mark.parametrize('port', [None, 8123], ids=['stdio', 'http'])
@pytest.mark.parametrize(
  'name, options',
  [
    ('pi', {}),
    ('claude_code', {'variant': 'bare'}),
    ('codex', {'variant': 'trimmed'}),
    ('openclaw', {'variant': 'lean'}),
  ],
)
async def test_a_call_by_the_model(roll, name, options, port):
  """The model searches through MCP; what the server says comes back to it."""
  server = mcp.shipped('files', '/workspace', port=port)
  found = mcp.equip(name, [server], **options)
  if not found.installed():
    pytest.skip(f'{name} is not installed')
  tool = {'openclaw': 'files__search_files'}.get(
    name, 'mcp__files__search_files'
  )
  # A busy machine gives OpenClaw its first request after minutes.
  task = make_task(time_limit_s=1500)
  rollout = await roll(found, [call(tool, query='x'), 'Found it.'], task)
  assert rollout.outcome == 'ok', rollout.reason
  client = rollout.extra['client']
  from clawjax.chat import tokenizers

  prompt = tokenizers.load('tiny').decode(list(client.prompts[-1]))
  assert 'data/in.txt:1: x' in prompt, prompt[-1500:]


def test_servers_by_a_config_entry(tmp_path):
  found = harness.load(
    'qwen_code',
    mcp={
      'web': {'kind': 'corpus', 'target': '/corpus', 'host': str(tmp_path)},
      'own': {'command': ['own', '--port=1'], 'port': 1, 'check': ['ok']},
    },
  )
  web, own = found.servers
  assert web == mcp.shipped('corpus', '/corpus', name='web', host=str(tmp_path))
  assert own == mcp.Server('own', ('own', '--port=1'), 1, (), ('ok',))
  assert (found.name, found.dialect) == ('qwen_code', 'chat')
  # As it travels to another machine.
  assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
  'entry, wanted',
  [
    ({'kind': 'smoke', 'target': '/x'}, "'smoke'"),
    ({'kind': 'files'}, 'target'),
    ({'port': 1}, 'kind or a command'),
    ({'command': ['x'], 'colour': 1}, 'colour'),
  ],
)
def test_mistakes_in_an_entry_are_named(entry, wanted):
  with pytest.raises(HarnessError, match=wanted):
    harness.load('pi', mcp={'s': entry})
  with pytest.raises(HarnessError, match='takes no MCP'):
    harness.load('mini_swe', mcp={'s': {'command': ['x']}})


async def test_a_sick_server_is_named(roll):
  server = mcp.shipped('table', '/workspace/no-such.csv')
  loop = harness.load('agent_loop')
  rollout = await roll(mcp.Equipped(loop, (server,)), ['Done.'])
  assert rollout.outcome == 'infra_error'
  assert 'mcp server table is not healthy' in rollout.reason
