"""A model that grades work against a rubric, over any OpenAI-compatible API.

  judge = Judge(JudgeConfig(model='gpt-5.4'))
  verdict = await judge.score(task, workspace, transcript)   # value in [0, 1]

What counts as an answer is in `prompts`. Here is the rest: retries (a bad reply
is sent back with what was wrong, a failing service waited for), a limit on
concurrent requests, a cache by content, and an account of calls, tokens, cost
and time. A judge that gives no usable answer raises `VerifierError`; it is
never a 0.

Several judges: `Panel` scores with each and takes the mean; `agreement` has the
statistics for the report.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import pathlib
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from clawjax import errors, types
from clawjax.tasks import extract, prompts


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeConfig:
  """How to reach a judge and how to ask.

  Attributes:
    model: name at the endpoint; the paper used GPT-5.4.
    base_url: of an OpenAI-compatible API; '' is the SDK's own default.
    api_key_env: variable that holds the key.
    temperature: of the judge; None leaves it to the endpoint.
    max_tokens: most tokens of an answer.
    timeout_s: of one request.
    retries: attempts after the first.
    backoff_s: wait before the second attempt; doubles with each further one.
    concurrency: requests at a time.
    cache_dir: folder of answers by content; '' for none.
    file_chars: most characters of a file that are shown.
    show_transcript: whether the judge sees the run.
    price_in, price_out: US dollars per million tokens; None: cost unknown.
    trust_flag: take `rubric_passed` of a checklist as the judge says it
      instead of recomputing it from the criteria.
  """

  model: str = 'gpt-5.4'
  base_url: str = ''
  api_key_env: str = 'OPENAI_API_KEY'
  temperature: float | None = 0.0
  max_tokens: int = 4000
  timeout_s: float = 120.0
  retries: int = 3
  backoff_s: float = 1.0
  concurrency: int = 8
  cache_dir: str = ''
  file_chars: int = prompts.FILE_CHARS
  show_transcript: bool = True
  price_in: float | None = None
  price_out: float | None = None
  trust_flag: bool = False


@dataclasses.dataclass
class Account:
  """What a judge did so far; times in seconds, cost in US dollars.

  Attributes:
    calls: requests that were sent.
    cached: answers taken from the cache.
    bad_replies: answers that did not have the form asked for.
    faults: requests that failed.
    disagreements: checklists whose flag differs from their criteria.
    tokens_in, tokens_out: as the endpoint counts them.
    seconds: spent waiting for answers, summed over requests.
  """

  calls: int = 0
  cached: int = 0
  bad_replies: int = 0
  faults: int = 0
  disagreements: int = 0
  tokens_in: int = 0
  tokens_out: int = 0
  seconds: float = 0.0

  def add(self, other: Account) -> None:
    """Adds what another account holds."""
    for field in dataclasses.fields(self):
      total = getattr(self, field.name) + getattr(other, field.name)
      setattr(self, field.name, total)

  def cost(self, config: JudgeConfig) -> float | None:
    """US dollars, or None without prices."""
    if config.price_in is None or config.price_out is None:
      return None
    return (
      self.tokens_in * config.price_in + self.tokens_out * config.price_out
    ) / 1e6


@dataclasses.dataclass(frozen=True)
class Verdict:
  """What a judge said.

  Attributes:
    value: in [0, 1].
    scores: by criterion.
    notes: the judge's own words.
    by_judge: value of each judge, by model name.
    used: what it took.
    cost: US dollars, None when not known.
  """

  value: float
  scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
  notes: str = ''
  by_judge: Mapping[str, float] = dataclasses.field(default_factory=dict)
  used: Account = dataclasses.field(default_factory=Account, compare=False)
  cost: float | None = dataclasses.field(default=None, compare=False)


class Scorer(Protocol):
  """A judge or a panel."""

  async def score(
    self,
    task: types.Task,
    workspace: Mapping[str, bytes],
    transcript: Sequence[types.Message] | None = None,
  ) -> Verdict:
    """Grades a workspace by `task.metadata['judge']`."""


class Judge:
  """One judge.

  Args:
    config: see `JudgeConfig`.
    client: an `openai.AsyncOpenAI`, mainly for tests; made when first needed.
  """

  def __init__(self, config: JudgeConfig, client: Any = None):
    self.config = config
    self.account = Account()
    self._client = client
    self._slots = asyncio.Semaphore(config.concurrency)

  async def score(
    self,
    task: types.Task,
    workspace: Mapping[str, bytes],
    transcript: Sequence[types.Message] | None = None,
  ) -> Verdict:
    """Grades a workspace.

    Raises:
      VerifierError: no usable answer after all attempts.
    """
    used = Account()
    try:
      verdict = await self._score(task, workspace, transcript, used)
    except (extract.NoReader, errors.VerifierError) as error:
      raise errors.VerifierError(f'{task.id}: {error}') from error
    finally:
      self.account.add(used)
    return dataclasses.replace(
      verdict,
      by_judge={self.config.model: verdict.value},
      used=used,
      cost=used.cost(self.config),
    )

  async def _score(
    self,
    task: types.Task,
    workspace: Mapping[str, bytes],
    transcript: Sequence[types.Message] | None,
    used: Account,
  ) -> Verdict:
    asked = task.metadata['judge']
    if not self.config.show_transcript:
      transcript = None
    if asked['kind'] == 'anchors':
      items = asked['items']
      targets = ' '.join(item['text'] for item in items)
      messages = self._prompt(
        task, workspace, transcript, prompts.ask_anchors(items), targets
      )
      return Verdict(
        *await self._ask(
          messages, lambda r: prompts.read_anchors(r, items), used
        )
      )
    if asked['kind'] == 'free':
      messages = self._prompt(
        task, workspace, transcript, prompts.ask_free(asked), asked['text']
      )
      return Verdict(*await self._ask(messages, prompts.read_free, used))
    if asked['kind'] == 'checklist':
      return await self._checklist(task, workspace, asked, used)
    raise errors.VerifierError(
      f'no judge for rubrics of kind {asked["kind"]!r}'
    )

  async def _checklist(
    self,
    task: types.Task,
    workspace: Mapping[str, bytes],
    asked: Mapping[str, Any],
    used: Account,
  ) -> Verdict:
    """One request a rubric; only the output folder is looked at."""
    folder = asked.get('output', '')
    files = {
      path: data
      for path, data in workspace.items()
      if path.startswith(f'{folder}/') or not folder
    }
    rubrics = asked['rubrics']
    weight = sum(r['weight'] for r in rubrics)
    if not weight > 0:
      raise errors.VerifierError('the rubrics have no weight')
    if not files:
      return Verdict(0.0, {}, f'nothing in {folder}/')

    async def one(number: int, item: Mapping[str, Any]) -> tuple[bool, str]:
      messages = self._prompt(
        task, files, None, prompts.ask_checklist(item), item['rubric']
      )
      by_criteria, said, why = await self._ask(
        messages, lambda r: prompts.read_checklist(r, item), used
      )
      used.disagreements += by_criteria != said
      return (said if self.config.trust_flag else by_criteria), why

    done = await _all(one(n, r) for n, r in enumerate(rubrics, 1))
    got = sum(
      r['weight'] for r, (ok, _) in zip(rubrics, done, strict=True) if ok
    )
    scores = {f'rubric_{n}': float(ok) for n, (ok, _) in enumerate(done, 1)}
    rate = sum(ok for ok, _ in done) / len(done)
    return Verdict(round(got / weight, 4), scores, f'pass rate {rate:.4f}')

  def _prompt(
    self,
    task: types.Task,
    workspace: Mapping[str, bytes],
    transcript: Sequence[types.Message] | None,
    asked: str,
    targets: str,
  ) -> list[dict[str, str]]:
    return prompts.build(
      task,
      workspace,
      transcript,
      asked,
      file_chars=self.config.file_chars,
      targets=targets,
    )

  async def _ask(
    self, messages: list[dict[str, str]], read: Any, used: Account
  ) -> Any:
    """Asks until an answer can be read; answers come from the cache first."""
    key = self._key(messages)
    stored = self._stored(key)
    if stored is not None:
      try:
        answer = read(stored)
        used.cached += 1
        return answer
      except prompts.BadReply:
        pass  # the rules of reading have changed; ask again
    wait, problem = self.config.backoff_s, ''
    history = list(messages)
    for attempt in range(self.config.retries + 1):
      if attempt and not problem.startswith('bad reply'):
        await asyncio.sleep(wait)
        wait *= 2
      try:
        reply = await self._request(history, used)
        answer = read(reply)
      except prompts.BadReply as error:
        used.bad_replies += 1
        problem = f'bad reply: {error}'
        history = [
          *messages,
          {'role': 'assistant', 'content': reply},
          {
            'role': 'user',
            'content': f'{error}. Answer again, in the form asked for.',
          },
        ]
        continue
      except _Fault as error:
        used.faults += 1
        problem = str(error)
        if error.final:
          break
        continue
      self._store(key, reply)
      return answer
    raise errors.VerifierError(
      f'judge {self.config.model} gave no usable answer: {problem}'
    )

  async def _request(
    self, messages: list[dict[str, str]], used: Account
  ) -> str:
    import openai

    options: dict[str, Any] = {'max_completion_tokens': self.config.max_tokens}
    if self.config.temperature is not None:
      options['temperature'] = self.config.temperature
    async with self._slots:
      start = time.monotonic()
      used.calls += 1
      try:
        answer = await self._connect().chat.completions.create(
          model=self.config.model, messages=messages, **options
        )
      except openai.APIStatusError as error:
        final = error.status_code in (400, 401, 403, 404, 422)
        raise _Fault(f'HTTP {error.status_code}: {error}', final) from error
      except openai.OpenAIError as error:
        raise _Fault(f'{type(error).__name__}: {error}', False) from error
      finally:
        used.seconds += time.monotonic() - start
    if answer.usage is not None:
      used.tokens_in += answer.usage.prompt_tokens
      used.tokens_out += answer.usage.completion_tokens
    text = answer.choices[0].message.content if answer.choices else None
    if not text:
      raise _Fault('an empty answer', False)
    return text

  def _connect(self) -> Any:
    if self._client is None:
      import openai

      key = os.environ.get(self.config.api_key_env, '')
      if not key and not self.config.base_url:
        raise errors.VerifierError(
          f'no key for the judge: set {self.config.api_key_env}, or give the '
          'base_url of an endpoint that needs none'
        )
      self._client = openai.AsyncOpenAI(
        api_key=key or 'none',
        base_url=self.config.base_url or None,
        timeout=self.config.timeout_s,
        max_retries=0,
      )
    return self._client

  # The cache holds the reply, not the number: a change in how replies are read
  # applies to stored ones too.

  def _key(self, messages: list[dict[str, str]]) -> str:
    content = [
      self.config.model,
      self.config.temperature,
      self.config.max_tokens,
      messages,
    ]
    return hashlib.blake2b(
      json.dumps(content).encode(), digest_size=16
    ).hexdigest()

  def _stored(self, key: str) -> str | None:
    if not self.config.cache_dir:
      return None
    path = pathlib.Path(self.config.cache_dir, f'{key}.json')
    try:
      return str(json.loads(path.read_text('utf-8'))['reply'])
    except (OSError, ValueError, KeyError, TypeError):
      return None

  def _store(self, key: str, reply: str) -> None:
    if not self.config.cache_dir:
      return
    folder = pathlib.Path(self.config.cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f'.{key}.{os.getpid()}.{id(reply)}'
    partial.write_text(
      json.dumps({'model': self.config.model, 'reply': reply}), 'utf-8'
    )
    partial.replace(folder / f'{key}.json')

  async def close(self) -> None:
    """Closes the connection."""
    if self._client is not None:
      await self._client.close()


async def _all(coroutines: Iterable[Awaitable[Any]]) -> list[Any]:
  """All results; the first failure is raised once none is left running."""
  done = await asyncio.gather(*coroutines, return_exceptions=True)
  for result in done:
    if isinstance(result, BaseException):
      raise result
  return done


class _Fault(Exception):
  """A request failed; `final` when asking again cannot help."""

  def __init__(self, text: str, final: bool):
    super().__init__(text)
    self.final = final


class Panel:
  """Several judges; the value is the mean, and each must answer."""

  def __init__(self, judges: Sequence[Judge]):
    if len({j.config.model for j in judges}) != len(judges) or not judges:
      raise ValueError('wanted judges with distinct model names')
    self.judges = tuple(judges)

  async def score(
    self,
    task: types.Task,
    workspace: Mapping[str, bytes],
    transcript: Sequence[types.Message] | None = None,
  ) -> Verdict:
    """Mean of the judges, each judge's value in `by_judge`."""
    verdicts = await _all(
      j.score(task, workspace, transcript) for j in self.judges
    )
    names = [j.config.model for j in self.judges]
    used, costs = Account(), [v.cost for v in verdicts]
    for verdict in verdicts:
      used.add(verdict.used)
    return Verdict(
      sum(v.value for v in verdicts) / len(verdicts),
      {
        f'{name}/{key}': value
        for name, verdict in zip(names, verdicts, strict=True)
        for key, value in verdict.scores.items()
      },
      '\n'.join(
        f'{n}: {v.notes}' for n, v in zip(names, verdicts, strict=True)
      ),
      {n: v.value for n, v in zip(names, verdicts, strict=True)},
      used,
      None if None in costs else sum(costs),
    )

  async def close(self) -> None:
    """Closes all connections."""
    for judge in self.judges:
      await judge.close()
