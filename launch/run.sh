#!/usr/bin/env bash
# Sets up, then trains:  launch/run.sh --config=configs/quickstart.py
#
# All flags go to launch/xm_launch.py (see --help). The extras and tools below are
# those of the quickstart; CLAWJAX_EXTRAS and CLAWJAX_TOOLS add to them, e.g.
# CLAWJAX_EXTRAS=tpu,ray CLAWJAX_TOOLS='claude_code codex'.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
launch/setup.sh "train,harness${CLAWJAX_EXTRAS:+,$CLAWJAX_EXTRAS}" \
  bwrap pi ${CLAWJAX_TOOLS:-}
venv=${CLAWJAX_VENV:-.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
export PATH=$venv/bin:$PATH
exec "$venv/bin/python" launch/xm_launch.py "$@"
