"""What evaluations report: pass^k, means with bootstrap intervals over tasks, averages over benchmarks, paired differences.

Episodes of one task are not independent, so tasks are what is resampled.
"""

import math
from typing import Mapping, NamedTuple, Sequence

import numpy as np

DRAWS = 10_000


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def pass_hat(successes: Sequence[int], trials: Sequence[int], k: int) -> float:
    """pass^k: the mean over tasks of C(c, k) / C(n, k), the chance that k trials drawn without replacement all succeed
    (Yao et al. 2024, tau-bench). nan where no task has k trials; tasks with fewer are left out."""
    shares = [math.comb(c, k) / math.comb(n, k) for c, n in zip(successes, trials, strict=True) if n >= k]
    return float(np.mean(shares)) if shares else float("nan")


def pass_at(successes: Sequence[int], trials: Sequence[int], k: int) -> float:
    """pass@k: the mean over tasks of 1 - C(n - c, k) / C(n, k), the chance that one of k trials succeeds (Chen et al. 2021).
    nan where no task has k trials; tasks with fewer are left out."""
    shares = [1 - math.comb(n - c, k) / math.comb(n, k) for c, n in zip(successes, trials, strict=True) if n >= k]
    return float(np.mean(shares)) if shares else float("nan")


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """Mean of per-task values with its 95 % percentile interval over DRAWS resamples of the tasks."""
    values = np.asarray(values, np.float64)
    if len(values) == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    rng, means = np.random.default_rng(seed), []
    for _ in range(0, DRAWS, 500):  # in slices: 10 000 x 2 000 tasks would be 160 MB
        means.append(values[rng.integers(len(values), size=(500, len(values)))].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def paired(left: Mapping[str, float], right: Mapping[str, float], seed: int = 0) -> tuple[Interval, int]:
    """Mean of right - left over the tasks that both have, with its bootstrap interval, and how many those are."""
    common = sorted(left.keys() & right.keys())
    return bootstrap([right[task] - left[task] for task in common], seed), len(common)


def standard_error(values: Sequence[float]) -> float:
    """Of the mean over tasks; nan with fewer than two."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else float("nan")


def averages(means: Mapping[str, float], counts: Mapping[str, int]) -> dict[str, float]:
    """`micro`: weighted by the number of tasks (UserRL reports it); `macro`: unweighted (EAU reports it). nan where a
    benchmark has no task."""
    if not means or not all(counts[name] for name in means):
        return {"micro": float("nan"), "macro": float("nan")}
    total = sum(counts[name] for name in means)
    return {"micro": sum(means[name] * counts[name] for name in means) / total,
            "macro": sum(means.values()) / len(means)}


def effective_turns(rewards: Sequence[float]) -> int:
    """Number of the last turn with a reward, from 1; 0 where there was none (UserRL)."""
    earned = np.flatnonzero(np.asarray(rewards))
    return int(earned[-1]) + 1 if earned.size else 0


def time_weighted(rewards: Sequence[float]) -> float:
    """Sum of r_i / (i + 1) with i from 0: what is earned early counts more (UserRL)."""
    return float(sum(reward / (place + 1) for place, reward in enumerate(rewards)))
