"""The page of a study: curves, final scores, differences to the baseline, what it cost, and what all that shows.

Reads the records of the study's runs, whatever of them is there, and writes study.html, study.json and plots/*.png.
"""

import base64
import json
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from rich.table import Table

from eau_jax.child import last_line
from eau_jax.core.records import plain, read_lines, write_atomic
from eau_jax.eval.aggregate import Difference, interquartile_mean, nested, paired_by_seed, probability_of_improvement
from eau_jax.eval.held_out import sealed_file
from eau_jax.eval.numbers import Interval
from eau_jax.report.curves import read_steps
from eau_jax.report.draw import plot_runs, whiskers
from eau_jax.report.markup import Html, count, folded, note, number, style, table, tag
from eau_jax.meta.harvest import played
from eau_jax.study import Cell, Study, begun_by, cells, folder_of, last_score, progress, result_of, runs_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
CURVES = {"curves": "rollout/score_mean", "success": "rollout/success_rate"}
FEW_SEEDS = 5


class Run(NamedTuple):
    """What the records of one run say."""

    cell: Cell
    updates: int
    learned: int                # of these, the ones in which the policy learned
    finished: bool
    said: str                   # the last line of its log, where it is not finished
    start: float                # held-out score before the first update; nan where there is none
    score: float                # held-out score after the last one; nan where there is none
    before: Mapping[str, float]     # by task, before the first update
    after: Mapping[str, float]      # by task, after the last one
    episodes: float             # all that were played to train it: of a campaign, in all of its runs
    beside: float               # of these, the ones that nothing was learned from: canaries, anchor tasks, causal tests
    tokens: float               # of all training episodes, prompts and replies included
    sampled: float              # of these, sampled by the policy
    seconds: float              # in updates: without starting up, cold start and evaluation
    revision: str               # of the code that began it


def read(study: Study) -> list[Run]:
    """Every run of the study, started or not."""
    return [_read(study, cell) for cell in cells(study)]


def _read(study: Study, cell: Cell) -> Run:
    folder, how_far, runs = result_of(study, cell), progress(study, cell), runs_of(study, cell)
    lines, times = ([line for run in runs if (run / name).exists() for line in read_steps(run / name)]
                    for name in ("metrics.jsonl", "timings.jsonl"))
    sealed = {line["step"]: line for line in read_lines(sealed_file(folder))} if sealed_file(folder).exists() else {}
    first, last = sealed.get(0, {}), last_score(folder) if how_far.finished else {}
    value = lambda line, *names: _product(line.get(f"rollout/{name}") for name in ("episodes", *names))
    return Run(
        cell, how_far.updates, sum(line.get("learn/policy_steps", 1) > 0 for line in lines), how_far.finished,
        "" if how_far.finished else last_line(folder_of(study, cell).with_name(f"{cell.seed}.log")),
        *(line.get("score", float("nan")) for line in (first, last)),
        *(line.get("by_task") or ({"all": line["score"]} if line else {}) for line in (first, last)),
        *(sum(sum(played(line)[part]) for line in lines) for part in (slice(None), slice(2, None))),
        sum(value(line, "tokens_mean") for line in lines),
        sum(value(line, "turns_mean", "action_tokens_mean") for line in lines),
        sum(line.get(name) or 0.0 for line in times for name in ("rollout_s", "annotate_s", "update_s")),
        begun_by(study, cell))


def _product(values: Any) -> float:
    """Of numbers; 0 where one is missing."""
    result = 1.0
    for value in values:
        result *= value or 0.0
    return result


class Line(NamedTuple):
    """One method on one environment, over its finished runs."""

    environment: str
    method: str
    runs: int
    start: float
    score: Interval
    gain: Difference                # from the first update to the last, of the same runs
    difference: Difference | None   # to the baseline; None for itself
    updates: float                  # means over runs
    learned: float                  # updates in which the policy learned
    episodes: float
    beside: float
    tokens: float
    sampled: float


class Overall(NamedTuple):
    """One method on all environments."""

    method: str
    runs: int
    middle: Interval                # interquartile mean
    improvement: Interval | None    # probability of improvement over the baseline; None for itself


class Summary(NamedTuple):
    """What the page shows; nothing of it depends on when and how often the study was stopped."""

    lines: list[Line]
    overall: list[Overall]


def summarise(study: Study, runs: Sequence[Run]) -> Summary:
    """Statistics of the finished runs."""
    done = [run for run in runs if run.finished]

    def of(environment: str, method: str) -> list[Run]:
        return [run for run in done if run.cell[:2] == (environment, method)]

    def tasks(environment: str, method: str) -> dict[int, Mapping[str, float]]:
        return {run.cell.seed: run.after for run in of(environment, method)}

    lines = []
    for environment in study.environments:
        for method in study.methods:
            chosen = of(environment, method)
            if chosen:
                lines.append(Line(
                    environment, method, len(chosen), _mean([run.start for run in chosen]),
                    nested([list(run.after.values()) for run in chosen]),
                    paired_by_seed({run.cell.seed: run.before for run in chosen}, tasks(environment, method)),
                    None if method == study.baseline else
                    paired_by_seed(tasks(environment, study.baseline), tasks(environment, method)),
                    *(_mean([getattr(run, name) for run in chosen]) for name in (
                        "updates", "learned", "episodes", "beside", "tokens", "sampled"))))
    scores = {method: {environment: [run.score for run in of(environment, method)] for environment in study.environments}
              for method in study.methods}
    overall = [Overall(method, sum(map(len, values.values())), interquartile_mean(values),
                       None if method == study.baseline else probability_of_improvement(values, scores[study.baseline]))
               for method, values in scores.items() if any(values.values())]
    return Summary(lines, overall)


def write_page(study: Study, source: str) -> Path:
    """Writes study.html, study.json and plots/*.png into the study's folder; returns the page.

    Args:
      source: text of the study file, shown at the end.
    """
    runs = read(study)
    summary = summarise(study, runs)
    study.folder.mkdir(parents=True, exist_ok=True)
    record = {"study": study.name, "baseline": study.baseline, "updates": study.updates, "seeds": study.seeds,
              "unfinished": [str(run.cell) for run in runs if not run.finished],
              "lines": [_named(line) for line in summary.lines], "overall": [_named(one) for one in summary.overall]}
    write_atomic(study.folder / "study.json", json.dumps(plain(record), indent=1) + "\n")
    pictures = _pictures(study, runs, summary)
    head = tag("head", tag("meta", charset="utf-8"),
               tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
               tag("meta", http_equiv="Content-Security-Policy", content=POLICY), tag("title", f"{study.name}: study"),
               style(), Html("<style>img { max-width: 100%; background: #fff; border-radius: 10px; }</style>"))
    body = tag("body", *_body(study, source, runs, summary, pictures))
    write_atomic(study.folder / "study.html", "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n")
    return study.folder / "study.html"


def _named(value: Any) -> Any:
    """Nested NamedTuples as dicts."""
    return {name: _named(item) for name, item in value._asdict().items()} if hasattr(value, "_asdict") else value


def _pictures(study: Study, runs: Sequence[Run], summary: Summary) -> dict[str, Path]:
    """PNG files by what they show."""
    made, plots = {}, study.folder / "plots"
    curves: dict[str, dict[str, list[Path]]] = {}
    for run in runs:
        if run.updates:
            groups = curves.setdefault(run.cell.environment, {})
            groups.setdefault(run.cell.method, []).append(result_of(study, run.cell))
    if curves:
        panels = {name: {method: groups[method] for method in study.methods if method in groups}
                  for name, groups in curves.items()}
        made |= {name: plot_runs(panels, metric, plots / f"{name}.png") for name, metric in CURVES.items()}
    scores: dict[str, dict[str, Interval]] = {}
    gains: dict[str, dict[str, Interval]] = {}
    for line in summary.lines:
        scores.setdefault(line.environment, {})[line.method] = line.score
        if line.difference is not None and line.difference.seeds:
            gains.setdefault(line.environment, {})[line.method] = line.difference.student
    every = tuple(study.methods)
    if scores:
        made["scores"] = whiskers(scores, "held-out score", plots / "scores.png", every)
    if gains:
        made["differences"] = whiskers(gains, f"difference to {study.baseline}, Student's t", plots / "differences.png",
                                       every, 0.0)
    chances = {one.method: one.improvement for one in summary.overall if one.improvement is not None}
    if chances:
        middles = {one.method: one.middle for one in summary.overall}
        made["overall"] = whiskers({"interquartile mean, all environments": middles}, "held-out score",
                                   plots / "overall.png", every)
        made["chances"] = whiskers({f"P(better than {study.baseline})": chances}, "probability", plots / "chances.png",
                                   every, 0.5)
    return made


def _body(study: Study, source: str, runs: Sequence[Run], summary: Summary,
          pictures: Mapping[str, Path]) -> list[Html]:
    shown = {name: tag("img", src="data:image/png;base64," + base64.b64encode(path.read_bytes()).decode(), alt=name)
             for name, path in pictures.items()}
    done = sum(run.finished for run in runs)
    facts = [f"{count(len(study.methods), 'method')} on {count(len(study.environments), 'environment')}",
             f"seeds {', '.join(map(str, study.seeds))}", f"{count(study.updates, 'update')} a run",
             f"baseline {study.baseline}", f"{done} of {count(len(runs), 'run')} finished"]
    overall = [(one.method, str(one.runs), _cell(one.middle),
                "baseline" if one.improvement is None else _cell(one.improvement)) for one in summary.overall]
    return [
        tag("h1", study.name), tag("p", " · ".join(facts), class_="dim"),
        tag("h2", "All environments together"),
        table(("method", "runs", "interquartile mean of held-out scores", f"P(better than {study.baseline})"), overall),
        *(shown[name] for name in ("overall", "chances") if name in shown),
        note("Interquartile mean and probability of improvement as in Agarwal et al. 2021 (rliable), with 95 % bootstrap "
             "intervals, runs drawn within each environment. A probability of 0.5 means no difference."),
        tag("h2", "Learning curves"), *(part for name in CURVES for part in _one(shown, name)),
        note(f"{' and '.join(CURVES.values())} of the training episodes; the band is the 95 % interval of the mean over seeds "
             f"by Student's t, and may leave the picture."),
        tag("h2", "Final scores on held-out tasks"), *_one(shown, "scores"), *_one(shown, "differences"),
        table(("environment", "method", "runs", "before", "after", "gained", f"difference to {study.baseline}", "by Student's t",
               "seeds in which it is higher"), [_score_row(line) for line in summary.lines]),
        note("Before and after the updates, and the paired gain of the same runs by Student's t. After: mean over seeds and "
             "tasks. Intervals are 95 %; the bootstrap draws seeds, then tasks within each. "
             "Differences are paired by seed and task: all methods of a seed play the same tasks, and begin with the same "
             "weights where their settings of model and cold start agree. The picture shows Student's t."),
        tag("h2", "What a run used"), _costs(summary, runs),
        note("Means over finished runs, of a campaign over all that it plays. \"(policy n)\": in the other updates only the "
             "critic learned, or nothing passed the filter. Beside the batches are episodes of canaries, "
             "of the anchor tasks and of causal tests. Tokens are of the training episodes. Time is that of collecting "
             "and learning on the machine at hand, without starting up, cold start and evaluation; runs at the same time "
             "slow each other."),
        tag("h2", "What this shows and what it does not"), *map(note, _caveats(study, summary, runs)),
        tag("h2", "Runs"),
        table(("environment", "method", "seed", "updates", "held-out score", "state"), [
            (*map(str, run.cell), _updates(run), number(run.score), "finished" if run.finished else
             (f"stopped or failed: {run.said}" if run.updates or run.said else "not started")) for run in runs]),
        folded("The study file", tag("pre", source))]


def _one(shown: Mapping[str, Html], name: str) -> list[Html]:
    return [shown[name]] if name in shown else [note("No run has got this far.")]


def _cell(one: Interval, sign: str = "") -> str:
    return f"{one.mean:{sign}.3f} ({one.low:{sign}.3f} to {one.high:{sign}.3f})"


def _score_row(line: Line) -> tuple[str, ...]:
    gap = line.difference
    pairs = ("baseline", "", "") if gap is None else ("no pair yet", "", "") if not gap.seeds else (
        _cell(gap.drawn, "+"), _cell(gap.student, "+") if gap.seeds > 1 else "one seed", f"{gap.higher} of {gap.seeds}")
    gained = _cell(line.gain.student, "+") if line.gain.seeds > 1 else number(line.gain.student.mean)
    return (line.environment, line.method, str(line.runs), number(line.start), _cell(line.score), gained, *pairs)


def _updates(one: Run | Line) -> str:
    """With how many of them the policy learned in, where that is fewer."""
    return number(one.updates) + (f" (policy {number(one.learned)})" if one.learned < one.updates else "")


def _costs(summary: Summary, runs: Sequence[Run]) -> Html:
    minutes = {line[:2]: _mean([run.seconds / 60 for run in runs if run.finished and run.cell[:2] == line[:2]])
               for line in summary.lines}
    return table(("environment", "method", "updates", "episodes", "beside batches", "tokens", "sampled tokens", "minutes"), [
        (line.environment, line.method, _updates(line),
         *(number(round(value)) for value in (line.episodes, line.beside, line.tokens, line.sampled)),
         f"{minutes[line[:2]]:.1f}") for line in summary.lines])


def _caveats(study: Study, summary: Summary, runs: Sequence[Run]) -> list[str]:
    """What a reader has to know, by the numbers of this study."""
    comparisons = [line for line in summary.lines if line.difference is not None and line.difference.seeds]
    clear = [line for line in comparisons if line.difference.seeds > 1 and
             (line.difference.student.low > 0 or line.difference.student.high < 0)]
    said = [f"Clear of zero by Student's t: {len(clear)} of {count(len(comparisons), 'difference')}"
            + (": " if clear else "")
            + ", ".join(f"{line.method} on {line.environment} ({line.difference.student.mean:+.3f})" for line in clear)
            + ". No correction was made for looking at several: about one in twenty would by chance."]
    still = [f"{line.method} on {line.environment}" for line in summary.lines if not line.learned]
    if still:
        said.append(f"The policy learned in no update of {', '.join(still)}: the scores are those of the start.")
    missing = sum(not run.finished for run in runs)
    if missing:
        said.append(f"Not finished: {missing} of {count(len(runs), 'run')}, so the methods are seen on different seeds "
                    f"and environments: only the paired differences compare like with like.")
    revisions = {run.revision for run in runs if run.finished}
    if len(revisions) > 1:
        said.append(f"The runs were begun with {len(revisions)} revisions of the code ({', '.join(sorted(revisions))}): a "
                    f"difference may come from those.")
    if len(study.seeds) < FEW_SEEDS:
        said.append(f"{count(len(study.seeds), 'seed')} a method: bootstrap intervals over so few are too narrow; trust "
                    f"Student's t, and take more seeds before you conclude that there is no difference.")
    return said + [f"It holds for this model, these tasks and {count(study.updates, 'update')} with the settings below; no "
                   f"method was tuned by this study, so a method that needs other settings may be shown below its best."]


def overall_table(study: Study, summary: Summary) -> Table:
    """The summary for a terminal."""
    shown = Table(title=f"{study.name}: held-out score after {count(study.updates, 'update')}, 95 % intervals")
    for column in ("environment", "method", "runs", "score", "gained", f"difference to {study.baseline}", "Student's t"):
        shown.add_column(column)
    for line in summary.lines:
        environment, method, runs, _, score, gained, gap, by_student, _ = _score_row(line)
        shown.add_row(environment, method, runs, score, gained, gap, by_student)
    for one in summary.overall:
        shown.add_row("all", one.method, str(one.runs), f"{_cell(one.middle)} IQM", "",
                      "baseline" if one.improvement is None else f"better with probability {_cell(one.improvement)}", "")
    return shown


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if len(values) else float("nan")
