"""What all processes of a run do on their devices: the learner's functions and the checkpoints, under the names and with the
arguments that they have elsewhere. The leader calls them, they tell the others, and those do the same (`follow`). In a run
of one process they are what they wrap.
"""

import weakref
from pathlib import Path
from typing import Any, Collection

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from eau_jax.core.sharding import make_mesh, put, shardings, within
from eau_jax.core.types import Array, Mean, TrainState, Trajectory
from eau_jax.learner import annotate as scoring, checkpoint, refit, sft, state as states, update as learning
from eau_jax.learner.parts import Annotation, Learner, LearnerState
from eau_jax.models import lora
from eau_jax.processes import tell
from eau_jax.samplers.types import Completion, Engine, TokenRequest


def init(learner: Learner, weights: Any, key: Array) -> LearnerState:
    tell("init")
    return states.init(learner, weights, key)


def init_tower(learner: Learner, weights: Any, key: Array) -> tuple[TrainState, Any]:
    tell("init_tower")
    return states.init_tower(learner, weights, key)


def fine_tune(learner: Learner, policy: TrainState, frozen: Any, trajectory: Trajectory,
              knobs: dict) -> tuple[TrainState, dict[str, Mean]]:
    tell("fine_tune", trajectory, knobs)
    return sft.update(learner, policy, frozen, trajectory, knobs)


def fine_tuned(policy: TrainState, frozen: Any) -> Any:
    """The weights of a tower, frozen ones included, whole in each process."""
    tell("fine_tuned")
    return whole(lora.join(frozen, policy.params))


def annotate(learner: Learner, state: LearnerState, trajectory: Trajectory,
             knobs: dict) -> tuple[Annotation, dict[str, Mean]]:
    tell("annotate", trajectory, knobs)
    return scoring.annotate(learner, state, trajectory, knobs)


def update(learner: Learner, state: LearnerState, trajectory: Trajectory, annotation: Annotation, knobs: dict, seed: int,
           critic_only: bool = False) -> tuple[LearnerState, dict[str, Mean]]:
    tell("update", trajectory, annotation, knobs, seed, critic_only)
    return learning.update(learner, state, trajectory, annotation, knobs, seed, critic_only)


def restart_critic(learner: Learner, state: LearnerState) -> LearnerState:
    tell("restart_critic")
    return refit.restart_critic(learner, state)


class Checkpoints:
    """`learner.checkpoint.Checkpoints` of all processes: each writes and reads its part of the arrays."""

    def __init__(self, folder: str | Path, keep: int):
        tell("open")
        self._store = checkpoint.Checkpoints(folder, keep)

    def steps(self) -> list[int]:
        return self._store.steps()

    def save(self, step: int, state: LearnerState, host: dict[str, Any], statistic: float,
             protected: Collection[int] = ()) -> None:
        tell("save", step, host, statistic, frozenset(protected))
        self._store.save(step, state, host, statistic, protected)

    def restore_latest(self, like: LearnerState) -> checkpoint.Restored:
        tell("restore_latest")
        return self._store.restore_latest(like)

    def restore(self, step: int, like: LearnerState) -> LearnerState:
        tell("restore", step)
        return self._store.restore(step, like)

    def wait(self) -> None:
        tell("wait")
        self._store.wait()

    def close(self) -> None:
        tell("close")
        self._store.close()


class LeadersSampler:
    """The leader's sampler: it draws on the leader's devices, from the weights of all processes.

    A push collects them, where they are others than those of the last one.
    """

    by_reference = False

    def __init__(self, engine: Engine, learner: Learner):
        self._engine, self._model = engine, learner.model
        self._mesh = leaders_mesh(learner.mesh)
        self._last: list[weakref.ref] = []   # the arrays of all processes that were collected last
        self._here: Any = None

    async def generate(self, requests: list[TokenRequest]) -> list[Completion]:
        return await self._engine.generate(requests)

    async def push(self, params: Any, version: int, temperature: float) -> None:
        leaves = jax.tree.leaves(params)
        if len(self._last) != len(leaves) or any(ref() is not leaf for ref, leaf in zip(self._last, leaves)):
            tell("weights")
            self._last = [weakref.ref(leaf) for leaf in leaves]
            self._here = put(whole(params), shardings(params, lora.join(*lora.split_axes(self._model)), self._mesh))
        await self._engine.push(self._here, version, temperature)

    async def release(self, session: str) -> None:
        await self._engine.release(session)

    async def close(self) -> None:
        await self._engine.close()

    def warm_up(self) -> None:
        self._engine.warm_up()

    def drop_cache(self) -> None:
        self._engine.drop_cache()


def whole(tree: Any) -> Any:
    """Arrays of all processes as numpy arrays. All must call it; one parameter at a time is whole on a device."""
    def one(leaf: Array) -> np.ndarray:
        if leaf.is_fully_replicated:
            return np.asarray(leaf.addressable_data(0))
        return np.asarray(leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(one, tree)


def leaders_mesh(mesh: Mesh) -> Mesh:
    """A mesh over this process's devices whose axes are as long as the run's where the devices suffice; `data` takes what is
    left."""
    return make_mesh(**within(mesh.shape, jax.local_device_count()), devices=jax.local_devices())
