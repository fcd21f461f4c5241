"""A batch of groups worth learning from: what a filter drops is replaced by groups of further tasks, up to a limit."""

from typing import Awaitable, Callable, NamedTuple, Sequence

import numpy as np

from eau_jax.rollout.collect import Groups, statistics

Play = Callable[[Sequence[int]], Awaitable[tuple[Groups, dict[str, float]]]]


class Batch(NamedTuple):
    """What one update collected and what it learns from."""

    collected: Groups         # every group of every round, in the order of collection
    kept: Groups              # [P]; a place for which no group was kept holds an empty one
    metrics: dict[str, float]


async def fill(play: Play, draw: Callable[[int, int, Sequence[int]], Sequence[int]],
               keep: Callable[[Groups], np.ndarray], places: int, rounds: int) -> Batch:
    """Collects `places` groups and filters them; then, in at most `rounds` rounds, as many as are still missing.

    A group is kept whole or dropped whole. Rounds end early when every place has a group, when no task is left, or
    when a round had no usable episode. Places that stay empty make the batch smaller; with all of them empty there is
    nothing to learn from, and the policy stays as it was.

    Args:
      play: rows of the task table -> their groups and statistics, as `collect` returns them.
      draw: (round, count, rows used so far) -> at most `count` further rows; round 0 is the first collection.
      keep: groups of one round [N] -> bool[N], each judged by itself; with no rounds it may also compare them.

    Returns:
      The batch. Its metrics are `statistics` of all that was collected, "rollout/infra_retries" in sum, and
      "rollout/refill_rounds", "rollout/kept_groups", "rollout/dropped_groups", which are counts.
    """
    kept: Groups = [[] for _ in range(places)]
    collected: Groups = []
    used: list[int] = []
    retries, done = 0.0, 0
    for number in range(1 + rounds):
        free = [place for place, group in enumerate(kept) if not group]
        rows = list(draw(number, len(free), used)) if free else []
        if not rows:
            break
        groups, found = await play(rows)
        for place, group, chosen in zip(free, groups, keep(groups), strict=True):
            if chosen:
                kept[place] = group
        used, collected, done = [*used, *rows], [*collected, *groups], number
        retries += found["rollout/infra_retries"]
        if not any(episode.stop.usable for group in groups for episode in group):
            break
    count = sum(map(bool, kept))
    return Batch(collected, kept, statistics(collected) | {
        "rollout/infra_retries": retries, "rollout/refill_rounds": float(done), "rollout/kept_groups": float(count),
        "rollout/dropped_groups": float(len(collected) - count)})
