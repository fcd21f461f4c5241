"""Fault injection: which faults a meta-agent finds, whom it blames, and how much of what they cost it gets back.

A suite is a study (`study.py`) whose methods are arms, so it shares cold starts, goes on where it was stopped, and keeps
each run's folder:

    healthy                 no fault, nobody watches
    <fault>                 with the fault from update `since` on, nobody watches; only where something could mend it
    <fault>+<proposer>      the same with a meta-agent
    none+<proposer>         no fault, with a meta-agent

Every run ends with an evaluation on the anchor tasks: tasks of the training split that no update draws, played without the
fault and under the first settings.
"""

import dataclasses
import functools
import os
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Callable, Mapping, Sequence

import tyro

from eau_jax.config import Config, ConfigError, Meta, Part
from eau_jax.config_file import call, replace
from eau_jax.core import knobs as knob
from eau_jax.faults import FAULTS
from eau_jax.meta.proposal import Batch
from eau_jax.meta.proposer import Budget, Proposer, View
from eau_jax.meta.rule_proposer import rules
from eau_jax.study import Study

HEALTHY, NONE = "healthy", "none"
_watching = threading.local()


@dataclasses.dataclass(frozen=True)
class Suite:
    """What is injected into what. Its folder is <root>/<name>."""

    name: str
    """folder of the suite below `root`"""
    environments: Part
    """{name: Config}: healthy runs, with the `meta` that a proposer works under"""
    faults: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FAULT ...")] = tuple(FAULTS)
    """names of eau_jax.faults.FAULTS; the runs without a fault are always among them"""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = (0, 1, 2, 3, 4)
    """one run of each arm on each environment for every seed"""
    updates: int = 30
    """of a run"""
    since: int = 6
    """first update with the fault"""
    root: str = "runs/bench-meta"
    """folder of all suites"""

    def __post_init__(self):
        if not isinstance(self.environments, Mapping):
            raise ConfigError(f"environments has type {type(self.environments).__name__}; give a dict, {{name: Config}}")
        for name in self.faults:
            if name not in FAULTS:
                raise ConfigError(f"faults: unknown {name!r}{knob.nearest(name, FAULTS)}")
        if not 2 <= self.since <= self.updates:
            raise ConfigError(f"since = {self.since} is out of range; allowed: 2 to updates = {self.updates}")


# The runs


def study_of(suite: Suite, proposer: Proposer = rules) -> Study:
    """The study that runs the suite's arms with one proposer."""
    with_it = functools.partial(watched, proposer)
    arms: dict[str, Callable[[Config], Config]] = {HEALTHY: unwatched, f"{NONE}+{proposer.name}": with_it}
    for fault in map(FAULTS.get, suite.faults):
        inject = functools.partial(_injected, fault.inject, suite.since)
        if fault.mends:
            arms[fault.name] = functools.partial(_after, unwatched, inject)
        arms[f"{fault.name}+{proposer.name}"] = functools.partial(_after, with_it, inject)
    environments = {name: prepared(config, suite.updates) for name, config in suite.environments.items()}
    return Study(name=suite.name, environments=environments, methods=arms, baseline=HEALTHY, seeds=suite.seeds,
                 updates=suite.updates, root=suite.root)


def named(where: str) -> Proposer:
    """A proposer out of FILE.py:NAME; the rules for "".

    Raises:
      ConfigError: when there is no such file, its code fails, or it has no such function.
    """
    file, _, name = where.partition(".py:")
    return call(f"{file}.py", name, Proposer) if where else rules


def prepared(config: Config, updates: int) -> Config:
    """A healthy config whose evaluation is on anchor tasks.

    Raises:
      ConfigError: for a config that is not healthy or whose tasks come from files.
    """
    if config.tasks.generate is None or config.tasks.train_file or config.tasks.test_file:
        raise ConfigError("a suite generates its tasks; give Tasks(generate=...) and no files")
    if config.swaps:
        raise ConfigError("a suite's configs are healthy and stay so; leave their swaps out")
    generate, train = config.tasks.generate, config.tasks.train

    def anchored(split: str, count: int, seed: int) -> Sequence[Any]:
        """The first `train` tasks of the training split are trained on, the next ones are anchor tasks."""
        return generate("train", train + count, seed)[train:] if split == "test" else generate("train", count, seed)

    return replace(config, {"learn.steps": updates, "tasks.generate": anchored, "eval.every": 0})


def unwatched(config: Config) -> Config:
    """Without a meta-agent."""
    mixed = any(swap.task_mix for swap in config.swaps)
    return replace(config, {"meta": Meta()} | ({} if mixed else {"tasks.bucket": None}))


def watched(proposer: Proposer, config: Config) -> Config:
    """With a meta-agent, of which it is noted when it opens what is sealed."""
    return replace(config, {"meta": dataclasses.replace(config.meta, proposer=overseen(proposer))})


def _injected(inject: Callable[[Config, int], Config], since: int, config: Config) -> Config:
    return inject(config, since)


def _after(last: Callable[[Config], Config], first: Callable[[Config], Config], config: Config) -> Config:
    return last(first(config))


def overseen(proposer: Proposer) -> Proposer:
    """The proposer, its batches with the number of sealed files that were opened in its thread while it worked."""
    def propose(view: View, budget: Budget) -> Batch:
        _install()
        _watching.reads = 0
        try:
            batch = proposer.propose(view, budget)
            return dataclasses.replace(batch, agent={**batch.agent, "sealed_reads": _watching.reads})
        finally:
            _watching.reads = None
    return proposer._replace(propose=propose)


@functools.cache
def _install() -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and getattr(_watching, "reads", None) is not None:
            where = arguments[0]
            if isinstance(where, (str, bytes)) and "sealed" in Path(os.path.abspath(os.fsdecode(where))).parts:
                _watching.reads += 1
    sys.addaudithook(hook)
