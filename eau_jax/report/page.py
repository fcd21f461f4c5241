"""The report of a run: one HTML page that holds everything it shows, and the headline charts as PNG files.

Reads the run folder, and a sealed evaluation where one is given. Works while the run is going on.
"""

import difflib
import json
import math
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax import schedule
from eau_jax.core.records import RunFolderError, write_atomic
from eau_jax.meta import interventions
from eau_jax.report import changes, curves
from eau_jax.report.curves import Chart, Mark, Series
from eau_jax.report.draw import card, write_plots
from eau_jax.report.dialogue import dialogues, numbered
from eau_jax.report.markup import POLICY, Html, as_float, count, folded, note, number, style, table, tag

HISTORY_LIMIT = 300   # knob changes, and as many rule files, shown: the newest


def write_report(folder: str | Path, sealed: str | Path | None = None) -> Path:
    """Writes report.html and plots/*.png into the run folder, and schedule.py where changes were adopted.

    Args:
      folder: the run folder; every file but metrics.jsonl may be missing.
      sealed: eval.jsonl of this run's sealed evaluation, or None.

    Returns:
      The path of report.html.

    Raises:
      RunFolderError: `folder` is no run folder, or a file in it is broken; it names the file, and the line of one that
        has a record a line.
    """
    folder = Path(folder)
    text, charts = render(folder, None if sealed is None else Path(sealed))
    write_plots(charts, folder / "plots")
    write_atomic(folder / "report.html", text)
    if any(one.since for one in interventions.read(folder)):
        write_atomic(folder / schedule.FILE, schedule.source(folder))
    return folder / "report.html"


def render(folder: Path, sealed: Path | None) -> tuple[str, list[Chart]]:
    """The text of the page, and its headline charts. Arguments and errors are those of `write_report`."""
    metrics = curves.read_metrics(folder)
    generations = list(interventions.generations(folder).values())
    found = interventions.read(folder)
    marks = changes.marks(generations, found)
    series = curves.series_of(metrics) | curves.series_of(_steps(folder / "timings.jsonl"), "timings/")
    headlines, rest = curves.charts(series, marks)
    held_out = _held_out_charts(sealed, marks) if sealed and sealed.is_file() else []
    cold_start, more = curves.charts(curves.series_of(_steps(folder / "sft.jsonl"), "sft/"))
    cold_start += more.get("sft", [])

    absent = [panel.title for panel in curves.HEADLINES if panel.title not in [chart.title for chart in headlines]]
    body = [
        *_header(folder, metrics),
        _held_out_box(sealed),
        _tiles(metrics, headlines),
        tag("h2", "Curves"),
        _grid([*held_out, *headlines]) if headlines or held_out else note("No step is finished yet."),
        note("Thick: running mean. Thin: as recorded. Upright lines: knobs, rules or task mix changed, green where the "
             "change was kept, red where it was taken back; point at a line to see what it is."),
        note(f"Not recorded: {', '.join(absent)}.") if absent else "",
        *(folded(f"{group}: all other metrics", _grid(group_charts), small=count(len(group_charts), "chart"))
          for group, group_charts in rest.items()),
        *changes.section(found),
        tag("h2", "Cold start"),
        _grid(cold_start) if cold_start else note("No cold start is recorded: sft.jsonl is missing or empty."),
        tag("h2", "Knobs and rules"),
        *_knobs(generations),
        *_rules(folder / "rules"),
        tag("h2", "Dialogues"),
        *dialogues(folder / "episodes"),
        tag("h2", "Settings"),
        *(_json_file(folder / name) for name in ("config.json", "manifest.json")),
    ]
    head = tag("head", tag("meta", charset="utf-8"),
               tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
               tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
               tag("title", f"{folder.resolve().name}: report"), style())
    return "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n", [*held_out, *headlines]


# The top of the page


def _header(folder: Path, metrics: Sequence[Mapping]) -> list[Html]:
    facts = [count(len(metrics), "training step") if metrics else "no training step yet"]
    if (folder / "manifest.json").is_file():
        manifest = _read_json(folder / "manifest.json")
        facts += [f"{key.replace('_', ' ')} {manifest[key]}" for key in ("created", "seed", "git_revision")
                  if key in manifest]
    return [tag("h1", folder.resolve().name), tag("p", " · ".join(facts), class_="dim")]


def _tiles(metrics: Sequence[Mapping], headlines: Sequence[Chart]) -> Html:
    shown = {"Step": number(metrics[-1]["step"])} if metrics else {}
    by_title = {chart.title: chart for chart in headlines}
    for title in ("Score", "Success", "Return", "Turns", "Speed"):
        if title in by_title:
            shown[title] = number(curves.last_value(by_title[title].series[0]))
    if "Time of a step" in by_title:
        seconds = sum(float(np.nansum(one.values)) for one in by_title["Time of a step"].series)
        shown["Time in all"] = f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.1f} min"
    tiles = [tag("div", tag("small", name), tag("b", value), class_="tile") for name, value in shown.items()]
    return tag("div", *tiles, class_="tiles")


class Difference(NamedTuple):
    """After minus before, with the bounds of its interval; nan where an interval is not known."""

    value: float
    low: float
    high: float


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Difference:
    """The gain in "score" of two evaluations, with the interval that follows from the two intervals.

        low = d − sqrt((after − after_low)² + (before_high − before)²),  high likewise

    The two are taken as independent, which is a little too wide where both played the same tasks.
    Reference: Newcombe 1998, Statistics in Medicine 17, 873-890, method 10, for shares; Zou and Donner 2008, Statistics
    in Medicine 27, 1693-1702, for any mean.
    """
    (a, a_low, a_high), (b, b_low, b_high) = [[as_float(one.get(name)) for name in ("score", "score_low", "score_high")]
                                              for one in (before, after)]
    return Difference(b - a, b - a - math.hypot(b - b_low, a_high - a), b - a + math.hypot(b_high - b, a - a_low))


def _held_out_box(sealed: Path | None) -> Html:
    if sealed is None:
        return tag("div", tag("p", "No held-out evaluation was given to this report."), class_="headline")
    records = curves.read_records(sealed) if sealed.is_file() else []
    before = [one for one in records if one.get("phase") == "cold_start"] or records[:1]
    after = [one for one in records if one.get("phase") == "final"] or records[len(before):]
    if not after:
        text = f"Held-out score {number(records[0].get('score'))}, no later one yet" if records else \
            f"No held-out evaluation yet: {sealed} is missing or empty."
        return tag("div", tag("p", text), class_="headline")
    first, last = before[-1], after[-1]
    gain = difference(first, last)
    sure = "good" if gain.low > 0 else "bad" if gain.high < 0 else ""
    rows = [(name, _with_interval(first, name), _with_interval(last, name),
             "" if name == "episodes" else f"{as_float(last[name]) - as_float(first[name]):+.3g}")
            for name in ("score", "success", "return", "turns", "episodes") if name in first and name in last]
    return tag(
        "div", tag("div", f"Held-out score {number(first.get('score'))} → {number(last.get('score'))} ",
                   tag("span", f"{gain.value:+.3f}", class_=sure), class_="big"),
        note("" if math.isnan(gain.low) else f"95 % interval of the difference: {gain.low:+.3f} to {gain.high:+.3f} "
              "(the two evaluations taken as independent)"),
        table(("", _when(first), _when(last), "difference"), rows), class_="headline")


def _when(record: Mapping) -> str:
    return f"{str(record.get('phase', '')).replace('_', ' ')}, step {number(record['step'])}"


def _with_interval(record: Mapping, name: str) -> str:
    low, high = record.get(f"{name}_low"), record.get(f"{name}_high")
    between = f" ({number(low)} to {number(high)})" if low is not None and high is not None else ""
    return number(record[name]) + between


def _held_out_charts(sealed: Path, marks: Sequence[Mark]) -> list[Chart]:
    """Score, success and return over the steps at which they were measured, with intervals where they are known."""
    series = curves.series_of(curves.read_steps(sealed))
    found = []
    for name in ("score", "success", "return"):
        if name in series:
            one, low, high = (series.get(key) for key in (name, f"{name}_low", f"{name}_high"))
            if low is not None and high is not None and len(low.values) == len(high.values) == len(one.values):
                one = Series(name, one.steps, one.values, np.stack([low.values, high.values], axis=1))
            unit = "95 % interval" if len(one.interval) else ""
            found.append(Chart(f"Held-out {name}", unit, (one,), marks=tuple(marks)))
    return found


# Knobs and rules


def _knobs(generations: Sequence[Mapping]) -> list[Html]:
    if not generations:
        return [note("No knobs are recorded: knobs/ is missing or empty.")]
    rows = []
    for one in generations:
        place = (str(one["generation"]), number(one["step"]))
        rows += [(*place, path, number(old), number(new)) for path, (old, new) in one["changes"].items()]
        rows += [(*place, "rules", "", "see below")] * bool(one["rules_changed"])
    start = generations[0]
    return [
        table(("generation", "step", "what", "old", "new"), rows[-HISTORY_LIMIT:]) if rows
        else note("No knob was changed in this run."),
        note(f"{len(rows) - HISTORY_LIMIT} earlier changes are not listed.") if len(rows) > HISTORY_LIMIT else "",
        folded(f"Values at generation {start['generation']}",
                table(("knob", "value"), [(path, number(value)) for path, value in start["values"].items()]),
                small=count(len(start["values"]), "knob"))]


def _rules(folder: Path) -> list[Html]:
    versions = numbered(folder, "toml", lambda path: (path.stem, path.read_text(encoding="utf-8")))[-HISTORY_LIMIT:]
    if not versions:
        return [note("No rules are recorded: rules/ is missing or empty.")]
    shown = [folded(f"Rules at generation {versions[0][0]}", tag("pre", versions[0][1]))]
    for (old_name, old), (name, new) in zip(versions, versions[1:]):
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, name, lineterm="", n=2)
        text = "\n".join(lines)
        if text:
            shown.append(folded(f"Rules changed at generation {name}", tag("pre", text)))
    return shown


# Reading and small pieces


def _steps(path: Path) -> list[dict]:
    return curves.read_steps(path) if path.is_file() else []



def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError(f"{path} is not JSON: {error}") from None


def _json_file(path: Path) -> Html:
    if not path.is_file():
        return note(f"{path.name} is missing.")
    return folded(path.name, tag("pre", json.dumps(_read_json(path), indent=1, ensure_ascii=False)))



def _grid(shown: Sequence[Chart]) -> Html:
    return tag("div", *(card(chart) for chart in shown), class_="cards")
