"""Methods compared over several seeds: interquartile mean, probability of improvement, paired differences.

The statistics are those of Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice"
(their library rliable); tests hold its values. A run, one seed of one method on one environment, is what is resampled,
within its environment. With few seeds every bootstrap interval is too narrow, by about sqrt((n - 1) / n) and more.
"""

import math
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.eval.numbers import DRAWS, Interval

Scores = Mapping[str, Sequence[float]]   # {environment: one score a run}
# Student's t, 97.5 %, by degrees of freedom 1, 2, ...; beyond the table its last row, a little too wide
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
NONE = Interval(float("nan"), float("nan"), float("nan"))


def interquartile_mean(scores: Scores, seed: int = 0) -> Interval:
    """Mean of the middle half of all runs, the runs of all environments taken together, with its 95 % interval.

    A quarter of the runs, rounded down, is left out at each end.
    """
    groups = [np.asarray(values, np.float64) for values in scores.values() if len(values)]
    return _interval(lambda *drawn: _middle(np.concatenate(drawn, axis=-1)), groups, seed)


def probability_of_improvement(ours: Scores, theirs: Scores, seed: int = 0) -> Interval:
    """P(a run of ours scores higher than one of theirs), a tie counting half, averaged over the environments that both have,
    with its 95 % interval. Runs are not paired here: each side is resampled by itself."""
    common = [name for name in ours if len(ours[name]) and len(theirs.get(name, ()))]
    pairs = [(np.asarray(ours[name], np.float64), np.asarray(theirs[name], np.float64)) for name in common]

    def mean(*drawn: np.ndarray) -> np.ndarray:
        return np.mean([_higher(left, right) for left, right in zip(drawn[::2], drawn[1::2])], axis=0)

    return _interval(mean, [side for pair in pairs for side in pair], seed)


def nested(runs: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Mean over runs of each run's mean over its tasks, with its 95 % interval: runs are drawn, then the tasks in each."""
    runs = [np.asarray(run, np.float64) for run in runs if len(run)]
    if not runs:
        return NONE
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(runs), size=(DRAWS, len(runs)))
    drawn = np.zeros(chosen.shape)
    for place, run in enumerate(runs):
        where = np.flatnonzero(chosen == place)
        for part in np.array_split(where, max(1, len(where) * len(run) // 1_000_000)):  # in slices of some 8 MB
            drawn.flat[part] = run[rng.integers(len(run), size=(len(part), len(run)))].mean(axis=1)
    low, high = np.quantile(drawn.mean(axis=1), [0.025, 0.975])
    return Interval(float(np.mean([run.mean() for run in runs])), float(low), float(high))


class Difference(NamedTuple):
    """Right minus left, paired by seed."""

    drawn: Interval     # `nested` over seeds and tasks
    student: Interval   # Student's t over seeds: the honest one for few of them
    seeds: int          # that both have
    higher: int         # seeds in which the right one is higher


def paired_by_seed(left: Mapping[int, Mapping[str, float]], right: Mapping[int, Mapping[str, float]],
                   seed: int = 0) -> Difference:
    """Differences of two methods on one environment; {seed: {task: score}} each, over the seeds and tasks that both have.

    Where a record knows no tasks, give a run's score as that of one task.
    """
    runs = [[right[one][task] - left[one][task] for task in sorted(left[one].keys() & right[one].keys())]
            for one in sorted(left.keys() & right.keys())]
    means = [float(np.mean(run)) for run in runs if run]
    return Difference(nested(runs, seed), student(means), len(means), sum(mean > 0 for mean in means))


def student(values: Sequence[float]) -> Interval:
    """Mean with Student's 95 % interval; bounds are nan with fewer than two values."""
    if not len(values):
        return NONE
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, float("nan"), float("nan"))
    half = STUDENT[min(len(values) - 1, len(STUDENT)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def _interval(statistic: Callable[..., np.ndarray], groups: Sequence[np.ndarray], seed: int) -> Interval:
    """`statistic` of the groups [..., n] with its 95 % percentile interval over DRAWS resamples within each group."""
    if not groups:
        return NONE
    rng = np.random.default_rng(seed)
    drawn = [group[rng.integers(len(group), size=(DRAWS, len(group)))] for group in groups]
    low, high = np.quantile(statistic(*drawn), [0.025, 0.975])
    return Interval(float(statistic(*groups)), float(low), float(high))


def _middle(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis [..., n] without its lowest and highest quarter."""
    cut = values.shape[-1] // 4
    return np.sort(values, axis=-1)[..., cut:values.shape[-1] - cut].mean(axis=-1)


def _higher(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Share of pairs in which the left one is higher, ties half: [..., n], [..., m] -> [...]."""
    gap = left[..., :, None] - right[..., None, :]
    return ((gap > 0) + 0.5 * (gap == 0)).mean(axis=(-2, -1))
