"""How long the phases of an update take, how fast that is, and profiles of chosen updates."""

import contextlib
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import jax
import numpy as np

from eau_jax import chips, work
from eau_jax.config import ConfigError
from eau_jax.core.types import Episode, Trajectory
from eau_jax.learner.parts import Learner

PROFILES = "profile"   # folder in the run folder; one folder an update


class Clock:
    """Seconds by phase, as NAME_s. In a profile each phase is a span of its name."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        with jax.profiler.TraceAnnotation(name):
            yield
        self.seconds[f"{name}_s"] = time.perf_counter() - begin


def speed(learner: Learner, collected: Sequence[Sequence[Episode]], trajectory: Trajectory, policy_steps: float,
          seconds: Mapping[str, float], ahead: bool = False) -> dict[str, float]:
    """Rates of one update.

        mfu = FLOPs that the model needs to annotate and learn / (annotate_s + update_s) / (devices * bfloat16 peak)

    FLOPs as in `work`, of real tokens: neither padding nor what is computed a second time counts.

    Args:
      collected: all episodes of the update; trajectory: those that were learned from.
      policy_steps: optimizer steps of the policy; 0: only the critic learned.
      seconds: rollout_s, annotate_s, update_s.
      ahead: tokens are drawn all the time, not in the rollout alone.

    Returns:
      tokens_per_s (of the trajectory, over the whole update), sampled_per_s (action tokens, over the time of drawing),
      learned_per_s (tokens of the trajectory, over annotation and update), model_tflop_per_s (as many, of the learner on all
      devices), and mfu where the device is in `chips`.
    """
    learning = seconds["annotate_s"] + seconds["update_s"]
    tokens = int(trajectory.length.sum())
    sampled = sum(len(turn.action) for group in collected for episode in group for turn in episode.turns)
    batch = work.batch(trajectory.length, int((np.asarray(trajectory.action_ids) >= 0).sum()))
    needed = (work.annotate(learner, batch) + work.update(learner, batch, critic_only=not policy_steps)).needed
    whole = sum(seconds.values())
    rates = {"tokens_per_s": tokens / whole, "sampled_per_s": sampled / (whole if ahead else seconds["rollout_s"]),
             "learned_per_s": tokens / learning, "model_tflop_per_s": needed / learning / 1e12}
    chip = chips.of_kind(learner.mesh.devices.flat[0].device_kind)
    return rates if chip is None else rates | {"mfu": work.mfu(needed, learning, learner.mesh.size, chip)}


def check_profile(chosen: Sequence[int], first: int, last: int) -> None:
    """Raises ConfigError for a chosen update that the run does not make, or has made."""
    for step in chosen:
        if not first <= step <= last:
            raise ConfigError(f"profile names update {step}, but this run makes updates {first} to {last}; choose of these")


@contextlib.contextmanager
def profiled(run: Path, step: int, chosen: Sequence[int]) -> Iterator[None]:
    """Writes RUN/profile/<step> if the update is one of those chosen: a trace for xprof, and perfetto_trace.json.gz."""
    if step not in chosen:
        yield
        return
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0   # every Python call would be a span: a trace of gigabytes
    with jax.profiler.trace(run / PROFILES / str(step), create_perfetto_trace=True, profiler_options=options):
        yield
