"""How episodes end, as integers that a simulator can carry in its state."""

from typing import Any

import jax
import jax.numpy as jnp

from eau_jax.core.part import TimeStep
from eau_jax.core.types import Array, StopReason, Task

_REASONS = tuple(StopReason)


def stop_code(reason: StopReason) -> int:
    """The integer of `TimeStep.stop`: 1 + index in declaration order; 0 means running."""
    return 1 + _REASONS.index(reason)


def stop_reason(code: int) -> StopReason | None:
    """What `TimeStep.stop` says; None while the episode runs."""
    return _REASONS[int(code) - 1] if int(code) else None


def total_return(task: Task, state: Any, total: float) -> float:
    """The metric of a benchmark that reports the sum of rewards."""
    return total


def first(*cases: tuple[Array, Array | int], otherwise: Array | int) -> Array:
    """The value of the first case whose condition holds. Conditions bool[], values i32[] -> i32[]."""
    value = jnp.asarray(otherwise, jnp.int32)
    for condition, case in reversed(cases):
        value = jnp.where(condition, jnp.asarray(case, jnp.int32), value)
    return value


def absorb(old: Any, new: Any, time_step: TimeStep) -> tuple[Any, TimeStep]:
    """Freezes an episode that had already ended: same state, nothing disclosed, no reward, `done` stays True.

    `old` and `new` are the state before and after the step; both have fields `done` bool[] and `stop` i32[].
    """
    state = jax.tree.map(lambda before, after: jnp.where(old.done, before, after), old, new)
    quiet = TimeStep(code=jnp.int32(0), disclosed=jnp.int32(0), reward=jnp.float32(0), discount=jnp.float32(0),
                     done=jnp.bool_(True), success=jnp.bool_(False), stop=old.stop, tool=jnp.bool_(False))
    return state, jax.tree.map(lambda still, moved: jnp.where(old.done, still, moved), quiet, time_step)
