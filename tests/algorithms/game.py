"""A stop-or-continue game that is small enough to enumerate, so that an estimator's expected gradient is exact.

Up to two actions of two binary tokens each. The second token of the first action stops the game or goes on. The policy
is a table of one logit per prefix; rewards depend on everything said and come after each action.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from eau_jax.algorithms import infopo
from eau_jax.core.types import Trajectory

TOKENS, ACTIONS = 6, 2                  # observation, two tokens, observation, two tokens
PREFIXES = [bits for n in range(4) for bits in itertools.product((0, 1), repeat=n) if n < 2 or bits[1]]
NUMBER = {bits: n for n, bits in enumerate(PREFIXES)}
OUTCOMES = [(a, 0) for a in (0, 1)] + [(a, 1, c, d) for a, c, d in itertools.product((0, 1), repeat=3)]
LOGITS = np.random.default_rng(1).normal(size=len(PREFIXES)).astype(np.float32)


def rewards(outcome) -> list[float]:
    """One per action."""
    first = {(0, 0): 0.6, (1, 0): 0.2, (0, 1): -0.1, (1, 1): 0.0}[outcome[:2]]
    if len(outcome) == 2:
        return [first]
    return [first, float(outcome[2] == outcome[0]) + 0.5 * outcome[3]]


SAID = np.array([[n < len(outcome) for n in range(4)] for outcome in OUTCOMES])
PLACE = np.array([[NUMBER[outcome[:n]] if n < len(outcome) else 0 for n in range(4)] for outcome in OUTCOMES])
SIGN = np.array([[2 * outcome[n] - 1 if n < len(outcome) else 0 for n in range(4)] for outcome in OUTCOMES], np.float32)


def outcome_logprobs(logits):
    """[10, 4]: log-probability of each token of each outcome; 0 after its end."""
    return jnp.where(SAID, jax.nn.log_sigmoid(SIGN * logits[PLACE]), 0.0)


def expected_return(logits):
    paid = np.array([sum(rewards(outcome)) for outcome in OUTCOMES], np.float32)
    return (jnp.exp(outcome_logprobs(logits).sum(axis=1)) * paid).sum()


def exact_values() -> dict:
    """Expected further reward after each prefix; what an action earned comes after its second token."""
    odds = np.exp(np.asarray(outcome_logprobs(jnp.asarray(LOGITS)), np.float64))
    values = {}
    for prefix in PREFIXES:
        n = len(prefix)
        total = weight = 0.0
        for outcome, p in zip(OUTCOMES, odds, strict=True):
            if outcome[:n] == prefix and len(outcome) > n:
                ahead = sum(rewards(outcome)[n // 2:])
                total, weight = total + np.prod(p[n:]) * ahead, weight + np.prod(p[n:])
        values[prefix] = total / weight
    return values


def batch(group: int, values: dict | None) -> tuple[Trajectory, np.ndarray]:
    """Every group of outcomes, [10^group, group], and the values of their prefixes (0 unless given)."""
    chosen = np.array(list(itertools.product(range(len(OUTCOMES)), repeat=group)))
    ids, seen = np.full((10, TOKENS), -1, np.int32), np.zeros((10, TOKENS + 1), np.float32)
    paid, discounts, length = np.zeros((10, ACTIONS), np.float32), np.ones((10, ACTIONS), np.float32), np.zeros(10, np.int32)
    for n, outcome in enumerate(OUTCOMES):
        for k in range(len(outcome)):
            ids[n, at(k)] = k // 2
            seen[n, at(k)] = values[outcome[:k]] if values else 0
        paid[n, :len(outcome) // 2] = rewards(outcome)
        discounts[n, len(outcome) // 2 - 1] = 0
        length[n] = at(len(outcome) - 1) + 1
    zeros = np.zeros((*chosen.shape, TOKENS), np.float32)
    return Trajectory(tokens=zeros.astype(np.int32), length=length[chosen], action_ids=ids[chosen], sampler_logprobs=zeros,
                      rewards=paid[chosen], discounts=discounts[chosen],
                      policy_version=np.zeros((*chosen.shape, ACTIONS), np.int32)), seen[chosen]


def gains(group: int) -> np.ndarray:
    """Information gain of each action in `batch`, f32[10^group, group, A]. The answer to the first action tells the second
    what the very first token was; without it the second action has its distribution over both."""
    full = np.asarray(outcome_logprobs(jnp.asarray(LOGITS)), np.float64)             # [10, 4]
    odds = {outcome: np.exp(row) for outcome, row in zip(OUTCOMES, full, strict=True) if len(outcome) == 4}
    both = np.array(full)
    for n, outcome in enumerate(OUTCOMES):
        if len(outcome) == 4:
            alike = [odds[(first, *outcome[1:])] for first in (0, 1)]
            reached = [sum(p[:k].prod() for p in alike) for k in (2, 3, 4)]
            both[n, 2:] = np.log([reached[1] / reached[0], reached[2] / reached[1]])
    ids, logprobs = np.full((10, TOKENS), -1, np.int32), np.zeros((2, 10, TOKENS), np.float32)
    for k in range(4):
        ids[SAID[:, k], at(k)] = k // 2
        logprobs[:, :, at(k)] = full[:, k], both[:, k]
    told = np.asarray(infopo.gains(*logprobs, ids, ACTIONS))                         # [10, A]
    return told[np.array(list(itertools.product(range(len(OUTCOMES)), repeat=group)))]


def at(k: int) -> int:
    """Position of the k-th sampled token."""
    return k + 1 + k // 2


def expected_gradient(advantages) -> np.ndarray:
    """E[mean over the group of sum_t A_t grad log pi_t] for advantages [10^G, G, T] of `batch`."""
    group = advantages.shape[1]
    chosen = np.array(list(itertools.product(range(len(OUTCOMES)), repeat=group)))
    odds = np.exp(np.asarray(outcome_logprobs(jnp.asarray(LOGITS)), np.float64).sum(axis=1))
    weight = odds[chosen].prod(axis=1)                                               # [10^G]
    credit = np.zeros((10, TOKENS))                                                  # expected, by outcome and token
    for g in range(group):
        np.add.at(credit, chosen[:, g], weight[:, None] * np.asarray(advantages)[:, g] / group)

    by_token = credit[:, [at(k) for k in range(4)]].astype(np.float32)
    return np.asarray(jax.grad(lambda logits: (by_token * outcome_logprobs(logits)).sum())(jnp.asarray(LOGITS)))


@functools.cache
def exact_gradient() -> np.ndarray:
    return np.asarray(jax.grad(expected_return)(jnp.asarray(LOGITS)))
