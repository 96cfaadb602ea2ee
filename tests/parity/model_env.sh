#!/usr/bin/env bash
# Makes the environment of the model parity tests: Python 3.11 with PyTorch (CPU)
# and transformers, apart from ours because of their size (about 1.5 GB) and
# pins. The tests skip, saying so, where it is absent. Does nothing the second
# time. CLAWJAX_PARITY_ENV names another place than .venv-parity.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
env=${CLAWJAX_PARITY_ENV:-$root/.venv-parity}
if [ -e "$env/.done" ]; then
  exit 0
fi
python=$(command -v python3.11 || true)
for candidate in "$HOME"/.pyenv/versions/3.11.*/bin/python3.11; do
  if [ -x "$candidate" ]; then python=$candidate; fi
done
if [ -z "$python" ]; then
  echo 'model parity: no python3.11 found' >&2
  exit 1
fi
echo "model parity: installing PyTorch and transformers into $env"
"$python" -m venv "$env"
"$env/bin/pip" install -q 'torch==2.13.0' 'transformers==5.12.1' numpy safetensors
touch "$env/.done"
