"""Draws charts: as inline SVG for the page, and as PNG files.

Figures are made without pyplot, and their files' endings choose the canvas for that figure alone: nothing global in
matplotlib changes, at import or later.
"""

import io
import os
import re
from pathlib import Path
from typing import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eau_jax.report.curves import (Chart, Series, dots, labels, last_value, limits, mean_and_band, running_mean,
                                   smoothed, thin, window_of)
from eau_jax.report.markup import Html, count, number, tag

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B58900", "#56B4E9")  # after Okabe and Ito 2008; CSS c0 to c5
RAW_POINTS, MEAN_POINTS = 300, 160   # of one curve on the page
MARKS_WITH_TEXT = 40                 # with more markers in a chart, pointing at one says nothing
MARKS_WITH_LABEL = 16                # with more of them, labels would cover each other
KINDS = {"good": "#009E73", "bad": "#D55E00", "": "#777777"}   # of markers
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 190, 48, 12, 10, 22  # of the SVG, in about CSS pixels


def card(chart: Chart) -> Html:
    """The chart with its title, unit and last values, as one card of the page."""
    legend = [tag("span", tag("i", class_=f"key c{index}"), label, " ", tag("b", number(last_value(one))))
              for index, (label, one) in enumerate(zip(labels(chart), chart.series))]
    value = tag("b", number(last_value(chart.series[0])), class_="last") if len(legend) == 1 else ""
    return tag("figure", tag("figcaption", tag("span", chart.title, class_="name"), tag("small", chart.unit), value),
               svg(chart), tag("div", *legend, class_="legend") if len(legend) > 1 else "", class_="card")


def svg(chart: Chart) -> Html:
    """The chart without its title and legend, in colours that the page's style sheet sets."""
    frame = dict(viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=chart.title)
    span = limits(chart)
    if span is None:
        steps = max(len(one.steps) for one in chart.series)
        text = tag("text", f"no finite value in {steps} steps", x=WIDTH / 2, y=HEIGHT / 2, class_="mid")
        return tag("svg", text, **frame)
    low, high = span
    first, last = min(one.steps[0] for one in chart.series), max(one.steps[-1] for one in chart.series)
    if first == last:
        first, last = first - 1, last + 1

    def across(step):
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def down(value):
        reach = np.clip((high - value) / (high - low), -9.0, 9.0)  # far outside is far enough: it is cut off anyway
        return TOP + reach * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in _ticks(low, high, 4):
        y = round(float(down(tick)), 1)
        parts += [tag("path", d=f"M{LEFT} {y}H{WIDTH - RIGHT}", class_="grid"),
                  tag("text", f"{tick:.6g}", x=LEFT - 6, y=y + 3.5, class_="end")]
    for tick in _ticks(first, last, 6, integer=True):
        parts.append(tag("text", f"{tick:.6g}", x=round(float(across(tick)), 1), y=HEIGHT - 6, class_="mid"))
    inside = [(round(float(across(mark.step)), 1), mark) for mark in chart.marks if first <= mark.step <= last]
    if len(inside) <= MARKS_WITH_TEXT:
        parts += [tag("path", tag("title", mark.text), d=f"M{x} {TOP}V{HEIGHT - BOTTOM}", class_=f"mark {mark.kind}".strip())
                  for x, mark in inside]
    else:
        parts.append(tag("path", d="".join(f"M{x} {TOP}V{HEIGHT - BOTTOM}" for x, _ in inside), class_="mark"))
    if len(inside) <= MARKS_WITH_LABEL:
        parts += [tag("text", mark.label, x=x + 5, y=TOP, class_=f"label {mark.kind}".strip(),
                      transform=f"rotate(90 {x + 3} {TOP})") for x, mark in inside if mark.label]
    lines = [part for index, one in enumerate(chart.series) for part in _svg_series(one, f"c{index}", across, down)]
    x, y, width, height = LEFT - 4, TOP - 4, WIDTH - LEFT - RIGHT + 8, HEIGHT - TOP - BOTTOM + 8
    window = tag("svg", *lines, x=x, y=y, width=width, height=height, viewBox=f"{x} {y} {width} {height}")  # cuts off
    return tag("svg", *parts, window, **frame)


def _svg_series(one: Series, colour: str, across: Callable, down: Callable) -> list[Html]:
    window = window_of(len(one.values))
    mean = running_mean(one.values, window)
    lines = [("line", thin(one.steps, mean, MEAN_POINTS))]
    if window > 1:
        lines.insert(0, ("raw", thin(one.steps, one.values, RAW_POINTS)))
    parts = [tag("path", d=_path(across(x), down(y)), class_=f"{kind} {colour}") for kind, (x, y) in lines]
    x, y = lines[-1][1]
    chosen = dots(y)
    if chosen.any():
        parts.append(tag("path", d="".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(across(x[chosen]), down(y[chosen]))),
                         class_=f"dot {colour}"))
    bars = [f"M{across(step):.1f} {down(low):.1f}V{down(high):.1f}"
            for step, (low, high) in zip(one.steps, one.interval) if np.isfinite([low, high]).all()]
    return parts + [tag("path", d="".join(bars), class_=f"bar {colour}")] if bars else parts


def _path(x: np.ndarray, y: np.ndarray) -> str:
    pieces, drawing = [], False
    for a, b in zip(x, y):
        if np.isfinite(b):
            pieces.append(f"{'L' if drawing else 'M'}{a:.1f} {b:.1f}")
        drawing = np.isfinite(b)
    return "".join(pieces)


def _ticks(low: float, high: float, count: int, integer: bool = False) -> list[float]:
    ticks = MaxNLocator(nbins=count, steps=[1, 2, 5, 10], integer=integer).tick_values(low, high)
    slack = 1e-6 * (high - low)
    return [float(tick) + 0.0 for tick in ticks if low - slack <= tick <= high + slack]


def write_plots(chosen: Sequence[Chart], folder: Path) -> list[Path]:
    """One PNG a chart, named after its title, and all of them on overview.png. Returns the paths."""
    paths = []
    for chart in chosen:
        figure, (axes,) = _figure(1, 1, 6.4, 3.6)
        _draw(axes, chart)
        paths.append(save(figure, folder / f"{re.sub(r'[^a-z0-9]+', '_', chart.title.lower()).strip('_')}.png"))
    if chosen:
        columns = min(3, len(chosen))
        figure, cells = _figure(-(-len(chosen) // columns), columns, 5.2, 3.1)
        for axes, chart in zip(cells, chosen):
            _draw(axes, chart)
        for axes in cells[len(chosen):]:
            axes.remove()
        paths.append(save(figure, folder / "overview.png"))
    return paths


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A grid of axes, each cell `width` x `height` inches, margins fixed: a tight layout draws all twice."""
    figure = Figure(figsize=(columns * width, rows * height))
    cells = figure.subplots(rows, columns, squeeze=False)
    left, right, top, bottom = 0.8, 0.2, 0.4, 0.55
    figure.subplots_adjust(left=left / (columns * width), right=1 - right / (columns * width),
                           top=1 - top / (rows * height), bottom=bottom / (rows * height),
                           wspace=(left + right) / (width - left - right),
                           hspace=(top + bottom) / (height - top - bottom))
    return figure, list(cells.flat)


def _draw(axes: Axes, chart: Chart) -> None:
    for colour, label, one in zip(COLOURS, labels(chart), chart.series):
        window = window_of(len(one.values))
        mean = running_mean(one.values, window)
        if window > 1:
            axes.plot(*thin(one.steps, one.values, 4 * RAW_POINTS), color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(one.steps, mean, color=colour, linewidth=2, label=_plain(label), marker="o", markersize=3.5,
                  markevery=list(np.flatnonzero(dots(mean))))
        if len(one.interval):
            axes.vlines(one.steps, *one.interval.T, color=colour, alpha=0.5, linewidth=2)
    for mark in chart.marks:
        colour, known = KINDS[mark.kind], bool(mark.kind)
        axes.axvline(mark.step, color=colour, linewidth=1.2 if known else 0.8, linestyle="--" if known else ":")
        if mark.label and len(chart.marks) <= MARKS_WITH_LABEL:
            axes.annotate(_plain(mark.label), (mark.step, 1.0), (2, -3), xycoords=("data", "axes fraction"),
                          textcoords="offset points", rotation=90, fontsize=7, color=colour, ha="left", va="top")
    span = limits(chart)
    if span is None:
        axes.text(0.5, 0.5, "no finite value", ha="center", va="center", transform=axes.transAxes)
    else:
        rows = -(-len(chart.series) // 3) if len(chart.series) > 1 else 0
        axes.set_ylim(span[0], span[1] + 0.14 * rows * (span[1] - span[0]))  # room for the legend
    _finish(axes, chart.title, chart.unit, legend=len(chart.series) > 1)


def _finish(axes: Axes, title: str, unit: str, legend: bool) -> None:
    axes.set_title(_plain(title), fontsize=12, loc="left")
    axes.set_xlabel("step", fontsize=10)
    axes.set_ylabel(_plain(unit), fontsize=10)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(fontsize=9, loc="upper left", ncols=3, framealpha=0.8, edgecolor="none")


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")


def plot_runs(panels: Mapping[str, Mapping[str, Sequence[Path]]], metric: str, path: Path) -> Path:
    """One PNG with a panel for each environment: groups of runs (seeds of a method) in one metric, each run thin where few
    groups leave room, their mean thick, and a band.

    Every run's curve is smoothed by its running mean. At a step, mean and band are over the runs that have a number
    there; the band is the 95 % interval of the mean by Student's t, drawn from two runs on.

    Args:
      panels: {title: {label: run folders}}; a label looks the same in every panel.
      metric: a name in metrics.jsonl, such as "rollout/score_mean".

    Raises:
      RunFolderError: for a folder without metrics.jsonl, or without this metric (it names the nearest one).
    """
    columns = min(2, len(panels))
    figure, cells = _figure(-(-len(panels) // columns), columns, 7.0, 4.4)
    every = list(dict.fromkeys(label for groups in panels.values() for label in groups))
    for axes, (title, groups) in zip(cells, panels.items()):
        for label, folders in groups.items():
            _draw_runs(axes, label, [smoothed(Path(folder), metric) for folder in folders], every)
        means = np.concatenate([line.get_ydata() for line in axes.lines])
        means = means[np.isfinite(means)]
        if len(means):  # by the curves alone: the band of two runs is thirteen times as wide as they are apart
            low, span = means.min(), max(means.max() - means.min(), 1e-3)
            axes.set_ylim(low - 0.08 * span, low + (1.08 + 0.11 * -(-len(groups) // 3)) * span)  # room for the legend
        _finish(axes, title, f"{metric}, mean and 95 % interval", legend=True)
    for axes in cells[len(panels):]:
        axes.remove()
    return save(figure, Path(path))


def _draw_runs(axes: Axes, label: str, curves: Sequence[np.ndarray], every: Sequence[str]) -> None:
    """The runs of one of the groups `every`: curves [N, 2], their mean and its band."""
    colour, dashes = _look(every.index(label))
    if len(every) <= 2:
        for curve in curves:
            axes.plot(*curve.T, color=colour, alpha=0.25, linewidth=0.8)
    steps, mean, half = mean_and_band(curves)
    axes.plot(steps, mean, dashes, color=colour, linewidth=2.2, label=_plain(f"{label} ({count(len(curves), 'run')})"))
    axes.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.15 if len(every) <= 4 else 0.08,
                      linewidth=0)


def _look(index: int) -> tuple[str, str]:
    """Colour and dashes of the curve with this number: eighteen are told apart."""
    return COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]


def whiskers(panels: Mapping[str, Mapping[str, Sequence[float]]], what: str, path: Path, every: Sequence[str],
             line: float | None = None) -> Path:
    """One PNG of points with intervals, a row a label: {title: {label: (mean, low, high)}}; nan bounds are not drawn.

    Args:
      every: all labels there may be: a label has the colour of its place here.
      line: a value at which a vertical line is drawn: nothing was gained there. The panels then share their axis.
    """
    shown = [label for label in every if any(label in points for points in panels.values())]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(columns * 4.2 + 0.09 * max(map(len, shown)), rows * (1.2 + 0.34 * len(shown))),
                    layout="constrained")
    cells = list(figure.subplots(rows, columns, squeeze=False, sharey=True, sharex=line is not None).flat)
    for axes, (title, points) in zip(cells, panels.items()):
        for label, (mean, low, high) in points.items():
            place, (colour, _) = shown.index(label), _look(every.index(label))
            axes.plot([low, high], [place, place], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
            axes.plot([mean], [place], "o", color=colour, markersize=7)
        if line is not None:
            axes.axvline(line, color="#777777", linewidth=1, linestyle=":")
        axes.set_title(_plain(title), fontsize=12, loc="left")
        axes.set_xlabel(_plain(what), fontsize=10)
        axes.set_yticks(range(len(shown)), [_plain(label) for label in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in cells[len(panels):]:
        axes.remove()
    return save(figure, Path(path))


def bars(groups: Mapping[str, Mapping[str, Sequence[float]]], what: str, path: Path) -> Path:
    """One picture of grouped bars: {label: {place: (mean, low, high)}}, whiskers from low to high."""
    places = list(dict.fromkeys(place for values in groups.values() for place in values))
    figure, (axes,) = _figure(1, 1, max(4.0, 1.2 + 0.35 * len(places) * (len(groups) + 1)), 3.6)
    width = 0.8 / len(groups)
    for index, (label, values) in enumerate(groups.items()):
        at = [places.index(place) + (index - (len(groups) - 1) / 2) * width for place in values]
        mean, low, high = np.array(list(values.values()), np.float64).reshape(-1, 3).T
        axes.bar(at, mean, 0.9 * width, color=COLOURS[index % len(COLOURS)], label=_plain(label))
        axes.errorbar(at, mean, np.nan_to_num(np.stack([mean - low, high - mean])).clip(0), fmt="none", ecolor="#333333", capsize=3)
    _finish(axes, what, "mean and 95 % interval over tasks", legend=len(groups) > 1)
    axes.set_xlabel("")
    axes.set_xticks(range(len(places)), [_plain(place) for place in places], rotation=15)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low) * (len(groups) > 1))  # room for the legend
    return save(figure, Path(path))


def picture(path: Path) -> str:
    """The kind of picture that a file's name asks for, such as "png".

    Raises:
      ValueError: for an ending that matplotlib does not draw.
    """
    kind, known = path.suffix.lower().removeprefix("."), Figure().canvas.get_supported_filetypes()
    if kind not in known:
        allowed = ", ".join(f".{one}" for one in sorted(known))
        raise ValueError(f"{str(path)!r} does not end like a picture; allowed: {allowed}")
    return kind


def save(figure: Figure, path: Path) -> Path:
    """Writes the figure as the kind of picture that its name asks for, whole or not at all."""
    image = io.BytesIO()
    figure.savefig(image, format=picture(path), dpi=120)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(image.getvalue())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
