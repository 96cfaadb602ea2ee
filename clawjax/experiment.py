"""One experiment: a config file becomes parts, the parts become a run.

`configs/*.py` return a `ConfigDict` whose sections are the dataclasses below;
`main` checks all of it before anything is started, prints and saves what it
resolved to, makes the parts (tokenizer, model, engine, proxy, sandbox, harness,
tasks) and hands them to `train.loop` (kind 'rl') or `train.sft` (kind 'sft').
What a person can put right is a `ClawjaxError` of one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import ml_collections
import numpy as np

from clawjax import config as config_lib
from clawjax import errors, types
from clawjax import harness as harness_lib
from clawjax import sandbox as sandbox_lib
from clawjax.chat import tokenizers
from clawjax.losses import grpo
from clawjax.models import checkpoint as model_files
from clawjax.models import qwen3
from clawjax.proxy.app import Proxy, ProxyConfig
from clawjax.rollout import run as run_lib
from clawjax.sandbox import base as sandbox_base
from clawjax.serving.engine import Engine
from clawjax.serving.scheduler import Scheduler
from clawjax.tasks import formats, judge, scoring, synth, words
from clawjax.train import (
  captured,
  drill,
  expert,
  loop,
  progress,
  service,
  sft,
  step,
)
from clawjax.train import state as state_lib
from clawjax.train import value as value_lib

DATA = pathlib.Path(__file__).with_name('train') / 'data'
# Keys that a resumed run may change; the rest would make it another run.
FREE_KEYS = (
  'loop.steps',
  'loop.keep_checkpoints',
  'loop.collect.concurrency',
  'sft.steps',
  'sft.log_every',
  'sft.save_every',
  'fleet.kind',
  'fleet.memory_mib',
  'fleet.ray.address',
  'fleet.ray.resource',
  'fleet.ray.slots',
  'fleet.ray.engine_port',
  'fleet.ray.poll_s',
  'judge.api_key_env',
  'judge.concurrency',
  'judge.cache_dir',
  'export',
)


# ---- sections --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ModelSection:
  """Which weights to start from.

  Attributes:
    path: 'builtin:tiny' (ships with us), a Hugging Face folder, or
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
  """

  slots: int = 8
  window: int = 2048
  page_size: int = 16
  burst: int = 16
  max_chunk: int = 512


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
    the rest: see the sections.
  """

  name: str
  kind: Literal['rl', 'sft'] = 'rl'
  seed: int = 0
  tokenizer: str = 'tiny'
  thinking: Literal['auto', 'on', 'off'] = 'auto'
  export: str = ''
  train_on: tuple[str, ...] = ()
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


def default_config(name: str) -> ml_collections.ConfigDict:
  """Every key at its default; what `configs/*.py` start from."""
  return config_lib.template(Experiment, name=name)


# ---- the run ---------------------------------------------------------------


def main(config: Any, *, run_dir: pathlib.Path | None = None) -> int:
  """Runs the experiment of a `ConfigDict`; returns the exit status.

  Args:
    config: what `get_config()` gave, with overrides.
    run_dir: the run folder; None: runs/NAME[-seedS].

  Raises:
    ClawjaxError: something that a person can put right.
  """
  start = time.monotonic()
  experiment = config_lib.build(Experiment, config)
  if run_dir is None:
    tail = f'-seed{experiment.seed}' if experiment.seed else ''
    run_dir = pathlib.Path('runs') / f'{experiment.name}{tail}'
  display = progress.Display()
  run_dir.mkdir(parents=True, exist_ok=True)
  with _locked(run_dir):
    _check_same_run(experiment, run_dir)
    display.say(f'run folder {run_dir}')
    for key, value in config_lib.flatten(experiment).items():
      display.say(f'  {key} = {value!r}')
    if experiment.kind == 'rl':
      page = _reinforce(experiment, run_dir, display, start)
      display.say(f'report: {page}')
    else:
      _supervise(experiment, run_dir, display, start)
  return 0


def _reinforce(
  experiment: Experiment,
  run_dir: pathlib.Path,
  display: progress.Display,
  start: float,
) -> pathlib.Path:
  tokenizer = tokenizers.load(experiment.tokenizer)
  params, model = load_model(experiment.model, experiment.seed)
  with _serving(experiment, run_dir, tokenizer, params, model) as parts:
    scheduler, rollouts, harnesses = parts
    _say_ready(display, experiment, model, rollouts, harnesses)
    loop_parts = _loop_parts(
      experiment, run_dir, display, start, params, model, *parts
    )
    loop_config = dataclasses.replace(experiment.loop, seed=experiment.seed)
    page = loop.train(loop_parts, loop_config)
    if experiment.export:
      save_model(
        pathlib.Path(experiment.export),
        loop_parts.state.params,
        model,
        tokenizer,
      )
  return page


def _supervise(
  experiment: Experiment,
  run_dir: pathlib.Path,
  display: progress.Display,
  start: float,
) -> None:
  tokenizer = tokenizers.load(experiment.tokenizer)
  config = dataclasses.replace(experiment.sft, seed=experiment.seed)
  rollouts: Sequence[types.Rollout]
  if config.data:
    rollouts = captured.load(
      config.data,
      tokenizer,
      min_reward=config.min_reward,
      thinking=experiment.thinking,
    )
    display.say(f'{len(rollouts)} trajectories of {config.data}')
  else:
    rollouts = _played(experiment, run_dir, tokenizer, display)
  params, model = load_model(
    experiment.model, experiment.seed, vocab=tokenizer.vocab_size
  )
  learner = step.Learner(
    model,
    state_lib.make_optimizer(experiment.optim),
    forward=experiment.forward,
  )
  rename = None
  if experiment.expert.rename:
    rename = sft.Renaming(tokenizer, words.WORDS)
  state = sft.fit(
    learner,
    state_lib.init(params, learner.optimizer),
    rollouts,
    config,
    run_dir=run_dir,
    display=display,
    rename=rename,
    drills=drill.Drills(tokenizer, words.WORDS, config.drill),
  )
  if experiment.loop.evaluate.tasks:
    with _serving(experiment, run_dir, tokenizer, state.params, model) as parts:
      loop_parts = _loop_parts(
        experiment, run_dir, display, start, state.params, model, *parts
      )
      loop.evaluate(
        loop_parts, experiment.loop, 'after', config.drill.steps + config.steps
      )
  if experiment.export:
    folder = pathlib.Path(experiment.export)
    save_model(folder, state.params, model, tokenizer)
    display.say(f'weights: {folder}')


def _played(
  experiment: Experiment,
  run_dir: pathlib.Path,
  tokenizer: Any,
  display: progress.Display,
) -> list[types.Rollout]:
  """Trajectories of the scripted expert, through harness and sandbox.

  The tasks are dealt out over the harnesses, one after the other.
  """
  tasks = _tasks(experiment, 'train', experiment.expert.trajectories)
  by_id = {task.id: (i, task) for i, task in enumerate(tasks)}

  def script(rollout_id: str) -> Sequence[types.Message]:
    # 'expert/synth/copy-123/0~1' -> 'synth/copy-123'
    i, task = by_id['/'.join(rollout_id.split('/')[1:-1])]
    rng = np.random.default_rng([experiment.expert.seed, i])
    turns = synth.expert(task, rng=rng, skill=experiment.expert.skill)
    return expert.spoken(turns, harnesses[i % len(harnesses)].name)

  client = expert.ExpertClient(
    tokenizer, script, window=experiment.engine.window
  )
  harnesses = _harnesses(experiment)
  played: list[types.Rollout] = []
  with _service(experiment, run_dir, tokenizer, client, harnesses) as rollouts:
    for k, harness in enumerate(harnesses):
      played += sft.capture(
        rollouts,
        tasks[k :: len(harnesses)],
        harness,
        prefix='expert',
        run_dir=run_dir,
        display=display,
      )
  display.say(
    f'captured {len(played)} trajectories, mean score'
    f' {np.mean([r.reward for r in played]):.3f}'
  )
  return played


# ---- parts -----------------------------------------------------------------


@contextlib.contextmanager
def _serving(
  experiment: Experiment,
  run_dir: pathlib.Path,
  tokenizer: Any,
  params: Any,
  model: qwen3.Config,
) -> Iterator[tuple[Scheduler, service.RolloutService, Sequence[Any]]]:
  """Engine, proxy and rollouts, started; stopped at the end."""
  section = experiment.engine
  engine = Engine(
    model,
    params,
    slots=section.slots,
    window=section.window,
    page_size=section.page_size,
    burst=section.burst,
    max_chunk=section.max_chunk,
  )
  scheduler = Scheduler(engine, decode_text=tokenizer.decode)
  scheduler.start()
  try:
    harnesses = _harnesses(experiment)
    with _service(
      experiment, run_dir, tokenizer, scheduler.client(), harnesses
    ) as rollouts:
      yield scheduler, rollouts, harnesses
  finally:
    scheduler.stop()


def _service(
  experiment: Experiment,
  run_dir: pathlib.Path,
  tokenizer: Any,
  client: types.SamplingClient,
  harnesses: Sequence[Any],
) -> service.RolloutService:
  section = experiment.rollout
  limits = config_lib.build(
    sandbox_base.Limits, experiment.sandbox.limits, path='sandbox.limits'
  )
  sampling: dict[str, Any] = {'temperature': section.temperature}
  if section.max_tokens is not None:
    sampling['max_tokens'] = section.max_tokens
  return service.RolloutService(
    proxy=Proxy(
      client,
      tokenizer,
      config=ProxyConfig(thinking=experiment.thinking),
      record_dir=run_dir / 'proxy',
    ),
    backend=sandbox_lib.load(
      experiment.sandbox.backend, **dict(experiment.sandbox.options)
    ),
    harnesses=harnesses,
    run_dir=run_dir,
    run_seed=experiment.seed,
    limits=run_lib.RolloutLimits(
      sandbox=limits,
      time_limit_s=section.time_limit_s,
      sampling=sampling,
      token_budget=section.token_budget,
      scoring=experiment.judge.build(),
    ),
    concurrency=experiment.loop.collect.concurrency,
    fleet=experiment.fleet,
    backend_spec=(
      experiment.sandbox.backend,
      dict(experiment.sandbox.options),
    ),
  )


def _harnesses(experiment: Experiment) -> list[Any]:
  out = []
  for key, section in experiment.harnesses.items():
    options = dict(section.options)
    if isinstance(options.get('tools'), list):
      options['tools'] = tuple(options['tools'])
    if section.name == 'template':
      options.setdefault('name', key)
    out.append(harness_lib.load(section.name or key, **options))
    if out[-1].name in [harness.name for harness in out[:-1]]:
      raise errors.ConfigError(
        f'harnesses.{key}: two entries are called {out[-1].name}; groups and'
        ' reports are kept by that name'
      )
  return out


def _loop_parts(
  experiment: Experiment,
  run_dir: pathlib.Path,
  display: progress.Display,
  start: float,
  params: Any,
  model: qwen3.Config,
  scheduler: Scheduler,
  rollouts: service.RolloutService,
  harnesses: Sequence[Any],
) -> loop.Parts:
  learner = step.Learner(
    model,
    state_lib.make_optimizer(experiment.optim),
    forward=experiment.forward,
    loss=experiment.loss,
  )
  state: loop.State = state_lib.init(params, learner.optimizer)
  critic = None
  if experiment.loop.credit.estimator == 'value':
    critic = value_lib.Critic(
      model, experiment.critic, forward=experiment.forward
    )
    state = state_lib.ActorCriticState(state, critic.init(params))
  return loop.Parts(
    learner=learner,
    state=state,
    critic=critic,
    scheduler=scheduler,
    service=rollouts,
    harnesses=harnesses,
    train_tasks=_tasks(experiment, 'train', experiment.tasks.train),
    eval_tasks=_tasks(experiment, 'eval', experiment.loop.evaluate.tasks),
    display=display,
    run_dir=run_dir,
    facts={'model': dataclasses.asdict(model)},
    setup_s=time.monotonic() - start,
    trained=[
      harness.name
      for key, harness in zip(experiment.harnesses, harnesses, strict=True)
      if key in experiment.train_on
    ],
  )


def _tasks(
  experiment: Experiment, split: Literal['train', 'eval'], count: int
) -> list[types.Task]:
  section = experiment.tasks
  if section.path:
    path = section.path
    if split == 'eval' and section.eval_path:
      path = section.eval_path
    loaded = formats.load(
      path, section.format, formats.Options(allow=section.allow)
    ).tasks
    if not section.eval_path:
      loaded = formats.split(loaded, split)
    if not loaded:
      raise errors.TaskError(f'{path}: no task is left for {split}')
    _check_judged(loaded, experiment.judge.build(), path)
    return list(loaded[:count])
  return synth.tasks(
    split,
    count=count,
    seed=section.seed,
    difficulty=section.difficulty,
    families=section.families or None,
  )


def _check_judged(
  tasks: Sequence[types.Task], how: scoring.Scoring, path: str
) -> None:
  """A rubric without a judge is told before anything runs."""
  asked = [t.id for t in tasks if scoring.wants_judge(t, how)]
  if asked and not how.judges:
    raise errors.ConfigError(
      f'{len(asked)} tasks of {path} have a rubric (the first is {asked[0]}): '
      'name a judge in judge.models, or set judge.code_only'
    )


def load_model(
  section: ModelSection, seed: int, *, vocab: int | None = None
) -> tuple[Any, qwen3.Config]:
  """Parameters and config of the model that a section names.

  Raises:
    CheckpointError, ConfigError: it is not there or does not fit.
  """
  options = dict(section.options)
  kind, _, rest = section.path.partition(':')
  if kind == 'random':
    if vocab is not None:
      # Rows in multiples of 64, so that the table shards evenly.
      options.setdefault('vocab', -(-vocab // 64) * 64)
    model = qwen3.Config.preset(rest, **options)
    return qwen3.init(model, jax.random.key(seed)), model
  folder = DATA / rest if kind == 'builtin' else pathlib.Path(section.path)
  if not folder.is_dir():
    raise errors.CheckpointError(
      f'model.path: no folder {section.path!r}; wanted a Hugging Face folder,'
      " 'builtin:tiny' or 'random:PRESET'"
    )
  model = model_files.read_config(folder, **options)
  return model_files.load_hf(folder, config=model)


def save_model(
  folder: pathlib.Path, params: Any, model: qwen3.Config, tokenizer: Any
) -> None:
  """Weights, config and tokenizer in the Hugging Face layout, in bfloat16."""
  folder.mkdir(parents=True, exist_ok=True)
  model_files.save_hf(params, model, folder, dtype='bfloat16')
  (folder / 'tokenizer.json').write_bytes(tokenizer.path.read_bytes())


def _say_ready(display, experiment, model, rollouts, harnesses) -> None:
  display.say(
    f'model {model.total_params / 1e6:.2f} M parameters,'
    f' {model.active_params / 1e6:.2f} M active per token;'
    f' {jax.device_count()} {jax.default_backend()} device(s)'
  )
  for harness in harnesses:
    display.say(f'harness {harness.name} {harness.version}')
  display.say(f'sandbox {experiment.sandbox.backend}: {rollouts.probe.text}')
  for line in rollouts.probe.weaker:
    display.say(f'  weaker here: {line}')


# ---- the run folder --------------------------------------------------------


@contextlib.contextmanager
def _locked(run_dir: pathlib.Path) -> Iterator[None]:
  """Holds the run folder, so that two runs never share one."""
  with (run_dir / '.lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      raise errors.ConfigError(
        f'run folder {run_dir} is in use by another process; wait for it or'
        ' give another --run_dir'
      ) from error
    yield


def _check_same_run(experiment: Experiment, run_dir: pathlib.Path) -> None:
  """Saves the config of a new run; compares it with that of an old one."""
  path = run_dir / 'config.json'
  if path.exists():
    old = config_lib.flatten(config_lib.load(Experiment, path))
    new = config_lib.flatten(experiment)
    changed = [
      f'{key} was {old.get(key)!r}, now {new.get(key)!r}'
      for key in sorted(old.keys() | new.keys())
      if old.get(key) != new.get(key) and key not in FREE_KEYS
    ]
    if changed:
      raise errors.ConfigError(
        f'run folder {run_dir} holds another run ({"; ".join(changed)});'
        ' give another --run_dir, or remove it'
      )
  config_lib.save(experiment, path)
