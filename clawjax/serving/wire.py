"""How a prompt and its sample travel over HTTP: JSON, or msgpack for size.

  POST /v1/sample  {"prompt_ids", "params", "session_id", "call_index",
                    "request_id", "stream"}
  answer           {"sample": {...}, "policy_version": n}
  streamed         one JSON object per line: {"token_ids", "logprobs",
                   "policy_version"} per burst, the answer as the last line
  error            {"error": {"kind", "message"}}

In msgpack an array is an ext value of type 1: dtype name, shape and raw bytes,
so float32 log-probs arrive bit for bit. In JSON they are decimal numbers with
all digits. `STATUS` maps an `EngineError.kind` to its HTTP status and back by
the kind in the body.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from clawjax.errors import EngineError
from clawjax.types import Sample, SamplingParams, sample_from_json, to_json

JSON = 'application/json'
MSGPACK = 'application/msgpack'
_ARRAY = 1
_DTYPES = ('int16', 'int32', 'float32')

STATUS = {
  'bad_request': 400,
  'bad_params': 400,
  'too_long': 413,
  'busy': 503,
  'closed': 503,
  'non_finite': 500,
  'crashed': 500,
}


def _pack_array(value: Any) -> Any:
  import msgpack

  if isinstance(value, np.ndarray):
    head = [value.dtype.name, list(value.shape)]
    return msgpack.ExtType(
      _ARRAY, msgpack.packb([*head, np.ascontiguousarray(value).tobytes()])
    )
  if isinstance(value, np.generic):
    return value.item()
  raise TypeError(f'cannot send a {type(value).__name__}')


def _unpack_array(code: int, data: bytes) -> Any:
  import msgpack

  if code != _ARRAY:
    raise ValueError(f'unknown ext type {code}')
  dtype, shape, raw = msgpack.unpackb(data)
  if dtype not in _DTYPES:
    raise ValueError(f'wanted one of {_DTYPES}, got {dtype!r}')
  return np.frombuffer(raw, dtype).reshape(shape)


def dump(data: Mapping[str, Any], kind: str) -> bytes:
  """Bytes of a message; arrays are allowed in msgpack only."""
  if kind == MSGPACK:
    import msgpack

    return msgpack.packb(data, default=_pack_array)
  return json.dumps(data, allow_nan=False).encode()


def load(body: bytes, kind: str) -> dict[str, Any]:
  """The message in `body`.

  Raises:
    EngineError: 'bad_request', it cannot be read.
  """
  try:
    if kind.partition(';')[0].strip() == MSGPACK:
      import msgpack

      data = msgpack.unpackb(body, ext_hook=_unpack_array)
    else:
      data = json.loads(body)
    if not isinstance(data, dict):
      raise ValueError(f'wanted an object, got {type(data).__name__}')
  except Exception as error:
    raise EngineError(
      f'cannot read the message: {error}', kind='bad_request'
    ) from error
  return data


def sample_message(sample: Sample, kind: str) -> dict[str, Any]:
  """A sample as JSON values, or with its arrays whole for msgpack."""
  if kind == MSGPACK:
    return {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample)}
  return to_json(sample)


def sample_from_message(data: Mapping[str, Any]) -> Sample:
  """Inverse of `sample_message`, from either form."""
  return sample_from_json(data)


def params_from_message(data: Any) -> SamplingParams:
  """Sampling parameters, strictly.

  Raises:
    EngineError: 'bad_request', a field is unknown or of a wrong type.
  """
  known = {f.name: f for f in dataclasses.fields(SamplingParams)}
  if not isinstance(data, Mapping) or not set(data) <= set(known):
    raise EngineError(
      f'wanted params with fields of {sorted(known)}, got {data!r}',
      kind='bad_request',
    )
  out = dict(data)
  try:
    for name in ('temperature', 'top_p', 'min_p'):
      if name in out:
        out[name] = float(out[name])
    for name in ('top_k', 'seed'):
      if name in out:
        out[name] = int(out[name])
    if out.get('max_tokens') is not None:
      out['max_tokens'] = int(out['max_tokens'])
    out['stop'] = tuple(str(s) for s in out.get('stop', ()))
    out['stop_ids'] = tuple(int(i) for i in out.get('stop_ids', ()))
    out['return_routes'] = bool(out.get('return_routes', False))
    return SamplingParams(**out)
  except (TypeError, ValueError) as error:
    raise EngineError(
      f'params of a wrong type: {error}', kind='bad_request'
    ) from error


def ids_from_message(value: Any) -> np.ndarray:
  """Prompt ids as int32 [N].

  Raises:
    EngineError: 'bad_request', they are not a row of integers.
  """
  try:
    ids = np.asarray(value)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in 'iu'):
      raise ValueError(f'got {ids.dtype} of shape {ids.shape}')
    if ids.size and (ids.min() < 0 or ids.max() > 2**31 - 1):
      raise ValueError('ids out of range')
    return ids.astype(np.int32)
  except (TypeError, ValueError, OverflowError) as error:
    raise EngineError(
      f'wanted prompt_ids as a list of integers: {error}', kind='bad_request'
    ) from error
