"""InfoPO: gains, gate and fusion against the formulas, and what they reduce to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import same
from algorithms.groups import advantages, drawn
from oracles import methods

from eau_jax.algorithms import group, infopo, span, userrl

NAN = np.nan
GROUP = [[(0, 2, .5), (1, 3, -.2), (0, 1, 0)], [(0, 1, .3), (.5, 2, 0)], [(0, 4, 0)]]


def expected(episodes, external, beta, temperature, scoring) -> list[list[float]]:
    """A_ext + beta * sigmoid(-std / T) * A_info, per step."""
    scores = [methods.score(scoring, [r for r, _, _ in episode], None) for episode in episodes]
    spread = np.std(scores, ddof=1)
    each = [[gain / n for _, n, gain in episode for _ in range(n)] for episode in episodes]
    counted = [x for row in each for x in row if x != 0]
    mean, std = np.mean(counted), np.std(counted, ddof=1)
    gate = 1 / (1 + np.exp(spread / temperature))
    return [[e + beta * gate * ((x - mean) / (std + 1e-6) if x else 0) for e, x in zip(outer, row, strict=True)]
            for outer, row in zip(external, each, strict=True)]


def agrees_with_the_formula(part, scoring="total") -> None:
    rng = np.random.default_rng(0)
    for n in range(4):
        episodes = [[(float(rng.normal()), int(rng.integers(1, 4)), float(rng.normal() * rng.integers(0, 2)))
                     for _ in range(rng.integers(1, 4))] + [(0.0, 1, 0.0)] for _ in range(4)]
        external = methods.userrl([[(r, n) for r, n, _ in e] for e in episodes], "equalized", scoring)
        got = advantages(part, drawn(episodes), beta=.4, temperature=.7)
        same(np.concatenate(got), np.concatenate(expected(episodes, external, .4, .7, scoring)), tolerance=1e-4)


@pytest.mark.parametrize("spread, temperature, opened", [
    (0, .5, .5), (.25, .5, .377541), (.5, .5, .268941), (1, .5, .119203), (.5, .05, 4.54e-5)])
def test_gate(spread, temperature, opened):
    same(infopo.gate(np.float32(spread), np.float32(temperature)), opened, tolerance=1e-6)


def test_gain_goes_to_the_action_that_was_answered():
    """Slot 1 has no tokens: the answer after slot 0 is judged by slot 2's action."""
    ids = np.array([0, 0, -1, 2, 2, 2, -1, 3, -1], np.int32)
    full = np.array([-9, -9, NAN, -.1, -.2, -.3, NAN, -1, NAN], np.float32)
    other = np.array([-9, -9, NAN, -.5, -.2, -1.2, NAN, -1.5, NAN], np.float32)
    of = jax.jit(infopo.gains, static_argnums=3)
    same(of(full[None], other[None], ids[None], 5)[0], [.433333, 0, .5, 0, 0])
    assert not np.asarray(of(full[None], other[None], np.full_like(ids, -1)[None], 5)).any()


def test_values_other_than_zero_are_standardised():
    steps = drawn([[(0, 1, .4333), (0, 1, 0), (0, 1, .2)]])
    same(jax.jit(infopo.information)(steps)[0, :3], [.7071, 0, -.7071], tolerance=1e-4)
    alone = drawn([[(0, 2, 0), (0, 1, .2)], [(0, 1, 0)]])
    assert not np.asarray(jax.jit(infopo.information)(alone)).any()


def test_formula():
    agrees_with_the_formula(infopo.infopo)
    agrees_with_the_formula(infopo.infopo_mean, "mean")
    for wrong in (infopo.informed("gate", userrl.equalized_mean, userrl.total),
                  infopo.informed("size", group.grpo, userrl.mean)):
        with pytest.raises(AssertionError):
            agrees_with_the_formula(wrong, "mean")


def test_the_authors_cap_on_the_magnitude_never_binds():
    """min(1, max(std of A_ext, 1) / std of A_info) over the batch's steps is 1, because the latter is at most 1."""
    rng, of = np.random.default_rng(1), jax.jit(infopo.information)
    groups = [drawn([[(0, 1, float(gain)) for gain in rng.normal(size=4) * scale] for _ in range(4)]) for scale in (.1, 1, 9)]
    assert .9 < np.std([np.asarray(of(steps))[steps.mask] for steps in groups], ddof=1) <= 1


@pytest.mark.parametrize("part, external", [(infopo.infopo, group.grpo), (infopo.infopo_mean, userrl.equalized_mean)],
                         ids=["infopo", "infopo_mean"])
def test_without_weight_it_is_its_external_advantage(part, external):
    steps = drawn(GROUP)
    assert advantages(part, steps, beta=0) == advantages(external, steps)
    assert advantages(part, steps, beta=.5) != advantages(external, steps)


def test_a_tied_group_learns_from_information_alone():
    tied = [[(1, 2, .5), (0, 1, 0)], [(1, 1, .3), (0, 1, 0)]]
    got = advantages(infopo.infopo, drawn(tied))
    same(got[0], [-.5 * .5 * .57735] * 2 + [0], tolerance=1e-4)  # .25 a token against .3: counted by token
    same(got[1], [.5 * .5 * 1.154700, 0], tolerance=1e-4)


# --- mistakes that the formula must reject ---------------------------------------------------------------------------

def _zeros_count(steps):
    each = jnp.where(steps.mask, steps.gains, 0)
    return group.standardised(each.reshape(-1), steps.mask.reshape(-1)).reshape(each.shape)


def _not_by_length(steps, right=infopo.information):
    return right(steps.replace(gains=span.at_end(jnp.where(steps.mask, steps.gains, 0), steps.ends), ends=steps.mask))


def _gate_open(spread, temperature):
    return jax.nn.sigmoid(spread / temperature)


@pytest.mark.parametrize("name, wrong", [("information", _zeros_count), ("information", _not_by_length),
                                         ("gate", _gate_open)], ids=["zeros_count", "not_by_length", "gate_open"])
def test_formula_rejects(monkeypatch, name, wrong):
    monkeypatch.setattr(infopo, name, wrong)
    with pytest.raises(AssertionError):
        agrees_with_the_formula(infopo.informed("wrong", group.grpo, userrl.total))
