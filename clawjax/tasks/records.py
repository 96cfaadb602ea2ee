"""Tasks and rollouts as records: bytes that `tensorflow-datasets` reads as well.

A record is a serialised `tf.train.Example` with the texts `id` and `json`, and
beside them what one filters by, so that a filter need not parse the whole. The
few lines of the protocol buffer wire format that this needs are here, so that
reading a data set needs no TensorFlow.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from clawjax import types

Item = types.Task | types.Rollout
Kind = Literal['tasks', 'rollouts']


# ---- tasks as JSON ---------------------------------------------------------


def _bytes_to_json(data: bytes) -> Any:
  try:
    return data.decode('utf-8')
  except UnicodeDecodeError:
    return {'base64': base64.b64encode(data).decode()}


def _bytes_from_json(value: Any) -> bytes:
  if isinstance(value, str):
    return value.encode()
  return base64.b64decode(value['base64'])


def task_to_json(task: types.Task) -> dict[str, Any]:
  """A JSON-ready dict; files that are no UTF-8 as base64."""
  verifier = task.verifier
  return {
    'id': task.id,
    'turns': list(task.turns),
    'files': {p: _bytes_to_json(d) for p, d in task.files.items()},
    'verifier': None
    if verifier is None
    else {
      'files': {p: _bytes_to_json(d) for p, d in verifier.files.items()},
      'command': list(verifier.command),
      'output': verifier.output,
      'timeout_s': verifier.timeout_s,
    },
    'time_limit_s': task.time_limit_s,
    'metadata': dict(task.metadata),
  }


def task_from_json(data: Mapping[str, Any]) -> types.Task:
  """Inverse of `task_to_json`."""
  verifier = data['verifier']
  return types.Task(
    id=data['id'],
    turns=tuple(data['turns']),
    files={p: _bytes_from_json(d) for p, d in data['files'].items()},
    verifier=None
    if verifier is None
    else types.Verifier(
      files={p: _bytes_from_json(d) for p, d in verifier['files'].items()},
      command=tuple(verifier['command']),
      output=verifier['output'],
      timeout_s=verifier['timeout_s'],
    ),
    time_limit_s=data['time_limit_s'],
    metadata=data['metadata'],
  )


# ---- records ---------------------------------------------------------------

# Fields of a record; those of NUMBERS are float32, the others UTF-8 text.
FIELDS: Mapping[Kind, tuple[str, ...]] = {
  'tasks': ('id', 'domain', 'json'),
  'rollouts': ('id', 'task_id', 'harness', 'outcome', 'reward', 'json'),
}
NUMBERS = ('reward',)


def encode(item: Item) -> bytes:
  """A task or rollout as a serialised `tf.train.Example`."""
  fields: dict[str, bytes | float]
  if isinstance(item, types.Task):
    fields = {
      'id': item.id.encode(),
      'domain': str(item.metadata.get('domain', '')).encode(),
      'json': json.dumps(task_to_json(item)).encode(),
    }
  else:
    fields = {
      'id': item.rollout_id.encode(),
      'task_id': item.task_id.encode(),
      'harness': item.harness.encode(),
      'outcome': item.outcome.encode(),
      # Unknown is not 0.
      'reward': math.nan if item.reward is None else item.reward,
      'json': types.dumps(item).encode(),
    }
  entries = b''
  for name in sorted(fields):
    value = fields[name]
    if isinstance(value, bytes):
      feature = _field(1, _field(1, value))
    else:
      feature = _field(2, _field(1, struct.pack('<f', value)))
    entries += _field(1, _field(1, name.encode()) + _field(2, feature))
  return _field(1, entries)


def fields(record: bytes) -> dict[str, bytes | float]:
  """The fields of a record; the inverse of the last step of `encode`.

  Raises:
    ValueError: it is no such record.
  """
  found: dict[str, bytes | float] = {}
  for _, features in _parts(record):
    for _, entry in _parts(features):
      pair = dict(_parts(entry))
      ((kind, values),) = _parts(pair[2])
      ((_, value),) = _parts(values)
      number = struct.unpack('<f', value)[0] if kind == 2 else value
      found[pair[1].decode()] = number
  return found


def decode(record: bytes, kind: Kind) -> Item:
  """Inverse of `encode`."""
  text = fields(record)['json']
  assert isinstance(text, bytes)
  data = json.loads(text)
  return (
    task_from_json(data) if kind == 'tasks' else types.rollout_from_json(data)
  )


# The protocol buffer wire format, as far as an Example needs it: fields of
# type 2, a tag, a length and that many bytes.


def _varint(value: int) -> bytes:
  out = bytearray()
  while value > 127:
    out.append(value & 127 | 128)
    value >>= 7
  return bytes([*out, value])


def _field(number: int, data: bytes) -> bytes:
  return _varint(number << 3 | 2) + _varint(len(data)) + data


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
  at = 0
  while at < len(data):
    tag, at = _read_varint(data, at)
    length, at = _read_varint(data, at)
    if tag & 7 != 2 or at + length > len(data):
      raise ValueError('wanted a record of ours, got other bytes')
    yield tag >> 3, data[at : at + length]
    at += length


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    if at >= len(data):
      raise ValueError('wanted a record of ours, got a cut one')
    byte = data[at]
    value |= (byte & 127) << shift
    at, shift = at + 1, shift + 7
    if byte < 128:
      return value, at
