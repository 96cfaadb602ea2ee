"""Dockerfiles that do no more than lay out files, as a set of files.

FROM, WORKDIR, COPY or ADD of local files, ENV, ARG, LABEL, USER, CMD and RUN of
`mkdir`, `chmod`, `chown` and `true` can be followed without building anything;
the result is what lies below the last WORKDIR. It must be `/workspace`, for that
is where files stand in our sandboxes and tests name absolute paths. Any other
line ends in `Unsupported('needs_docker', line)`.
"""

from __future__ import annotations

import json
import pathlib
import posixpath
import re
import shlex

from clawjax.tasks.formats import tree
from clawjax.tasks.formats.report import Broken, Unsupported

WORKSPACE = '/workspace'
_IGNORED = {
  *('ENV', 'ARG', 'LABEL', 'USER', 'CMD', 'ENTRYPOINT', 'EXPOSE'),
  *('MAINTAINER', 'SHELL', 'STOPSIGNAL', 'HEALTHCHECK'),
}
_HARMLESS = re.compile(r'(mkdir|chmod|chown|true|:)(\s|$)')
# Base images that hold what Debian or Python have anyway.
_BASES = re.compile(
  r'(debian|ubuntu|buildpack-deps|python|scratch|alpine|busybox)(:|$|@)'
)


def reduce(
  context: pathlib.Path, *, workdir: str | None = None, limit: int
) -> dict[str, bytes]:
  """Files below /workspace that the Dockerfile of `context` lays out.

  Raises:
    Unsupported: it does more, or works elsewhere.
    Broken: it cannot be read, or copies what is not there.
  """
  files: dict[str, bytes] = {}
  here, bases = '/', 0
  for word, rest in instructions(tree.text_of(context / 'Dockerfile')):
    line = f'{word} {rest}'[:120]
    if word == 'FROM':
      bases += 1
      if bases > 1:
        raise Unsupported('needs_docker', f'a build of several stages: {line}')
      if not _BASES.match(rest.split()[0].removeprefix('docker.io/library/')):
        raise Unsupported('needs_docker', f'an image of its own: {line}')
    elif word == 'WORKDIR':
      here = posixpath.normpath(posixpath.join(here, rest.strip('"\'')))
    elif word in ('COPY', 'ADD'):
      taken = sum(map(len, files.values()))
      files.update(_copied(context, rest, here, line, limit=limit, taken=taken))
    elif word == 'RUN':
      parts = [p.strip() for p in re.split(r'&&|;|\n', rest) if p.strip()]
      if not all(_HARMLESS.match(p) for p in parts):
        raise Unsupported('needs_docker', f'a step of its build: {line}')
    elif word not in _IGNORED:
      raise Unsupported('needs_docker', f'not followed here: {line}')
  place = posixpath.normpath(workdir or here)
  if not bases:
    raise Broken('bad_dockerfile', 'there is no FROM')
  if place != WORKSPACE:
    raise Unsupported(
      'needs_docker', f'it works in {place}, sandboxes here in {WORKSPACE}'
    )
  outside = [f for f in files if not f.startswith(WORKSPACE + '/')]
  if outside:
    raise Unsupported('needs_docker', f'it copies to {outside[0]}')
  return {f.removeprefix(WORKSPACE + '/'): data for f, data in files.items()}


def instructions(text: str) -> list[tuple[str, str]]:
  """(instruction, rest), continued lines joined, comments left out."""
  found, pending = [], ''
  for raw in text.split('\n'):
    line = raw.strip()
    if line.startswith('#') or (not line and not pending):
      continue
    pending = f'{pending} {line}'.strip()
    if pending.endswith('\\'):
      pending = pending[:-1].rstrip()
      continue
    word, _, rest = pending.partition(' ')
    if '<<' in rest and word.upper() in ('RUN', 'COPY'):
      raise Unsupported('needs_docker', f'a here-document: {pending[:80]}')
    found.append((word.upper(), rest.strip()))
    pending = ''
  if pending:
    word, _, rest = pending.partition(' ')
    found.append((word.upper(), rest.strip()))
  return found


def _copied(
  context: pathlib.Path,
  rest: str,
  here: str,
  line: str,
  *,
  limit: int,
  taken: int,
) -> dict[str, bytes]:
  """Absolute path -> content of one COPY."""
  if rest.startswith('['):
    words = [str(w) for w in json.loads(rest)]
  else:
    words = shlex.split(rest)
  flags = [w for w in words if w.startswith('--')]
  words = [w for w in words if not w.startswith('--')]
  if any(f.startswith('--from') for f in flags):
    raise Unsupported('needs_docker', f'a copy from another image: {line}')
  if len(words) < 2:
    raise Broken('bad_dockerfile', f'wanted sources and a target: {line}')
  *sources, target = words
  goal = posixpath.join(here, target)
  as_folder = target.endswith(('/', '.')) or len(sources) > 1
  files: dict[str, bytes] = {}
  for source in sources:
    if re.match(r'[a-z]+://|git@', source):
      raise Unsupported('needs_docker', f'a download: {line}')
    name = source.lstrip('/')
    matches = [context] if name in ('.', './', '') else None
    if matches is None:
      if '..' in pathlib.PurePosixPath(name).parts:
        raise Broken('path_escape', f'{source!r} leaves the build folder')
      matches = sorted(context.glob(name.rstrip('/')))
    if not matches:
      raise Broken('missing_file', f'{source} is not in the build folder')
    for match in matches:
      so_far = taken + sum(map(len, files.values()))
      if match.is_dir():
        for inner, data in tree.read_tree(
          match, max_bytes=limit, taken=so_far
        ).items():
          if match == context and inner == 'Dockerfile':
            continue
          files[posixpath.normpath(posixpath.join(goal, inner))] = data
      else:
        if not match.resolve().is_relative_to(context.resolve()):
          raise Broken('path_escape', f'{source!r} leaves the build folder')
        path = posixpath.join(goal, match.name) if as_folder else goal
        content = tree.read_file(match, max_bytes=limit, taken=so_far)
        files[posixpath.normpath(path)] = content
  return files
