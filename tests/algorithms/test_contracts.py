"""What every advantage estimator, view, correction and loss must keep, found by walking the package."""

import dataclasses
import functools
import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms import batches, checks, mutants
from algorithms.batches import same
from oracles import advantages as oracle

import eau_jax.algorithms
from eau_jax.algorithms import correction, gae, group, kl, loss, shaping
from eau_jax.algorithms.advantage import Advantage
from eau_jax.algorithms.view import View
from eau_jax.core import knobs as knob
from eau_jax.core.types import Estimate, Steps

G, K, EXTRA = 5, 6, 3
NAMES = [module.name for module in pkgutil.iter_modules(eau_jax.algorithms.__path__)]
FOUND = [value for name in NAMES for value in vars(importlib.import_module(f"eau_jax.algorithms.{name}")).values()]
ADVANTAGES = {value.name: value for value in FOUND if isinstance(value, Advantage)}
VIEWS = {value.name: value for value in FOUND if isinstance(value, View)}
LOSSES = {value.name: value for value in FOUND if isinstance(value, loss.PolicyLoss)}
SHAPINGS = {value.name: value for value in FOUND if isinstance(value, shaping.Shaping)}
CORRECTIONS = {value.name: value for value in FOUND if isinstance(value, correction.Correction)}
KNOBS = {value for value in FOUND if isinstance(value, type) and dataclasses.is_dataclass(value)
         and any("knob" in field.metadata for field in dataclasses.fields(value))}


def random_steps(seed: int, garbage: float = 30.0, extra: int = 0) -> Steps:
    """[G, K + extra]: truncated and terminated episodes and a dropped one, garbage wherever the mask does not hold."""
    rng = np.random.default_rng(seed)
    counts = np.array([K, 1, 0, 3, 4])
    mask = np.arange(K + extra)[None] < counts[:, None]
    rewards, values = rng.normal(size=(G, K)), rng.normal(size=(G, K + 1))
    rewards = np.pad(rewards, [(0, 0), (0, extra)])
    values = np.pad(values, [(0, 0), (0, extra)])
    discounts = np.ones_like(rewards)
    for g in (1, 3):
        discounts[g, counts[g] - 1] = 0.0
    read = np.arange(K + extra + 1)[None] <= np.where(discounts.min(1) > 0, counts, counts - 1)[:, None]
    read &= counts[:, None] > 0
    ends = np.zeros_like(mask)
    for g, last in enumerate(([1, 2, 5], [0], [], [0, 2], [3])):  # of each action
        ends[g, last] = True
    rewards, gains = np.where(ends, rewards, 0), np.where(ends, np.pad(rng.normal(size=(G, K)), [(0, 0), (0, extra)]), 0)
    return Steps(rewards=np.where(mask, rewards, garbage).astype(np.float32),
                 values=np.where(read, values, garbage).astype(np.float32),
                 discounts=np.where(mask, discounts, garbage).astype(np.float32), mask=mask,
                 ends=ends, gains=np.where(mask, gains, garbage).astype(np.float32))


@pytest.fixture(scope="module", params=ADVANTAGES.values(), ids=ADVANTAGES.keys())
def part(request) -> Advantage:
    return request.param


def compiled(part: Advantage, steps: Steps) -> Estimate:
    return jax.tree.map(np.asarray, jax.jit(part.estimate)(steps, part.knobs))


def masked_steps_are_zero(part: Advantage) -> None:
    for garbage in (30.0, np.nan, np.inf):
        steps = random_steps(0, garbage)
        for array in compiled(part, steps):
            assert np.isfinite(array).all() and not array[~steps.mask].any() and array.dtype == np.float32
    assert compiled(part, random_steps(0)).advantages.any()


def padding_is_inert(part: Advantage) -> None:
    short, wide = compiled(part, random_steps(1)), compiled(part, random_steps(1, extra=EXTRA))
    for s, w in zip(short, wide, strict=True):
        same(w[:, :K], s)


def group_baseline_agrees_with_the_formula(part: Advantage) -> None:
    for seed in range(3):
        steps = random_steps(seed)
        members, scores = steps.mask.any(1), np.where(steps.mask, steps.rewards, 0).sum(1)
        expected = np.zeros(G)
        expected[members] = oracle.group(part.name, scores[members].tolist())
        same(compiled(part, steps).advantages, np.where(steps.mask, expected[:, None], 0))


def test_the_folder_was_walked():
    assert {"gae", "grpo", "dr_grpo", "rloo"} <= set(ADVANTAGES)
    assert set(VIEWS) == {"by_token", "by_action", "by_action_end"}


def test_masked_steps_are_zero(part):
    masked_steps_are_zero(part)


def test_padding_is_inert(part):
    padding_is_inert(part)


def test_jit_changes_nothing(part):
    with jax.disable_jit():
        plain = part.estimate(random_steps(2), part.knobs)
    for a, b in zip(plain, compiled(part, random_steps(2)), strict=True):
        same(a, b)


@pytest.mark.parametrize("part", [group.grpo, group.dr_grpo, group.rloo], ids=lambda p: p.name)
def test_group_baselines(part):
    group_baseline_agrees_with_the_formula(part)


def test_permuting_episodes_permutes_the_result(part):
    steps, order = random_steps(3), np.random.default_rng(0).permutation(G)
    moved = jax.tree.map(lambda x: x[order], steps)
    for a, b in zip(compiled(part, moved), compiled(part, steps), strict=True):
        same(a, b[order])


def test_nothing_but_masked_rows(part):
    steps = random_steps(0, np.nan)
    nothing = Steps(rewards=np.full_like(steps.rewards, np.nan), values=np.full_like(steps.values, np.nan),
                    discounts=np.full_like(steps.discounts, np.nan), gains=np.full_like(steps.gains, np.nan),
                    mask=np.zeros_like(steps.mask), ends=np.zeros_like(steps.ends))
    for array in compiled(part, nothing):
        assert not array.any()


def test_the_critic_is_read_if_and_only_if_it_is_needed(part):
    steps = random_steps(4)
    other = steps.replace(values=steps.values + np.float32(0.5))
    moved = [np.abs(a - b).max() > 1e-3 for a, b in zip(compiled(part, other), compiled(part, steps), strict=True)]
    assert moved[0] == part.needs_critic
    if not part.needs_critic:
        assert not compiled(part, steps).targets.any()


def test_gains_are_read_if_and_only_if_they_are_needed(part):
    steps = random_steps(4)
    other = steps.replace(gains=steps.gains ** 2)
    moved = np.abs(compiled(part, other).advantages - compiled(part, steps).advantages).max() > 1e-3
    assert moved == part.needs_gain


def test_one_trace_across_knob_patches(part):
    traces = []

    @jax.jit
    def estimate(steps, knobs):
        traces.append(1)
        return part.estimate(steps, knobs)

    estimate(random_steps(0), part.knobs)
    for path, spec in knob.specs(part.knobs).items():
        for value in (spec.low, spec.high, (spec.low + spec.high) / 2):
            estimate(random_steps(0), knob.patch(part.knobs, {path: value}))
    assert len(traces) == 1


# --- every knob moves something --------------------------------------------------------------------------------------

def _losses():
    """Knob dataclass -> a function of knobs whose result is compared. Those of parts are found with them."""
    ids, inputs = checks.token_inputs(0)
    mask = inputs["mask"]
    weights = np.where(mask, np.float32(1), 0)
    trajectory = batches.single([0] * 18_000 + [1], [4.5, 1.0], ended=True)  # near the limit of overlong episodes
    units = loss.Units(np.broadcast_to(np.arange(len(ids))[:, None, None], ids.shape), ids)
    apart = {**inputs, "logprobs": inputs["old_logprobs"] + 10 * (inputs["logprobs"] - inputs["old_logprobs"])}
    steps = random_steps(0)
    advantages = {type(part.knobs): functools.partial(part.estimate, steps) for part in ADVANTAGES.values()
                  if type(part.knobs) in KNOBS}
    losses = {type(part.knobs): lambda k, part=part: part.loss(**apart, weights=weights, units=units, knobs=k)[0]
              for part in LOSSES.values()}
    gaps = np.log(np.float32([[[.4, .7, .4], [.9995] * 3, [1.0005] * 3, [3] * 3, [20] * 3, [1e-5, 316.2, 316.2]]]))
    corrections = {type(part.knobs): lambda k, part=part: part.weigh(gaps, 0 * gaps, gaps < 99, k)[0]
                   for part in CORRECTIONS.values() if type(part.knobs) in KNOBS}
    shapings = {type(part.knobs): lambda k, part=part: part.shape(trajectory, k).rewards for part in SHAPINGS.values()}
    return advantages | losses | corrections | shapings | {
        loss.ValueKnobs: lambda k: loss.value_loss(inputs["advantages"], inputs["old_logprobs"], inputs["logprobs"],
                                                   weights, mask, k)[0],
        loss.EntropyKnobs: lambda k: loss.entropy_loss(inputs["old_logprobs"], weights, mask, k)[0],
        kl.ControlKnobs: lambda k: kl.controlled(1.0, 0.3, 128, k.replace(target=jnp.maximum(k.target, 0.1))),
        loss.KlKnobs: lambda k: loss.kl_loss(inputs["logprobs"], inputs["old_logprobs"], weights, mask, kl.k3, k)[0],
    }


def dead_knobs(cls, of) -> list[str]:
    """Knobs whose lowest, default and highest values do not give three different results."""
    of = jax.jit(of)
    dead = []
    for path, spec in knob.specs(cls()).items():
        seen = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(of(knob.patch(cls(), {path: value})))])
                for value in {spec.low, spec.default, spec.high}]
        if any(np.abs(a - b).max() < 1e-7 for i, a in enumerate(seen) for b in seen[:i]):
            dead.append(path)
    return dead


def test_every_knob_moves_something():
    table = _losses()
    assert set(table) == KNOBS, "a knob dataclass of the package is missing from the table"
    for cls, of in table.items():
        assert dead_knobs(cls, of) == []


# --- the contracts bite ----------------------------------------------------------------------------------------------

def _population_std(steps, knobs):
    real = group.estimate_grpo(steps, knobs)
    n = steps.mask.any(1).sum()
    return real._replace(advantages=real.advantages * (n / (n - 1)) ** 0.5)


def _dropped_members_count(steps, knobs):
    """The mean over all rows, a dropped one as a score of 0."""
    scores = np.float32(1) * (steps.rewards * steps.mask).sum(1)
    return Estimate((scores - scores.mean())[:, None] * steps.mask, steps.rewards * 0.0)


@pytest.mark.parametrize("name, wrong, contract", [
    ("gae", mutants.mask_ignored, masked_steps_are_zero),
    ("gae", mutants.mask_ignored, padding_is_inert),
    ("dr_grpo", _dropped_members_count, masked_steps_are_zero),
    ("dr_grpo", _dropped_members_count, group_baseline_agrees_with_the_formula),
    ("grpo", _population_std, group_baseline_agrees_with_the_formula),
])
def test_contract_rejects(name, wrong, contract):
    with pytest.raises(AssertionError):
        contract(ADVANTAGES[name]._replace(estimate=wrong))


def test_a_dead_knob_is_found():
    steps = random_steps(0)
    assert dead_knobs(gae.Knobs, lambda k: mutants.one_lambda_for_both(steps, k)) == ["critic_lambda"]
