"""Supervised fine-tuning in a run folder: the agent's cold start, or a model of the user."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from eau_jax import start
from eau_jax.assemble import Parts
from eau_jax.core import batching, knobs as knob
from eau_jax.core.records import RunFolder
from eau_jax.demonstrations import gather
from eau_jax.learner.parts import Learner
from eau_jax.models import lora
from eau_jax.progress import Watch
from eau_jax.together import fine_tune, fine_tuned, init_tower


def imitate(parts: Parts, weights: Any, folder: RunFolder, target: Path, watch: Watch) -> None:
    """Fits the weights to the examples that the config names and writes them to `target` as a Hugging Face folder.

    Losses go to sft.jsonl, what was read and left out to sft_data.json. Batches are shuffled epochs over the examples. Only
    what the agent (or the user, for a model of it) says is in the loss. With LoRA this trains adapters too and merges them:
    what it writes is the frozen base of what follows, and so its reference policy.
    """
    config = parts.config.sft
    knobs = knob.patch(parts.first.knobs, {"rl.policy_optimizer.learning_rate": config.learning_rate})["rl"]
    examples, counts = gather(parts, watch)
    folder.write("sft_data.json", json.dumps(counts, indent=1) + "\n")
    epochs = config.steps * min(config.batch, len(examples)) / len(examples)
    watch.say(f"fine-tuning: {config.steps} steps, {epochs:.1f} epochs")
    teacher = learner(parts)
    policy, frozen = init_tower(teacher, weights, jax.random.key(parts.config.seed))
    folder.write("sft.jsonl", "")
    for step in range(1, config.steps + 1):
        chosen = [examples[row] for row in _batch(parts.config.seed, len(examples), config.batch, step)]
        trajectory = batching.to_demonstrations(chosen, parts.learner.tokens)
        policy, metrics = fine_tune(teacher, policy, frozen, trajectory, knobs)
        folder.append("sft.jsonl", {"step": step} | {name: mean.result() for name, mean in sorted(metrics.items())})
        watch.at("fine-tuning", step, config.steps)
    fitted = lora.merge(parts.model, fine_tuned(policy, frozen))
    start.save(target, parts.model, fitted, parts.folder, parts.chat)


def learner(parts: Parts) -> Learner:
    """The run's, for fine-tuning. Random weights are all trained, with LoRA too: under a frozen random embedding nothing is
    learned."""
    if parts.config.model.make is not start.new_model:
        return parts.learner
    return dataclasses.replace(parts.learner, model=dataclasses.replace(parts.model, lora=None))


def _batch(seed: int, count: int, size: int, step: int) -> np.ndarray:
    """Which examples step `step` (from 1) learns from."""
    size = min(size, count)
    epoch, place = divmod(step - 1, count // size)
    order = np.random.default_rng([seed, 2, epoch]).permutation(count)
    return order[place * size:(place + 1) * size]
