"""The policy loss by hand, on three terms; each option changes its own number."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from clawjax.losses import correction, diagnostics, grpo

NONE = correction.CorrectionConfig(kind='none')
OLD = np.log([[0.5, 0.5, 0.5]]).astype(np.float32)
# ratios 1.5, 0.5, 1.1
NEW = (OLD + np.log([[1.5, 0.5, 1.1]])).astype(np.float32)
ADV = np.array([[1.0, -2.0, 3.0]], np.float32)
WEIGHT = np.array([[0.5, 0.25, 0.25]], np.float32)


def loss(new=NEW, *, rollout=OLD, advantage=ADV, weight=WEIGHT, **options):
  extra = {
    k: options.pop(k)
    for k in ('ref_logprob', 'entropy', 'term_call', 'term_depth')
    if k in options
  }
  options.setdefault('correction', NONE)
  return grpo.grpo_loss(
    jnp.asarray(new),
    old_logprob=jnp.asarray(OLD),
    rollout_logprob=jnp.asarray(rollout),
    advantage=jnp.asarray(advantage),
    weight=jnp.asarray(weight),
    config=grpo.PolicyLossConfig(**options),
    **extra,
  )


def test_by_hand():
  """min(1.5, 1.2) 1 = 1.2; min(.5 (-2), .8 (-2)) = -1.6; 1.1 x 3 = 3.3.
  loss = -(.5 x 1.2 + .25 x -1.6 + .25 x 3.3) = -1.025."""
  got, sums = loss()
  assert got == pytest.approx(-1.025, rel=1e-6)
  assert sums['clipped'] == 2
  assert sums['terms'] == 3


def test_gradient_by_hand():
  """d/dlogp of rho A = rho A; clipped terms have none: -.25 x 3.3 at term 3."""
  grad = jax.grad(lambda x: loss(x)[0])(jnp.asarray(NEW))
  np.testing.assert_allclose(grad, [[0, 0, -0.825]], atol=1e-6)


def test_clip_higher():
  """[.8, 1.6]: term 1 is no longer clipped: -(.75 - .4 + .825)."""
  assert loss(clip_high=0.6)[0] == pytest.approx(-1.175, rel=1e-6)


def test_dual_clip():
  """ratio 5 with A = -2: -10, at least 3 x -2 = -6."""
  new = OLD + np.log([[1.0, 5.0, 1.0]])
  plain, _ = loss(new)
  dual, sums = loss(new, dual_clip=3.0)
  assert plain == pytest.approx(-(0.5 - 2.5 + 0.75), rel=1e-5)
  assert dual == pytest.approx(-(0.5 - 1.5 + 0.75), rel=1e-5)
  assert sums['clipped'] == 1


@pytest.mark.parametrize(
  ('kind', 'kl'),
  [('k1', -0.5), ('k2', 0.125), ('k3', np.exp(0.5) - 1.5)],
)
def test_kl_kinds(kind, kl):
  """ref - logp = .5 everywhere; the weights sum to 1."""
  base, _ = loss()
  got, _ = loss(ref_logprob=jnp.asarray(NEW + 0.5), kl_coef=0.1, kl_kind=kind)
  assert got - base == pytest.approx(0.1 * kl, abs=1e-6)


def test_entropy_bonus():
  entropy = jnp.array([[1.0, 2.0, 3.0]])
  got, _ = loss(entropy=entropy, entropy_coef=0.1)
  assert got - loss()[0] == pytest.approx(-0.1 * (0.5 + 0.5 + 0.75), abs=1e-6)


def test_truncated_importance_sampling():
  """old / rollout = 4, 1, .5: weights 2, 1, .5, KL included, no gradient."""
  rollout = OLD - np.log([[4.0, 1.0, 0.5]])
  cut = correction.CorrectionConfig(kind='truncate', cap=2.0)
  got, sums = loss(rollout=rollout, correction=cut)
  want = -(0.5 * 2 * 1.2 + 0.25 * -1.6 + 0.25 * 0.5 * 3.3)
  assert got == pytest.approx(want, rel=1e-5)
  assert sums['importance_cut'] == 1
  with_kl, _ = loss(
    rollout=rollout,
    correction=cut,
    ref_logprob=jnp.asarray(NEW + 0.5),
    kl_coef=0.1,
    kl_kind='k2',
  )
  more = 0.1 * 0.125 * (0.5 * 2 + 0.25 + 0.25 * 0.5)
  assert with_kl - got == pytest.approx(more, abs=1e-6)


def test_sequence_ratio():
  """GSPO: terms 1 and 2 are one call, sqrt(1.5 x .5) = .866; term 3 alone."""
  got, _ = loss(ratio='sequence', term_call=jnp.array([[4, 4, 9]]))
  r = np.sqrt(0.75)
  want = -(0.5 * r * 1 + 0.25 * r * -2 + 0.25 * 1.1 * 3)
  assert got == pytest.approx(want, rel=1e-5)
  # its gradient spreads over the call: d rho / d logp = rho / 2 each
  grad = jax.grad(
    lambda x: loss(x, ratio='sequence', term_call=jnp.array([[4, 4, 9]]))[0]
  )(jnp.asarray(NEW))
  each = -(0.5 * r - 0.5 * r) / 2
  np.testing.assert_allclose(grad[0, :2], [each, each], atol=1e-6)


def test_padding_with_nan_leaks_nowhere():
  def padded(x):
    return np.concatenate([x, [[np.nan, np.inf]]], axis=1).astype(np.float32)

  def run(new):
    return grpo.grpo_loss(
      new,
      old_logprob=jnp.asarray(padded(OLD)),
      rollout_logprob=jnp.asarray(padded(OLD)),
      advantage=jnp.asarray(padded(ADV)),
      weight=jnp.array([[0.5, 0.25, 0.25, 0, 0]]),
      ref_logprob=jnp.asarray(padded(NEW)),
      entropy=jnp.asarray(padded(OLD)),
      config=grpo.PolicyLossConfig(kl_coef=0.1, entropy_coef=0.1),
    )[0]

  got, grad = jax.value_and_grad(run)(jnp.asarray(padded(NEW)))
  assert np.isfinite(got)
  assert np.isfinite(grad).all()
  assert (np.asarray(grad)[0, 3:] == 0).all()


def test_a_real_term_that_is_not_finite_is_left_out_and_counted():
  new = NEW.copy()
  new[0, 1] = np.nan
  got, sums = loss(new)
  assert got == pytest.approx(-(0.5 * 1.2 + 0.25 * 3.3), rel=1e-6)
  assert sums['non_finite'] == 1


def test_huge_ratios_stay_finite():
  new = OLD + np.array([[500.0, -500.0, 0.0]])
  grad = jax.grad(lambda x: loss(x)[0])(jnp.asarray(new, jnp.float32))
  assert np.isfinite(grad).all()


def slopes(f, at, size=3e-3):
  """Central differences of a function of one row; the losses are float32."""
  out = []
  for i in range(at.shape[1]):
    step = np.zeros(at.shape)
    step[0, i] = size
    out.append((float(f(at + step)) - float(f(at - step))) / (2 * size))
  return [out]


# Points away from the kinks of the clips: ratios 1.5, 0.5, 1.1 and 1.02, 0.9, 4.
@pytest.mark.parametrize('ratios', [(1.5, 0.5, 1.1), (1.02, 0.9, 4.0)])
@pytest.mark.parametrize(
  'options',
  [
    {},
    {'clip_high': 0.4},
    {'dual_clip': 1.5},
    {'kl_coef': 0.3, 'kl_kind': 'k1'},
    {'kl_coef': 0.3, 'kl_kind': 'k2'},
    {'kl_coef': 0.3, 'kl_kind': 'k3'},
    {'ratio': 'sequence'},
    {'correction': correction.CorrectionConfig(kind='truncate', cap=2.0)},
    {'correction': correction.CorrectionConfig(kind='mask', cap=2.0)},
  ],
)
def test_finite_differences(ratios, options):
  f = lambda x: loss(  # noqa: E731
    x,
    rollout=OLD - np.log([[3.0, 1.0, 0.5]]),
    ref_logprob=jnp.asarray(OLD - 0.1),
    term_call=jnp.array([[0, 0, 1]]),
    **options,
  )[0]
  new = OLD + np.log([ratios])
  got = jax.grad(f)(jnp.asarray(new))
  np.testing.assert_allclose(got, slopes(f, new), atol=3e-4)


def test_finite_differences_of_the_entropy_bonus():
  f = lambda x: loss(entropy=jnp.asarray(x), entropy_coef=0.1)[0]  # noqa: E731
  at = np.array([[1.0, 2.0, 3.0]])
  got = jax.grad(f)(jnp.asarray(at))
  np.testing.assert_allclose(got, slopes(f, at), atol=3e-4)


def test_metrics_add_over_microbatches():
  """Means over 3 + 3 terms; maxima are maxima."""
  _, a = loss(term_depth=jnp.array([[3, 70, 5000]]))
  _, b = loss(OLD, term_depth=jnp.array([[3, 70, 5000]]))
  metrics = diagnostics.finish(diagnostics.add(a, b))
  assert metrics['terms'] == 6
  assert metrics['clipped'] == pytest.approx(2 / 6)
  assert metrics['max_ratio'] == pytest.approx(0.5, rel=1e-5)
  assert metrics['moved_k1'] == pytest.approx(
    -np.log([1.5, 0.5, 1.1]).sum() / 6, rel=1e-4
  )


@pytest.mark.parametrize(
  'bad',
  [
    {'clip_low': 0.0},
    {'clip_high': -1.0},
    {'dual_clip': 0.9},
    {'kl_kind': 'k4'},
    {'ratio': 'word'},
  ],
)
def test_bad_options_are_refused(bad):
  with pytest.raises(ValueError):
    grpo.PolicyLossConfig(**bad)


def test_every_option_is_known():
  names = {f.name for f in dataclasses.fields(grpo.PolicyLossConfig)}
  assert names == {
    'clip_low',
    'clip_high',
    'dual_clip',
    'ratio',
    'kl_coef',
    'kl_kind',
    'entropy_coef',
    'correction',
  }
