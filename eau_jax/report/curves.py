"""Curves: the numbers of a run folder as series and charts, without how they are drawn."""

import dataclasses
import re
from pathlib import Path
from typing import Iterable, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax.core.knobs import nearest
from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.eval.aggregate import STUDENT

FEW = 40            # a curve with at most this many points shows each of them
CHART_SERIES = 6    # at most so many curves in one chart: as many as there are colours
NO_INTERVAL = np.zeros((0, 2))


class Panel(NamedTuple):
    """One headline chart: its title, the last parts of the metrics' names in it, their unit, and what its axis never
    shows beyond."""

    title: str
    names: tuple[str, ...]
    unit: str = ""
    bounds: tuple[float, float] = (-np.inf, np.inf)


HEADLINES = (
    Panel("Score", ("score_mean",), "per episode"),
    Panel("Success", ("success_rate",), "share of episodes", (0.0, 1.0)),
    Panel("Anchor tasks", ("success",), "share, first settings", (0.0, 1.0)),
    Panel("Return", ("return_mean",), "reward per episode"),
    Panel("Turns", ("turns_mean",), "per episode"),
    Panel("Entropy", ("entropy",), "nats per token"),
    Panel("KL", ("approx_kl", "update_kl", "kl_to_reference"), "nats per token"),
    Panel("Explained variance", ("explained_variance",), "of value targets", (-1.0, 1.0)),
    Panel("Clipped tokens", ("clip_fraction_high", "clip_fraction_low"), "share"),
    Panel("Gradient norm", ("policy_grad_norm", "critic_grad_norm", "grad_norm")),
    Panel("Time of a step", ("rollout_s", "annotate_s", "update_s", "eval_s"), "s"),
    Panel("Speed", ("tokens_per_s",), "tokens per s"),
)


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric over the steps at which it was recorded."""

    name: str
    steps: np.ndarray                    # f64[N], ascending
    values: np.ndarray                   # f64[N]; nan where it was recorded as null: a gap in the curve
    interval: np.ndarray = dataclasses.field(default_factory=lambda: NO_INTERVAL)  # f64[N, 2] low, high; or [0, 2]


class Mark(NamedTuple):
    """A vertical line: something changed before this step."""

    step: float
    text: str          # all of it
    label: str = ""    # a few letters beside the line
    kind: str = ""     # "good", "bad" or "": how it turned out


class Chart(NamedTuple):
    """What one picture shows; `series` is not empty."""

    title: str
    unit: str
    series: tuple[Series, ...]
    bounds: tuple[float, float] = (-np.inf, np.inf)
    marks: tuple[Mark, ...] = ()


def read_records(path: Path) -> list[dict]:
    """The records of a JSON-lines file.

    Raises:
      RunFolderError: for a line that is not JSON or not an object with a number "step"; it names file and line.
    """
    records = list(read_lines(path))
    for line, record in enumerate(records, start=1):
        step = record.get("step") if isinstance(record, dict) else None
        if isinstance(step, bool) or not isinstance(step, (int, float)):
            raise RunFolderError(f"{path}, line {line}: expected a JSON object with a number \"step\"")
    return records


def read_steps(path: Path) -> list[dict]:
    """`read_records` in order of "step"; of several for one step the last one counts."""
    by_step = {record["step"]: record for record in read_records(path)}
    return [by_step[step] for step in sorted(by_step)]


def series_of(records: Iterable[Mapping], prefix: str = "") -> dict[str, Series]:
    """Every number of the records by its name, in order of appearance; what is neither number nor null is left out."""
    points: dict[str, list] = {}
    for record in records:
        for name, value in record.items():
            if name in ("step", "generation") or isinstance(value, bool):
                continue
            if value is None or isinstance(value, (int, float)):
                points.setdefault(prefix + name, []).append((record["step"], np.nan if value is None else value))
    arrays = {name: np.array(pairs, float) for name, pairs in points.items()}
    return {name: Series(name, pairs[:, 0], np.where(np.isfinite(pairs[:, 1]), pairs[:, 1], np.nan))
            for name, pairs in arrays.items()}


def charts(series: Mapping[str, Series], marks: Sequence[Mark] = ()) -> tuple[list[Chart], dict[str, list[Chart]]]:
    """The headline charts that the run has numbers for, and all other metrics by the first part of their name.

    Names that differ in a trailing number only ("rollout/reward_turn_0", ..._1) share a chart.
    """
    headlines, taken = [], set()
    for panel in HEADLINES:
        chosen = [one for name in panel.names for one in series.values() if _tail(one.name) == name][:CHART_SERIES]
        taken.update(one.name for one in chosen)
        if chosen:
            headlines.append(Chart(panel.title, panel.unit, tuple(chosen), panel.bounds, tuple(marks)))
    families: dict[str, list[Series]] = {}
    for name, one in series.items():
        if name not in taken:
            families.setdefault(re.sub(r"_\d+$", "", name), []).append(one)
    rest: dict[str, list[Chart]] = {}
    for family, members in families.items():
        for first in range(0, len(members), CHART_SERIES):
            chosen = tuple(members[first:first + CHART_SERIES])
            title = _tail(family if len(members) > 1 else chosen[0].name).replace("_", " ")
            group = family.split("/")[0] if "/" in family else "other"
            rest.setdefault(group, []).append(Chart(title, "", chosen, marks=tuple(marks)))
    return headlines, rest


def labels(chart: Chart) -> list[str]:
    """A short name for each series: the last part, or the whole name where last parts coincide."""
    tails = [_tail(one.name) for one in chart.series]
    names = tails if len(set(tails)) == len(tails) else [one.name for one in chart.series]
    return [name.replace("_", " ") for name in names]


def _tail(name: str) -> str:
    return name.split("/")[-1]


def window_of(count: int) -> int:
    """Odd width of the running mean for a curve of `count` points: 1 (none) below 30, at most 101."""
    return min(count // 15, 101) // 2 * 2 + 1 if count >= 30 else 1


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` points, shorter at both ends; nan is left out of it and stays nan.  [N] -> [N]"""
    valid = np.isfinite(values)
    kernel = np.ones(min(window, len(values)))
    total = np.convolve(np.where(valid, values, 0.0), kernel, "same")
    count = np.convolve(valid.astype(float), kernel, "same")
    return np.where(valid, total / np.maximum(count, 1.0), np.nan)


def thin(steps: np.ndarray, values: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `limit` points: the lowest and the highest of each stretch, so that no spike is lost.

    A stretch without any number stays a gap; a gap shorter than a stretch closes.
    """
    if len(values) <= limit:
        return steps, values
    edges = np.linspace(0, len(values), limit // 2 + 1).astype(int)
    kept: list[int] = []
    for start, end in zip(edges[:-1], edges[1:]):
        stretch = values[start:end]
        kept += [start] if np.isnan(stretch).all() else sorted({start + int(np.nanargmin(stretch)),
                                                                start + int(np.nanargmax(stretch))})
    return steps[kept], values[kept]


def dots(values: np.ndarray) -> np.ndarray:
    """bool[N]: the points to be drawn as dots: all of a short curve, else those with a gap on both sides."""
    valid = np.isfinite(values)
    if len(values) <= FEW:
        return valid
    beside = np.concatenate([[False], valid, [False]])
    return valid & ~beside[:-2] & ~beside[2:]


def limits(chart: Chart) -> tuple[float, float] | None:
    """The range of the vertical axis: all but the outermost hundredth of the raw points, all of the means; None when
    there is no number at all."""
    seen = []
    for one in chart.series:
        finite = one.values[np.isfinite(one.values)]
        if len(finite):
            seen += [np.quantile(finite, 0.01, method="lower"), np.quantile(finite, 0.99, method="higher")]
            mean = running_mean(one.values, window_of(len(one.values)))
            seen += [np.nanmin(mean), np.nanmax(mean), *one.interval[np.isfinite(one.interval)]]
    if not seen:
        return None
    low, high = np.clip([min(seen), max(seen)], *chart.bounds)
    size = max(abs(low), abs(high))
    pad = 0.06 * (high - low) if high - low > 1e-9 * size else 0.1 * size if size else 1.0
    low, high = max(low - pad, chart.bounds[0]), min(high + pad, chart.bounds[1])
    return (low, high) if low < high else (low - pad, high + pad)


def last_value(series: Series) -> float:
    """The running mean at its last finite point; nan when there is none."""
    mean = running_mean(series.values, window_of(len(series.values)))
    return float(mean[np.isfinite(mean)][-1]) if np.isfinite(mean).any() else float("nan")


def mean_and_band(curves: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps [N], mean [N] and half-width [N] of the 95 % interval of the mean (nan below two runs) of curves [n, 2]."""
    steps = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    table = np.full((len(curves), len(steps)), np.nan)
    for row, curve in zip(table, curves):
        row[np.searchsorted(steps, curve[:, 0])] = curve[:, 1]
    valid = np.isfinite(table)
    count = valid.sum(0)
    mean = np.where(count > 0, np.where(valid, table, 0.0).sum(0) / np.maximum(count, 1), np.nan)
    squares = np.where(valid, table - mean[None], 0.0) ** 2
    error = np.sqrt(squares.sum(0) / np.maximum(count - 1, 1) / np.maximum(count, 1))
    student = np.array([np.nan, np.nan, *STUDENT])[np.minimum(count, len(STUDENT) + 1)]
    return steps, mean, student * error


def smoothed(folder: Path, metric: str) -> np.ndarray:
    """Steps and running mean of one metric of a run, f64[N, 2].

    Raises:
      RunFolderError: no run folder, or it has no such metric; it names the nearest one.
    """
    known = series_of(read_metrics(folder))
    if metric not in known:
        raise RunFolderError(f"{folder} has no metric {metric!r}{nearest(metric, known) if known else ''}")
    one = known[metric]
    return np.stack([one.steps, running_mean(one.values, window_of(len(one.values)))], axis=1)  # [N, 2]


def read_metrics(folder: Path) -> list[dict]:
    """The records of the run's metrics.jsonl.

    Raises:
      RunFolderError: where there is no such folder, it is no run folder, or a line of the file is broken.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no run folder {folder}; give the folder that `train` wrote")
    if not (folder / "metrics.jsonl").is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no metrics.jsonl; give the folder that `train` "
                             f"wrote")
    return read_steps(folder / "metrics.jsonl")
