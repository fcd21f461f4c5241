"""Where every random draw of a rollout comes from: a few integers, so that any episode can be replayed alone."""

import numpy as np


def episode_seed(run_seed: int, step: int, task_index: int, g: int) -> int:
    """Of one episode, in [0, 2**31): its tokens, its user's decisions and wording."""
    return _mix(0, run_seed, step, task_index, g)


def group_seed(run_seed: int, step: int, task_index: int) -> int:
    """Shared by all episodes of one task in one step, in [0, 2**31)."""
    return _mix(1, run_seed, step, task_index)


def turn_seed(seed: int, turn: int) -> int:
    """Of one turn, from an episode's or a group's seed, in [0, 2**31)."""
    return _mix(2, seed, turn)


def _mix(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
