"""Which groups are learned from. Each function takes groups of episodes [P][G] and returns bool[P]; `functools.partial`
binds its setting in a config. `core.batching.every` and `core.batching.informative` (DAPO) are two more.

A group is kept whole or dropped whole, on the environment's raw scores. Unusable episodes are not members. What is
dropped makes the batch smaller (AReaL), or is replaced by groups of further tasks in up to `rollout.refill` rounds (dynamic
sampling of DAPO, arXiv:2503.14476, which collects whole batches where we collect what is missing). A batch without any
group leaves the policy as it was.
"""

import functools
from typing import Callable, Sequence

import numpy as np

from eau_jax.core.types import Episode

Groups = Sequence[Sequence[Episode]]


def unsolved(groups: Groups, limit: float = 0.95) -> np.ndarray:
    """Groups whose mean score is at most `limit`: (nearly) always solved tasks go, never solved ones stay.

    This is what EigenData's released code does (AReaL, `group_filter`); its paper drops never solved tasks as well,
    which is `core.batching.informative`. arXiv:2601.22607.
    """
    return np.array([len(scores) > 0 and np.mean(scores) <= limit for scores in _scores(groups)], bool)


def uncertain(groups: Groups, share: float = 0.25) -> np.ndarray:
    """The `share` of groups (at least one) whose scores have the largest std; never one without spread.

    Reference: StarPO-S in RAGEN, Wang et al. 2025, arXiv:2504.20073.
    """
    spread = _spread(groups)
    most = max(int(share * len(spread)), 1)
    return _first(spread, most)


def signal(groups: Groups, share: float = 0.9) -> np.ndarray:
    """The fewest groups, by falling variance of their scores, that hold `share` − 0.01 of the batch's variance in sum.

    Reference: the SNR filter of RAGEN-2, arXiv:2604.06268 ("top-p", linear); its code has 0.01 as an absolute slack.
    """
    return top_share(np.square(_spread(groups)), share)


def compares(choose: Callable[[Groups], np.ndarray]) -> bool:
    """Whether a filter ranks groups against each other, so that a group alone cannot be judged by it."""
    return (choose.func if isinstance(choose, functools.partial) else choose) in (uncertain, signal)


def top_share(amounts: np.ndarray, share: float) -> np.ndarray:
    """bool[P]: the fewest of the largest amounts, none of them 0, whose sum is at least share · Σ − 0.01."""
    total = np.cumsum(np.sort(amounts)[::-1])
    reached = np.flatnonzero(total >= share * amounts.sum() - 0.01) if len(total) else []
    return _first(amounts, int(reached[0]) + 1 if len(reached) else 0)


def _scores(groups: Groups) -> list[list[float]]:
    return [[episode.score for episode in group if episode.stop.usable] for group in groups]


def _spread(groups: Groups) -> np.ndarray:
    """f64[P]: unbiased std of each group's scores; 0 with fewer than two."""
    return np.array([np.std(scores, ddof=1) if len(scores) > 1 else 0.0 for scores in _scores(groups)])


def _first(amounts: np.ndarray, count: int) -> np.ndarray:
    """The `count` largest amounts above rounding; earlier groups first where they tie."""
    kept = np.zeros(len(amounts), bool)
    kept[np.argsort(-amounts, kind="stable")[:count]] = True
    return kept & (amounts > 1e-6)
