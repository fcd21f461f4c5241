"""The changes of a run as a schedule: a run of the same config with it does the same again, without a meta-agent."""

import dataclasses
from pathlib import Path

from eau_jax.config import Config, Meta, Swap
from eau_jax.meta import interventions

FILE = "schedule.py"


def swaps(run: Path) -> tuple[Swap, ...]:
    """Every generation of a run after its first one as a scheduled change; one that was taken back is two of them.

    Raises:
      RunFolderError: for a broken record of a generation; it names the file.
    """
    return tuple(Swap(**swap | {"set_aside": tuple(swap["set_aside"])}) for swap in interventions.schedule(run))


def replayed(config: Config, schedule: tuple[Swap, ...]) -> Config:
    """A config with this schedule in place of its own, and without a meta-agent."""
    bucket = config.tasks.bucket if any(swap.task_mix for swap in schedule) else None
    return dataclasses.replace(config, swaps=schedule, meta=Meta(), tasks=dataclasses.replace(config.tasks, bucket=bucket))


def source(run: Path) -> str:
    """Text of a method file (`eau-jax train CONFIG --method FILE`) that gives a config the schedule of a run."""
    lines = [f"    Swap({swap.step}, {dict(swap.knobs)!r}, {swap.rules!r}, {dict(swap.task_mix)!r}, "
             f"{swap.set_aside!r}, {swap.weights}),\n" for swap in swaps(run)]
    return (f'"""The changes of the run {run.resolve().name}, without a meta-agent."""\n\n'
            f"from eau_jax.config import Swap\nfrom eau_jax.schedule import replayed\n\n"
            f"SWAPS = (\n{''.join(lines)})\n\n\ndef method(config):\n    return replayed(config, SWAPS)\n")
