"""`eau-jax synth PLAN.py`: tasks out of a domain's description, each with its checker, through all gates."""

import ast
import dataclasses
import inspect
import json
from typing import Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

USAGE = """usage: eau-jax synth PLAN.py [settings]

PLAN.py is a Python file with `plan() -> SynthPlan`, such as configs/synth_workshop.py.

  eau-jax synth configs/synth_workshop.py --count 10000 --jobs 2

  eau-jax synth configs/synth_llm.py            # the same with language models that make proposals
  eau-jax synth configs/synth_llm.py --name again --llm.replay runs/synth/llm/calls.jsonl     # and once more without them

  eau-jax synth PLAN.py --rounds 4              # in four parts: after each the plan evolves by what came of it

  eau-jax synth inspect runs/synth/workshop     # a page: coverage, rejects, diversity, evolution, tasks to look at

  eau-jax synth export runs/synth/workshop      # data sets for fine-tuning and RL out of a finished run, in its folder data/

A stopped run goes on with the same command. `eau-jax synth PLAN.py --help` lists the settings of a plan.
"""


def run(arguments: list[str]) -> int:
    """Exit status 1 when no task passed the gates, or not all were made."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if arguments[0] == "export":
        return export(arguments[1:])
    if arguments[0] == "inspect":
        return inspect_folder(arguments[1:])
    from eau_jax.progress import Watch
    from eau_jax.synth import pipeline

    plan = parse(arguments[0], arguments[1:])
    with Watch() as watch:
        folder = pipeline.run(plan, lambda done, total: watch.at(f"tasks of {plan.domain.name}", done, total),
                              watch=watch.at)
        card = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        watch.console.print(*tables(card))
        watch.say(f"tasks: {folder / 'tasks'}")
        if "stopped" in card:
            watch.say(f"stopped: {card['stopped']}")
    return 0 if card["kept"] and "stopped" not in card else 1


def export(arguments: list[str]) -> int:
    """`eau-jax synth export FOLDER`. Exit status 1 when nothing was there to export."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ValueError("eau-jax synth export: expected the folder of a finished synthesis, found "
                         f"{arguments or 'nothing'}")
    from rich.markdown import Markdown

    from eau_jax.progress import Watch
    from eau_jax.synth import card, datasets

    with Watch() as watch:
        written = datasets.export(arguments[0], lambda done, total: watch.at("tasks", done, total))
        watch.console.print(Markdown(card.page(written)))
        watch.say(f"data: {arguments[0]}/data")
    return 0 if written["kept"] else 1


def inspect_folder(arguments: list[str]) -> int:
    """`eau-jax synth inspect FOLDER`."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise ValueError("eau-jax synth inspect: expected the folder of a finished synthesis, found "
                         f"{arguments or 'nothing'}")
    from eau_jax.progress import console
    from eau_jax.report.synthesis import write_page

    console().print(f"report: {write_page(arguments[0])}", soft_wrap=True)
    return 0


def parse(path: str, arguments: list[str]) -> Any:
    """The plan of a file with what the command line changes."""
    from eau_jax.config_file import call
    from eau_jax.synth.plan import SynthPlan

    plan = call(path, "plan", SynthPlan)
    fields = _plain(plan)
    if plan.llm is not None:
        inner = dataclasses.make_dataclass("Llm", _plain(plan.llm), frozen=True)
        fields.append(("llm", inner, inner()))
    Settings = dataclasses.make_dataclass("Settings", fields, frozen=True)
    given = vars(tyro.cli(Settings, prog=f"eau-jax synth {path}", args=arguments, description="Settings of a synthesis."))
    if plan.llm is not None:
        given["llm"] = dataclasses.replace(plan.llm, **vars(given["llm"]))
    return dataclasses.replace(plan, **given)


def _plain(settings: Any) -> list[tuple[str, Any, Any]]:
    """(name, type with its help text, value) of the numbers and texts among the fields of a dataclass."""
    body = ast.parse(inspect.getsource(type(settings))).body[0].body
    texts = {line.target.id: after.value.value for line, after in zip(body, body[1:])
             if isinstance(line, ast.AnnAssign) and isinstance(after, ast.Expr)}
    return [(field.name, Annotated[field.type, tyro.conf.arg(help=texts[field.name])], getattr(settings, field.name))
            for field in dataclasses.fields(settings) if field.type in (int, float, str)]


def tables(card: dict[str, Any]) -> list[Table]:
    """What came of a plan."""
    counts = Table("tasks", "", title="Synthesis", title_justify="left")
    for name in ("tried", "passed", "kept"):
        counts.add_row(name, str(card[name]))
    for name, count in sorted({**card["rejects"], **card["dropped"]}.items(), key=lambda each: -each[1]):
        if count:
            counts.add_row(f"  {name}", str(count))
    for agent, (solved, played) in sorted(card["rollouts"].items()):
        counts.add_row(f"solved by the {agent}", f"{solved} of {played} conversations")
    for name, count in sorted(card["faults"].items(), key=lambda each: -each[1]):
        counts.add_row(f"  fault of the {name}", str(count))
    quality = Table("of the kept tasks", "", title="Quality", title_justify="left")
    for name, value in {**card["gates"], **card["diversity"]}.items():
        quality.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    for where, found in card["overlap"].items():
        shared = ", ".join(f"{name} {count}" for name, count in found.items())
        quality.add_row(f"in common: {where.replace('_', ' and ')}", shared)
    return [counts, quality, *_evolution(card), *_models(card)]


def _evolution(card: dict[str, Any]) -> list[Table]:
    """What the rounds of a self-evolution came to."""
    table = Table("round", "passed", "adopted", "refused", "in quarantine", title="Evolution", title_justify="left")
    for each in card.get("evolution", ()):
        refused = ", ".join(f"{code} {count}" for code, count in each["refused"].items())
        table.add_row(str(each["round"] + 1), f"{each['passed']} of {each['tried']}", str(each["adopted"]), refused,
                      escape("\n".join(f"{what}: {why}" for what, why in each["quarantine"].items())))
    return [table] if "evolution" in card else []


def _models(card: dict[str, Any]) -> list[Table]:
    """What language models proposed, where they did."""
    if "proposals" not in card:
        return []
    shown = Table("role", "used", "not used", "calls", "tokens read", "written", title="Language models",
                  title_justify="left")
    for role, tally in card["proposals"].items():
        reasons = sorted((name, count) for name, count in tally["outcomes"].items() if name != "used")
        shown.add_row(role, str(tally["outcomes"].get("used", 0)), ", ".join(f"{name} {count}" for name, count in reasons),
                      str(tally["calls"]), *map(str, tally["tokens"]))
    for name, count in card.get("opinions", {}).items():
        shown.add_row("  opinion", f"{count}", name)
    return [shown]
