"""Campaigns: a few runs of one config, each of which begins with what those before it found out.

    <root>/<campaign>/run-01/  run-01.py  run-01.log    the runs, child processes that can be stopped at any moment
    <root>/<campaign>/pool/                             the experience pool, unless another one is named
    <root>/<campaign>/campaign.json  anchor.png         how each run began and ended, what it cost, which one is the best

A run's first generation is the config's own, in all runs; what the pool recommends is a swap before its first update. So
the anchor tasks, which are played under the first generation, compare across runs, and nothing else decides which run is
the best.
Where the runs share a number of episodes, each but the last gets a part of it, and the last what is left. A run that the
next one would only repeat goes on with all of it.
Stopped, a campaign goes on with the same command.
"""

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any, Mapping, Sequence

from rich.table import Table

from eau_jax import child
from eau_jax.assemble import buckets, check, tasks
from eau_jax.campaign_start import settings, source_of, usable
from eau_jax.config import Config, ConfigError, knob_tree
from eau_jax.config_file import describe
from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolder, check as holds, plain, read_lines
from eau_jax.folder import changed, refuse_code
from eau_jax.meta import interventions
from eau_jax.meta.harvest import ERRORS, LONGER, MARGIN, Cost, Remedy, backbone, cost, harvest, success
from eau_jax.meta.pool import Contents, Pool
from eau_jax.meta.proposal import Diagnosis
from eau_jax.meta.recommend import recommend
from eau_jax.meta.restart import remedy, severe
from eau_jax.meta.scene import Scene
from eau_jax.meta.signals import FAULTS
from eau_jax.progress import Watch
from eau_jax.report.draw import plot_runs

STATE = "campaign.json"
NUMBERS = {"*": (int, float)}
FORM = {"config": dict, "pool": str, "episodes": int, "runs": [{   # of that file
    "name": str, "status": str, "why": str, "tries": int, "episodes": int, "updates": int, "anchor": [(int, float)],
    "cost": NUMBERS, "start": {"knobs": NUMBERS, "rules": str, "task_mix": NUMBERS, "lessons": [str], "reasons": [str]}}]}
MOST_RESTARTS = 3    # runs of a campaign that may be ended early
EPISODES = ("training", "failed", "canary", "anchor", "causal")   # of `harvest.Cost`
NOT_FINITE = 3       # exit status of a run whose loss or gradients are not finite
TRIES = 2            # of such a run


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a campaign is started, beside its config."""

    max_runs: int = 5
    """runs, those that are ended early included"""
    pool: str = ""
    """folder of the experience pool, which other campaigns may use too; empty: the campaign's own"""
    episodes: int = 0
    """that all runs may play together, those beside the batches included; 0: each run has its config's own limits"""
    share: float = 0.0
    """of these episodes for each run but the last one; 0: a quarter, or of more than four runs equal parts"""
    method: str = ""
    """file whose `method(config) -> Config` changes the config first, as of `eau-jax train`"""

    def __post_init__(self):
        if self.max_runs < 1:
            raise ConfigError(f"max_runs = {self.max_runs} is out of range; allowed: 1 or more")
        if self.episodes < 0:
            raise ConfigError(f"episodes = {self.episodes} is out of range; allowed: 0 or more")
        if self.share and not (self.episodes and self.max_runs > 1):
            raise ConfigError(f"share = {self.share:g} would do nothing without episodes that several runs share; give "
                              f"episodes, and max_runs of 2 or more, or leave it out")
        if self.episodes and not (0 < self.part and (self.max_runs - 1) * self.part < 1):
            raise ConfigError(f"share = {self.share:g} for each run but the last of max_runs = {self.max_runs} leaves "
                              f"nothing for one of them; allowed: above 0, below {1 / max(self.max_runs - 1, 1):g}")

    @property
    def part(self) -> float:
        """Of `episodes`, for each run but the last one."""
        return self.share or min(0.25, 1 / self.max_runs)


@dataclasses.dataclass
class Run:
    """One run of a campaign, as campaign.json keeps it."""

    name: str
    start: dict[str, Any]        # `Start.record()`
    status: str = "running"      # "running" | "finished" | "restarted": ended early, the next run begins otherwise
    why: str = ""                # it was ended early
    tries: int = 0               # that ended because a loss was not finite
    episodes: int = 0            # that it may play; 0: no limit but the config's
    updates: int = 0
    anchor: list[float] = dataclasses.field(default_factory=lambda: [-1.0, -1.0, 0.0])   # as of `harvest.success`
    cost: dict[str, float] = dataclasses.field(default_factory=dict)   # as of `harvest.Cost`, and seconds


class Campaign:
    """A campaign in its folder."""

    def __init__(self, config: Config, source: str, launch: Launch, watch: Watch):
        """
        Args:
          source: Python text that gives the config.

        Raises:
          ConfigError: for a config that cannot be run.
        """
        check(config)
        self.config, self.home, self._source, self._watch = config, Path(config.root) / config.name, source, watch
        self._most, self._episodes, self._share = launch.max_runs, launch.episodes, launch.part
        self._batch, self._over = config.rollout.tasks * config.rollout.group, False
        if launch.episodes and launch.episodes * (launch.part if launch.max_runs > 1 else 1) < self._batch:
            raise ConfigError(f"episodes = {launch.episodes} give the first run less than one batch of {self._batch}; give "
                              f"more episodes, or a larger share")
        self._pool = Path(launch.pool) if launch.pool else self.home / "pool"
        train = tasks(config, "train")
        self._mix = {name: len(rows) / len(train) for name, rows in buckets(config, train).items()}
        self._sealed = {task.id for task in tasks(config, "test")} - {task.id for task in train}
        self._backbone = backbone(describe(config.model))
        self.runs: list[Run] = []

    def play(self) -> list[Run]:
        """Plays what is missing.

        Raises:
          ConfigError: when the folder holds a campaign of another config, or a run fails for a reason that is not its own.
        """
        with RunFolder(self.home) as folder:
            self._load()
            while True:
                if not any(run.status == "running" for run in self.runs):
                    begun = self._next()
                    if begun is None:
                        break
                    if begun not in self.runs:
                        self.runs.append(begun)
                    self._save(folder)
                self._run(next(run for run in self.runs if run.status == "running"))
                self._save(folder)
                self._watch.at("runs", len(self.runs), self._most)
            self._over = True
            self._save(folder)
            if any(run.anchor[1] >= 0 for run in self.runs):
                plot_runs({"Anchor tasks": {run.name: [self.home / run.name] for run in self.runs if run.anchor[1] >= 0}},
                          "anchor/success", self.home / "anchor.png")
        return self.runs

    @property
    def best(self) -> Run | None:
        """The run with the highest success on the anchor tasks; of equals the earlier one. One that is clearly shorter than
        the longest must be clearly better than it. None where they were not played."""
        played = [run for run in self.runs if run.anchor[1] >= 0 and run.status == "finished"]
        if not played:
            return None
        success, most = (lambda run: run.anchor[1]), max(run.updates for run in played)
        best = max((run for run in played if LONGER * run.updates >= most), key=success)
        clearly = [run for run in played if success(run) - success(best) > max(
            MARGIN, ERRORS * math.hypot(run.anchor[2], best.anchor[2]))]
        return max(clearly, key=success, default=best)

    # State

    def _load(self) -> None:
        kept = interventions.load(self.home / STATE)
        if not kept:
            other = sorted(file.name for file in self.home.iterdir() if file.name != "pool"
                           and not file.name.startswith((".", "run-")))   # of a study: its cache, the first run's start
            if other:
                raise ConfigError(f"{self.home} holds no campaign, but {other[0]!r}; choose another --name or --root")
            return
        holds(kept, FORM, str(self.home / STATE))
        same(self.home, self.config)
        if kept["pool"] != str(self._pool):
            raise ConfigError(f"{self.home} holds a campaign with the pool {kept['pool']}; give the same one with --pool, "
                              f"or choose another --name")
        if kept["episodes"] != self._episodes:
            raise ConfigError(f"{self.home} holds a campaign of {kept['episodes']} episodes, but {self._episodes} is asked "
                              f"for; choose another --name, or leave episodes as it was")
        self.runs = [Run(**run) for run in kept["runs"]]

    def _save(self, folder: RunFolder) -> None:
        best = self.best
        folder.write(STATE, json.dumps(plain({
            "config": describe(self.config), "pool": str(self._pool), "episodes": self._episodes, "over": self._over,
            "runs": [dataclasses.asdict(run) for run in self.runs],
            "best": best.name if best else "", "total": total(self.runs)}), indent=1, default=str) + "\n")

    # One run

    def _next(self) -> Run | None:
        """The run to begin, or to go on with; None where the campaign is over."""
        if len(self.runs) >= self._most:
            return self._longer(self.best)
        if self._episodes and self._left() < self._batch:
            return None
        with Pool(self._pool, self._sealed) as pool:
            start = usable(recommend(pool.read(), self.config.env.name, self._backbone), self.config, self._mix)
        same = next((run for run in self.runs if settings(run.start) == settings(start.record())), None)
        proposer = self.config.meta.proposer
        if same is not None and (proposer is None or proposer.at_once):
            said = f"it was ended early: {same.why}" if same.status == "restarted" else "nothing else is recommended"
            if (longer := self._longer(same)) is not None:
                return longer
            self._watch.say(f"the next run would be {same.name} again, for {said}; the campaign is over")
            return None
        name = f"run-{len(self.runs) + 1:02d}"
        told = [f"{path} = {value:g}" for path, value in {**start.knobs, **start.task_mix}.items()]
        told += ["other rules"] * bool(start.rules)
        self._watch.say(f"{name} begins with {', '.join(told) or 'the settings of the config'}")
        last = len(self.runs) + 1 == self._most
        return Run(name, plain(start.record()), episodes=self._left() if last else int(self._share * self._episodes))

    def _left(self) -> int:
        """Episodes that no run has used yet."""
        return max(self._episodes - sum(map(used, self.runs)), 0)

    def _longer(self, run: Run | None) -> Run | None:
        """A finished run, to go on with the episodes that are left; None where they are no batch."""
        if run is None or run.status != "finished" or self._left() < self._batch or run.updates >= self.config.learn.steps:
            return None
        run.status, run.episodes = "running", self._left() + used(run)
        self._watch.say(f"{run.name} goes on with the {self._left()} episodes that are left")
        return run

    def _run(self, run: Run) -> None:
        """Plays one run to its end and harvests it."""
        home, steps = self.home / run.name, self.config.learn.steps
        if run.episodes:
            steps = min(steps, run.episodes // self._batch)
        if run.name != "run-01":
            child.copy_start(self.home / "run-01", home)
        file, log = home.with_suffix(".py"), home.with_suffix(".log")
        file.write_text(source_of(self._source, self.config, run.name, str(self._pool), run.start, run.episodes),
                        encoding="utf-8")
        stop, ill, seen = threading.Event(), [], []
        may_restart = sum(other.status == "restarted" for other in self.runs) < MOST_RESTARTS and not (
            self._episodes and len(self.runs) == self._most)    # nothing would be left to begin anew with

        def look() -> None:
            metrics = home / "metrics.jsonl"
            now = [metrics.stat().st_size if metrics.exists() else 0, *(home / "rounds").glob("*.json")]
            if now == seen:
                return
            seen[:] = now
            rows = _rows(home)
            self._watch.at(run.name, min(len(rows), max(steps - 1, 0)), steps)
            found = severe(rows, interventions.rounds(home), steps) if may_restart else None
            if found and FAULTS[found[0]] not in self.config.meta.fixed:
                ill.append(found)
                stop.set()

        status = child.play(file, log, look, stop)
        self._watch.at(run.name, steps, steps)
        if status == NOT_FINITE and not ill:
            run.tries += 1
            if run.tries < TRIES:
                self._watch.say(f"{run.name}: {child.last_line(log)}; it is continued once more")
                return
            ill.append(("large_updates", f"a loss or gradient was not finite, {TRIES} times: {child.last_line(log)}"))
        elif status and not ill:
            raise ConfigError(f"{run.name} failed (exit status {status}): {child.last_line(log)}. The same command "
                              f"continues it; see {log}")
        self._end(run, ill[0] if ill else None)

    def _end(self, run: Run, ill: tuple[str, str] | None) -> None:
        """Harvests a run that is over."""
        home = self.home / run.name
        rows = _rows(home)
        with Pool(self._pool, self._sealed) as pool:
            cure = self._remedy(home, rows, *ill, pool.read()) if ill else None
            harvest(home, pool, f"{self.config.name}-{run.name}", run.start["lessons"], cure)
        run.status, run.why = ("restarted", ill[1]) if ill else ("finished", "")
        run.updates, run.anchor = len(rows), list(success(rows))
        seconds = sum(line.get(name) or 0.0 for line in _rows(home, "timings.jsonl")
                      for name in ("rollout_s", "annotate_s", "update_s"))
        run.cost = {**cost(home)._asdict(), "seconds": seconds}
        self._watch.say(f"{run.name}: " + (f"ended early, {run.why}" if ill else f"{run.updates} updates") + (
            f", anchor success {run.anchor[0]:.3f} -> {run.anchor[1]:.3f}" if run.anchor[1] >= 0 else ""))

    def _remedy(self, home: Path, rows: Sequence[Mapping[str, Any]], fault: str, why: str, contents: Contents) -> Remedy:
        """What the next run begins with instead, by the settings that this one ended with."""
        number = interventions.current(home)
        file = home / "knobs" / f"{number}.json"
        now = interventions.generation(file) if file.exists() else {"values": {}, "task_mix": {}}
        tree = knob.patch(knob_tree(self.config), now["values"])
        rules, own = home / "rules" / f"{number}.toml", self.config.env.rules
        rules = rules.read_text(encoding="utf-8") if rules.exists() else own
        scene = Scene(knob.specs(tree), knob.values(tree), number, len(rows), now["task_mix"] or self._mix, rows,
                      Diagnosis(FAULTS[fault], fault), frozenset(), rules, own, self.config.env.features, {})
        return remedy(fault, why, scene, [lesson.moves for lesson in contents.lessons
                                          if (lesson.env, lesson.fault) == (self.config.env.name, fault)])


def same(home: Path, config: Config) -> None:
    """Checks that a folder's campaign, if it holds one, is of this config.

    Raises:
      ConfigError, RunFolderError: when it is of another one; it names the first setting that differs.
    """
    kept, now = interventions.load(home / STATE), describe(config)
    if kept and (odd := changed(kept["config"], now, config)):
        refuse_code(home / STATE, kept["config"], now, config)
        raise ConfigError(f"{home} holds a campaign with another {odd[0]}; choose another --name, or leave {odd[0]} as "
                          f"it was")


def used(run: Run) -> int:
    """Episodes that a run has played, those beside its batches included."""
    return round(sum(run.cost.get(name, 0) for name in EPISODES))


def total(runs: Sequence[Run]) -> dict[str, float]:
    """What all runs have used together."""
    return {name: sum(run.cost.get(name, 0) for run in runs) for name in (*Cost._fields, "seconds")}


def summary(campaign: Campaign) -> Table:
    """The runs, what each cost, and all together. "beside": episodes that nothing is learned from."""
    table = Table(title=f"campaign {campaign.config.name}")
    for head in ("run", "ended", "updates", "anchor success", "episodes", "beside", "tokens", "meta tokens", "meta $",
                 "minutes"):
        table.add_column(head, no_wrap=head in ("run", "ended", "anchor success"))
    best = campaign.best

    def row(name: str, ended: str, updates: str, anchor: str, used: Mapping[str, float]) -> None:
        known = lambda what: used.get(what, 0)
        beside = known("canary") + known("anchor") + known("causal") + known("failed")
        table.add_row(name, ended, updates, anchor, f"{known('training') + beside:,.0f}", f"{beside:,.0f}",
                      f"{known('tokens'):,.0f}", f"{known('agent_tokens'):,.0f}", f"{known('agent_cost'):.2f}",
                      f"{known('seconds') / 60:.1f}")

    for run in campaign.runs:
        first, last, error = run.anchor
        row(run.name + (" (best)" if run is best else ""), run.status, str(run.updates),
            f"{first:.3f} -> {last:.3f} ± {error:.3f}" if last >= 0 else "not played", run.cost)
    table.add_section()
    row("all", "", str(sum(run.updates for run in campaign.runs)), "", total(campaign.runs))
    return table


def _rows(home: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_lines(home / name)) if (home / name).exists() else []
