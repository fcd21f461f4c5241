"""Hand-drawn groups of episodes as steps, and estimates of them as lists."""

import jax
import numpy as np

from eau_jax.algorithms.advantage import Advantage
from eau_jax.core.types import Steps

NAN = np.nan


def drawn(group, values=None, final=None, padding: int = 2) -> Steps:
    """Steps [G, K] of episodes that are lists of (reward, number of steps[, gain]) per action; NaN where nothing counts.

    Args:
      values: [G][steps] of each episode; NaN unless given.
      final: [G] value after an episode that was cut, None where the task ended.
    """
    counts = [sum(action[1] for action in episode) for episode in group]
    shape = len(group), max(counts) + padding
    out = Steps(rewards=np.full(shape, NAN, np.float32), values=np.full((shape[0], shape[1] + 1), NAN, np.float32),
                discounts=np.full(shape, NAN, np.float32), mask=np.arange(shape[1])[None] < np.array(counts)[:, None],
                ends=np.zeros(shape, bool), gains=np.full(shape, NAN, np.float32))
    for g, episode in enumerate(group):
        for array, fill in ((out.rewards, 0), (out.discounts, 1), (out.gains, 0)):
            array[g, :counts[g]] = fill
        at = 0
        for reward, length, *gain in episode:
            at += length
            out.rewards[g, at - 1], out.ends[g, at - 1] = reward, True
            out.gains[g, at - 1] = gain[0] if gain else 0
        cut = final is not None and final[g] is not None
        out.discounts[g, at - 1] = 1.0 if cut else 0.0
        if values is not None:
            out.values[g, :at] = values[g]
        if cut:
            out.values[g, at] = final[g]
    return out


def random_group(seed: int, episodes: int = 4) -> list[list[tuple[float, int]]]:
    """Episodes of one to four actions of one to three steps; a third of the rewards are 0."""
    rng = np.random.default_rng(seed)
    return [[(float(rng.normal() * rng.integers(0, 3)), int(rng.integers(1, 4))) for _ in range(rng.integers(1, 5))]
            for _ in range(episodes)]


def advantages(part: Advantage, steps: Steps, **knobs) -> list[list[float]]:
    """The estimate's advantages at valid steps, episode by episode."""
    settings = part.knobs.replace(**{name: np.float32(value) for name, value in knobs.items()})
    result = np.asarray(jax.jit(part.estimate)(steps, settings).advantages)
    assert not result[~steps.mask].any()
    return [row[mask].tolist() for row, mask in zip(result, steps.mask, strict=True)]
