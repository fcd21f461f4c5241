"""What the policy of a run can be used for: evaluation, export, conversation."""

import asyncio
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.prompt import Prompt

from eau_jax import start
from eau_jax.assemble import Parts, assemble, check, tasks
from eau_jax.config import Config, ConfigError
from eau_jax.config_file import load_config, replace
from eau_jax.core.printable import printable
from eau_jax.core.sharding import within
from eau_jax.eval.plan import Bench, Plan
from eau_jax.eval.players import Player, single
from eau_jax.folder import same_base
from eau_jax.learner import checkpoint as stored
from eau_jax.learner.state import place
from eau_jax.models import lora
from eau_jax.rollout.agent import policy
from eau_jax.rollout.template import visible
from eau_jax.samplers.types import TokenRequest

COLD_START = "cold_start"


def load(run: str, which: str) -> tuple[Parts, Any, int]:
    """Parts, policy weights on their mesh and the number of updates behind them; `which` is latest, best, cold_start or a
    number. With LoRA, the weights hold adapters.

    Raises:
      ConfigError: when `run` is no run folder or has no such checkpoint.
    """
    folder = Path(run)
    if not (folder / "config.py").is_file():
        raise ConfigError(f"{run!r} is no run folder (it has no config.py); give one such as runs/quickstart")
    config = _here(load_config(run))
    check(config)
    model_folder = start.folder_of(config, folder)
    model, weights = start.load(config, model_folder)
    parts = assemble(config, model_folder, model)
    if which == COLD_START:
        if not (folder / COLD_START).is_dir():
            raise ConfigError(f"{run} has no cold start; choose --checkpoint latest, best or an update number")
        return parts, place(parts.learner, start.load(config, folder / COLD_START)[1]), 0
    number = int(which) if which.isascii() and which.isdigit() else which
    step = stored.find_step(folder / "checkpoints", number)
    params = stored.load_params(folder / "checkpoints", step, model, parts.learner.mesh)
    if model.lora is None:
        return parts, params, step
    base = start.load(config, folder / COLD_START)[1] if config.sft.steps else weights
    same_base(folder, base)
    return parts, lora.join(place(parts.learner, base), params), step


def _here(config: Config) -> Config:
    """The config on the devices at hand, which need not be those that it was trained on: nothing is learned."""
    sizes = within(vars(config.mesh), len(jax.devices()))
    return replace(config, {**{f"mesh.{axis}": size for axis, size in sizes.items()}, "model.attention": "auto",
                            "learn.rows": sizes["data"] * sizes["fsdp"] * sizes["expert"]})


def checkpoint(run: str, which: str, temperature: float = 1.0) -> Player:
    """The policy of a run's checkpoint as a player of evaluations. Arguments and errors are those of `load`."""
    parts, weights, step = load(run, which)
    asyncio.run(parts.engine.push(weights, step, temperature))
    parts.engine.warm_up()
    identity = {"kind": "checkpoint", "run": Path(run).name, "checkpoint": which, "update": step, "temperature": temperature}
    return single(f"{Path(run).name}, {which}", identity, lambda world: policy(parts.engine), parts.chat, parts.budgets)


def plan_of(run: str, which: str, samples: int, temperature: float, name: str = "") -> Plan:
    """The evaluation of a run's checkpoint on its config's held-out tasks, by the rules and limits the config began with.

    `name`: of its folder; empty: <run>-<which>-t<temperature>.
    """
    folder = Path(run)
    if not (folder / "config.py").is_file():
        raise ConfigError(f"{run!r} is no run folder (it has no config.py); give one such as runs/quickstart")
    config = _here(load_config(run))
    check(config)
    knobs = {path: value for path, value in config.knobs.items() if not path.startswith("rl.")}
    rules = Path(config.rules).read_text(encoding="utf-8") if config.rules else ""
    bench = Bench(config.env.name, config.env, lambda: tasks(config, "test"), version=f"{config.env.name} of {folder.name}",
                  files=tuple(filter(None, [config.tasks.test_file])), knobs=knobs, rules=rules)
    return Plan(name=name or f"{folder.name}-{which}-t{temperature:g}", benches=(bench,), user=config.user,
                judge=config.judge, player=lambda: checkpoint(run, which, temperature), root=str(folder.parent), repeats=samples,
                seed=config.seed, retries=config.rollout.infra_retries)


def export(run: str, target: str, which: str, adapter: bool) -> None:
    """Writes the policy as a Hugging Face folder, tokenizer included; adapters are merged, or written alone for PEFT.

    Raises:
      ConfigError: when `target` exists, or `adapter` is asked of a run without any.
    """
    if Path(target).exists():
        raise ConfigError(f"{target!r} exists already; name a folder that does not")
    parts, weights, step = load(run, which)
    if adapter and (parts.model.lora is None or which == COLD_START):
        raise ConfigError(f"{run}, {which} has no adapter; leave --adapter out, and the whole model is exported")
    Path(target).parent.mkdir(parents=True, exist_ok=True)

    def write(folder: Path) -> None:
        if adapter:
            base = Path(run) / COLD_START if parts.config.sft.steps else parts.folder
            return lora.save(folder, parts.model, weights, str(base))
        start.save(folder, parts.model, lora.merge(parts.model, weights), parts.folder, parts.chat)

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
        said = printable(visible(parts.chat.read(action)))
        console.print(f"agent: {said}", style="bold", highlight=False, markup=False, soft_wrap=True)


def _ask(console: Console) -> str:
    try:
        return Prompt.ask("you", console=console, default="", show_default=False)
    except (EOFError, KeyboardInterrupt):
        return ""
