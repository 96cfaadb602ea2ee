#!/usr/bin/env bash
# Sets up, then tests:  tests/run.sh [pytest arguments]
#
# Without arguments the whole default suite, two processes side by side. Slow
# tests (minutes each) run with RUN_SLOW=1 or -m slow; the first also fetches
# what only they need (Ray, three more harnesses). Tests of a harness that cannot
# be fetched are skipped and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
slow= extras=train,harness,dev
if [ "${RUN_SLOW:-}" = 1 ]; then
  slow='qwen_code? opencode? mini_swe?'
  extras=$extras,ray
fi
launch/setup.sh "$extras${CLAWJAX_EXTRAS:+,$CLAWJAX_EXTRAS}" \
  bwrap pi 'claude_code?' 'codex?' 'openclaw?' $slow ${CLAWJAX_TOOLS:-}
venv=${CLAWJAX_VENV:-.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
export PATH=$venv/bin:$PATH
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
exec "$venv/bin/python" -m pytest -n "${CLAWJAX_WORKERS:-2}" --dist loadfile "$@"
