"""The command line: `eau-jax COMMAND ...`, commands as in HELP.

Bad input ends with one message and exit status 2, a loss that is not finite with 3; set EAU_JAX_TRACEBACK=1 to see where it
came from.
"""

import dataclasses
import errno
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from eau_jax import bench_meta_command, eval_command, synth_command
from eau_jax.config import Config, ConfigError
from eau_jax.config_file import call, changed, derived, load_config, load_method, own_method, placed, runnable
from eau_jax.core import knobs as knob
from eau_jax.core.printable import printable
from eau_jax.core.types import InfraError
from eau_jax.learner.parts import NonFiniteError
from eau_jax.override import given, named_method, parse_overrides

HELP = """usage: eau-jax COMMAND ...

  plan CONFIG     parameters, shardings, memory, FLOPs and floor times of a run, without weights or devices
  train CONFIG    cold start and reinforcement learning; --resume continues
  sft CONFIG      supervised fine-tuning alone: the cold start, or with --sft.role user a model of the user
  campaign CONFIG --max-runs 5   runs that begin with what those before them found out
  eval RUN|PLAN   a run's policy on its held-out tasks, or an evaluation plan (a Python file with `plan()`)
  compare A B ..  finished evaluations side by side, paired by task
  compare-methods STUDY   methods x environments x seeds: runs what is missing and writes a page with intervals
  bench-meta [SUITE]      faults put into runs on purpose: what a meta-agent finds and mends
  synth PLAN      tasks with checkers out of a domain's description, a Python file with `plan() -> SynthPlan`
  data FOLDER     checks a folder of upstream benchmark files, and says where to get what is missing
  export RUN DIR  a run's policy as a Hugging Face folder
  report RUN      a page with curves, changes, knob history and dialogues; of an evaluation, a page with tables
  watch RUN       a run's curves and changes in the terminal, while it goes on
  audit RUN       checks that the records of a run's changes are whole and agree
  chat RUN        talk to a run's agent in the terminal

CONFIG is a Python file such as configs/quickstart.py, or a run folder; RUN is a run folder such as runs/quickstart.
`eau-jax train CONFIG --help` lists every setting and knob of that config with its default, `eau-jax eval --help` both forms
of an evaluation.
"""


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a run is started, beside its config."""

    resume: bool = False
    """continue a run that was stopped"""
    profile: tuple[int, ...] = ()
    """updates of which a trace for xprof and Perfetto is written to RUN/profile, such as 3 4"""
    processes: int = 1
    """how many processes train together, each started with this command: one for each host of a TPU slice"""
    method: str = ""
    """file whose `method(config) -> Config` changes the config first, such as configs/methods/grpo.py; FILE.py:NAME is
    another function of it"""
    report: bool = True
    """draw report.html and plots/*.png at the end; `eau-jax report RUN` does it at any time"""


@dataclasses.dataclass(frozen=True)
class Compare:
    """Sets finished evaluations side by side; each is compared with the first on the tasks that both have."""

    evaluations: tyro.conf.Positional[tuple[str, ...]]
    """folders such as runs/sealed/eval/NAME"""
    by: Literal["score", "metric", "success"] = "score"
    """what is compared"""
    plot: str = ""
    """picture to draw, such as both.png, both.pdf or both.svg"""


@dataclasses.dataclass(frozen=True)
class Data:
    """Compares a folder with the upstream benchmark files by their SHA-256; exit status 1 when something is missing or
    different."""

    folder: tyro.conf.Positional[str] = "data"
    """holds usergym/ and tau2/"""
    part: str = ""
    """only files that begin so, such as tau2/retail/"""


@dataclasses.dataclass(frozen=True)
class Export:
    """Writes a run's policy as a Hugging Face folder that `transformers` reads."""

    run: tyro.conf.Positional[str]
    """run folder"""
    folder: tyro.conf.Positional[str]
    """folder to write; it must not exist"""
    checkpoint: str = "latest"
    """latest, best, cold_start, or an update number"""
    adapter: bool = False
    """of a run with LoRA: write its adapter alone, as PEFT reads it, in place of the merged model"""


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes report.html and plots/*.png into a run folder."""

    run: tyro.conf.Positional[str]
    """run folder"""


@dataclasses.dataclass(frozen=True)
class Show:
    """Shows a run's curves, its generation and its changes, anew every few seconds until it is over; writes nothing."""

    run: tyro.conf.Positional[str]
    """run folder"""
    once: bool = False
    """show it once"""
    every: float = 2.0
    """seconds between two looks"""


@dataclasses.dataclass(frozen=True)
class Audit:
    """Checks a run's audit.jsonl: its chain of hashes, and that it agrees with knobs/ and rules/; exit status 1 when not."""

    run: tyro.conf.Positional[str]
    """run folder"""


@dataclasses.dataclass(frozen=True)
class Chat:
    """Talks to a run's agent; you are the user."""

    run: tyro.conf.Positional[str]
    """run folder"""
    checkpoint: str = "latest"
    """latest, best, cold_start, or an update number"""
    temperature: float = 1.0
    """sampling temperature; 0 is greedy"""
    seed: int = 0
    """decides what is sampled"""


def main(arguments: list[str] | None = None) -> None:
    """Runs one command and exits with its status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        sys.exit(_run(arguments))
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("eau_jax"):
            raise
        _fail(error)
    except (ValueError, OSError, NonFiniteError, InfraError) as error:
        _fail(error)
    except KeyboardInterrupt:
        Console(stderr=True).print("eau-jax: stopped; training goes on with --resume, an evaluation, study or campaign with "
                                     "the same command", highlight=False)
        sys.exit(130)


def _fail(error: Exception) -> None:
    if os.environ.get("EAU_JAX_TRACEBACK") == "1":
        raise error
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        text = (f"the disk is full ({error.filename or 'while writing the run folder'}); free space, then give the same "
                f"command again, `train` with --resume")
    Console(stderr=True).print(f"[bold red]eau-jax:[/] {escape(printable(text))}", soft_wrap=True, highlight=False)
    sys.exit(3 if isinstance(error, NonFiniteError) else 2)


def _run(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if command in ("-h", "--help"):
        print(HELP)
        return 0
    if command in ("plan", "train", "sft", "campaign"):
        return _learn(command, rest)
    if command == "eval":
        return eval_command.run(rest)
    if command == "compare-methods":
        return _compare_methods(rest)
    if command == "bench-meta":
        return bench_meta_command.run(rest)
    if command == "synth":
        return synth_command.run(rest)
    commands = {"export": Export, "report": Report, "chat": Chat, "compare": Compare, "data": Data, "watch": Show,
                "audit": Audit}
    if command not in commands:
        known = [*commands, "plan", "train", "sft", "campaign", "eval", "compare-methods", "bench-meta", "synth"]
        raise ConfigError(f"unknown command {command!r}{knob.nearest(command, known)}")
    given = tyro.cli(commands[command], prog=f"eau-jax {command}", args=rest)
    if isinstance(given, Report):
        return _report(given.run)
    if isinstance(given, Compare):
        return _compare(given)
    if isinstance(given, Data):
        from eau_jax.envs import upstream_files

        found = upstream_files.check(given.folder, given.part)
        Console().print(upstream_files.described(found, given.folder), soft_wrap=True, highlight=False, markup=False)
        return 0 if found.complete else 1
    if isinstance(given, Show):
        from eau_jax import live

        live.show(Path(given.run), once=given.once, every=given.every)
        return 0
    if isinstance(given, Audit):
        return _audit(Path(given.run))
    from eau_jax import trained

    if isinstance(given, Export):
        trained.export(given.run, given.folder, given.checkpoint, given.adapter)
    else:
        trained.chat(given.run, given.checkpoint, given.temperature, given.seed)
    return 0


def _learn(command: str, arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(f"usage: eau-jax {command} CONFIG [settings]\n\nCONFIG comes first and is a Python file such as "
              f"configs/quickstart.py. `eau-jax {command} CONFIG --help` lists its settings and knobs.")
        return 0 if arguments in ([], ["-h"], ["--help"]) else 2
    path, method = arguments[0], named_method(arguments[1:])
    before = bare = load_config(path)
    if method:
        before = load_method(method)(bare)
    from eau_jax import campaign, follow, plan_command, processes, train

    kind = {"campaign": campaign.Launch, "plan": plan_command.Launch}.get(command, Launch)
    name, kind = f"eau-jax {command} {path}", kind()
    config, launch = parse_overrides(before, arguments[1:], name, kind)
    settings = given(config, arguments[1:])
    own = own_method(path) if settings else None
    if settings and (own or method):   # what a method derives follows the command line
        before = derived(bare, own, settings, own=True) if own else bare
        before = derived(before, load_method(method), settings) if method else before
        config, launch = parse_overrides(before, arguments[1:], name, kind)
    if command == "plan":
        plan_command.show(config, launch)
        return 0
    source = runnable(path, changed(before, config), method, settings)
    if command == "campaign":
        return _campaign(config, source, launch)
    if command == "sft":
        for name, why in (("profile", "makes no updates"), ("resume", "begins again what it did not finish"),
                          ("report", "draws none")):
            if getattr(launch, name) != getattr(Launch, name):
                raise ConfigError(f"{name} = {getattr(launch, name)} would do nothing: `sft` {why}; leave it out")
    if launch.processes > 1 and config.rollout.max_staleness:
        raise ConfigError(f"processes = {launch.processes} cannot go with rollout.max_staleness = "
                          f"{config.rollout.max_staleness}, for processes do everything in the same order; set one of them back")
    processes.join(launch.processes)
    if command == "train":
        # What a full disk does is said once, by the save that fails: not by Orbax, nor by the compilation cache.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, train.ask_to_stop)
    if launch.processes > 1 and not processes.leads():
        return follow.follow(config)
    with processes.leading(config):
        if command == "sft":
            train.cold_start_only(config, source)
        else:
            train.train(config, source, resume=launch.resume, profile=launch.profile)
            if launch.report:
                _report(str(Path(config.root) / config.name))
    return 0


def _campaign(config: Config, source: str, launch: Any) -> int:
    from eau_jax import campaign
    from eau_jax.progress import Watch

    with Watch() as watch:
        whole = campaign.Campaign(config, source, launch, watch)
        whole.play()
        watch.console.print(campaign.summary(whole))
        if whole.best is not None:
            watch.say(f"best by success on the anchor tasks: {whole.home / whole.best.name}")
    return 0


def _audit(run: Path) -> int:
    from eau_jax.audit_command import check

    found = check(run)
    for complaint in found.complaints:
        Console(stderr=True).print(f"[bold red]audit:[/] {escape(printable(complaint))}", soft_wrap=True, highlight=False)
    Console().print(found.said, soft_wrap=True, highlight=False, markup=False)
    return 1 if found.complaints else 0


def _compare(given: Compare) -> int:
    from eau_jax.progress import console
    from eau_jax.report.compare import compare, comparison_table, plot, remarks
    from eau_jax.report.draw import picture

    if given.plot:
        picture(Path(given.plot))
    lines = compare(given.evaluations, given.by)
    console().print(comparison_table(lines, given.by))
    for remark in remarks(given.evaluations):
        Console().print(printable(remark), soft_wrap=True, highlight=False, markup=False)
    if given.plot:
        Console().print(f"plot: {plot(lines, given.by, Path(given.plot))}", soft_wrap=True)
    return 0


def _compare_methods(arguments: list[str]) -> int:
    """Exit status 1 when a run failed; the page is written in any case."""
    from eau_jax import study as studies
    from eau_jax.progress import Watch
    from eau_jax.report import study as page

    if not arguments or arguments[0].startswith("-"):
        print("usage: eau-jax compare-methods STUDY [settings]\n\nSTUDY comes first and is a Python file with "
              "`study() -> Study`, such as configs/study_quickstart.py. `eau-jax compare-methods STUDY --help` lists its "
              "settings.")
        return 0 if arguments in ([], ["-h"], ["--help"]) else 2
    path = arguments[0]
    study, launch = studies.parse(path, call(path, "study", studies.Study), arguments[1:])
    source = placed(path)
    with Watch() as watch:
        failed = [] if launch.page else studies.run_missing(study, source, watch, launch.jobs)
        written = page.write_page(study, Path(path).read_text(encoding="utf-8"))
        watch.console.print(page.overall_table(study, page.summarise(study, page.read(study))))
        watch.say(f"page: {written}")
        if failed:
            watch.say(f"{len(failed)} of the runs failed; the same command tries them again. Their logs lie beside the run "
                      f"folders, such as {studies.folder_of(study, failed[0])}.log")
    return 1 if failed else 0


def _report(run: str) -> int:
    from eau_jax.report.evaluation import write_page
    from eau_jax.report.page import write_report

    folder = Path(run)
    if (folder / "plan.json").is_file():
        Console().print(f"report: {write_page(folder)}", soft_wrap=True)
        return 0
    if (folder / "config.json").is_file() and not (folder / "metrics.jsonl").is_file():
        raise ConfigError(f"{run} has no finished update yet; train it first")
    page = write_report(folder, folder.parent / "sealed" / folder.name / "eval.jsonl")
    Console().print(f"report: {page}", soft_wrap=True)
    return 0
