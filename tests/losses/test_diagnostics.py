"""Numbers of several optimiser steps as one."""

import math

import pytest

from clawjax.losses import diagnostics


def test_means_over_terms_stay_means_over_terms():
  out = diagnostics.combine(
    [
      {'terms': 1.0, 'entropy': 4.0, 'loss': 1.0, 'max_ratio': 0.5},
      {'terms': 3.0, 'entropy': 0.0, 'loss': 2.0, 'max_ratio': 2.0},
    ]
  )
  # (1 * 4 + 3 * 0) / 4; a loss belongs to its step; a maximum is a maximum.
  assert out == {'terms': 2.0, 'entropy': 1.0, 'loss': 1.5, 'max_ratio': 2.0}


def test_a_step_without_terms_does_not_leak_nan():
  out = diagnostics.combine(
    [
      {'terms': 0.0, 'entropy': math.nan, 'non_finite': 2.0},
      {'terms': 2.0, 'entropy': 0.25, 'non_finite': 1.0},
    ]
  )
  assert out['entropy'] == 0.25
  assert out['non_finite'] == 3.0


def test_what_one_step_alone_saw_is_averaged_over_it():
  out = diagnostics.combine(
    [
      {'terms': 5.0, 'mismatch_abs_depth_64': 1.0},
      {'terms': 9.0},
    ]
  )
  assert out['mismatch_abs_depth_64'] == 1.0


def test_all_non_finite_is_unknown_not_zero():
  assert math.isnan(
    diagnostics.combine([{'terms': 0.0, 'entropy': math.nan}])['entropy']
  )


def test_nothing_is_nothing():
  assert diagnostics.combine([]) == {}
  # A critic counts no terms of the policy: its steps weigh the same.
  steps = [{'value_mean': 1.0}, {'value_mean': 3.0}]
  assert diagnostics.combine(steps)['value_mean'] == pytest.approx(2.0)
