"""Judges in an evaluation: from the flags of the command to the page."""

import dataclasses
import http.server
import json
import threading

import httpx
import pytest

from clawjax import harness as harness_lib
from clawjax.eval import __main__ as command
from clawjax.eval import bench, board, judges, scores
from clawjax.harness import base as harness_base
from clawjax.sandbox import base, fake

RUBRIC = {
  'judge': {
    'kind': 'anchors',
    'items': [{'text': 'clear', 'anchors': [[0, 'no'], [0.5, ''], [1, 'yes']]}],
  },
  'weights': {'rubric': 1.0},
}


@dataclasses.dataclass(frozen=True)
class Toy:
  """A harness of one request."""

  name: str = 'toy'
  version: str = '1'
  dialect: str = 'chat'
  multi_turn: bool = False
  rules: tuple = ()

  def installed(self):
    return True

  async def prepare(self, backend):
    pass

  def plan(self, turns, *, base_url, model='policy'):
    argv = tuple(('toy', base_url, turn) for turn in turns)
    return harness_base.Plan({}, argv, {})


async def _play(command):
  """Asks the proxy once, on the sandbox's socket."""
  _, url, message = command.argv
  path = '/' + url.split('/', 3)[3]
  transport = httpx.AsyncHTTPTransport(
    uds=str(command.spec.socket_dir / base.SOCKET_NAME)
  )
  async with httpx.AsyncClient(transport=transport, timeout=60) as client:
    await client.post(
      f'http://proxy{path}/v1/chat/completions',
      json={'messages': [{'role': 'user', 'content': message}]},
    )
  return base.ExecResult(0)


class Judge(http.server.BaseHTTPRequestHandler):
  """An OpenAI-compatible endpoint; model 'a' gives 1, 'b' 0.5, 'c' fails."""

  keys: list = []

  def do_POST(self):
    body = json.loads(self.rfile.read(int(self.headers['content-length'])))
    Judge.keys.append(self.headers['authorization'])
    value = {'a': 1, 'b': 0.5}.get(body['model'])
    reply = json.dumps({'scores': {'criterion_1': value}, 'notes': ''})
    message = {'role': 'assistant', 'content': reply}
    answer = {
      'id': 'x',
      'object': 'chat.completion',
      'created': 0,
      'model': body['model'],
      'choices': [{'index': 0, 'finish_reason': 'stop', 'message': message}],
      'usage': {
        'prompt_tokens': 1000,
        'completion_tokens': 100,
        'total_tokens': 1100,
      },
    }
    data = json.dumps(answer).encode()
    self.send_response(403 if body['model'] == 'c' else 200)
    self.send_header('content-type', 'application/json')
    self.send_header('content-length', str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  def log_message(self, *_):
    pass


@pytest.fixture
def judge_url():
  Judge.keys = []
  server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Judge)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  yield f'http://127.0.0.1:{server.server_port}/v1'
  server.shutdown()
  server.server_close()
  thread.join()


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
  """Runs the command on one task with a rubric; (status, results)."""
  monkeypatch.setattr(harness_lib, 'load', lambda name, **o: Toy(name))
  monkeypatch.setattr(
    command.sandbox_lib, 'load', lambda name: fake.FakeBackend(_play)
  )
  folder = tmp_path / 'set' / 'one'
  folder.mkdir(parents=True)
  (folder / 'instruction.md').write_text('Say hello.')
  (folder / 'task.toml').write_text(
    f"[metadata.clawjax]\njson = '''{json.dumps(RUBRIC)}'''\n"
  )
  script = tmp_path / 'script.jsonl'
  script.write_text('{"text": "Hello."}\n')

  def run(out, *flags):
    status = command.main(
      [
        *('--tasks', str(tmp_path / 'set'), '--format', 'native'),
        *('--harness', 'toy', '--model', f'scripted:{script}'),
        *('--out', str(tmp_path / out), *flags),
      ]
    )
    path = tmp_path / out / 'results.json'
    return status, json.loads(path.read_text()) if path.exists() else None

  return run


def test_two_judges_through_the_command(
  evaluate, judge_url, tmp_path, monkeypatch, parse
):
  monkeypatch.setenv('SOME_KEY', 'k1')
  flags = ('--judge', 'a', '--judge', 'b', '--judge-url', judge_url)
  flags += ('--judge-key-env', 'SOME_KEY', '--judge-price', '2,10')
  status, found = evaluate('out', *flags)
  assert status == 0 and set(Judge.keys) == {'Bearer k1'}
  (cell,) = found['cells']
  assert cell['scores']['pass1']['value'] == 0.75
  assert cell['judges'] == {
    'a': {'mean': 1.0, 'units': 1},
    'b': {'mean': 0.5, 'units': 1},
  }
  used = cell['used']
  assert (used['calls'], used['tokens_in']) == (2, 2000)
  # 2000 tokens at 2 and 200 at 10 dollars a million.
  assert used['cost'] == pytest.approx(0.006)
  page = parse((tmp_path / 'out' / 'report.html').read_text())
  assert 'Judges and flags' in page.text and '0.01 US dollars' in page.text
  # Another judge is another evaluation; how it is asked is not.
  status, _ = evaluate('out', '--judge', 'a', '--judge-url', judge_url)
  assert status == 2
  count = len(Judge.keys)
  status, _ = evaluate('out', *flags, '--judge-concurrency', '2')
  assert status == 0 and len(Judge.keys) == count


def test_a_judge_that_fails_is_an_error_of_the_rollout(evaluate, judge_url):
  status, found = evaluate('out', '--judge', 'c', '--judge-url', judge_url)
  assert status == 1
  (cell,) = found['cells']
  assert cell['scores']['errors'] == {'verifier_error': 1}
  assert cell['scores']['scored'] == 0 and cell['scores']['zeros'] == 0


def test_a_rubric_without_a_judge_stops_before_anything_runs(evaluate, capsys):
  status, found = evaluate('out')
  assert status == 2 and found is None
  error = capsys.readouterr().err.strip().splitlines()[-1]
  assert '1 tasks of set have a rubric' in error and '--judge' in error


@pytest.mark.parametrize(
  'flags, text',
  [
    (('--judge', 'a', '--judge', 'a'), 'distinct models'),
    (('--judge', 'a', '--judge-price', '3'), 'wanted IN,OUT'),
    (('--judge', 'a', '--judge-concurrency', '0'), '>= 1'),
  ],
)
def test_bad_flags_are_one_line(evaluate, capsys, flags, text):
  status, _ = evaluate('out', *flags)
  assert status == 2
  assert text in capsys.readouterr().err.strip().splitlines()[-1]


def _trial(task, reward, **fields):
  return scores.Trial(task, reward, **fields)


def test_agreement_and_flags_by_hand():
  trials = [
    _trial('t/1', 1.0, by_judge={'a': 1.0, 'b': 1.0}, flags=('read x',)),
    _trial('t/2', 0.5, by_judge={'a': 0.0, 'b': 1.0}),
    _trial('t/3', 0.0, by_judge={'a': 0.0, 'b': 0.0}),
    _trial('t/4', 0.0, by_judge={'a': 1.0, 'b': 1.0}, flags=('read x',)),
    _trial('t/5', None, outcome='verifier_error', flags=('edited test y',)),
  ]
  found = judges.facts(trials)
  assert found['judges'] == {
    'a': {'mean': 0.5, 'units': 4},
    'b': {'mean': 0.75, 'units': 4},
  }
  # One of four differs: observed 1/4. By chance, margins 2/2 and 3/1:
  # (2*1 + 2*3) / 16 = 1/2. Kappa is 1 - 1/2.
  assert found['kappa'] == {'a / b': pytest.approx(0.5)}
  # Alpha: the eight values are five ones and three zeros. Observed: one unit
  # of four with both ordered pairs differing, 2 / 8. Expected:
  # 2 * 5 * 3 / (8 * 7) = 30 / 56. 1 - (1/4) / (30/56) = 8/15.
  assert found['alpha'] == pytest.approx(8 / 15)
  assert found['flags'] == {'read': 2, 'edited test': 1}
  assert judges.facts([_trial('t/1', 1.0)]) == {}


def test_trials_keep_judges_and_flags(parse):
  trial = _trial(
    't/1', 1.0, by_judge={'a': 1.0}, judge={'calls': 1}, flags=('read x',)
  )
  again = scores.trial_from_json(
    json.loads(json.dumps(scores.trial_to_json(trial)))
  )
  assert again == trial
  cell = bench.Cell('m', 'pi', 'set', trials=(trial,))
  page = parse(board.render([cell], board.BoardConfig()))
  assert 'Flags do not change a score' in page.text
