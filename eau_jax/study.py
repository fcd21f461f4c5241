"""Studies: methods x environments x seeds under one budget, every run a child process that can be stopped at any moment.

    <root>/<study>/<environment>/<method>/<seed>/       the run folder; <seed>.py and <seed>.log beside it
    <root>/<study>/<environment>/<method>/sealed/<seed>/eval.jsonl
    <root>/<study>/<environment>/<method>/<seed>/run-01/ campaign.json ...   where the method is a campaign (campaign.py)
    <root>/<study>/study.html  study.json  plots/*.png  the page, by report/study.py

A study file is Python: `study() -> Study`. What is finished is not run again; what was stopped goes on. Data and models of
the user that the runs need can be made by the study too (study_inputs.py).
"""

import dataclasses
import json
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Iterator, Mapping, NamedTuple

import tyro

from eau_jax import campaign, child, study_inputs
from eau_jax.config import Config, ConfigError, Part, knob_tree
from eau_jax.config_file import describe, replace, unchecked
from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolder, RunFolderError, read_lines
from eau_jax.eval.held_out import sealed_file
from eau_jax.folder import revision, same
from eau_jax.meta import interventions
from eau_jax.meta.harvest import played
from eau_jax.progress import Watch

NAMED = 4   # runs that one message names
TAKEN = ("sealed", "plots", "study.html", "study.json", study_inputs.INPUTS)   # folders and files of a study's own


@dataclasses.dataclass(frozen=True)
class Study:
    """What is compared. Its folder is <root>/<name>."""

    name: str
    """folder of the study below `root`"""
    environments: Part
    """{name: Config}: what every method starts from; its name, root, seed and learn.steps are the study's to set"""
    methods: Part
    """{name: function of a Config that returns the method's}"""
    baseline: str
    """the method that the others are compared with"""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = (0, 1, 2, 3, 4)
    """one run of each method on each environment for every seed; a seed decides tasks, first weights and all draws"""
    updates: int = 25
    """budget of a run"""
    by_episodes: bool = False
    """the budget is as many episodes as `updates` batches of the environment's config have, and those beside the batches
    (canaries, anchor tasks, causal tests) count too: a run with a meta-agent makes fewer updates"""
    campaigns: Part = dataclasses.field(default_factory=dict)
    """{method: runs}: each run of such a method is a campaign of at most so many, which share its budget of episodes"""
    data: Part = ()
    """plans of tasks (SynthPlan) that are carried out and exported first, for configs that name files of their data"""
    users: Part = ()
    """configs of models of the user that are fine-tuned first, for configs whose user speaks through one of them"""
    root: str = "runs/studies"
    """folder of all studies"""

    def __post_init__(self):
        for what in ("environments", "methods", "campaigns"):
            if not isinstance(getattr(self, what), Mapping):
                raise ConfigError(f"{what} has type {type(getattr(self, what)).__name__}; give a dict, {{name: ...}}")
        if not self.environments or not self.methods:
            raise ConfigError("a study needs at least one environment and one method; give environments={name: Config} and "
                              "methods={name: function of a Config}")
        for what, names in (("name", [self.name]), ("environment", self.environments), ("method", self.methods)):
            for name in names:
                if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]*", name) or name in TAKEN:
                    raise ConfigError(f"{what} {name!r} cannot be a folder; allowed: letters, digits and _ . + -, and none "
                                      f"of {', '.join(TAKEN)}")
        if self.baseline not in self.methods:
            raise ConfigError(f"baseline = {self.baseline!r} is none of the methods"
                              f"{knob.nearest(self.baseline, self.methods)}")
        for method, runs in self.campaigns.items():
            if method not in self.methods or runs < 2 or not self.by_episodes:
                raise ConfigError(f"campaigns = {dict(self.campaigns)}; give methods of the study, 2 or more runs each, and "
                                  f"by_episodes=True, for the runs of a campaign share episodes")
        if not isinstance(self.seeds, (tuple, list, range)) or not self.seeds or len(set(self.seeds)) != len(self.seeds) or (
                not all(type(seed) is int and 0 <= seed < 2**31 for seed in self.seeds)):
            raise ConfigError(f"seeds = {self.seeds!r}; give at least one, 0 or more, none of them twice, in a tuple: whole "
                              f"numbers up to {2**31 - 1}")
        if type(self.updates) is not int or self.updates < 1:
            raise ConfigError(f"updates = {self.updates!r} is out of range; allowed: a whole number, 1 or more")
        if not isinstance(self.root, str) or not self.root.strip():
            raise ConfigError(f"root = {self.root!r} names no folder; give one such as runs/studies")
        for name, config in self.environments.items():
            if not isinstance(config, Config):
                raise ConfigError(f"environment {name!r} has type {type(config).__name__}; it must be a Config")
        for name, method in self.methods.items():
            if not callable(method):
                raise ConfigError(f"method {name!r} has type {type(method).__name__}; it must be a function of a Config, such "
                                  f"as load_method(FILE)")
        first = [(f"method {run.method!r} on {run.environment!r}", configured(self, *run)) for run in cells(self)
                 if run.seed == self.seeds[0]]
        study_inputs.check(self.data, self.users, first)

    @property
    def folder(self) -> Path:
        """Of the study."""
        return Path(self.root) / self.name


class Cell(NamedTuple):
    """One run of a study."""

    environment: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.environment} {self.method} seed {self.seed}"


class Progress(NamedTuple):
    """How far a run is."""

    updates: int      # recorded
    finished: bool    # scored on the held-out tasks after the last one


def cells(study: Study) -> Iterator[Cell]:
    """Every run: all methods of one environment and seed, then the next, so that a study cut short is balanced."""
    for seed in study.seeds:
        for environment in study.environments:
            for method in study.methods:
                yield Cell(environment, method, seed)


def folder_of(study: Study, cell: Cell) -> Path:
    """The run folder."""
    return study.folder / cell.environment / cell.method / str(cell.seed)


def runs_of(study: Study, cell: Cell) -> list[Path]:
    """Its run folders: one, or a campaign's so far."""
    home = folder_of(study, cell)
    return sorted(path for path in home.glob("run-*") if path.is_dir()) if cell.method in study.campaigns else [home]


def result_of(study: Study, cell: Cell) -> Path:
    """The run folder whose policy is the result: of a campaign's the one that is best on the anchor tasks, else the last."""
    home, runs = folder_of(study, cell), runs_of(study, cell)
    if cell.method not in study.campaigns:
        return home
    best = interventions.load(home / campaign.STATE).get("best")
    return home / best if best else runs[-1] if runs else home / "run-01"


def budget(study: Study, environment: str) -> int:
    """Episodes that a run may play; 0: no limit."""
    rollout = study.environments[environment].rollout
    return study.updates * rollout.tasks * rollout.group if study.by_episodes else 0


def configured(study: Study, environment: str, method: str, seed: int) -> Config:
    """The config of one run, or of a campaign's.

    Raises:
      ConfigError: when the method gives none, or one that cannot be run.
    """
    home = study.folder / environment / method
    limit = {} if method in study.campaigns else {"learn.episodes": budget(study, environment)}
    ours = {"root": str(home), "name": str(seed), "seed": seed, "learn.steps": study.updates} | limit
    if study.environments[environment].eval.every >= study.updates:   # every run is evaluated before and after
        ours["eval.every"] = 0
    where = f"method {method!r} on {environment!r}"
    try:
        config = study.methods[method](unchecked(study.environments[environment], ours))
        if isinstance(config, Config):
            config = replace(config, ours)
            knob_tree(config)
    except (ConfigError, knob.KnobError) as error:
        raise ConfigError(f"{where}: {error}") from None
    except Exception as error:  # whatever the user's own function raises
        raise ConfigError(f"{where}: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise ConfigError(f"{where} gave type {type(config).__name__}; it must return a Config")
    if config.sft.role == "user":
        raise ConfigError(f"{where}: sft.role = user makes a model of the user, which is no agent to train on; set it to "
                          f"agent")
    return config


def progress(study: Study, cell: Cell) -> Progress:
    """Read from the run's records."""
    if cell.method in study.campaigns:
        over = bool(interventions.load(folder_of(study, cell) / campaign.STATE).get("over"))
        done = sum(len(rows(run)) for run in runs_of(study, cell))
        return Progress(done, over and last_score(result_of(study, cell)) is not None)
    folder, episodes = folder_of(study, cell), budget(study, cell.environment)
    found = rows(folder)
    spent = len(found) >= study.updates
    if episodes and not spent:
        spent = sum(sum(played(row)) for row in found) > episodes - _batch(study, cell)
    return Progress(len(found), spent and last_score(folder) is not None)


def rows(run: Path) -> list[dict[str, Any]]:
    """Of its metrics.jsonl; none where it has not begun."""
    metrics = run / "metrics.jsonl"
    return list(read_lines(metrics)) if metrics.exists() else []


def last_score(run: Path) -> dict[str, Any] | None:
    """The held-out record after the run's last update; None while there is none."""
    sealed, done = sealed_file(run), len(rows(run))
    found = [line for line in read_lines(sealed) if line["step"] == done] if sealed.exists() and done else []
    return found[-1] if found else None


def begun_by(study: Study, cell: Cell) -> str:
    """The revision of the package's code that began the run; empty where it has not begun."""
    return interventions.load(result_of(study, cell) / "manifest.json").get("git_revision") or ""


def _batch(study: Study, cell: Cell) -> int:
    rollout = configured(study, *cell).rollout
    return rollout.tasks * rollout.group


def run_missing(study: Study, source: str, watch: Watch, jobs: int = 1) -> list[Cell]:
    """Runs what is missing; a run that fails is left and the others go on.

    Args:
      source: Python text of the study file (`config_file.placed`).
      jobs: runs at a time; those of one environment and seed come one after the other, for they share a start.

    Returns:
      The runs that failed.

    Raises:
      RunFolderError: when a run in the study's folder is of another config or longer than the budget; nothing is run then.
    """
    with RunFolder(study.folder):
        everything = list(cells(study))
        configs = (configured(study, *cell) for cell in everything)
        begun = any((run / "config.json").exists() for cell in everything for run in runs_of(study, cell))
        study_inputs.make(study.folder, study.data, study.users, configs, source, begun, watch)
        for cell in everything:
            _check(study, cell)
        todo = [cell for cell in everything if not progress(study, cell).finished]
        if len(todo) < len(everything):
            watch.say(f"finished already: {len(everything) - len(todo)} of {len(everything)} runs")
        _say_older(study, watch)
        _share_compiled(study)
        stop, failed, done = threading.Event(), [], []

        def one_start(chosen: list[Cell]) -> None:
            for cell in chosen:
                if not stop.is_set() and not _run(study, cell, source, watch, stop):
                    failed.append(cell)
                done.append(cell)
                watch.at("runs", len(everything) - len(todo) + len(done), len(everything))

        starts: dict[tuple[str, int], list[Cell]] = {}
        for cell in todo:
            starts.setdefault((cell.environment, cell.seed), []).append(cell)
        with child.workers(jobs) as pool:
            try:
                for future in [pool.submit(one_start, chosen) for chosen in starts.values()]:
                    future.result()
            finally:  # reached early by an interruption only
                stop.set()
        return sorted(failed, key=everything.index)


def _check(study: Study, cell: Cell) -> None:
    """Refuses a run folder that is not this run's."""
    folder = folder_of(study, cell)
    if cell.method in study.campaigns:
        return campaign.same(folder, configured(study, *cell))
    same(folder, configured(study, *cell))
    if (done := progress(study, cell).updates) > study.updates:
        raise RunFolderError(f"{folder} has {done} updates, more than the study's budget of {study.updates}; give "
                             f"--updates {done}, or choose another --name")


def _say_older(study: Study, watch: Watch) -> None:
    """Which runs another revision of the package began: an edited estimator of the package has the name it had."""
    now = revision()
    older = [f"{cell} by {begun_by(study, cell)}" for cell in cells(study) if begun_by(study, cell) not in ("", now)]
    if older:
        more = f" and {len(older) - NAMED} more" if len(older) > NAMED else ""
        watch.say(f"begun by other code of eau_jax than that of now, {now}: {', '.join(older[:NAMED])}{more}. What is "
                  f"finished stays as it is, what is not goes on; to run one anew, delete its folder")


def _run(study: Study, cell: Cell, source: str, watch: Watch, stop: threading.Event) -> bool:
    """One run, or what is left of it, in a process of its own; `stop` ends that. Returns whether the run is finished."""
    folder, began = folder_of(study, cell), time.perf_counter()
    copy_start(study, cell)
    file, log = folder.with_name(f"{cell.seed}.py"), folder.with_name(f"{cell.seed}.log")
    file.write_text(source_of(study, cell, source), encoding="utf-8")
    done = lambda: min(sum(len(rows(run)) for run in runs_of(study, cell)), study.updates - 1)
    command = (*child.TRAIN, "--no-report")   # which takes seconds, and the study's page shows the curves
    if cell.method in study.campaigns:
        command = ("campaign", "--max-runs", str(study.campaigns[cell.method]), "--episodes",
                   str(budget(study, cell.environment)))
    status = child.play(file, log, lambda: watch.at(str(cell), done(), study.updates), stop, command)
    watch.at(str(cell), study.updates, study.updates)
    if status or not progress(study, cell).finished:
        why = "stopped" if stop.is_set() else f"failed (exit status {status}): {child.last_line(log)}"
        watch.say(f"{cell}: {why}")
        return False
    score = last_score(result_of(study, cell))["score"]
    watch.say(f"{cell}: held-out score {score:.3f}, {(time.perf_counter() - began) / 60:.1f} min")
    return True


def copy_start(study: Study, cell: Cell) -> None:
    """Copies model and cold start from a run of the same seed and environment whose config makes the same ones."""
    first = lambda one: folder_of(study, one) / ("run-01" if one.method in study.campaigns else "")
    wanted = _start_of(configured(study, *cell))
    for method in study.methods:
        twin = cell._replace(method=method)
        if method == cell.method or _start_of(configured(study, *twin)) != wanted:
            continue
        child.copy_start(first(twin), first(cell))


def _start_of(config: Config) -> str:
    """All settings but those that only the updates read: two configs of one text begin with the same weights."""
    described = describe(config)
    for name in ("root", "user", "algorithm", "eval", "checkpoint", "swaps", "meta"):
        del described[name]
    del described["tasks"]["bucket"]
    for name in ("steps", "episodes", "epochs", "minibatches", "critic_updates", "critic_warmup", "critic_refit"):
        del described["learn"][name]
    for name in ("tasks", "group", "slots", "top_p", "top_k", "deadline_s", "infra_retries", "refill", "sampler",
                 "max_staleness", "straggler_s"):
        del described["rollout"][name]
    described["knobs"] = {path: value for path, value in described["knobs"].items()
                          if path.startswith(("env.", "rl.policy_optimizer."))}
    described["knobs"].pop("rl.policy_optimizer.learning_rate", None)  # the cold start has its own
    return json.dumps(described, sort_keys=True, default=str)


def _share_compiled(study: Study) -> None:
    """All runs of a study keep what they compiled in one place."""
    (study.folder / ".jax_cache").mkdir(exist_ok=True)
    for cell in cells(study):
        home = folder_of(study, cell)
        home = home if cell.method in study.campaigns else home.parent
        home.mkdir(parents=True, exist_ok=True)
        if not (home / ".jax_cache").exists():
            (home / ".jax_cache").symlink_to((study.folder / ".jax_cache").resolve(), target_is_directory=True)


def source_of(study: Study, cell: Cell, source: str) -> str:
    """Text of a config file that gives one run: the study's own, then which run it is."""
    plain = {field.name: getattr(study, field.name) for field in dataclasses.fields(study)
             if field.name in ("name", "root", "seeds", "updates", "by_episodes", "baseline")}
    return (f"{source}\n\n# Appended by eau-jax: one run of the study above.\n"
            f"from dataclasses import replace as _replace\n\nfrom eau_jax.study import configured as _configured\n\n\n"
            f"def config(_study=study()):  # the study may use another function of this name\n"
            f"    return _configured(_replace(_study, **{plain!r}), *{tuple(cell)!r})\n")


def parse(path: str, study: Study, arguments: list[str]) -> tuple[Study, Any]:
    """The study with what the command line changes, and how it is launched."""
    All = dataclasses.make_dataclass("All", [("study", Annotated[Study, tyro.conf.arg(name="")]),
                                             ("launch", Annotated[Launch, tyro.conf.arg(name="")])], frozen=True)
    given = tyro.cli(All, prog=f"eau-jax compare-methods {path}", args=arguments, default=All(study, Launch()),
                     config=(tyro.conf.AvoidSubcommands,), description="Settings of a study.")
    return given.study, given.launch


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a study is started."""

    page: bool = False
    """run nothing: write the page of what is there"""
    jobs: int = 1
    """runs at a time"""

    def __post_init__(self):
        if self.jobs < 1:
            raise ConfigError(f"jobs = {self.jobs} is out of range; allowed: 1 or more")
