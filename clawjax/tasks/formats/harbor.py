"""Harbor task folders: Terminal-Bench 2, SkillsBench, and dozens of adapters.

TASK/{task.toml, instruction.md, environment/Dockerfile, tests/test.sh,
solution/}. Most name an image or build one. Without Docker a task loads when its
Dockerfile does no more than copy files into its working folder: those files
become `/workspace`. Everything else is unsupported, with the line of the
Dockerfile that asks for more; `--allow needs_docker` loads it for a backend that
has images (`metadata['image']`, or `metadata['build']`, the context's folder).

The grader is `tests/test.sh`, at `/tests`; its exit status does not count,
`/logs/verifier/reward.json` goes before `reward.txt`.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from clawjax import types
from clawjax.tasks.formats import dockerfile, report, tree
from clawjax.tasks.formats.report import Broken, Unsupported

# Tables and keys of task.toml that are known; others warn.
_ROOT = {
  *('schema_version', 'version', 'source', 'artifacts', 'task', 'metadata'),
  *('agent', 'verifier', 'environment', 'steps', 'solution'),
  'multi_step_reward_strategy',
}
_ENVIRONMENT = {
  *('build_timeout_sec', 'docker_image', 'os', 'cpus', 'memory_mb'),
  *('storage_mb', 'gpus', 'gpu_types', 'tpu', 'mcp_servers', 'env'),
  *('skills_dir', 'healthcheck', 'workdir', 'network_mode', 'allowed_hosts'),
  *('memory', 'storage', 'allow_internet'),
}
_SIZES = {'K': 1 / 1024, 'M': 1, 'G': 1024, 'T': 1024 * 1024}
_VARIABLE = re.compile(r'\$\{(\w+)(?::-([^}]*))?\}')


def candidates(
  path: pathlib.Path, options: Mapping[str, Any]
) -> Iterator[report.Candidate]:
  """Every folder below `path` that holds a task.toml."""
  for file in sorted(path.rglob('task.toml')):
    folder = file.parent
    name = folder.relative_to(path).as_posix() if folder != path else path.name
    yield name, lambda warn, f=folder: _load(f, warn, options)


def _load(
  folder: pathlib.Path, warn: report.Warn, options: Mapping[str, Any]
) -> types.Task:
  spec = tree.toml_of(folder / 'task.toml')
  for key in sorted(set(spec) - _ROOT):
    warn('unknown_key', f'task.toml: {key} is not known')
  if spec.get('steps') or (folder / 'steps').is_dir():
    raise Unsupported('multi_step', 'tasks of several steps are not run here')
  instruction = tree.text_of(folder / 'instruction.md').strip()
  if not instruction:
    raise Broken('bad_field', 'instruction.md is empty')
  tests = folder / 'tests'
  tree.need(tests / 'test.sh')
  environment = _environment(_table(spec, 'environment'), warn)
  verifier = _table(spec, 'verifier')
  if verifier.get('environment') or verifier.get('environment_mode') not in (
    None,
    'shared',
  ):
    raise Unsupported(
      'separate_verifier', 'the verifier has an environment of its own'
    )
  if verifier.get('collect'):
    raise Unsupported('separate_verifier', 'collect hooks of sidecars')
  files, place = _workspace(folder, environment, options)
  agent = _table(spec, 'agent')
  task = _table(spec, 'task')
  meta = _table(spec, 'metadata')
  name = str(task.get('name') or folder.name)
  metadata: dict[str, Any] = {
    'domain': str(meta.get('category') or 'unknown'),
    'stem': folder.name,
    'reward_key': options['reward_key'],
    **place,
  }
  if meta.get('difficulty'):
    metadata['difficulty'] = str(meta['difficulty'])
  env = _expanded(verifier.get('env'))
  if env:
    metadata['verifier_env'] = env
  if environment.get('mcp_servers'):
    if 'needs_mcp' not in options['allow']:
      raise Unsupported(
        'needs_mcp',
        'it starts MCP servers of its own; --allow needs_mcp loads it for a '
        'harness that was given them in its options',
      )
    metadata['mcp_servers'] = environment['mcp_servers']
  if environment.get('env'):
    metadata['env'] = _expanded(environment['env'])
  solution = folder / 'solution'
  if (solution / 'solve.sh').is_file():
    metadata['solution'] = str(solution)
  return types.Task(
    id=f'harbor/{name}',
    turns=(instruction,),
    files=files,
    verifier=types.Verifier(
      files=tree.read_tree(tests, max_bytes=options['max_bytes']),
      command=('bash', '/tests/test.sh'),
      output='harbor',
      timeout_s=tree.seconds(
        verifier.get('timeout_sec'), 'verifier.timeout_sec', 600.0
      ),
    ),
    time_limit_s=tree.seconds(
      agent.get('timeout_sec'), 'agent.timeout_sec', 900.0
    )
    * float(options['timeout_factor']),
    metadata=metadata,
  )


def _table(spec: Mapping[str, Any], key: str) -> dict[str, Any]:
  value = spec.get(key, {})
  if not isinstance(value, dict):
    raise Broken('bad_field', f'task.toml: {key} must be a table')
  return value


def _environment(table: dict[str, Any], warn: report.Warn) -> dict[str, Any]:
  """The environment table with old spellings made new."""
  for key in sorted(set(table) - _ENVIRONMENT):
    warn('unknown_key', f'task.toml: environment.{key} is not known')
  table = dict(table)
  for old, new in (('memory', 'memory_mb'), ('storage', 'storage_mb')):
    if old not in table:
      continue
    if new in table:
      raise Broken('bad_field', f'environment has both {old} and {new}')
    found = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([KMGT])i?B?', str(table.pop(old)))
    if not found:
      raise Broken('bad_field', f'environment.{old}: wanted a size like 2G')
    table[new] = int(float(found.group(1)) * _SIZES[found.group(2)])
  if 'allow_internet' in table and 'network_mode' not in table:
    table['network_mode'] = (
      'public' if table.pop('allow_internet') else 'no-network'
    )
  if table.get('os', 'linux') != 'linux':
    raise Unsupported('needs_windows', f'os is {table["os"]}')
  if table.get('gpus') or table.get('tpu'):
    raise Unsupported('needs_accelerator', 'the task asks for a GPU or TPU')
  mode = table.get('network_mode', 'public')
  if mode == 'allowlist':
    raise Unsupported('needs_egress_filter', 'network_mode is allowlist')
  if mode not in ('public', 'no-network'):
    raise Broken('bad_field', f'network_mode {mode!r} is not known')
  return table


def _workspace(
  folder: pathlib.Path,
  environment: Mapping[str, Any],
  options: Mapping[str, Any],
) -> tuple[dict[str, bytes], dict[str, Any]]:
  """Files of /workspace, and what a backend with images must know."""
  with_docker = 'needs_docker' in options['allow']
  context = folder / 'environment'
  compose = [
    *context.glob('docker-compose.y*ml'),
    *context.glob('compose.y*ml'),
  ]
  image = str(environment.get('docker_image') or '')
  if (context / 'Dockerfile').is_file():
    try:
      if compose:
        _one_service(compose[0])
      return dockerfile.reduce(
        context, workdir=environment.get('workdir'), limit=options['max_bytes']
      ), {}
    except Unsupported:
      if not with_docker:
        raise
    return {}, {'image': image, 'build': str(context)}
  if image:
    if not with_docker:
      raise Unsupported(
        'needs_docker', f'it runs in the image {image}; none is pulled here'
      )
    return {}, {'image': image}
  if compose:
    raise Unsupported('needs_docker', 'it has a docker-compose file')
  raise Broken('missing_file', 'no environment/Dockerfile and no docker_image')


def _one_service(file: pathlib.Path) -> None:
  """A compose file is let pass when it starts a single container."""
  data = tree.yaml_text(tree.text_of(file), file.name)
  services = data.get('services') if isinstance(data, dict) else None
  if not isinstance(services, dict) or len(services) != 1:
    raise Unsupported('needs_docker', f'{file.name} starts several containers')
  (service,) = services.values()
  extra = {'privileged', 'cap_add', 'devices', 'volumes'} & set(service or {})
  if extra:
    raise Unsupported('needs_docker', f'{file.name} asks for {sorted(extra)}')


def _expanded(env: Any) -> dict[str, str]:
  """Variables with `${NAME}` and `${NAME:-default}` filled in."""
  if not env:
    return {}
  if not isinstance(env, dict):
    raise Broken('bad_field', 'env must be a table')

  def fill(match: re.Match[str]) -> str:
    value = os.environ.get(match.group(1), match.group(2))
    if value is None:
      raise Unsupported(
        'needs_variable',
        f'the environment variable {match.group(1)} is not set',
      )
    return value

  return {str(k): _VARIABLE.sub(fill, str(v)) for k, v in env.items()}
