"""Both commands of the README on a machine that has nothing of ours."""

import os
import pathlib
import shutil
import subprocess

import pytest

SCRIPT = pathlib.Path(__file__).with_name('fresh_machine.sh')


@pytest.mark.slow
def test_both_commands_on_a_fresh_debian(tmp_path):
  """Root, debootstrap and a network; half an hour or more."""
  if os.geteuid() != 0 or not shutil.which('debootstrap'):
    pytest.skip('needs root and debootstrap')
  done = subprocess.run(
    [SCRIPT], env={**os.environ, 'FRESH_LOGS': str(tmp_path)}, timeout=7200
  )
  assert done.returncode == 0, f'the output of each part is in {tmp_path}'
