"""ConfigDict sections become frozen dataclasses, strictly.

An experiment file returns a nested `ml_collections.ConfigDict`; `build` turns
one section into the dataclass that a package takes. Every key must name a
field, every value must have the field's type (an int is accepted where a float
is wanted, a list where a tuple is), and a dataclass may check itself in
`__post_init__` by raising ValueError. What goes wrong is one `ConfigError`
naming the dotted key, what was wanted and what came.

`to_dict` and `save` write the resolved config, so that a run folder says what
ran; `load` reads it back.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import json
import pathlib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import ml_collections

from clawjax import errors

T = TypeVar('T')


def build(cls: type[T], section: Mapping[str, Any], *, path: str = '') -> T:
  """Builds dataclass `cls` from a mapping, strictly.

  Args:
    cls: a dataclass; fields may be dataclasses themselves.
    section: nested mapping (a `ConfigDict` or a dict).
    path: dotted name of the section, for messages.

  Raises:
    ConfigError: unknown key, missing key, wrong type, or a value that the
      dataclass refuses.
  """
  hints = typing.get_type_hints(cls)
  fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
  values = {}
  for key, value in section.items():
    name = _join(path, key)
    if key not in fields:
      near = difflib.get_close_matches(key, fields, n=1)
      hint = f'; did you mean {_join(path, near[0])!r}?' if near else ''
      known = ', '.join(sorted(fields))
      raise errors.ConfigError(
        f'unknown config key {name!r}{hint} (known here: {known})'
      )
    values[key] = _convert(hints[key], value, name)
  missing = [
    name
    for name, f in fields.items()
    if name not in values
    and f.default is dataclasses.MISSING
    and f.default_factory is dataclasses.MISSING
  ]
  if missing:
    raise errors.ConfigError(
      f'config key {_join(path, missing[0])!r} is missing and has no default'
    )
  try:
    return cls(**values)
  except ValueError as error:
    raise errors.ConfigError(f'config section {path or "top"!r}: {error}')  # noqa: B904


def template(cls: type, **known: Any) -> ml_collections.ConfigDict:
  """A `ConfigDict` with every key of a dataclass at its default.

  An experiment file starts from this and sets what it wants otherwise, so that
  every key can be overridden on the command line, with its type checked there.

  Args:
    cls: a dataclass; nested ones become sections.
    **known: values of fields that have no default.
  """
  hints = typing.get_type_hints(cls)
  out = ml_collections.ConfigDict()
  for field in dataclasses.fields(cls):
    hint = hints[field.name]
    if field.name in known:
      value = known[field.name]
    elif field.default is not dataclasses.MISSING:
      value = field.default
    elif field.default_factory is not dataclasses.MISSING:
      value = field.default_factory()
    else:
      raise errors.ConfigError(f'{field.name!r} has no default; give one')
    out[field.name] = _template_value(hint, value)
  return out


def _template_value(hint: Any, value: Any) -> Any:
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    current = {
      f.name: getattr(value, f.name) for f in dataclasses.fields(value)
    }
    return template(type(value), **current)
  if value is None:
    # So that `--config.key=3` knows which type to read.
    options = [a for a in typing.get_args(hint) if a is not type(None)]
    plain = [a for a in options if a in (int, float, str, bool)]
    if plain:
      return ml_collections.config_dict.placeholder(plain[0])
    return None
  if _is_mapping(value):
    out = ml_collections.ConfigDict()
    for key, item in value.items():
      out[key] = _template_value(Any, item)
    return out
  return value


def to_dict(config: Any) -> Any:
  """The config as plain JSON values."""
  if dataclasses.is_dataclass(config) and not isinstance(config, type):
    return {
      f.name: to_dict(getattr(config, f.name))
      for f in dataclasses.fields(config)
    }
  if _is_mapping(config):
    return {str(k): to_dict(v) for k, v in config.items()}
  if isinstance(config, (list, tuple)):
    return [to_dict(v) for v in config]
  return config


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
  """Dotted key -> value, for printing and for comparing two configs."""
  data = to_dict(config)
  flat: dict[str, Any] = {}
  for key, value in data.items():
    name = _join(prefix, key)
    if isinstance(value, dict) and value:
      flat |= flatten(value, name)
    else:
      flat[name] = value
  return flat


def save(config: Any, path: pathlib.Path) -> None:
  """Writes the config as JSON, atomically."""
  temporary = path.with_suffix('.tmp')
  temporary.write_text(json.dumps(to_dict(config), indent=2) + '\n')
  temporary.replace(path)


def load(cls: type[T], path: pathlib.Path) -> T:
  """Reads what `save` wrote.

  Raises:
    ConfigError: the file is absent, is not JSON, or does not fit `cls`.
  """
  try:
    data = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise errors.ConfigError(f'cannot read config {path}: {error}') from error
  return build(cls, data)


def _is_mapping(value: Any) -> bool:
  # ConfigDict is not registered as a Mapping.
  return isinstance(value, (collections.abc.Mapping, ml_collections.ConfigDict))


def _join(path: str, key: str) -> str:
  return f'{path}.{key}' if path else str(key)


def _convert(hint: Any, value: Any, name: str) -> Any:
  origin = typing.get_origin(hint)
  args = typing.get_args(hint)
  if origin is typing.Literal:
    if value not in args:
      options = ', '.join(repr(a) for a in args)
      raise errors.ConfigError(
        f'config key {name!r}: wanted one of {options}; got {value!r}'
      )
    return value
  if origin in (typing.Union, types.UnionType):
    if value is None and type(None) in args:
      return None
    rest = [a for a in args if a is not type(None)]
    failure = None
    for option in rest:
      try:
        return _convert(option, value, name)
      except errors.ConfigError as error:
        failure = failure or error
    assert failure is not None
    raise failure
  if dataclasses.is_dataclass(hint) and isinstance(hint, type):
    if isinstance(value, hint):
      return value
    if not _is_mapping(value):
      raise _mismatch(name, f'a section ({hint.__name__})', value)
    return build(hint, value, path=name)
  if origin is tuple:
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
      raise _mismatch(name, 'a list', value)
    kinds = (
      [args[0]] * len(value) if len(args) == 2 and args[1] is ... else args
    )
    if len(kinds) != len(value):
      raise _mismatch(name, f'a list of {len(kinds)}', value)
    return tuple(
      _convert(kind, item, f'{name}[{i}]')
      for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )
  if origin in (dict, collections.abc.Mapping):
    if not _is_mapping(value):
      raise _mismatch(name, 'a mapping', value)
    kind = args[1] if args else Any
    return {k: _convert(kind, v, _join(name, k)) for k, v in value.items()}
  if hint is Any:
    return to_dict(value)
  if hint is float and type(value) in (int, float):
    return float(value)
  if hint in (int, float, str, bool):
    if type(value) is hint:
      return value
    raise _mismatch(name, hint.__name__, value)
  if hint is dict and _is_mapping(value):
    return to_dict(value)
  raise _mismatch(name, str(hint), value)


def _mismatch(name: str, wanted: str, value: Any) -> errors.ConfigError:
  return errors.ConfigError(
    f'config key {name!r}: wanted {wanted}; got {value!r}'
    f' ({type(value).__name__})'
  )
