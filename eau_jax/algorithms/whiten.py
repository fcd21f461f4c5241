"""Normalisation of advantages over the global batch: which tokens the moments are taken over.

Each function takes (advantages f32[P, G, T], action_ids i32[P, G, T]) of the whole batch, after the view has spread
the estimate over tokens, and returns the same shape with 0 off action tokens. Called on a part of the batch the moments
would be those of the part. Unbiased variance; with fewer than two counted positions nothing is changed
(`core.masking.whiten`).
"""

from eau_jax.algorithms import action
from eau_jax.core.masking import masked, whiten
from eau_jax.core.types import Array


def over_actions(advantages: Array, action_ids: Array) -> Array:
    """Every action counts once, however many tokens it has: a long turn does not move the mean.

    Under `by_token` the advantages of an action differ and its first token stands for it.
    """
    return whiten(advantages, action_ids >= 0, action.first_tokens(action_ids))


def over_tokens(advantages: Array, action_ids: Array) -> Array:
    """Every action token counts once."""
    return whiten(advantages, action_ids >= 0)


def none(advantages: Array, action_ids: Array) -> Array:
    """The advantages as they are."""
    return masked(advantages, action_ids >= 0)
