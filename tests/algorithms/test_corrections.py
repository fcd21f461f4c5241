"""Every correction, found by walking the package, keeps the contract; published cases of those that drop and weigh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import same
from algorithms.test_contracts import CORRECTIONS

from eau_jax.algorithms import correction, loss, mismatch
from eau_jax.core.types import Mean

RATIOS = [1.11, .22, 2.23, 5e-5, 1.35]


def weigh(part, rows, **settings):
    """(weights, metrics) of episodes [B] given by their tokens' ratios, padded with NaN."""
    width = max(map(len, rows)) + 2
    gap = np.full((1, len(rows), width), np.nan, np.float32)
    for b, row in enumerate(rows):
        gap[0, b, :len(row)] = np.log(row)
    knobs = part.knobs.replace(**{name: np.float32(value) for name, value in settings.items()})
    weights, metrics = jax.jit(part.weigh)(gap - 1, np.full_like(gap, -1), ~np.isnan(gap), knobs)
    weights = np.asarray(weights)
    assert (weights[np.isnan(gap)] == 1).all() and np.isfinite(weights).all()
    return [weights[0, b, :len(row)].tolist() for b, row in enumerate(rows)], metrics


@pytest.fixture(scope="module", params=CORRECTIONS.values(), ids=CORRECTIONS.keys())
def part(request):
    return request.param


def test_the_folder_was_walked():
    assert {"truncated", "none", "sequence", "icepop", "reject"} <= set(CORRECTIONS)


def test_equal_policies_need_none(part):
    weights, metrics = weigh(part, [[1, 1, 1], [1]])
    assert weights == [[1, 1, 1], [1]]
    assert metrics["sampler_gap"].result() == 0
    assert metrics["correction_ess"].result() == 1 if "correction_ess" in metrics else part.name == "none"


def test_weights_have_no_gradient(part):
    def total(old):
        return part.weigh(old, np.full((1, 1, 3), -1, np.float32), np.ones((1, 1, 3), bool), part.knobs)[0].sum()
    assert not np.asarray(jax.grad(total)(jnp.array([[[-1.2, -.9, -1]]]))).any()


def test_an_empty_batch_has_no_diagnostics(part):
    nothing = np.zeros((1, 2, 2), np.float32)
    weights, metrics = part.weigh(nothing, nothing, np.zeros((1, 2, 2), bool), part.knobs)
    assert (np.asarray(weights) == 1).all()
    assert all(isinstance(metric, Mean) and np.isnan(metric.result()) for metric in metrics.values())


def test_truncation_by_token():
    same(weigh(correction.truncated, [RATIOS], cap=2)[0][0], [1.11, .22, 2, 5e-5, 1.35])


def test_window_by_token():
    weights, metrics = weigh(mismatch.icepop, [RATIOS], low=.5, high=2)
    same(weights[0], [1.11, 0, 0, 0, 1.35])
    same([metrics["correction_dropped"].result(), metrics["correction_ess"].result()],
         [.6, 2.46 ** 2 / (5 * (1.11 ** 2 + 1.35 ** 2))])


def test_product_over_the_episode():
    rows = [[1.1] * 10, [1.1] * 100, [.9, .5]]
    weights, metrics = weigh(mismatch.sequence, rows, cap=100)
    same([w[0] for w in weights], [2.5937425, 100, .45])
    assert all(len(set(w)) == 1 for w in weights)
    same(metrics["correction_capped"].result(), 100 / 112)


def test_rejection_by_the_geometric_mean():
    rows = [[1.1] * 10, [1.1] * 100, [1.3, .9], [1.05, .5], [1, 1, 1, 1e-5]]
    weights, metrics = weigh(mismatch.reject, rows, low=.9, high=1.1001)
    assert [w[0] for w in weights] == [1, 1, 1, 0, 0]
    same(metrics["correction_dropped"].result(), 6 / 118)
    assert weigh(mismatch.reject, rows, low=0, high=1.1001)[0][4][0] == 0, "the veto alone"
    assert weigh(mismatch.reject, rows, low=0, high=1.1001, veto=0)[0][4][0] == 1
    product = weigh(mismatch.sequence, rows[:2], cap=100)[0]
    assert product[0][0] != product[1][0], "the mutant: a product tells lengths apart, a mean does not"


def test_windows_hold_their_ends():
    for part in (mismatch.icepop, mismatch.reject):
        assert weigh(part, [[1, 1], [1]], low=1, high=1)[0] == [[1, 1], [1]]
    assert [w[0] for w in weigh(mismatch.reject, [[.9985], [.9995], [1.0005], [1.0015]])[0]] == [0, 1, 1, 0]


def test_decoupled_loss():
    """w = 1.5, ratio 1.3, clipped at 1.2."""
    one = lambda value: np.array([[[value]]], np.float32)
    w, _ = correction.weigh_truncated(one(np.log(1.5)), one(0), np.ones((1, 1, 1), bool), correction.Knobs())
    value, _ = loss.policy_loss(one(np.log(1.5 * 1.3)), one(np.log(1.5)), one(1), w, one(1), np.ones((1, 1, 1), bool),
                                loss.PolicyKnobs(clip_high=np.float32(.2)))
    same(value, -1.8)
    coupled, _ = loss.policy_loss(one(np.log(1.5 * 1.3)), one(0), one(1), one(1), one(1), np.ones((1, 1, 1), bool),
                                  loss.PolicyKnobs(clip_high=np.float32(.2)))
    same(coupled, -1.2)
