"""Weights through a shared path: whole versions, or a named error."""

import pathlib

import jax
import numpy as np
import pytest

from clawjax.errors import CheckpointError
from clawjax.models import checkpoint
from clawjax.serving import weights

from .conftest import CONFIG


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_orbax_round_trip(params, tmp_path):
  where = weights.publish(params, str(tmp_path), 3)
  same(weights.read(where, CONFIG), params)


def test_hugging_face_folder(params, tmp_path):
  checkpoint.save_hf(params, CONFIG, tmp_path / 'hf')
  same(weights.read(str(tmp_path / 'hf'), CONFIG), params)


def test_missing_or_other_model_is_named(params, tmp_path):
  with pytest.raises(CheckpointError):
    weights.read(str(tmp_path / 'nowhere'), CONFIG)
  where = weights.publish(params, str(tmp_path), 1)
  with pytest.raises(CheckpointError):
    weights.read(where, CONFIG.replace(layers=3))


def test_a_folder_cut_short_is_refused(params, tmp_path):
  """The largest file loses its second half: nothing of it is taken."""
  where = weights.publish(params, str(tmp_path), 2)
  files = [f for f in pathlib.Path(where).rglob('*') if f.is_file()]
  largest = max(files, key=lambda f: f.stat().st_size)
  whole = largest.read_bytes()
  largest.write_bytes(whole[: len(whole) // 2])
  with pytest.raises(CheckpointError, match='cannot read weights'):
    weights.read(where, CONFIG)
  largest.write_bytes(whole)
  same(weights.read(where, CONFIG), params)
