"""Fine-tuning on packed rows: neighbours in a row do not see each other, and only learned tokens are in the loss."""

import jax
import numpy as np
import pytest

import small_learner as small
from eau_jax.core.batching import Example, to_demonstrations
from eau_jax.learner import optimizer, sft
from eau_jax.learner.state import init_tower
from eau_jax.models import transformer


def examples():
    rng = np.random.default_rng(0)
    return [Example(rng.integers(0, 64, length).astype(np.int32), rng.random(length) * (np.arange(length) > 0) > 0.4)
            for length in (13, 16)]


def fitted(width, batch):
    """The tower, gradient moments included, and the metrics after one step in rows of `width` tokens."""
    learner = small.learner(tokens=width, row_width=width, micro_rows=2)
    knobs = {"policy_optimizer": optimizer.Knobs(learning_rate=np.float32(1e-2), max_grad_norm=np.float32(1e6))}
    tower, frozen = init_tower(learner, small.params(), jax.random.key(0))
    tower, metrics = sft.update(learner, tower, frozen, to_demonstrations(batch, width), knobs)
    return tower, {name: mean.result() for name, mean in metrics.items()}


def assert_same(one, other):
    assert one[1] == pytest.approx(other[1], rel=1e-5)
    for a, b in zip(jax.tree.leaves(one[0]), jax.tree.leaves(other[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_two_dialogues_in_one_row_give_the_loss_and_gradients_of_two_rows():
    packed, apart = fitted(32, examples()), fitted(16, examples())
    assert_same(packed, apart)
    merged = Example(*(np.concatenate(pair) for pair in zip(*examples())))   # a mutant: the second text reads the first
    _, wrong = fitted(32, [merged])
    assert wrong["action_tokens"] == packed[1]["action_tokens"] and abs(wrong["nll"] - packed[1]["nll"]) > 1e-4


def test_only_learned_tokens_are_in_the_loss():
    """The loss does not depend on what comes after the last learned token, and no unlearned token is counted."""
    first, second = examples()
    nothing = first._replace(learned=np.zeros(13, bool))
    _, alone = fitted(32, [second])
    _, both = fitted(32, [nothing, second])
    assert both == pytest.approx(alone, rel=1e-5) and both["action_tokens"] == second.learned.sum()
    hidden = transformer.forward(small.params(), small.MODEL, second.tokens[None], np.arange(16, dtype=np.int32)[None],
                                 np.ones((1, 16), np.int32))[0]
    logp = jax.nn.log_softmax(hidden @ small.params()["embed"].T, axis=-1)     # at temperature 1
    expected = [-logp[t - 1, second.tokens[t]] for t in np.flatnonzero(second.learned)]
    assert alone["nll"] == pytest.approx(float(np.mean(expected)), abs=1e-5)
