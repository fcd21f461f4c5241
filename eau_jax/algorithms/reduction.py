"""How per-token losses become one number: the weight of every token, so that the loss is always a plain sum.

Each function takes action_ids i32[P, G, T] of the whole minibatch and returns weights f32[P, G, T], 0 where the id is
-1. Weights are computed before the minibatch is cut into micro-batches, packed or spread over devices, and travel with
their tokens; that is what makes the loss independent of the cut. Episodes, groups and actions without a counted token
are not counted in any mean. To count only some action tokens (`Targets.value_mask`), pass -1 at the others.

Names follow verl's `loss_agg_mode`. Notation: s = Σ L over the tokens of a unit, n = number of its tokens.
"""

import jax.numpy as jnp

from eau_jax.algorithms import action
from eau_jax.core.types import Array


def token_mean(action_ids: Array) -> Array:
    """Σ s / Σ n: every token of the minibatch weighs the same (DAPO, arXiv:2503.14476, section 3.3)."""
    counted = action_ids >= 0
    return _where(counted, 1.0 / _at_least_one(counted.sum()))


def sequence_mean_token_sum(action_ids: Array) -> Array:
    """mean over episodes of s: a long episode weighs more."""
    counted = action_ids >= 0
    return _where(counted, 1.0 / _at_least_one(counted.any(-1).sum()))


def sequence_mean_token_mean(action_ids: Array) -> Array:
    """mean over episodes of s / n: every episode weighs the same (GRPO, arXiv:2402.03300)."""
    counted = action_ids >= 0
    tokens = counted.sum(-1, keepdims=True)                                          # [P, G, 1]
    return _where(counted, 1.0 / (_at_least_one(counted.any(-1).sum()) * _at_least_one(tokens)))


def sequence_mean_token_sum_norm(action_ids: Array, constant: float) -> Array:
    """Σ s / constant, where the constant (e.g. episodes times token budget) depends on no episode's length.

    Bind the constant in the config: `functools.partial(sequence_mean_token_sum_norm, constant=...)`.
    Reference: Dr. GRPO, Liu et al. 2025, arXiv:2503.20783.
    """
    if constant <= 0:
        raise ValueError(f"the normalising constant is {constant}; allowed: above 0, e.g. episodes x token budget")
    return _where(action_ids >= 0, 1.0 / constant)


def prompt_mean(action_ids: Array) -> Array:
    """mean over tasks of the token mean inside the task's group: every task weighs the same."""
    counted = action_ids >= 0
    tokens = counted.sum((-2, -1), keepdims=True)                                    # [P, 1, 1]
    return _where(counted, 1.0 / (_at_least_one((tokens > 0).sum()) * _at_least_one(tokens)))


def action_mean_token_mean(action_ids: Array) -> Array:
    """mean over actions of s / n: every assistant turn weighs the same, as it does in the advantage of `by_action`."""
    actions = action.first_tokens(action_ids).sum()
    return _where(action_ids >= 0, 1.0 / (_at_least_one(actions) * _at_least_one(action.lengths(action_ids))))


def action_mean_token_sum(action_ids: Array) -> Array:
    """mean over actions of s: the gradient of an action is that of its log-probability, whatever its length."""
    return _where(action_ids >= 0, 1.0 / _at_least_one(action.first_tokens(action_ids).sum()))


def _at_least_one(count: Array) -> Array:
    return jnp.maximum(count, 1).astype(jnp.float32)


def _where(counted: Array, weight: Array) -> Array:
    return jnp.where(counted, weight, 0.0).astype(jnp.float32)
