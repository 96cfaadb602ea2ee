"""XML parameter text to JSON values, by the tool's schema.

`<parameter=n>3</parameter>` is text; whether it means 3 or "3" is decided by
the schema: a declared string is taken verbatim, anything else is read as JSON,
then as a Python literal (Qwen templates print True and None), then left as
text. Nothing is evaluated, and nothing is ever dropped for not fitting.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any

_NOT_READ = object()
_LITERAL_LIMIT = 100_000  # Characters; the literal reader is recursive.


def allowed_types(schema: Any, root: Any = None, depth: int = 0) -> set[str]:
  """JSON type names that a schema allows; empty: it does not say."""
  if not isinstance(schema, Mapping) or depth > 8:
    return set()
  root = schema if root is None else root
  found: set[str] = set()
  kind = schema.get('type')
  if isinstance(kind, str):
    found.add(kind)
  elif isinstance(kind, list):
    found.update(k for k in kind if isinstance(k, str))
  for key in ('anyOf', 'oneOf', 'allOf'):
    for option in schema.get(key) or ():
      found |= allowed_types(option, root, depth + 1)
  if not found:
    values = schema.get('enum')
    if not isinstance(values, list):
      values = [schema['const']] if 'const' in schema else []
    found.update(json_type(v) for v in values)
  reference = schema.get('$ref')
  if not found and isinstance(reference, str) and reference.startswith('#/'):
    target: Any = root
    for part in reference[2:].split('/'):
      target = target.get(part) if isinstance(target, Mapping) else None
    found |= allowed_types(target, root, depth + 1)
  if schema.get('nullable') is True:
    found.add('null')
  return found


def json_type(value: Any) -> str:
  """JSON type name of a Python value."""
  if value is None:
    return 'null'
  if isinstance(value, bool):
    return 'boolean'
  if isinstance(value, int):
    return 'integer'
  if isinstance(value, float):
    return 'number'
  if isinstance(value, str):
    return 'string'
  return 'array' if isinstance(value, list) else 'object'


def _reject(name: str) -> Any:
  raise ValueError(f'{name} is not JSON')


def read_json(text: str) -> Any:
  """Strict JSON but for raw control characters in strings.

  Raises:
    ValueError: not JSON, or it holds a number that JSON cannot write.
    RecursionError: nested too deep.
  """
  value = json.loads(text, strict=False, parse_constant=_reject)
  json.dumps(value, allow_nan=False)  # 1e999 reads as infinity.
  return value


def _read_literal(text: str) -> Any:
  if len(text) > _LITERAL_LIMIT:
    return _NOT_READ
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      value = ast.literal_eval(text)
    # Tuples become arrays; sets, bytes and complex numbers are refused.
    return json.loads(json.dumps(value, allow_nan=False))
  except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
    return _NOT_READ


def coerce(text: str, schema: Any, root: Any = None) -> Any:
  """The value of a parameter.

  Args:
    text: parameter text, its two framing newlines already removed.
    schema: JSON schema of the parameter; None: the tool does not declare it.
    root: schema of the whole tool, where `$ref` points into.
  """
  if schema is None:
    return text
  types = allowed_types(schema, root if root is not None else schema)
  word = text.strip()
  if 'null' in types and word == 'null':
    return None
  if 'string' in types:
    return text
  if 'null' in types and word == 'None':
    return None
  if 'boolean' in types and word.lower() in ('true', 'false'):
    return word.lower() == 'true'
  try:
    return read_json(word)
  except (ValueError, RecursionError):
    value = _read_literal(word)
    return text if value is _NOT_READ else value
