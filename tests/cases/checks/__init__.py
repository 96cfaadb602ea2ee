"""One module a kind; importing them registers their checks."""

from tests.cases.checks import (
  chat,
  messages,
  operations,
  parsing,
  prefix,
  reasoning,
  responses,
  template,
)

__all__ = [
  'messages',
  'chat',
  'operations',
  'parsing',
  'prefix',
  'reasoning',
  'responses',
  'template',
]
