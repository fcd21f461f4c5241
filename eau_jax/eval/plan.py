"""What an evaluation is: benchmarks, a player, a user. Fixed before the first episode and recorded with its results."""

import collections
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Callable, Mapping

import tyro

from eau_jax.core import knobs as knob
from eau_jax.core.part import Env, User
from eau_jax.core.types import HeldOutTask, InfraError, Task
from eau_jax.eval.players import Player
from eau_jax.rollout.episode import Pinned
from eau_jax.users.llm import checked
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

Part = Annotated[Any, tyro.conf.Fixed]


@dataclasses.dataclass(frozen=True)
class Bench:
    """One benchmark: its own rules, limits and tasks, whatever a training run changed."""

    name: str
    env: Env
    tasks: Callable[[], tuple[Task, ...]]
    version: str                                  # of the tasks: upstream's name and commit, or of our generator
    split: str = "test"
    files: tuple[str, ...] = ()                   # hashed into the record
    knobs: Mapping[str, float] = dataclasses.field(default_factory=dict)  # limits, rewards where they differ, "env." paths
    rules: str = ""                               # TOML of the user's rules; empty: the environment's own
    averaged: bool = True                         # counts in the averages over benchmarks

    def pinned(self, user: User) -> Pinned:
        """Knobs and rules of every episode.

        Raises:
          KnobError: for an unknown knob or a value out of range; RuleError: for broken rules.
        """
        tree = knob.patch({"env": self.env.knobs, "user": user.knobs}, self.knobs)
        return Pinned(tree | {"rl": {}}, compile_rules(self.rules or self.env.rules, self.env.features), 0)


@dataclasses.dataclass(frozen=True)
class Plan:
    """An evaluation. Its folder is <root>/sealed/eval/<name>."""

    name: str
    """of the folder of its results"""
    benches: Part
    """tuple of Bench"""
    player: Part
    """() -> Player; made when the evaluation begins"""
    user: Part = symbolic
    """who the player talks with"""
    judge: Part = None
    """a chat client that reads the player's messages where words alone do not decide, and rules on statements that a score
    depends on (tau2-bench's NL_ASSERTION); None: words decide, and such statements do not count"""
    root: str = "runs"
    """folder of all runs"""
    repeats: int = 1
    """episodes per task"""
    seed: int = 0
    """decides every draw"""
    limit: int = 0
    """the first so many tasks of each benchmark only; 0: all"""
    concurrency: int = 64
    """episodes open at a time"""
    retries: int = 2
    """further tries of an episode that failed for reasons outside the agent's control"""

    def __post_init__(self):
        for name, least in (("repeats", 1), ("limit", 0), ("concurrency", 1), ("retries", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} = {value!r} is not allowed; allowed: a whole number, {least} or more")
        if not isinstance(self.name, str) or not self.name or "/" in self.name or self.name in (".", ".."):
            raise ValueError(f"name = {self.name!r} cannot be a folder; allowed: any other plain folder name")
        if not isinstance(self.benches, (tuple, list)):
            raise ValueError(f"benches is {type(self.benches).__name__}; it must be a tuple, such as (Bench(...),)")
        for bench in self.benches:
            if not isinstance(bench, Bench) or not isinstance(bench.env, Env) or not callable(bench.tasks):
                raise ValueError(f"benches: {bench!r:.60} is not a Bench(name, env, tasks) whose env is an Env and whose "
                                 f"tasks is a function without arguments, such as lambda: generate('test', 64, 0)")
            if not isinstance(bench.files, (tuple, list)) or not all(isinstance(file, (str, Path)) for file in bench.files):
                raise ValueError(f"benchmark {bench.name!r}: files = {bench.files!r:.60}; it must be a tuple of paths, such "
                                 "as ('data/test.parquet',)")
        if not callable(self.player) or not isinstance(self.user, User):
            raise ValueError("player must be a function that makes a Player, such as lambda: scripted('expert'), and user a "
                             "User, such as eau_jax.users.symbolic.symbolic")
        if self.judge is not None:
            checked(self.judge, "judge")
        if self.judge is not None and self.benches and not any(b.env.question or b.env.verdict for b in self.benches):
            raise ValueError(f"judge would do nothing: {self.benches[0].env.name} has no question for one; leave it out")
        names = [bench.name for bench in self.benches]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"benches are named {names}; give at least one, each with a name of its own")


def held_out(bench: Bench, limit: int) -> tuple[HeldOutTask, ...]:
    """The benchmark's tasks, marked so that nothing trains on them.

    Raises:
      ValueError: when there are none, or they are no tasks.
    """
    tasks = _called(bench.tasks, f"benchmark {bench.name!r}: its `tasks`")
    if not isinstance(tasks, (tuple, list)) or not all(isinstance(task, Task) for task in tasks):
        raise ValueError(f"benchmark {bench.name!r}: its `tasks` gave {tasks!r:.60}; it must give a tuple of Task, as the "
                         f"`load` and `generate` of an environment's tasks do")
    if not tasks:
        raise ValueError(f"benchmark {bench.name!r} has no tasks: its `tasks` gave none; check the file, split or count "
                         "that it names, or leave the benchmark out")
    for task in tasks:
        if bench.env.name != task.env and not bench.env.name.startswith(f"{task.env}_"):
            raise ValueError(f"benchmark {bench.name!r}: task {task.id!r} is one of {task.env}, and the environment is "
                             f"{bench.env.name}; pair tasks with their own environment")
    twice = [name for name, times in collections.Counter(task.id for task in tasks).items() if times > 1]
    if twice:
        raise ValueError(f"benchmark {bench.name!r}: {len(twice)} of its tasks come more than once, such as {twice[0]!r}; "
                         "give each once, and use `repeats` to play it several times")
    return tuple(HeldOutTask(task.id, task.env, task.data) for task in (tasks[:limit] if limit else tasks))


def digest(tasks: tuple[Task, ...]) -> str:
    """SHA-256 of the tasks' content: two evaluations of one digest looked at the same test."""
    text = json.dumps([[task.env, task.id, task.data] for task in tasks], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def made(plan: Plan) -> Player:
    """The plan's player.

    Raises:
      ValueError: when `player` does not make one.
    """
    player = _called(plan.player, "the plan's `player`")
    if not isinstance(player, Player):
        raise ValueError(f"plan.player() gave {type(player).__name__}; it must give a Player, such as "
                         f"eau_jax.eval.players.scripted('expert')")
    return player


def _called(make: Callable[[], Any], what: str) -> Any:
    """What a function of the plan's file gives; one that breaks is named."""
    try:
        return make()
    except (ValueError, OSError, InfraError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise ValueError(f"{what} failed: {type(error).__name__}: {error}; mend the plan's file, or set EAU_JAX_TRACEBACK=1 "
                         "to see where") from error
