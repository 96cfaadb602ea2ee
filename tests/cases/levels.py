"""What holds for every case of a level, whatever its own check asks."""

import json

from clawjax.chat import parsing
from tests.cases import clients, reader
from tests.proxy.conftest import extends

USER = {'role': 'user', 'content': 'Do it.'}
OPEN = '<think>\n'
SHUT = '<think>\n\n</think>\n\n'


def machine(case, reasoning, content, calls):
  """The fields that a case gives for machines."""
  expected = case.expected
  if 'parsed' in expected:
    assert reader.same(calls, expected['parsed']), calls
  for field, got in (('reasoning', reasoning), ('content', content)):
    if field in expected:
      assert got.strip('\n') == expected[field].strip('\n'), field


def parsed(case):
  """A `model_output` as the parser reads it."""
  given = case.input
  return parsing.parse_output(
    given['text'],
    tools=given['tools'],
    finish=given['finish'],
    prompt_tail=given.get('prompt_tail', ''),
  )


async def model_output(case, bench):
  """The parser and, in all dialects, whole and streamed, the real app.

  The client is shown what the parser reads, the sampled ids stay whole, and
  the answer can be sent back: the next prompt goes on from it.
  """
  given, read = case.input, parsed(case)
  calls = [
    {'name': c.name, 'arguments': json.loads(c.arguments)} for c in read.calls
  ]
  machine(case, read.reasoning, read.content, calls)
  tail = given.get('prompt_tail', '')
  # No template of ours opens thinking in the prompt: the model does.
  said = OPEN + given['text'] if tail.endswith(OPEN) else given['text']
  options = {'thinking': {'type': 'disabled'}} if tail.endswith(SHUT) else {}
  entry = {'text': said, 'finish': given['finish']}
  for client in clients.ALL:
    if options and client.name != 'anthropic':
      continue
    for stream in (False, True):
      async with bench([entry, 'Done.']) as b:
        got = await clients.ask(
          b, client, [USER], given['tools'], stream=stream, **options
        )
        assert reader.same(got.parsed, calls)
        assert got.reasoning.strip('\n') == read.reasoning.strip('\n')
        assert got.text.split() == read.content.split()
        kind = 'calls' if calls else 'stop'
        if given['finish'] == 'stop':
          assert got.stop == client.stops[kind]
        else:
          assert got.stop in client.stops['cut']
        for call_id, _, arguments in got.calls:
          assert call_id and isinstance(json.loads(arguments), dict)
        (first,) = b.calls()
        whole = b.proxy.tokenizer.encode_markup(said)
        ids = first.sample.token_ids.tolist()
        assert ids[: len(whole)] == whole[: len(ids)]
        assert len(first.sample.logprobs) == len(ids)
        assert first.malformed == read.malformed
        if not got.history or got.stop == 'failed':
          continue  # Nothing was shown: a client has nothing to send back.
        history = [USER, *got.history, *client.results(got, 'out')]
        await clients.ask(b, client, history, given['tools'], **options)
        assert extends(b.calls()[1], first), b.calls()[1].break_cause


async def request(case, bench):
  """No request of a case may fail inside, and none is lost."""
  given = case.input
  path = given['endpoint'].removeprefix('/v1/')
  script = [given.get('model_output', 'ok')]
  async with bench(script, window=given.get('window', 65536)) as b:
    answer = await b.post(path, filled(case.body), headers=headers(case))
    assert answer.status_code in (200, 400, 404), answer.text
    counted = 'count_tokens' not in path and bool(b.client.prompts)
    assert len(b.calls()) == counted
    assert all(c.status == 'ok' for c in b.calls())


def headers(case):
  """A case's own headers."""
  return case.input.get('headers', {})


def filled(value):
  """A body with its "<70k tokens>" replaced by as many words."""
  if isinstance(value, dict):
    return {k: filled(v) for k, v in value.items()}
  if isinstance(value, list):
    return [filled(v) for v in value]
  fillers = {'<70k tokens>': 70_000, '<40k tokens>': 40_000}
  fillers['<over the window>'] = 70_000
  if isinstance(value, str) and value in fillers:
    return 'a ' * fillers[value]  # At least a token each.
  return value
