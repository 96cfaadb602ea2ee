"""`/v1/responses/compact`: a conversation in, a shorter one out.

The model is asked, at the end of its own conversation, for a summary; so the
call extends what was sampled, is recorded like any other, and has the role
`compaction`. The answer lists the user's messages and one `compaction` item,
whose blob holds the summary. Put into a later `input`, such an item is shown
to the model as the summary (`responses_items`).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from clawjax import errors
from clawjax.proxy import canonical, openai_responses, responses_items

NAME = openai_responses.NAME
error = openai_responses.error
overflow = openai_responses.overflow
FIELDS = openai_responses.FIELDS

# `proxy.roles` knows this by its first words.
ASK = (
  'Summarise this conversation for whoever goes on with it: what was asked, '
  'what has been done and found, which files matter, and what is left to do. '
  'Write only the summary.'
)


def parse(
  body: Mapping[str, Any],
  headers: Mapping[str, str],
  memory: MutableMapping[str, Any],
) -> canonical.Request:
  """The conversation with the question for a summary at its end.

  Raises:
    RequestError: there is no conversation.
  """
  said = openai_responses.resolved(body, memory)
  if not said:
    raise errors.RequestError(
      'input: wanted text, a non-empty list of items, or a '
      'previous_response_id',
      param='input',
    )
  ask = {'type': 'message', 'role': 'user', 'content': ASK}
  whole = {**body, 'input': [*said, ask], 'stream': False, 'store': False}
  whole.pop('previous_response_id', None)
  request = openai_responses.parse(whole, headers, memory)
  request.allow_calls = False
  request.extra['said'] = said
  return request


def whole(
  answer: canonical.Answer, request: canonical.Request
) -> dict[str, Any]:
  """The shorter conversation."""
  kept = [
    {
      'type': 'message',
      'id': f'msg_{answer.id}{i:02d}',
      'status': 'completed',
      'role': 'user',
      'content': _parts(canonical.dict_of(item).get('content')),
    }
    for i, item in enumerate(request.extra['said'])
    if responses_items.side(item) == 'user'
    and responses_items.kind(item) == 'message'
  ]
  compaction = {
    'type': 'compaction',
    'id': f'cmp_{answer.id}',
    'encrypted_content': responses_items.seal(answer.text),
  }
  return {
    'id': 'resp_' + answer.id,
    'object': 'response.compaction',
    'created_at': answer.created,
    'output': [*kept, compaction],
    'usage': openai_responses.usage(answer),
  }


def _parts(content: Any) -> list[Any]:
  if isinstance(content, str):
    return [{'type': 'input_text', 'text': content}]
  return canonical.list_of(content)
