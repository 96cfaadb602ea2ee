"""What a config file says, section by section.

`configs/*.py` return a `ConfigDict` whose sections are the dataclasses below and
those of the packages (`train.loop.LoopConfig` and so on).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from clawjax.losses import grpo
from clawjax.models import sharding as sharding_lib
from clawjax.tasks import judge, scoring
from clawjax.train import loop, pod, service, sft, step
from clawjax.train import state as state_lib
from clawjax.train import value as value_lib


@dataclasses.dataclass(frozen=True)
class ModelSection:
  """Which weights to start from.

  Attributes:
    path: 'builtin:tiny' or 'builtin:tiny_mix' (a model of 2 M parameters that
      knows our tasks through pi, or through pi, Claude Code and Codex; they
      ship with us), a Hugging Face folder, or
      'random:PRESET' for fresh weights.
    options: fields to set over the model's config (`models.Config`).
  """

  path: str = 'builtin:tiny'
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EngineSection:
  """The engine that serves rollouts.

  Attributes:
    slots: sequences that decode side by side.
    window: tokens of prompt and answer together.
    page_size: tokens of a cache page.
    burst: decode steps per device call.
    max_chunk: most tokens per prefill call.
    tensor: devices of process 0 that its heads are cut along.
    urls: servers elsewhere (`python -m clawjax.serving`) that sample instead;
      the keys above are then theirs. (): this process serves.
    weights_dir: folder or `gs://` address that trainer and servers reach, for
      new weights; wanted with `urls`.
    admin_token_env: variable that holds the servers' admin token.
  """

  slots: int = 8
  window: int = 2048
  page_size: int = 16
  burst: int = 16
  max_chunk: int = 512
  tensor: int = 1
  urls: tuple[str, ...] = ()
  weights_dir: str = ''
  admin_token_env: str = 'CLAWJAX_ADMIN_TOKEN'

  def __post_init__(self):
    if bool(self.urls) != bool(self.weights_dir):
      raise ValueError(
        'urls and weights_dir go together: servers elsewhere read new weights'
        f' from it; got {self.urls} and {self.weights_dir!r}'
      )


@dataclasses.dataclass(frozen=True)
class HarnessSection:
  """A harness to train or evaluate through.

  One of your own is an entry with the name 'template':

    c.harnesses.toy = dict(name='template', options=dict(
        dialect='chat', fixed_version='0.1', readonly=(('~/toy', '/opt/toy'),),
        argv=('python3', '/opt/toy/toy.py', '{base_url}', '{prompt}')))

  Attributes:
    name: see `clawjax.harness.NAMES`; '': the section's own key. 'template' is
      one given as data, see `harness.template`, and is called as the key.
    options: of its class; `mcp` are its tool servers, see `harness.mcp`.
  """

  name: str = ''
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SandboxSection:
  """Where rollouts and verifiers run.

  Attributes:
    backend: 'bwrap', 'docker' or 'fake'.
    options: of the backend's class.
    limits: fields to set over `sandbox.base.Limits`.
  """

  backend: str = 'bwrap'
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RolloutSection:
  """Limits of one rollout.

  Attributes:
    temperature: of sampling, in training and in the sampled evaluation.
    max_tokens: most tokens of one answer.
    token_budget: most tokens sampled in a session, or None.
    time_limit_s: seconds for the harness; None: the task's own.
  """

  temperature: float = 1.0
  max_tokens: int | None = None
  token_budget: int | None = None
  time_limit_s: float | None = None


@dataclasses.dataclass(frozen=True)
class TasksSection:
  """Generated workspace tasks, or a task set that the user has.

  Attributes:
    train: number of training tasks.
    difficulty: 0, 1 or 2.
    families: names, () for all.
    seed: of the draw, apart from the run's seed.
    path: folder or file of a task set; '': tasks are generated, by the three
      keys above.
    format: of the set, see `tasks.formats`.
    eval_path: another set for evaluation; '': a quarter of `path`, by the ids,
      which is then not trained on.
    allow: reasons that do not keep a task out, see `tasks.formats.ALLOW`.
  """

  train: int = 512
  difficulty: int = 0
  families: tuple[str, ...] = ()
  seed: int = 0
  path: str = ''
  format: str = 'native'
  eval_path: str = ''
  allow: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class JudgeSection:
  """Models that grade rubrics, and what else a score is made of.

  Attributes:
    models: names at the endpoint, () for no judge; several are a panel, whose
      mean counts. The paper's judge is ('gpt-5.4',).
    base_url: of an OpenAI-compatible API; '' is the SDK's own default.
    api_key_env: variable that holds the key.
    concurrency: requests at a time, of each judge.
    cache_dir: folder of answers by content; '' for none.
    code_only, renormalise_missing, aliases, process, canaries: see
      `tasks.scoring.Scoring`.
  """

  models: tuple[str, ...] = ()
  base_url: str = ''
  api_key_env: str = 'OPENAI_API_KEY'
  concurrency: int = 8
  cache_dir: str = ''
  code_only: bool = False
  renormalise_missing: bool = False
  aliases: bool = True
  process: scoring.Process = 'off'
  canaries: bool = False

  def __post_init__(self):
    if self.concurrency < 1:
      raise ValueError(f'wanted concurrency >= 1, got {self.concurrency}')
    self.build()  # refuses the same model twice

  def build(self) -> scoring.Scoring:
    """The options as rollouts take them."""
    return scoring.Scoring(
      judges=tuple(
        judge.JudgeConfig(
          model=model,
          base_url=self.base_url,
          api_key_env=self.api_key_env,
          concurrency=self.concurrency,
          cache_dir=self.cache_dir,
        )
        for model in self.models
      ),
      code_only=self.code_only,
      renormalise_missing=self.renormalise_missing,
      aliases=self.aliases,
      process=self.process,
      canaries=self.canaries,
    )


@dataclasses.dataclass(frozen=True)
class ExpertSection:
  """The scripted teacher of the cold start.

  Attributes:
    trajectories: tasks that it plays.
    skill: 1 never errs; see `tasks.synth.expert`.
    seed: of its mistakes.
    rename: deal the names in a trajectory out anew at each use.
  """

  trajectories: int = 1000
  skill: float = 1.0
  seed: int = 0
  rename: bool = False


@dataclasses.dataclass(frozen=True)
class Experiment:
  """Everything that a run is made of.

  Attributes:
    name: of the run folder, unless one is given.
    kind: 'rl' or 'sft'.
    seed: of the run; goes into every draw.
    tokenizer: see `chat.tokenizers.load`.
    thinking: whether the model thinks, see `chat.render.Renderer`.
    export: folder for the final weights (Hugging Face layout), or ''.
    train_on: which of `harnesses` are trained through, () for all; the
      evaluation goes through all.
    pod: the processes of the run, see `train.pod`.
    mesh: devices of the trainer, see `models.sharding`.
    the rest: see the sections.
  """

  name: str
  kind: Literal['rl', 'sft'] = 'rl'
  seed: int = 0
  tokenizer: str = 'tiny'
  thinking: Literal['auto', 'on', 'off'] = 'auto'
  export: str = ''
  train_on: tuple[str, ...] = ()
  pod: pod.PodConfig = pod.PodConfig()
  mesh: sharding_lib.MeshConfig = sharding_lib.MeshConfig()
  model: ModelSection = ModelSection()
  engine: EngineSection = EngineSection()
  harnesses: Mapping[str, HarnessSection] = dataclasses.field(
    default_factory=lambda: {'pi': HarnessSection()}
  )
  sandbox: SandboxSection = SandboxSection()
  rollout: RolloutSection = RolloutSection()
  fleet: service.FleetConfig = service.FleetConfig()
  tasks: TasksSection = TasksSection()
  judge: JudgeSection = JudgeSection()
  forward: step.ForwardConfig = step.ForwardConfig()
  loss: grpo.PolicyLossConfig = grpo.PolicyLossConfig()
  optim: state_lib.OptimConfig = state_lib.OptimConfig()
  critic: value_lib.CriticConfig = value_lib.CriticConfig()
  loop: loop.LoopConfig = loop.LoopConfig()
  expert: ExpertSection = ExpertSection()
  sft: sft.SftConfig = sft.SftConfig()

  def __post_init__(self):
    if not self.harnesses:
      raise ValueError('harnesses: wanted at least one')
    if unknown := set(self.train_on) - set(self.harnesses):
      raise ValueError(
        f'train_on: no harness {", ".join(sorted(unknown))} in harnesses'
        f' ({", ".join(self.harnesses)})'
      )
    if self.forward.temperature != self.rollout.temperature:
      raise ValueError(
        'forward.temperature and rollout.temperature must agree, or the'
        ' trained distribution is not the sampled one; got'
        f' {self.forward.temperature} and {self.rollout.temperature}'
      )
    if self.judge.models and not self.tasks.path:
      raise ValueError(
        'judge.models: generated tasks have no rubric to be judged by; set'
        ' tasks.path to a set that has'
      )
    if self.loop.seed or self.sft.seed:
      raise ValueError('set seed at the top, not loop.seed or sft.seed')
