"""`eau-jax plan CONFIG`: what a run would need and how fast it could be, without weights, and without the devices."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from eau_jax import memory, start, work
from eau_jax.assemble import learner
from eau_jax.chips import CHIPS, Chip
from eau_jax.config import Config, ConfigError, knob_tree
from eau_jax.core import knobs as knob
from eau_jax.learner.parts import Learner
from eau_jax.learner.state import abstract_state
from eau_jax.models import transformer
from eau_jax.progress import console


@dataclasses.dataclass(frozen=True)
class Launch:
    """What is planned for, beside the config."""

    chip: Literal["v4", "v5e", "v5p", "v6e", "a100", "h100", "h200"] = "h100"
    """whose limits floor times are counted with"""
    chips: int = 0
    """how many of them; 0: as many as the mesh names (its -1 counts as 1)"""
    length: int = 0
    """tokens of an episode; 0: rollout.max_tokens, the most there can be"""
    sampled: int = 0
    """of these, tokens that the policy samples; 0: as many as the turns allow, at most half"""
    compile: bool = True
    """compile the passes, for the temporaries and the peak: a minute; without it only what is exact is listed"""
    method: str = ""
    """file whose `method(config) -> Config` changes the config first, such as configs/methods/grpo.py; FILE.py:NAME is
    another function of it"""


class Floor(NamedTuple):
    """One part of an update: FLOPs, and the seconds that the chips' limits allow at least."""

    name: str
    work: work.Work
    seconds: float


def show(config: Config, launch: Launch) -> None:
    """Prints parameters, shardings, bytes by kind, FLOPs and floor times."""
    model, shown = start.architecture(config), Console()
    made = learner(config, model, _devices(config, launch.chips))
    _say_shapes(config, made, shown)
    shown = console()
    chip = CHIPS[launch.chip]
    table = Table(f"memory of the fullest of {made.mesh.size} device(s)", "bytes")
    for name, size in memory.estimate(config, made, compile=launch.compile).items():
        table.add_row(name, _short(size), style="bold" if name == "peak" else None)
        if name == "peak":
            fits = "fits into" if size < chip.memory else "does not fit into"
            table.add_row(f"{fits} {chip.name}'s", _short(chip.memory))
    shown.print(table)
    batch = planned_batch(config, launch)
    parts = floors(config, made, batch, chip)
    table = Table(f"one update of {batch.tokens:,.0f} tokens, {batch.sampled:,.0f} of them sampled", "FLOPs",
                  "recomputed", f"seconds on {chip.name} x {made.mesh.size}, at least")
    for part in parts:
        table.add_row(part.name, *map(_short, part.work), f"{part.seconds:.3g}")
    total = sum(part.seconds for part in parts)
    whole = (_short(sum(flops)) for flops in zip(*(part.work for part in parts)))
    table.add_row("update", *whole, f"{total:.3g}", style="bold")
    table.add_row(f"run of {config.learn.steps} updates", "", "", f"{total * config.learn.steps:.3g}")
    shown.print(table)
    shown.print("Floors: every product at the chip's bfloat16 peak, every sampled token with all slots in use at its memory "
                "bandwidth; no communication, no waiting for users and tools. Nothing here is measured.", soft_wrap=True)
    if chip.kinds[0].startswith("NVIDIA"):
        shown.print("JAX takes three quarters of a GPU's memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.",
                    soft_wrap=True)


def planned_batch(config: Config, launch: Launch) -> work.Batch:
    """The batch of an update whose episodes are all as long as the launch says.

    Raises:
      ConfigError: for more tokens than an episode may have.
    """
    limit = config.rollout.max_tokens
    length = launch.length if launch.length else limit
    if not 2 <= length <= limit:
        raise ConfigError(f"length = {launch.length} is out of range; allowed: 2 to rollout.max_tokens = {limit}, or 0")
    turns = int(knob.values(knob_tree(config))["env.max_turns"])
    sampled = launch.sampled if launch.sampled else min(turns * config.rollout.max_new_tokens, length // 2)
    if not 0 < sampled < length:
        raise ConfigError(f"sampled = {launch.sampled} is out of range; allowed: 1 to {length - 1}, fewer than an "
                          f"episode has, or 0")
    episodes = config.rollout.tasks * config.rollout.group
    return work.batch([length] * episodes, sampled * episodes)


def floors(config: Config, made: Learner, batch: work.Batch, chip: Chip) -> list[Floor]:
    """Rollout, annotation, passes and optimizer of one update."""
    state, model = abstract_state(made), made.model
    rollout = work.Work(work.forward(model, batch))
    reads = work.rollout_bytes(made, batch, config.rollout.slots, memory.token_bytes(model))
    annotate, update = work.annotate(made, batch), work.update(made, batch)
    steps = dict(zip(("critic", "policy"), (made.minibatches * number for number in work.passes(made)), strict=True))
    if "critic" in made.critic.together.towers:
        steps["critic"] += steps["policy"]
    moved = sum(number * memory.moved_by_a_step(getattr(state, tower)) for tower, number in steps.items())
    return [Floor("rollout", rollout, max(work.seconds(rollout, made, chip), reads / chip.bandwidth)),
            Floor("annotate", annotate, work.seconds(annotate, made, chip)),
            Floor("gradients", update, work.seconds(update, made, chip)),
            Floor("optimizer", work.Work(0.0), moved / chip.bandwidth)]


def _devices(config: Config, chips: int) -> list[Any]:
    """The devices that the plan is made on: fake ones of the CPU, where more are planned for than there are.

    Raises:
      ConfigError: for a number that the mesh does not divide, or fake devices when it is too late for them.
    """
    named = math.prod(size for size in vars(config.mesh).values() if size > 0)
    number = chips if chips else named
    if number < 1 or number % named or (config.mesh.data > 0 and number != named):
        raise ConfigError(f"chips = {chips}, but the mesh settings name {named}; give a multiple of it with mesh.data = -1, "
                          f"or change the mesh")
    if number > 1:
        try:
            jax.config.update("jax_platforms", "cpu")
            jax.config.update("jax_num_cpu_devices", number)
        except RuntimeError:   # the process has used its devices, or a flag says how many there are
            pass
    if len(jax.devices()) < number:
        raise ConfigError(f"chips = {number}, but JAX started with {len(jax.devices())} devices; unset XLA_FLAGS, and plan "
                          f"in a process of its own")
    return jax.devices()[:number]


def _short(number: float) -> str:
    """A number of bytes or FLOPs with its unit's letter, such as 8.05 G."""
    unit = next((unit for unit in range(5, 0, -1) if number >= 1000 ** unit), 0)
    return f"{number / 1000 ** unit:.3g} {' kMGTP'[unit]}".strip()


def _say_shapes(config: Config, made: Learner, shown: Console) -> None:
    state = abstract_state(made)
    trained = sum(leaf.size for leaf in jax.tree.leaves(state.policy.params))
    shown.print(f"{transformer.parameter_count(made.model):,} parameters, {trained:,} of the policy trained; batch "
                f"{config.rollout.tasks} x {config.rollout.group} episodes of up to {config.rollout.max_tokens} tokens; "
                f"mesh {dict(made.mesh.shape)}", soft_wrap=True)
    shapes = Table("policy parameter", "shape", "dtype", "sharding")
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.policy.params):
        shapes.add_row(jax.tree_util.keystr(path, simple=True, separator="."), str(leaf.shape), str(leaf.dtype),
                       str(leaf.sharding.spec))
    console().print(shapes)
