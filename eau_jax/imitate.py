"""The cold start: supervised fine-tuning on episodes that the environment's scripted agents played."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from eau_jax import start
from eau_jax.assemble import Parts
from eau_jax.core import batching, knobs as knob
from eau_jax.core.records import RunFolder
from eau_jax.learner import sft
from eau_jax.learner.state import init_tower
from eau_jax.models import hf, lora
from eau_jax.progress import Watch


def imitate(parts: Parts, weights: Any, folder: RunFolder, target: Path, watch: Watch) -> None:
    """Fits the weights to scripted episodes and writes them to `target` as a Hugging Face folder; losses go to sft.jsonl.

    Batches are shuffled epochs over the episodes. Only the agent's tokens are in the loss. With LoRA the cold start trains
    adapters too and merges them here: what it writes is the frozen base of what follows, and so its reference policy.
    """
    config = parts.config.sft
    knobs = knob.patch(parts.first.knobs, {"rl.policy_optimizer.learning_rate": config.learning_rate})["rl"]
    tasks = parts.train.tasks[:min(config.episodes, len(parts.train.tasks))]
    watch.say(f"cold start: {len(tasks)} scripted episodes, {config.steps} steps")
    episodes = start.demonstrations(parts.config, tasks, parts.chat, max_tokens=parts.budgets.max_tokens,
                                    max_new_tokens=parts.budgets.max_new_tokens)
    trajectory = batching.to_trajectory([[episode] for episode in episodes], parts.learner.tokens, parts.learner.actions)
    watch.say(f"cold start: scripted score {np.mean([episode.score for episode in episodes]):.3f}")
    policy, frozen = init_tower(parts.learner, weights, jax.random.key(parts.config.seed))
    folder.write("sft.jsonl", "")
    for step in range(1, config.steps + 1):
        chosen = _batch(parts.config.seed, len(episodes), config.batch, step)
        policy, metrics = sft.update(parts.learner, policy, frozen, jax.tree.map(lambda x: x[chosen], trajectory), knobs)
        folder.append("sft.jsonl", {"step": step} | {name: mean.result() for name, mean in sorted(metrics.items())})
        watch.at("cold start", step, config.steps)
    fitted = lora.merge(parts.model, lora.join(frozen, policy.params))
    hf.save(target, parts.model, jax.device_get(fitted), tokenizer_files_from=parts.folder)


def _batch(seed: int, count: int, size: int, step: int) -> np.ndarray:
    """Which episodes step `step` (from 1) imitates."""
    size = min(size, count)
    epoch, place = divmod(step - 1, count // size)
    order = np.random.default_rng([seed, 2, epoch]).permutation(count)
    return order[place * size:(place + 1) * size]
