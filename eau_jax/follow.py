"""What a process does that does not lead: with its part of the arrays the same as the leader, in the same order."""

from pathlib import Path
from typing import Any, Callable

import jax
from rich.console import Console

from eau_jax import imitate, processes, start
from eau_jax.assemble import assemble
from eau_jax.config import Config
from eau_jax.core.printable import printable
from eau_jax.folder import differing
from eau_jax.learner import sft
from eau_jax.learner.annotate import annotate
from eau_jax.learner.checkpoint import CheckpointError, Checkpoints
from eau_jax.learner.parts import Learner, LearnerState, NonFiniteError
from eau_jax.learner.refit import restart_critic
from eau_jax.learner.state import abstract_state, init, init_tower, place, policy_weights
from eau_jax.learner.update import update
from eau_jax.models import lora
from eau_jax.train import stopping
from eau_jax.together import whole


def follow(config: Config) -> int:
    """Does what the leader tells, until it ends. Returns the leader's exit status.

    Raises:
      ConfigError: where this process was started with another config, or does not see the run folder.
    """
    follower = _Follower(config)
    while True:
        name, values = processes.hear()
        if name == "end":
            status, said = values
            if said:
                Console(stderr=True).print(f"eau-jax: process {jax.process_index()} ends, since the first one did: "
                                           f"{printable(said)}", soft_wrap=True, highlight=False, markup=False)
            return status
        follower.does[name](*values)


class _Follower:
    """The arrays of one process, and what it does with them; each word is a function of `together`."""

    def __init__(self, config: Config):
        self._config, self._home = config, Path(config.root) / config.name
        self._weights: Any = None                    # the model's, numpy
        self._learner: Learner | None = None
        self._teacher: Learner | None = None         # the learner of the fine-tuning
        self._tower: Any = None                      # (policy, frozen) while it is fine-tuned
        self._state: LearnerState | None = None
        self._store: Checkpoints | None = None
        self.does: dict[str, Callable[..., None]] = {
            "config": self._compare, "model": self._load, "cold_start": self._load_cold_start,
            "init_tower": self._init_tower, "fine_tune": self._fine_tune,
            "fine_tuned": lambda: self._whole(lora.join(self._tower[1], self._tower[0].params)),
            "open": self._open, "init": self._init, "restore_latest": self._restore_latest, "restore": self._restore,
            "restart_critic": self._restart_critic, "annotate": self._annotate, "update": self._update,
            "weights": lambda: self._whole(policy_weights(self._state)), "save": self._save,
            "wait": lambda: self._store.wait(), "close": lambda: self._store.close(), "stopping": stopping}

    # What is the same in all processes

    def _compare(self, described: dict[str, Any]) -> None:
        odd = differing(described, processes.plain_config(self._config))
        processes.agree(f"it was started with other settings than the first one: {', '.join(odd[:5])}; start all of them with "
                        f"one command" if odd else "")

    def _load(self) -> None:
        def load() -> None:
            folder = start.folder_path(self._config, self._home)
            model, self._weights = start.load(self._config, folder)
            parts = assemble(self._config, folder, model)
            self._learner, self._teacher = parts.learner, imitate.learner(parts)

        self._see(load)

    def _load_cold_start(self) -> None:
        def load() -> None:
            self._weights = start.load(self._config, self._home / "cold_start")[1]

        self._see(load)

    def _see(self, load: Callable[[], None]) -> None:
        """Loads something of the run folder, and tells all where that fails."""
        problem = ""
        try:
            load()
        except (ValueError, OSError) as error:
            problem = f"{error} (every process must see the folder that the first one writes: --root names it)"
        processes.agree(problem)

    def _whole(self, tree: Any) -> None:
        whole(tree)   # the leader's copy; this one is let go

    # Fine-tuning

    def _init_tower(self) -> None:
        self._tower = init_tower(self._teacher, self._weights, jax.random.key(self._config.seed))

    def _fine_tune(self, trajectory: Any, knobs: dict) -> None:
        policy, frozen = self._tower
        self._tower = sft.update(self._teacher, policy, frozen, trajectory, knobs)[0], frozen

    # Learning

    def _open(self) -> None:
        self._tower = None
        self._store = Checkpoints(self._home / "checkpoints", self._config.checkpoint.keep)

    def _init(self) -> None:
        self._state = init(self._learner, self._weights, jax.random.key(self._config.seed))

    def _restore_latest(self) -> None:
        self._state = self._store.restore_latest(abstract_state(self._learner)).state
        if self._learner.model.lora is not None:
            self._state = self._state.replace(frozen=place(self._learner, self._weights))

    def _restore(self, step: int) -> None:
        try:
            earlier = self._store.restore(step, abstract_state(self._learner))
        except CheckpointError:
            return   # the leader goes on with what it has, too
        self._state = self._state.replace(policy=earlier.policy, critic=earlier.critic, kl_scale=earlier.kl_scale)

    def _restart_critic(self) -> None:
        self._state = restart_critic(self._learner, self._state)

    def _annotate(self, trajectory: Any, knobs: dict) -> None:
        annotate(self._learner, self._state, trajectory, knobs)

    def _update(self, *values: Any) -> None:
        try:
            self._state, _ = update(self._learner, self._state, *values)
        except NonFiniteError as error:
            self._state = self._state.replace(**error.towers)

    def _save(self, step: int, host: dict[str, Any], statistic: float, protected: frozenset[int]) -> None:
        self._store.save(step, self._state, host, statistic, protected)
