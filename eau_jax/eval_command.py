"""`eau-jax eval RUN` and `eau-jax eval PLAN.py`: the two forms of an evaluation on the command line."""

import ast
import contextlib
import dataclasses
import inspect
import io
from pathlib import Path
from typing import Annotated, Any

import tyro

from eau_jax.config import ConfigError
from eau_jax.config_file import call

USAGE = """usage: eau-jax eval RUN [options]        a run's policy on its held-out tasks
       eau-jax eval PLAN.py [options]    any player on any benchmarks: a Python file with `plan() -> Plan`

  eau-jax eval runs/quickstart --checkpoint best --samples 4
  eau-jax eval configs/eval_built_in.py --repeats 4 --limit 20

A stopped evaluation goes on with the same command. Results are in <root>/sealed/eval/<name>/.
"""


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluates a run's policy on its held-out tasks, once."""

    run: tyro.conf.Positional[str]
    """run folder"""
    checkpoint: str = "latest"
    """latest, best, cold_start, or an update number"""
    samples: int = 1
    """episodes per held-out task"""
    temperature: float = 1.0
    """sampling temperature; 0 is greedy"""
    name: str = ""
    """of the folder of its results; empty: RUN-CHECKPOINT-tTEMPERATURE"""
    again: bool = False
    """look a second time at tasks that this run was scored on; it is recorded"""

    def __post_init__(self):
        if self.samples < 1:
            raise ConfigError(f"samples = {self.samples} is out of range; allowed: 1 or more")


@dataclasses.dataclass(frozen=True)
class Look:
    """How a plan is played."""

    again: bool = False
    """look a second time at tasks that this player was scored on; it is recorded"""


def run(arguments: list[str]) -> int:
    """Exit status 1 when a benchmark has no usable episode; the same command tries them again."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0].endswith(".py"):
        return _evaluate(*parse_plan(arguments[0], arguments[1:]))
    if arguments[0].startswith("-"):
        raise ConfigError(f"RUN or PLAN.py comes first, before {arguments[0]!r}; `eau-jax eval --help` shows both forms")
    given = tyro.cli(Eval, prog="eau-jax eval", args=arguments)

    from eau_jax import trained

    return _evaluate(trained.plan_of(given.run, given.checkpoint, given.samples, given.temperature, given.name), given.again)


def usage() -> str:
    """Both forms, an example of each, and all their options."""
    from eau_jax.eval.plan import Plan

    defaults = {field.name: field.default for field in dataclasses.fields(Plan) if field.default is not dataclasses.MISSING}
    plan = _settings(defaults | {"name": "as in the file"})
    return (f"{USAGE}\n{_help(Eval, 'eau-jax eval RUN')}\n{_help(plan, 'eau-jax eval PLAN.py')}\n"
            "Defaults are those of `Plan`; `eau-jax eval PLAN.py --help` shows those of a file.")


def parse_plan(path: str, arguments: list[str]) -> tuple[Any, bool]:
    """The plan of a file with what the command line changes, and whether a second look is allowed."""
    from eau_jax.eval.plan import Plan

    plan = call(path, "plan", Plan)
    settings = _settings({field.name: getattr(plan, field.name) for field in dataclasses.fields(Plan)})
    given = tyro.cli(settings, prog=f"eau-jax eval {path}", args=arguments, description="Settings of an evaluation.")
    return dataclasses.replace(plan, **vars(given.plan)), given.look.again


def _settings(values: dict[str, Any]) -> type:
    """What of a plan is set on the command line: its plain fields; parts are chosen in the file."""
    from eau_jax.eval.plan import Plan

    body = ast.parse(inspect.getsource(Plan)).body[0].body
    texts = {line.target.id: after.value.value for line, after in zip(body, body[1:])
             if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr)}
    plain = [(field.name, Annotated[field.type, tyro.conf.arg(help=texts.get(field.name))], values[field.name])
             for field in dataclasses.fields(Plan) if field.type in (int, str)]
    Settings = dataclasses.make_dataclass("Settings", plain, frozen=True)
    return dataclasses.make_dataclass("All", [("plan", Annotated[Settings, tyro.conf.arg(name="")]),
                                              ("look", Annotated[Look, tyro.conf.arg(name="")])], frozen=True)


def _help(kind: type, prog: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        tyro.cli(kind, prog=prog, args=["--help"])
    return shown.getvalue()


def _evaluate(plan: Any, again: bool) -> int:
    from eau_jax.eval.play import evaluate
    from eau_jax.progress import Watch
    from eau_jax.report.evaluation import remarks, results_tables, unscored, write_page

    with Watch() as watch:
        folder = evaluate(plan, again=again, progress=watch.at)
        watch.console.print(*results_tables(folder))
        for remark in remarks(folder):
            watch.say(remark)
        watch.say(f"report: {write_page(Path(folder))}")
    return 1 if unscored(folder) else 0
