"""`/v1/responses/compact` with the official client, and what follows it."""

import openai
import pytest

from tests.proxy.conftest import BASH_RESPONSES, call, extends

ASKED = 'Count the files of this folder, please.'
SUMMARY = 'The user wants a count of files. There are two of them, a and b.'


async def test_a_conversation_is_compacted_and_goes_on(bench):
  script = [call('ls -a .', thinking='look'), SUMMARY, 'Two.']
  opened = {'metadata': {'instruction': ASKED}}
  async with bench(script, opened=opened) as b:
    client = b.openai()
    options = {'model': 'm', 'instructions': 'S'}
    items = [{'type': 'message', 'role': 'user', 'content': ASKED}]
    first = await client.responses.create(
      **options, input=items, tools=[BASH_RESPONSES], store=False
    )
    items += [o.model_dump(exclude_none=True) for o in first.output]
    items.append(
      {
        'type': 'function_call_output',
        'call_id': first.output[-1].call_id,
        'output': 'a\nb',
      }
    )
    short = await client.responses.compact(
      **options, input=items, extra_body={'tools': [BASH_RESPONSES]}
    )
    assert short.object == 'response.compaction'
    assert [o.type for o in short.output] == ['message', 'compaction']
    assert short.output[0].content[0].text == ASKED
    assert short.usage.input_tokens == len(b.calls()[1].prompt_ids)
    kept = [
      o.model_dump(exclude_none=True, warnings=False) for o in short.output
    ]
    await client.responses.create(
      **options,
      input=[*kept, {'role': 'user', 'content': 'So?'}],
      tools=[BASH_RESPONSES],
      store=False,
    )
    c0, c1, c2 = b.calls()
    # The question for a summary goes on from what was sampled.
    assert extends(c1, c0) and c1.text == SUMMARY
    assert [c.role for c in b.calls()] == ['main', 'compaction', 'compaction']
    text = b.shown(c2)
    assert text.index(ASKED) < text.index(SUMMARY) < text.index('So?')
    assert 'a\nb' not in text


async def test_stored_responses_and_foreign_blobs(bench):
  async with bench(['One.', SUMMARY, 'x']) as b:
    client = b.openai()
    first = await client.responses.create(model='m', input=ASKED)
    short = await client.responses.compact(
      model='m', previous_response_id=first.id
    )
    assert [o.type for o in short.output] == ['message', 'compaction']
    assert extends(b.calls()[1], b.calls()[0])
    foreign = {'type': 'compaction', 'encrypted_content': 'gAAAA'}
    await client.responses.create(
      model='m', input=[foreign, {'role': 'user', 'content': 'So?'}]
    )
    assert 'gAAAA' not in b.shown(b.calls()[2])
    with pytest.raises(openai.BadRequestError, match='input'):
      await client.responses.compact(model='m')
