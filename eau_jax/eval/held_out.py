"""Held-out evaluation: every task of a split, a fixed number of times, with the same draws for every policy.

Its results are sealed: they lie beside the run folders, not in them, and nothing that trains reads them.
"""

import math
from pathlib import Path
from typing import Any, Callable

import numpy as np

from eau_jax.rollout.agent import Agent
from eau_jax.rollout.collect import Groups, collect
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import Simulator
from eau_jax.rollout.template import Chat


async def evaluate(world: Simulator, agent: Agent, chat: Chat, pinned: Pinned, budgets: Budgets, *, samples: int, seed: int,
                   retries: int, progress: Callable[[int, int], None]) -> tuple[dict[str, Any], Groups]:
    """Plays every task `samples` times.

    Returns:
      {score: mean normalised score in [0, 1], score_low, score_high: its 95 % interval over tasks, success: share of
      solved episodes, return, turns, tokens: means per episode, episodes: number scored, dropped: number that failed
      outside the agent's control, by_task: {task id: mean score}, by which two policies are paired}, and the episodes.
    """
    groups, stats = await collect(world, agent, chat, pinned, budgets, indices=range(len(world.tasks)), group_size=samples,
                                  run_seed=seed, step=0, retries=retries, held_out=True, progress=progress)
    usable = [[episode.score for episode in group if episode.stop.usable] for group in groups]
    by_task = {task.id: float(np.mean(scores)) for task, scores in zip(world.tasks, usable, strict=True) if scores}
    low, high = interval([float(np.mean(scores)) for scores in usable if scores])
    record = {"score": stats["rollout/score_mean"], "score_low": low, "score_high": high,
              "success": stats["rollout/success_rate"], "return": stats["rollout/return_mean"],
              "turns": stats["rollout/turns_mean"], "tokens": stats["rollout/tokens_mean"],
              "episodes": int(stats["rollout/episodes"]), "dropped": sum(len(g) for g in groups) - sum(map(len, usable)),
              "by_task": by_task}
    return record, groups


def interval(values: list[float]) -> tuple[float, float]:
    """95 % normal interval of the mean; nan with fewer than two values."""
    if len(values) < 2:
        return float("nan"), float("nan")
    half = 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def sealed_file(run: Path) -> Path:
    """Where the held-out results of the run folder `run` lie: beside all run folders."""
    return run.parent / "sealed" / run.name / "eval.jsonl"
