"""One process of a training run over several; toy rollouts, all else real.

  pod_run.py PROCESSES PROCESS PORT RUN_DIR STEPS [KILL_AT_STEP | fail]

Each process has 4 / PROCESSES CPU devices; together they are one mesh of four,
fsdp 2 x expert 2. Process 0 alone has the toy service. With KILL_AT_STEP it
kills itself while it collects that step; with `fail` its service raises.
"""

import os
import pathlib
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import toy_run

from clawjax import errors
from clawjax.models import qwen3
from clawjax.models.sharding import MeshConfig
from clawjax.train import loop, pod, state, step, sync


class Failing:
  """A service whose sandboxes do not start."""

  def groups(self, requests, **_):
    raise errors.SandboxError('no sandbox here')
    yield


def main(processes, process, port, run_dir, steps, doom=''):
  jax.config.update('jax_num_cpu_devices', 4 // processes)
  config = pod.PodConfig()
  if processes > 1:
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    config = pod.PodConfig(True, f'localhost:{port}', processes, process)
  here = config.start()
  sharding = MeshConfig(fsdp=2, expert=-1).build()
  assert sharding.mesh.size == 4
  toy = toy_run.parts(run_dir, kill_at=int(doom) if doom.isdigit() else 0)
  model = toy.learner.model
  learner = step.Learner(
    model,
    toy.learner.optimizer,
    forward=step.ForwardConfig(rows=4, chunk=64),
    loss=toy.learner.loss,
    sharding=sharding,
  )
  places = sharding.of(qwen3.table(model))
  params = jax.jit(lambda key: qwen3.init(model, key), out_shardings=places)(
    jax.random.key(0)
  )
  toy.learner = learner
  toy.state = state.init(params, learner.optimizer, sharding)
  toy.pod = here
  if not here.alone:
    inner = toy.serving if here.leads else None
    toy.serving = sync.Gathered(here, inner)
  if not here.leads:
    toy.service = None
  elif doom == 'fail':
    toy.service = Failing()
  page = loop.train(toy, toy_run.config(steps))
  print('page', page, flush=True)


if __name__ == '__main__':
  folder = pathlib.Path(sys.argv[4])
  folder.mkdir(parents=True, exist_ok=True)
  try:
    main(*map(int, sys.argv[1:4]), folder, int(sys.argv[5]), *sys.argv[6:])
  except errors.ClawjaxError as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(2)  # the coordination service would wait for the others
