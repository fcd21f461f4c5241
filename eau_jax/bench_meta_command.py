"""`eau-jax bench-meta [SUITE.py]`: faults put into runs on purpose, and what a meta-agent makes of them."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from eau_jax.config import ConfigError

SUITE = "configs/bench_meta.py"
USAGE = f"""usage: eau-jax bench-meta [SUITE.py] [settings]

SUITE is a Python file with `suite() -> Suite`; {SUITE} unless told.

  eau-jax bench-meta --jobs 2                                          all faults, hours
  eau-jax bench-meta --faults too_few_turns leaky_user --seeds 0       a first look
  eau-jax bench-meta --proposer eau_jax/meta/drivers/claude.py:claude  another proposer

Stopped, it goes on with the same command. `eau-jax bench-meta SUITE.py --help` lists the settings of a suite.
"""


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a suite is started."""

    proposer: str = ""
    """who is measured: FILE.py:NAME, a function that returns a Proposer; empty: the rules"""
    page: bool = False
    """run nothing: write the page of what is there"""
    jobs: int = 1
    """runs at a time; those of one environment and seed come one after the other"""

    def __post_init__(self):
        if self.jobs < 1:
            raise ConfigError(f"jobs = {self.jobs} is out of range; allowed: 1 or more")
        if self.proposer and ".py:" not in self.proposer:
            raise ConfigError(f"proposer = {self.proposer!r}; give FILE.py:NAME, where NAME is a function that returns a "
                              f"Proposer")


def run(arguments: list[str]) -> int:
    """Exit status 1 when a run failed; the page is written in any case."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    from eau_jax import bench_meta, study as studies
    from eau_jax.progress import Watch
    from eau_jax.report import bench_meta as page

    path = SUITE if not arguments or arguments[0].startswith("-") else arguments[0]
    suite, launch = parse(path, arguments[1:] if arguments[:1] == [path] else arguments)
    proposer = bench_meta.named(launch.proposer)
    study = bench_meta.study_of(suite, proposer)
    with Watch() as watch:
        source = source_of(path, suite, launch.proposer)
        failed = [] if launch.page else studies.run_missing(study, source, watch, launch.jobs)
        written, table = page.write_page(suite, study, proposer.name)
        watch.console.print(table)
        watch.say(f"page: {written}")
        if failed:
            watch.say(f"{len(failed)} of the runs failed; the same command tries them again. Their logs lie beside the run "
                      f"folders, such as {studies.folder_of(study, failed[0])}.log")
    return 1 if failed else 0


def parse(path: str, arguments: list[str]) -> tuple[Any, Launch]:
    """The suite with what the command line changes, and how it is launched."""
    from eau_jax.bench_meta import Suite
    from eau_jax.config_file import call

    suite = call(path, "suite", Suite)
    All = dataclasses.make_dataclass("All", [("suite", Annotated[Suite, tyro.conf.arg(name="")]),
                                             ("launch", Annotated[Launch, tyro.conf.arg(name="")])], frozen=True)
    given = tyro.cli(All, prog=f"eau-jax bench-meta {path}", args=arguments, default=All(suite, Launch()),
                     config=(tyro.conf.AvoidSubcommands,), description="Settings of a suite.")
    return given.suite, given.launch


def source_of(path: str, suite: Any, proposer: str) -> str:
    """Text of a Python file whose `study()` is the suite's: what `study.run_missing` makes the runs' configs of."""
    from eau_jax.config_file import placed

    plain = {field.name: getattr(suite, field.name) for field in dataclasses.fields(suite) if field.name != "environments"}
    file, _, name = proposer.partition(".py:")
    where = f"{Path(file + '.py').resolve()}:{name}" if proposer else ""
    return (f"{placed(path)}\n\n# Appended by eau-jax: the study of this suite.\n"
            f"from dataclasses import replace as _changed\n\n"
            f"from eau_jax.bench_meta import named as _named, study_of as _made\n\n\n"
            f"def study(_suite=suite):\n    return _made(_changed(_suite(), **{plain!r}), _named({where!r}))\n")
