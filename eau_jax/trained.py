"""What the policy of a run can be used for: evaluation, export, conversation."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.prompt import Prompt
from rich.table import Table

from eau_jax import start
from eau_jax.assemble import Parts, assemble, check
from eau_jax.config import ConfigError
from eau_jax.config_file import load_config
from eau_jax.core.records import RunFolder
from eau_jax.eval.held_out import evaluate as play_held_out
from eau_jax.eval.held_out import sealed_file
from eau_jax.learner import checkpoint
from eau_jax.models import hf
from eau_jax.progress import Watch
from eau_jax.rollout.agent import policy
from eau_jax.rollout.collect import run as complete
from eau_jax.rollout.template import visible
from eau_jax.samplers.types import TokenRequest
from eau_jax.train import EVALUATION_SEED, dropped

COLD_START = "cold_start"


def load(run: str, which: str) -> tuple[Parts, Any, int]:
    """Parts, policy weights and the number of updates behind them; `which` is latest, best, cold_start or a number.

    Raises:
      ConfigError: when `run` is no run folder or has no such checkpoint.
    """
    folder = Path(run)
    if not (folder / "config.py").is_file():
        raise ConfigError(f"{run!r} is no run folder (it has no config.py); give one such as runs/quickstart")
    config = load_config(run)
    check(config)
    model_folder = start.folder_of(config, folder)
    model, weights = start.load(config, model_folder)
    parts = assemble(config, model_folder, model)
    if which == COLD_START:
        if not (folder / COLD_START).is_dir():
            raise ConfigError(f"{run} has no cold start; choose --checkpoint latest, best or an update number")
        return parts, start.load(config, folder / COLD_START)[1], 0
    number = int(which) if which.isascii() and which.isdigit() else which
    step = checkpoint.find_step(folder / "checkpoints", number)
    return parts, checkpoint.load_params(folder / "checkpoints", step, model, parts.learner.mesh), step


def evaluate(run: str, which: str, samples: int, temperature: float) -> None:
    """Plays the held-out tasks, prints the result and adds it to the run's sealed file."""
    parts, weights, step = load(run, which)
    with Watch() as watch:
        async def play() -> tuple[dict[str, Any], Any]:
            await parts.engine.push(weights, step, temperature)
            parts.engine.warm_up()
            return await play_held_out(
                parts.test, policy(parts.engine), parts.chat, parts.first.pinned(parts.config.env), parts.budgets,
                samples=samples, seed=parts.config.seed + EVALUATION_SEED, retries=parts.config.rollout.infra_retries,
                progress=lambda done, total: watch.at("held-out episodes", done, total))

        result, groups = complete(play())
        dropped(groups, watch)
        table = Table(title=f"{run}, {which} (update {step}), temperature {temperature:g}, {samples} per task")
        for name in result:
            table.add_column(name, justify="right")
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in result.values()))
        watch.console.print(table)
    file = sealed_file(Path(run))
    with RunFolder(file.parent) as sealed:
        sealed.append("by_hand.jsonl", {"step": step, "checkpoint": which, "temperature": temperature, "samples": samples}
                      | result)


def export(run: str, target: str, which: str) -> None:
    """Writes the policy as a Hugging Face folder, tokenizer included."""
    if Path(target).exists():
        raise ConfigError(f"{target!r} exists already; name a folder that does not")
    parts, weights, step = load(run, which)
    Path(target).parent.mkdir(parents=True, exist_ok=True)

    def write(folder: Path) -> None:
        hf.save(folder, parts.model, weights, tokenizer_files_from=parts.folder)
        stops = {"eos_token_id": list(parts.chat.stop_ids)}  # so that `generate` ends where our sampler does
        (folder / "generation_config.json").write_text(json.dumps(stops) + "\n", encoding="utf-8")

    start.whole(Path(target), write)
    Console().print(f"update {step} of {run} is in {target}", soft_wrap=True)


def chat(run: str, which: str, temperature: float, seed: int) -> None:
    """A conversation in the terminal: the person is the user. An empty line or the end of input ends it."""
    parts, weights, step = load(run, which)
    console, budgets = Console(), parts.budgets
    example = parts.train.tasks[0]
    system, opening = parts.config.env.prompt(example)
    console.print(f"You are the user of {run} (update {step}). An empty line ends the talk.\nFor example: {opening}\n",
                  soft_wrap=True, highlight=False, markup=False)
    asyncio.run(parts.engine.push(weights, step, temperature))
    history = action = np.zeros(0, np.int32)
    while (text := _ask(console)).strip():
        observation = parts.chat.reply(text, "user", action) if len(history) else parts.chat.opening(system, text)
        history = np.concatenate([history, observation])
        room = min(budgets.max_new_tokens, budgets.max_tokens - len(history))
        if room < 1:
            console.print("The episode's token budget is used up; start again, or raise rollout.max_tokens.")
            return
        request = TokenRequest("chat", history, room, seed, parts.chat.stop_ids)
        action = asyncio.run(parts.engine.generate([request]))[0].tokens
        history = np.concatenate([history, action])
        console.print(f"agent: {visible(parts.chat.read(action))}", style="bold", highlight=False, markup=False, soft_wrap=True)


def _ask(console: Console) -> str:
    try:
        return Prompt.ask("you", console=console, default="", show_default=False)
    except (EOFError, KeyboardInterrupt):
        return ""
