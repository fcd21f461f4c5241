"""Reward shaping by the learner: what is added to the environment's rewards before anything is estimated.

The environment's own score, by which groups are filtered and results reported, is never touched.
"""

from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from eau_jax.core.knobs import knob
from eau_jax.core.types import Array, Trajectory


class Shaping(NamedTuple):
    """`shape(trajectory [P, G], knobs) -> trajectory` with other rewards and nothing else changed."""

    knobs: Any        # a knob dataclass, owner "rl"
    shape: Callable[[Trajectory, Any], Trajectory]
    name: str


@struct.dataclass
class OverlongKnobs:
    limit: int = knob(20480, 1, 1_000_000, "tokens sampled in an episode from which the whole penalty is due", log=True,
                      reward=True)
    margin: int = knob(4096, 1, 1_000_000, "tokens before the limit over which the penalty rises from 0", log=True,
                       reward=True)
    weight: float = knob(1.0, 0.0, 10.0, "the whole penalty, in reward units", trust=0.5, reward=True)


@struct.dataclass
class ScaledKnobs:
    bias: float = knob(-0.5, -10.0, 10.0, "added to the episode's reward, at its last action, before scaling", trust=1.0,
                       reward=True)
    scale: float = knob(10.0, 1e-3, 1e3, "factor of every reward", log=True, reward=True)
    clip: float = knob(20.0, 1e-3, 1e6, "each scaled reward is kept within ± this", log=True, reward=True)


def penalty(length: Array, limit: Array, margin: Array) -> Array:
    """0 up to limit − margin, then (limit − margin − L) / margin, −1 from the limit on."""
    return jnp.clip((limit - margin - length) / margin, -1.0, 0.0)


def shape_overlong(trajectory: Trajectory, knobs: OverlongKnobs) -> Trajectory:
    """Adds weight · penalty(L) at the last action, with L the sampled tokens of the episode.

    Reference: Yu et al. 2025 (DAPO), arXiv:2503.14476, eq. 13.
    """
    length = (trajectory.action_ids >= 0).sum(axis=-1).astype(jnp.float32)           # [P, G]
    return _add_at_the_end(trajectory, knobs.weight * penalty(length, knobs.limit, knobs.margin))


def shape_scaled(trajectory: Trajectory, knobs: ScaledKnobs) -> Trajectory:
    """Multiplies every reward by scale, after adding bias to the last action's, and clips: clip((R + bias) · scale, ±clip)
    for a terminal R.

    AReaL's recipes for tau2-bench map 0 and 1 to −5 and 5 in this way. AReaL has one reward an episode; here each action's
    is clipped on its own.
    """
    moved = _add_at_the_end(trajectory, jnp.broadcast_to(knobs.bias, trajectory.length.shape))
    return moved.replace(rewards=jnp.clip(moved.rewards * knobs.scale, -knobs.clip, knobs.clip))


overlong = Shaping(OverlongKnobs(), shape_overlong, "overlong")
scaled = Shaping(ScaledKnobs(), shape_scaled, "scaled")


def _add_at_the_end(trajectory: Trajectory, amount: Array) -> Trajectory:
    """`amount` [P, G] added at each episode's last action; an episode without one stays as it is."""
    last = trajectory.action_ids.max(axis=-1)                                        # [P, G], -1 without an action
    slots = jax.lax.broadcasted_iota(jnp.int32, trajectory.rewards.shape, trajectory.rewards.ndim - 1)
    return trajectory.replace(rewards=trajectory.rewards + jnp.where(slots == last[..., None], amount[..., None], 0.0))
