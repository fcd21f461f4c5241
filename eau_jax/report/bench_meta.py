"""The page of a fault-injection suite: what was named and what was got back, each run, and the same as JSON and Markdown."""

import json
import math
from pathlib import Path
from typing import Sequence

from rich.table import Table

from eau_jax.bench_meta import NONE, Suite
from eau_jax.bench_scores import ERRORS, LEAST, Line, Scores, Watched, read, score
from eau_jax.core.records import plain, write_atomic
from eau_jax.faults import FAULTS
from eau_jax.report.markup import POLICY, count, note, number, style, table, tag
from eau_jax.study import Study, cells, progress

HEAD = ("fault", "environment", "owner", "runs", "right owner", "right fault", "at update", "healthy", "with the fault",
        "with a meta-agent", "got back")
NEEDED = {"owner named": 0.8, "rounds without a proposal where nothing is wrong": 0.95, "got back": 0.7}
"""What a meta-agent that is left alone should reach."""


def write_page(suite: Suite, study: Study, proposer: str) -> tuple[Path, Table]:
    """Writes <proposer>.html, <proposer>.json and <proposer>.md into the suite's folder, of all runs that are finished.

    Returns:
      The page, and its table for a terminal.
    """
    runs = read(study, suite, proposer)
    found, home = score(runs), study.folder
    home.mkdir(parents=True, exist_ok=True)
    lines = [line._asdict() | {"recovery": line.recovery._asdict()} for line in found.lines]
    record = {"suite": suite.name, "proposer": proposer, "updates": suite.updates, "since": suite.since,
              "seeds": suite.seeds, "scores": found._asdict() | {"lines": lines}, "runs": [run._asdict() for run in runs]}
    write_atomic(home / f"{proposer}.json", json.dumps(plain(record), indent=1) + "\n")
    write_atomic(home / f"{proposer}.md", markdown(found))
    body = _body(suite, study, proposer, runs, found)
    page = home / f"{proposer}.html"
    write_atomic(page, "<!doctype html>\n" + tag("html", tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"{suite.name}: {proposer}"), style()), tag("body", *body), lang="en") + "\n")
    shown = Table(*HEAD, title=f"{suite.name}: {proposer}")
    for line in found.lines:
        if line.environment == "all":
            shown.add_row(*_row(line))
    shown.caption = summary(found)
    return page, shown


def summary(found: Scores) -> str:
    """One sentence."""
    return (f"right owner named in {_percent(found.owner_share)} of the runs with a fault, no proposal in "
            f"{_percent(found.quiet_share)} of the rounds without one, {_percent(found.recovered)} of what faults cost got "
            f"back, {count(found.violations, 'gate violation')}, {count(found.sealed_reads, 'sealed read')}")


def markdown(found: Scores) -> str:
    """The table for a README."""
    rows = [_row(line) for line in found.lines if line.environment == "all"]
    written = [" | ".join(row) for row in (HEAD, ["---"] * len(HEAD), *rows)]
    return "".join(f"| {row} |\n" for row in written) + f"\nTogether: {summary(found)}.\n"


def _row(line: Line) -> tuple[str, ...]:
    ends, of = line.recovery, f" of {line.runs}"
    fault = FAULTS.get(line.fault)
    back = ("" if line.fault == NONE else "nothing can" if not fault.mends else "not played" if not ends.runs else
            "costs nothing" if math.isnan(ends.share) else _percent(ends.share))
    return (line.fault, line.environment, line.owner, str(line.runs), f"{line.owner_named}{of}", f"{line.fault_named}{of}",
            number(line.at), *(number(round(value, 3)) for value in (ends.healthy, ends.faulty, ends.mended)), back)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}"


def _body(suite: Suite, study: Study, proposer: str, runs: Sequence[Watched], found: Scores) -> list[str]:
    every = list(cells(study))
    done = sum(progress(study, cell).finished for cell in every)
    totals = zip(NEEDED, (found.owner_share, found.quiet_share, found.recovered), strict=True)
    return [
        tag("h1", f"{suite.name}: {proposer}"),
        tag("p", f"{count(len(study.environments), 'environment')} · seeds {', '.join(map(str, suite.seeds))} · "
                 f"{count(suite.updates, 'update')}, the fault from update {suite.since} on · {done} of "
                 f"{count(len(every), 'run')} finished", class_="dim"),
        tag("h2", "Together"),
        table(("", "found", "wanted"), [(name, _percent(value), f"{NEEDED[name]:.0%} or more") for name, value in totals]
              + [("gate violations", str(found.violations), "0"), ("sealed reads", str(found.sealed_reads), "0")]),
        note(f"Right owner: of the first finding after the fault began; a run in which nothing was found counts as wrong. "
             f"Got back: (with a meta-agent - with the fault) / (healthy - with the fault), success on the anchor tasks after "
             f"the last update, where a fault costs more than {LEAST:g} and {ERRORS:g} standard errors; together: the sum of "
             f"what was got back by the sum of what was lost."),
        tag("h2", "By fault"), table(HEAD, [_row(line) for line in found.lines]),
        tag("h2", "What was put in"), table(("fault", "what is wrong", "can a run mend it?"), [
            (name, FAULTS[name].said, "yes" if FAULTS[name].mends else "no: naming it is all") for name in suite.faults]),
        tag("h2", "Runs"), table(
            ("environment", "fault", "seed", "named", "owner", "at", "rounds", "without a proposal", "adopted", "taken back",
             "healthy", "with the fault", "ended with", "violations"),
            [(run.environment, run.fault, str(run.seed), run.named or "nothing", run.owner or "–",
              number(run.at or math.nan), *map(str, (run.rounds, run.quiet, run.adopted, run.back)),
              *map(number, (run.healthy, run.faulty, run.ended)), "; ".join(run.violations)) for run in runs])]
