"""From sections to parts: model, engine, proxy, rollouts, tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax

from clawjax import config as config_lib
from clawjax import errors, types
from clawjax import harness as harness_lib
from clawjax import sandbox as sandbox_lib
from clawjax.experiment import folder
from clawjax.experiment.sections import Experiment, ModelSection
from clawjax.harness import base as harness_base
from clawjax.models import checkpoint as model_files
from clawjax.models import qwen3
from clawjax.models import sharding as sharding_lib
from clawjax.proxy.app import Proxy, ProxyConfig
from clawjax.rollout import run as run_lib
from clawjax.sandbox import base as sandbox_base
from clawjax.serving import remote
from clawjax.serving.engine import Engine
from clawjax.serving.scheduler import Scheduler
from clawjax.tasks import formats, scoring, synth
from clawjax.train import loop, progress, service, step, sync
from clawjax.train import pod as pod_lib
from clawjax.train import state as state_lib
from clawjax.train import value as value_lib

DATA = pathlib.Path(__file__).parents[1] / 'train' / 'data'


@dataclasses.dataclass
class Run:
  """One run of an experiment, in one process.

  Attributes:
    experiment: what the config says.
    run_dir: the run folder, of use on process 0.
    display: for a person.
    pod: the processes.
    sharding: the trainer's mesh; None: one device.
    tokenizer: of model and harnesses.
    start: `time.monotonic()` at the program's start.
    mirror: a copy of the run folder elsewhere, or None.
  """

  experiment: Experiment
  run_dir: pathlib.Path
  display: progress.Display
  pod: pod_lib.Pod
  sharding: sharding_lib.Sharding | None
  tokenizer: Any
  start: float
  mirror: folder.Mirror | None = None

  @property
  def checkpoints(self) -> str:
    """Where checkpoints go that do not go into the run folder."""
    return self.mirror.address('checkpoints') if self.mirror else ''


@dataclasses.dataclass
class Served:
  """What samples, and what runs rollouts with it.

  Attributes:
    serving: takes new weights; used by all processes.
    harnesses: in the order of the config.
    service: runs rollouts; None on the processes that do not lead.
  """

  serving: sync.Serving
  harnesses: list[Any]
  service: service.RolloutService | None


@contextlib.contextmanager
def served(run: Run, params: Any, model: qwen3.Config) -> Iterator[Served]:
  """Engine, proxy and rollouts, started; stopped at the end.

  Args:
    run: all processes of it come here together.
    params: the weights to begin with, as the trainer holds them.
    model: their config.
  """
  section = run.experiment.engine
  harnesses = make_harnesses(run.experiment)
  with contextlib.ExitStack() as stack:
    lead = run.pod.leads
    serving: sync.Serving
    if section.urls:
      servers = run.pod.lead(lambda: _servers(run.experiment, model))
      client = servers.client() if lead else None
      serving = sync.Published(run.pod, section.weights_dir, servers.load)
      # What they were started with is theirs; version 0 is what we begin with.
      serving.load_params(params, 0)
    else:
      first = params if run.pod.alone else sync.gathered(params, keep=lead)
      scheduler = None
      if lead:
        scheduler = _engine(run, first, model)
        stack.callback(scheduler.stop)
      client = scheduler.client() if scheduler else None
      serving = (
        scheduler if run.pod.alone else sync.Gathered(run.pod, scheduler)
      )
    begun: list[service.RolloutService] = []

    def begin() -> None:
      begun.append(stack.enter_context(rollout_service(run, client, harnesses)))

    run.pod.lead(begin)
    yield Served(serving, harnesses, begun[0] if begun else None)


def _servers(experiment: Experiment, model: qwen3.Config) -> remote.Servers:
  section = experiment.engine
  found = remote.Servers(
    section.urls, admin_token=os.environ.get(section.admin_token_env, '')
  )
  if found.vocab != model.vocab:
    raise errors.ConfigError(
      f'engine.urls: the servers have a vocabulary of {found.vocab}, the'
      f' trained model one of {model.vocab}; start them with the same model'
    )
  return found


def _engine(run: Run, params: Any, model: qwen3.Config) -> Scheduler:
  section = run.experiment.engine
  where = None
  if run.sharding is not None or section.tensor != 1:
    where = sharding_lib.tensor_parallel(section.tensor)
  engine = Engine(
    model,
    params,
    slots=section.slots,
    window=section.window,
    page_size=section.page_size,
    burst=section.burst,
    max_chunk=section.max_chunk,
    sharding=where,
  )
  return Scheduler(engine, decode_text=run.tokenizer.decode).start()


def rollout_service(
  run: Run, client: types.SamplingClient, harnesses: Sequence[Any]
) -> service.RolloutService:
  """Proxy, sandboxes and fleet, to be entered."""
  experiment = run.experiment
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
      run.tokenizer,
      config=ProxyConfig(thinking=experiment.thinking),
      record_dir=run.run_dir / 'proxy',
    ),
    backend=sandbox_lib.load(
      experiment.sandbox.backend, **dict(experiment.sandbox.options)
    ),
    harnesses=harnesses,
    run_dir=run.run_dir,
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


def make_harnesses(experiment: Experiment) -> list[Any]:
  """The harnesses of the config, in its order."""
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


def loop_parts(
  run: Run, params: Any, model: qwen3.Config, served: Served
) -> loop.Parts:
  """What `train.loop` works with."""
  experiment = run.experiment
  learner = step.Learner(
    model,
    state_lib.make_optimizer(experiment.optim),
    forward=experiment.forward,
    loss=experiment.loss,
    sharding=run.sharding,
  )
  state: loop.State = state_lib.init(params, learner.optimizer, run.sharding)
  critic = None
  if experiment.loop.credit.estimator == 'value':
    critic = value_lib.Critic(
      model,
      experiment.critic,
      forward=experiment.forward,
      sharding=run.sharding,
    )
    state = state_lib.ActorCriticState(state, critic.init(params))
  return loop.Parts(
    learner=learner,
    state=state,
    critic=critic,
    serving=served.serving,
    service=served.service,
    harnesses=served.harnesses,
    train_tasks=make_tasks(experiment, 'train', experiment.tasks.train),
    eval_tasks=make_tasks(experiment, 'eval', experiment.loop.evaluate.tasks),
    display=run.display,
    run_dir=run.run_dir,
    facts={'model': dataclasses.asdict(model)},
    setup_s=time.monotonic() - run.start,
    trained=[
      harness.name
      for key, harness in zip(
        experiment.harnesses, served.harnesses, strict=True
      )
      if key in experiment.train_on
    ],
    pod=run.pod,
    checkpoints=run.checkpoints,
    mirror=run.mirror.push if run.mirror else lambda: None,
  )


def make_tasks(
  experiment: Experiment, split: Literal['train', 'eval'], count: int
) -> list[types.Task]:
  """The first tasks of a split.

  Raises:
    TaskError, ConfigError: there are none, or they want what is not there.
    HarnessError: a harness cannot take all messages of one.
  """
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
    chosen = list(loaded[:count])
    _check_judged(loaded, experiment.judge.build(), path)
    harnesses = make_harnesses(experiment)
    if split == 'train' and experiment.train_on:
      harnesses = [
        harness
        for key, harness in zip(experiment.harnesses, harnesses, strict=True)
        if key in experiment.train_on
      ]
    harness_base.check_turns(harnesses, chosen)
    return chosen
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
  section: ModelSection,
  seed: int,
  *,
  vocab: int | None = None,
  sharding: sharding_lib.Sharding | None = None,
) -> tuple[Any, qwen3.Config]:
  """Parameters and config of the model that a section names.

  Args:
    section: see there.
    seed: of fresh weights.
    vocab: at least so many rows for fresh weights; None: the preset's.
    sharding: mesh to place them on; None: the default device.

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
    places = sharding and sharding.of(qwen3.table(model))
    begin = functools.partial(qwen3.init, model)
    if places is not None:
      begin = jax.jit(begin, out_shardings=places)
    return begin(jax.random.key(seed)), model
  where = str(DATA / rest) if kind == 'builtin' else section.path
  if '://' not in where and not pathlib.Path(where).is_dir():
    raise errors.CheckpointError(
      f'model.path: no folder {section.path!r}; wanted a Hugging Face folder,'
      " a gs:// address, 'builtin:tiny', 'builtin:tiny_mix' or 'random:PRESET'"
    )
  model = model_files.read_config(where, **options)
  places = sharding and sharding.of(qwen3.table(model))
  return model_files.load_hf(where, config=model, shardings=places)


def save_model(
  folder: pathlib.Path, params: Any, model: qwen3.Config, tokenizer: Any
) -> None:
  """Weights, config and tokenizer in the Hugging Face layout, in bfloat16.

  With several processes all come here, and process 0 writes.
  """
  folder.mkdir(parents=True, exist_ok=True)
  model_files.save_hf(params, model, folder, dtype='bfloat16')
  if jax.process_index() == 0:
    (folder / 'tokenizer.json').write_bytes(tokenizer.path.read_bytes())


def say_ready(run: Run, model: qwen3.Config, served: Served) -> None:
  """Tells a person what will run."""
  display, devices = run.display, jax.device_count()
  used = 1 if run.sharding is None else run.sharding.mesh.size
  display.say(
    f'model {model.total_params / 1e6:.2f} M parameters,'
    f' {model.active_params / 1e6:.2f} M active per token;'
    f' {devices} {jax.default_backend()} device(s)'
    + (', of which 1 trains (section mesh)' if used < devices else '')
  )
  for harness in served.harnesses:
    display.say(f'harness {harness.name} {harness.version}')
  if served.service is None:
    return
  probe = served.service.probe
  display.say(f'sandbox {run.experiment.sandbox.backend}: {probe.text}')
  for line in probe.weaker:
    display.say(f'  weaker here: {line}')
