"""The append-only renderer: a longer conversation extends a shorter one's ids.

A prompt is a head (system text and tools), closed turns, and an opening (the
generation prompt). Each piece is framed by control tokens, and these cut the
tokenizer's view, so ids of pieces are the ids of the whole and each piece is
rendered once in its life:

  head       <|im_start|>system ... <|im_end|> \\n
  turn       <|im_start|>ROLE \\n TEXT <|im_end|> \\n
  opening    <|im_start|>assistant \\n [empty think block]
  (sampled)  ... <|im_end|>
  closing    \\n                       (with <|im_end|> when it was not sampled)

Thinking: 'auto' adds the empty think block when a request switches thinking
off; 'on' never does; 'empty' always does; 'off' knows no think tags at all
(for models that were never shown any).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

from clawjax import errors, types
from clawjax.chat import template, tokenizers

Thinking = Literal['auto', 'on', 'off', 'empty']
_EMPTY_THINK = '<think>\n\n</think>\n\n'


class Renderer:
  """Renders canonical messages to ids; see the top of the file.

  Attributes:
    tokenizer: what turns text into ids.
    thinking: see the top of the file.
    family: template family, see `template.FAMILIES`.
  """

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    *,
    thinking: Thinking = 'auto',
    family: str = 'qwen3',
  ):
    if thinking not in ('auto', 'on', 'off', 'empty'):
      raise errors.ConfigError(
        f'wanted thinking auto, on, off or empty, got {thinking!r}'
      )
    if family not in template.FAMILIES:
      raise errors.ConfigError(
        f'wanted a template family of {template.FAMILIES}, got {family!r}'
      )
    self.tokenizer = tokenizer
    self.thinking = thinking
    self.family = family
    self._newline = tokenizer.encode('\n')
    # Heads are long and shared by all sessions of a harness.
    self._head = functools.lru_cache(maxsize=256)(self._encode_head)
    self._opening = functools.lru_cache(maxsize=2)(self._encode_opening)

  def _framed(self, text: str) -> list[int]:
    t = self.tokenizer
    return [t.im_start, *t.encode(text), t.im_end, *self._newline]

  def _encode_head(self, text: str) -> tuple[int, ...]:
    return tuple(self._framed('system\n' + text)) if text else ()

  def head_text(self, system: str, tools: Sequence[types.Tool]) -> str:
    """Text of the head without control tokens; equal text, equal ids."""
    return template.head(system, tools, family=self.family)

  def head(self, system: str, tools: Sequence[types.Tool]) -> tuple[int, ...]:
    """Ids of the leading system turn with the tools; may be empty."""
    return self._head(self.head_text(system, tools))

  def turn(self, turn: Sequence[types.Message]) -> list[int]:
    """Ids of one closed turn; tool results of one turn share its frame."""
    role, text = template.turn_text(
      turn, family=self.family, thinking=self.thinking != 'off'
    )
    return self._framed(role + text)

  def shows_empty_think(self, thinking: bool | None) -> bool:
    """Whether the opening carries the empty think block.

    Args:
      thinking: what the request asks for; None: nothing said.
    """
    if self.thinking == 'empty':
      return True
    return self.thinking == 'auto' and thinking is False

  def opening(self, thinking: bool | None = None) -> list[int]:
    """Ids of the generation prompt."""
    return list(self._opening(self.shows_empty_think(thinking)))

  def _encode_opening(self, empty_think: bool) -> tuple[int, ...]:
    text = 'assistant\n' + (_EMPTY_THINK if empty_think else '')
    return (self.tokenizer.im_start, *self.tokenizer.encode(text))

  def prefill(self, text: str) -> list[int]:
    """Ids of an open assistant turn that begins with `text`, thinking off."""
    opened = 'assistant\n' + ('' if self.thinking == 'off' else _EMPTY_THINK)
    return [self.tokenizer.im_start, *self.tokenizer.encode(opened + text)]

  def closing(self, last_id: int | None) -> list[int]:
    """Ids that close a sampled turn; never trained.

    Args:
      last_id: the last sampled id; when it is not `<|im_end|>` (cut at the
        token limit, or ended on `<|endoftext|>`), one is added.
    """
    if last_id == self.tokenizer.im_end:
      return list(self._newline)
    return [self.tokenizer.im_end, *self._newline]

  def prompt(
    self,
    messages: Sequence[types.Message],
    tools: Sequence[types.Tool] = (),
    *,
    thinking: bool | None = None,
  ) -> list[int]:
    """Ids of a whole prompt, ending with the generation prompt.

    This is the slow twin of what a proxy session does piece by piece, and
    what supervised training uses.

    Args:
      messages: the conversation; leading system messages are merged.
      tools: offered tools.
      thinking: what the request asks for; None: nothing said.
    """
    system, rest = template.split_system(messages)
    ids = list(self.head(system, tools))
    for turn in template.turns(rest):
      ids += self.turn(turn)
    return ids + self.opening(thinking)
