"""Draws different tasks of a split from a function that makes one at random."""

from typing import Any, Callable, Mapping

import numpy as np

from eau_jax.core.types import Task

TEST_SHARE = 5     # one content in this many is held out
PATIENCE = 3000    # draws in a row without a new task after which there are taken to be no more

Record = Mapping[str, Any]


def by_id(record: Record) -> int:
    """The hash of the content that the generators write at the end of a task's id, eight hexadecimal digits."""
    return int(record["id"][-8:], 16)


def draw(env: str, make: Callable[[np.random.Generator], Record | None], split: str, count: int, seed: int,
         content: Callable[[Record], int] = by_id) -> tuple[Task, ...]:
    """`count` different tasks of "train" or "test" for the environment `env`.

    Args:
      make: one record at random; None where the draw gave none.
      content: a hash of what must not be in both splits. It decides the split, so they never meet, whatever the seed.

    Raises:
      ValueError: for an unknown split, a count that is not positive or more than there are, or a negative seed.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split {split!r}; allowed: 'train', 'test'")
    if count < 1:
        raise ValueError(f"count {count}; allowed: 1 or more tasks")
    if seed < 0:
        raise ValueError(f"seed {seed}; allowed: 0 or more")
    rng, tasks, misses = np.random.default_rng(seed), {}, 0
    while misses < PATIENCE and len(tasks) < count:
        record, misses = make(rng), misses + 1
        if record is None or record["id"] in tasks or (content(record) % TEST_SHARE == 0) != (split == "test"):
            continue
        tasks[record["id"]], misses = Task(id=record["id"], env=env, data=record), 0
    if len(tasks) < count:
        raise ValueError(f"count {count}; the generator knows only about {len(tasks)} different {split} tasks")
    return tuple(tasks.values())
