"""Bodies read from where the last one ended mean what they mean whole."""

from __future__ import annotations

import json

import hypothesis
import orjson
import pytest
from hypothesis import strategies as st

from clawjax.proxy import canonical, growing

TOOLS = [{'name': 'bash', 'about': 'runs "it" ], }, ['}]


def body(items, *, key='messages', before=None, after=None, **how) -> bytes:
  """A request body with a list of messages in the middle."""
  value = {'model': 'm', **(before or {}), key: items}
  value |= {'tools': TOOLS} if after is None else after
  return json.dumps(value, **how).encode()


def turn(i: int) -> list[dict]:
  return [
    {'role': 'assistant', 'content': f'I look "{i}" ]'},
    {'role': 'user', 'content': [{'type': 'text', 'text': f'saw {i}]}},'}]},
  ]


def conversation(n: int) -> list[dict]:
  items = [{'role': 'user', 'content': 'go, "messages": ['}]
  for i in range(n):
    items += turn(i)
  return items


@pytest.mark.parametrize('key', ['messages', 'input'])
@pytest.mark.parametrize(
  'how', [{}, {'separators': (',', ':')}, {'ensure_ascii': False}]
)
def test_known_items_are_the_same_objects(key, how):
  """From the third body on, what was there before is not read again."""
  reader = growing.Reader()
  values = []
  for n in range(5):
    raw = body(conversation(n), key=key, **how)
    values.append(reader.read(raw).value)
    assert values[-1] == json.loads(raw)
  assert all(
    a is b for a, b in zip(values[3][key][:5], values[4][key], strict=False)
  )


def test_only_new_bytes_are_read(monkeypatch):
  """The bytes handed to the JSON reader do not grow with the conversation."""
  reader = growing.Reader()
  sizes = {}
  whole = orjson.loads

  class Counted:
    JSONDecodeError = orjson.JSONDecodeError

    @staticmethod
    def loads(data):
      sizes[n] = sizes.get(n, 0) + len(data)
      return whole(data)

  monkeypatch.setattr(growing, 'orjson', Counted)
  for n in range(200):
    raw = body(conversation(n))
    reader.read(raw)
  added = len(body(conversation(199))) - len(body(conversation(198)))
  tail = len(json.dumps(TOOLS)) + 80
  assert len(raw) > 20_000
  assert max(sizes[n] for n in range(150, 200)) < 2 * added + tail


def test_two_conversations_take_turns():
  reader = growing.Reader()
  for n in range(4):
    for name in ('a', 'b', 'c'):
      raw = body(conversation(n), before={'system': name})
      assert reader.read(raw).value == json.loads(raw)
  known = reader.read(body(conversation(4), before={'system': 'b'})).value
  again = reader.read(body(conversation(5), before={'system': 'b'})).value
  assert known['messages'][0] is again['messages'][0]
  assert known['system'] == again['system'] == 'b'


HOSTILE = [
  # The last of equal keys counts, wherever it stands.
  (b'{"messages":[1]}', b'{"messages":[1,2],"messages":[3]}'),
  (b'{"messages":[1],"t":[2]}', b'{"messages":[1],"t":[2,3]}'),
  (b'{"t":[2],"messages":[1],"t":[2]}', b'{"t":[2],"messages":[1],"t":[2,9]}'),
  # A list of that name that is not the body's own.
  (b'{"a":{"messages":[1]}}', b'{"a":{"messages":[1,2]}}'),
  (b'{"a":[{"messages":[1]}],"b":0}', b'{"a":[{"messages":[1]},2],"b":0}'),
  (b'{"messages":[[1]]}', b'{"messages":[[1,2]]}'),
  # A string that looks like the end of the list.
  (b'{"messages":["x]"]}', b'{"messages":["x,[0],1"]}'),
  (b'{"messages":["x]","y"]}', b'{"messages":["x,1],\\"t\\":[","y"]}'),
  (b'{"m":"\\"messages\\":[1]"}', b'{"m":"\\"messages\\":[1,2]"}'),
  # Broken ones stay broken.
  (b'{"messages":[1]}', b'{"messages":[1,]}'),
  (b'{"messages":[1]}', b'{"messages":[1,2]'),
  (b'{"messages":[1]}', b'{"messages":[1,2]}}'),
  (b'{"messages":[1]}', b'{"messages":[1,"\xff"]}'),
]


@pytest.mark.parametrize(('first', 'second'), HOSTILE)
def test_a_body_means_what_it_means_alone(first, second):
  reader = growing.Reader()
  reader.read(first)
  reader.read(first.replace(b']', b',7]'))
  try:
    wanted = canonical.loads(second)
  except ValueError:
    with pytest.raises(ValueError):
      reader.read(second)
  else:
    assert reader.read(second).value == wanted
    assert growing.Reader().read(second).value == wanted


def test_cache_control_is_seen_wherever_it_stands():
  for place in range(4):
    reader = growing.Reader()
    for n in range(4):
      items = conversation(n)
      if n >= place:
        items[2 * place]['cache_control'] = {'type': 'ephemeral'}
      marked = reader.read(body(items)).marked
      assert marked is (n >= place)


PLAIN = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-9, 9)
  | st.text('a"\\],[{}: é', max_size=6),
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(['messages', 'input', 'a', '']), inner)
  ),
  max_leaves=6,
)


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(data=st.data())
def test_any_sequence_of_bodies_reads_as_each_alone(data):
  """Growing lists, other keys, and bytes cut, doubled or swapped at random."""
  reader = growing.Reader()
  items: list = []
  fixed = {'messages': [], 'tools': data.draw(PLAIN)}
  raw = b''
  for _ in range(data.draw(st.integers(2, 7))):
    step = data.draw(st.sampled_from(['grow', 'grow', 'grow', 'key', 'bytes']))
    if step == 'grow':
      items = items + data.draw(st.lists(PLAIN, min_size=1, max_size=2))
    elif step == 'key':
      fixed = {**fixed, data.draw(st.sampled_from('abc')): data.draw(PLAIN)}
    raw = json.dumps({**fixed, 'messages': items}).encode()
    if step == 'bytes' and raw:
      at = data.draw(st.integers(0, len(raw)))
      bit = data.draw(
        st.sampled_from([b'', b']', b',', b'"', b',1', b'],"a":['])
      )
      raw = raw[:at] + bit + raw[at + data.draw(st.integers(0, 3)) :]
    try:
      wanted = canonical.loads(raw)
    except ValueError:
      with pytest.raises(ValueError):
        reader.read(raw)
      continue
    assert reader.read(raw).value == wanted
