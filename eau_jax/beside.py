"""Episodes that are played beside the batch and that nothing is learned from: of a canary, of the anchor tasks, of causal
tests. They are counted, so that a run's whole cost is known."""

import functools
import json
from typing import Any, Sequence

import numpy as np

from eau_jax.assemble import Parts, drawer, set_aside
from eau_jax.core.records import plain
from eau_jax.journal import Generation
from eau_jax.learner.parts import LearnerState
from eau_jax.learner.state import policy_weights
from eau_jax.meta import causal
from eau_jax.meta.causal import Play, Trial
from eau_jax.rollout.agent import policy
from eau_jax.rollout.collect import Groups, collect, run, to_record
from eau_jax.rollout.episode import Pinned

SEED = 2_000_003   # the anchor tasks' draws, and those of causal tests, are never the training's


class Beside:
    """Plays with the weights that it is given; the next batch pushes its own."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._counts: dict[str, float] = {}

    def canary(self, step: int, state: LearnerState, generation: Generation, candidate: Generation) -> list[dict[str, Any]]:
        """Episodes under the candidate of the first tasks of update `step`, with the weights and draws of its batch."""
        config = self._parts.config
        rows = drawer(self._parts, generation, step)(0, config.rollout.tasks, ())[:config.meta.canary_tasks]
        self._push(state, step - 1, generation)
        groups = self._collect(candidate.pinned(config.env), rows, config.rollout.group, config.seed, step)
        self._count("canary", sum(map(len, groups)))
        return [json.loads(json.dumps(plain(to_record(episode)))) for group in groups for episode in group]

    def anchor(self, step: int, state: LearnerState) -> dict[str, float]:
        """What the policy after update `step` does on the anchor tasks under the run's first settings, the draws always the
        same. nan where no episode was usable."""
        config, first = self._parts.config, self._parts.first
        order = np.random.default_rng([config.seed, 5]).permutation(len(self._parts.train.tasks))
        self._push(state, step, first)
        groups = self._collect(first.pinned(config.env), order[:config.meta.anchor_tasks].tolist(), 1, config.seed + SEED, 0)
        self._count("anchor", sum(map(len, groups)))
        usable = [episode for group in groups for episode in group if episode.stop.usable]
        mean = lambda values: float(np.mean(values)) if values else float("nan")
        return {"anchor/success": mean([episode.success for episode in usable]),
                "anchor/score": mean([episode.score for episode in usable]), "anchor/episodes": float(len(usable))}

    def play(self, step: int, state: LearnerState, generation: Generation) -> Play:
        """What causal tests before update `step` play with."""
        self._push(state, step - 1, generation)
        plays = self._tests(generation.pinned(self._parts.config.env), set_aside(self._parts, generation))

        def counted(trial: Trial) -> Sequence[Any]:
            records = plays(trial)
            self._count("causal", len(records))
            return records

        return counted

    def counts(self) -> dict[str, float]:
        """Episodes played since it was last asked, by purpose."""
        counts = {f"meta/{purpose}_episodes": self._counts.get(purpose, 0.0) for purpose in ("canary", "anchor", "causal")}
        self._counts = {}
        return counts

    @functools.cached_property
    def _tests(self) -> Any:
        parts, config = self._parts, self._parts.config
        return causal.player(config.env, config.user, parts.train.tasks, parts.chat, parts.budgets, policy(parts.engine),
                             config.seed + SEED)

    def _push(self, state: LearnerState, version: int, generation: Generation) -> None:
        temperature = float(generation.knobs["rl"]["sampler"].temperature)
        run(self._parts.engine.push(policy_weights(state), version, temperature))

    def _collect(self, pinned: Pinned, rows: Sequence[int], group: int, seed: int, step: int) -> Groups:
        parts, rollout = self._parts, self._parts.config.rollout
        groups, _ = run(collect(parts.train, policy(parts.engine), parts.chat, pinned, parts.budgets, indices=rows,
                                group_size=group, run_seed=seed, step=step, retries=rollout.infra_retries,
                                concurrency=rollout.slots))
        parts.engine.drop_cache()
        return groups

    def _count(self, purpose: str, episodes: int) -> None:
        self._counts[purpose] = self._counts.get(purpose, 0.0) + episodes
