"""Weights through a shared path: whole versions, or a named error."""

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
