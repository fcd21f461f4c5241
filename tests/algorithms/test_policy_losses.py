"""Every policy loss, found by walking the package, keeps the contract; those over actions and episodes agree with
their formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algorithms.batches import T, random_batch, same
from algorithms.test_contracts import LOSSES

from eau_jax.algorithms import dis, loss, ratio, reduction, sapo
from eau_jax.core import batching


def inputs(seed: int = 0, gap: float = 0.4) -> dict:
    """Arguments of a loss but knobs, one episode a row, [B, T]."""
    trajectory, _ = random_batch(seed)
    rng, ids = np.random.default_rng(seed), trajectory.action_ids.reshape(-1, T)
    old = -rng.exponential(size=ids.shape).astype(np.float32)
    return dict(logprobs=(old + gap * rng.normal(size=ids.shape)).astype(np.float32), old_logprobs=old,
                advantages=rng.normal(size=ids.shape).astype(np.float32),
                correction=rng.uniform(0.5, 2, ids.shape).astype(np.float32),
                weights=np.asarray(reduction.token_mean(trajectory.action_ids)).reshape(ids.shape), mask=ids >= 0,
                units=loss.Units(np.broadcast_to(np.arange(len(ids), dtype=np.int32)[:, None], ids.shape), ids))


def value_and_grad(part, arguments, **settings):
    knobs = part.knobs.replace(**{name: np.float32(value) for name, value in settings.items()})
    rest = {name: x for name, x in arguments.items() if name != "logprobs"}
    of = jax.jit(jax.value_and_grad(lambda logprobs: part.loss(logprobs, **rest, knobs=knobs)[0]))
    value, gradient = of(arguments["logprobs"])
    return float(value), np.asarray(gradient)


@pytest.fixture(scope="module", params=LOSSES.values(), ids=LOSSES.keys())
def part(request) -> loss.PolicyLoss:
    return request.param


def test_the_folder_was_walked():
    assert {"token_ratio", "turn_ratio", "sequence_ratio", "sapo", "dis"} <= set(LOSSES)


def test_masked_tokens_are_inert(part):
    clean = inputs()
    before = value_and_grad(part, clean)
    for poison in (np.nan, np.inf):
        spoilt = {name: np.where(clean["mask"], x, poison).astype(np.float32) if name not in ("mask", "units") else x
                  for name, x in clean.items()}
        after = value_and_grad(part, spoilt)
        same(after[0], before[0])
        same(after[1], before[1])
        assert not after[1][~clean["mask"]].any()


def test_equal_policies_give_the_policy_gradient(part):
    given = inputs(gap=0.0)
    _, gradient = value_and_grad(part, given)
    same(gradient, np.where(given["mask"], -given["weights"] * given["advantages"] * given["correction"], 0))


def test_nothing_to_learn_from(part):
    given = inputs()
    value, gradient = value_and_grad(part, given | {"mask": np.zeros_like(given["mask"])})
    assert value == 0 and not gradient.any()


def packed(given: dict) -> dict:
    """The same episodes, several in a row."""
    lengths = np.where(given["mask"].any(1), T - np.argmax(given["mask"][:, ::-1], axis=1), 0)
    packing = batching.pack(lengths, width=2 * T)
    assert packing.rows < len(lengths)
    rows = lambda x, fill=0: batching.to_rows(np.asarray(x), packing, fill)
    out = {name: rows(x) for name, x in given.items() if name != "units"}
    return out | {"units": loss.Units(batching.segments(packing)[0], rows(given["units"].actions, -1))}


@pytest.mark.parametrize("seed", range(2))
def test_packing_and_cutting_change_nothing(part, seed):
    given = inputs(seed)
    whole, rows = value_and_grad(part, given), value_and_grad(part, packed(given))
    same(rows[0], whole[0])
    same(np.sort(rows[1][rows[1] != 0]), np.sort(whole[1][whole[1] != 0]))
    parts = [value_and_grad(part, jax.tree.map(lambda x: x[at], given)) for at in (slice(0, 2), slice(2, None))]
    same(sum(value for value, _ in parts), whole[0])
    same(np.concatenate([gradient for _, gradient in parts]), whole[1])


# --- ratios of actions and episodes ----------------------------------------------------------------------------------

def episode(log_ratios, action_ids, advantages) -> dict:
    """One row whose tokens all weigh 1."""
    row = lambda x: np.array([x], np.float32)
    ids = np.array([action_ids], np.int32)
    return dict(logprobs=row(log_ratios), old_logprobs=row([0] * len(log_ratios)), advantages=row(advantages),
                correction=np.ones(ids.shape, np.float32), weights=np.ones(ids.shape, np.float32), mask=ids >= 0,
                units=loss.Units(np.zeros_like(ids), ids))


def test_ratio_of_an_episode():
    given = episode([.1, -.05, .01], [0, 1, 1], [1, 1, 1])
    value, gradient = value_and_grad(ratio.sequence_ratio, given, clip_high=1)
    same([value, *gradient[0]], [-3 * 1.020201] + [-1.020201] * 3)
    value, gradient = value_and_grad(ratio.sequence_ratio, given)
    same([value, *gradient[0]], [-3 * 1.0004, 0, 0, 0])


def test_ratio_of_each_action():
    given = episode([.1, 9, -.3, .2, 9, .6], [0, -1, 0, 1, -1, 1], [1, 9, 1, -1, 9, -1])
    value, gradient = value_and_grad(ratio.turn_ratio, given, clip_high=.5)
    first, second = math.exp(-.1), math.exp(.4)
    same(value, -2 * first + 2 * second)
    same(gradient[0], [-first, 0, -first, second, 0, second])


def test_the_gradient_is_that_of_the_action():
    """With one advantage and weight in an action, as if the loss were written with the mean inside the exponential."""
    given = episode([.1, -.3, .2, .05], [0, 0, 0, 1], [1, 1, 1, 2])

    def of_action(logprobs):
        return -3 * jnp.exp(logprobs[0, :3].mean()) - 2 * jnp.exp(logprobs[0, 3])

    same(value_and_grad(ratio.turn_ratio, given)[1], jax.grad(of_action)(given["logprobs"]))


def test_actions_of_one_token_are_tokens():
    given = inputs(1)
    ids = np.where(given["mask"], np.arange(T)[None], -1).astype(np.int32)
    single = given | {"units": loss.Units(given["units"].episodes, ids)}
    one, two = value_and_grad(ratio.turn_ratio, single, clip_high=.28), value_and_grad(loss.token_ratio, given)
    same(one[0], two[0])
    same(one[1], two[1])


def test_a_unit_does_not_cross_episodes():
    """Two packed episodes whose actions have the same numbers; and one number twice in a row is one action."""
    ids, episodes = np.array([[0, 0, -1, 0, 1, -1]], np.int32), np.array([[3, 3, 3, 1, 1, 0]], np.int32)
    values = np.array([[1, 3, np.nan, 5, 7, np.nan]], np.float32)
    mean = lambda *keys: np.asarray(ratio.unit_mean(values, ids >= 0, *keys))[0].tolist()
    assert mean(episodes, ids) == [2, 2, 0, 5, 7, 0]
    assert mean(episodes) == [2, 2, 0, 6, 6, 0]
    assert mean(ids) != mean(episodes, ids), "the mutant: action numbers alone"


@pytest.mark.parametrize("wrong", [
    lambda d, mask, *keys: d,                                                           # tokens
    lambda d, mask, *keys: jnp.where(mask, jnp.where(mask, d, 0).mean(-1, keepdims=True), 0),  # padding counts
    lambda d, mask, *keys: jnp.where(mask, jnp.where(mask, d, 0).sum(-1, keepdims=True), 0),   # sum
], ids=["token", "padding_counts", "sum"])
def test_wrong_means_are_rejected(monkeypatch, wrong):
    monkeypatch.setattr(ratio, "unit_mean", wrong)
    with pytest.raises(AssertionError):
        test_ratio_of_each_action()


# --- SAPO and DIS ----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("temperature, at, expected", [(1, 1, 2), (1, 1.5, 2.489837), (1.05, 1.5, 2.393585)])
def test_gate(temperature, at, expected):
    same(sapo.gate(np.float32(at), np.float32(temperature)), expected)
    sign = 1 if temperature == 1 else -1
    given = episode([math.log(at)], [0], [sign])
    value, gradient = value_and_grad(sapo.sapo, given)
    same(value, -sign * expected)
    share = expected * temperature / 4
    same(sapo.sapo.loss(**given, knobs=sapo.Knobs())[1]["gate_slope"].result(), 4 * share * (1 - share))
    same(gradient[0, 0], -sign * at * 4 * share * (1 - share))
    assert abs(value_and_grad(sapo.sapo, episode([math.log(at)], [0], [-sign]))[0] + value) > 1e-3 or at == 1, "one τ"


@pytest.mark.parametrize("below, above, ratios, kept", [
    (.8, 3.0, [.15, .25, 1, 3.9, 4.1], [0, .25, 1, 3.9, 0]), (.3, 5.0, [.65, .71, 5.9, 6.1], [0, .71, 5.9, 0]),
])
def test_window(below, above, ratios, kept):
    for advantage in (1, -1):  # whatever its sign, unlike a clip
        given = episode(np.log(ratios), range(len(ratios)), [advantage] * len(ratios))
        _, gradient = value_and_grad(dis.dis, given, below=below, above=above)
        same(gradient[0], -advantage * np.array(kept))
        left_out = dis.dis.loss(**given, knobs=dis.Knobs(np.float32(below), np.float32(above)))[1]["left_out"].result()
        same(left_out, np.mean(np.array(kept) == 0))
    same(dis.window(np.float32([.5, 1, 4]), dis.Knobs(np.float32(.5), np.float32(3))), [0, 1, 0])   # without its ends
    _, clipped = value_and_grad(loss.token_ratio, given, clip_low=below, clip_high=above)
    assert np.abs(clipped[0] + advantage * np.array(kept)).max() > .01, "the mutant: PPO's clip"
