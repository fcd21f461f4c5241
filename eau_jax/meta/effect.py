"""What changes did, over all runs of a pool: for each fault and move how often, and mean and variance of the effect."""

import csv
import io
import math
from pathlib import Path
from typing import Any, Iterable, Mapping

import numpy as np

from eau_jax.meta.document import refuse

COLUMNS = ("id", "author", "step", "ended", "owner", "fault", "moves", "changes", "task_mix", "status", "reason", "metric",
           "direction", "min_effect", "before", "after", "floor", "result", "anchor_before", "anchor_after", "audit")
"""Of interventions.csv: one proposal a row, refused ones included. `moves` are joined by "; ", `changes` and `task_mix` are
JSON, numbers that are not known are empty."""


def write(rows: Iterable[Mapping[str, Any]]) -> str:
    """interventions.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if isinstance(value, float) and not math.isfinite(value) else value
                         for name, value in row.items()})
    return text.getvalue()


def effects(folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """{fault: {move: {n, mean, var, anchor_n, anchor_mean, anchor_var}}} of the adopted changes of a pool's runs.

    `mean` is of the predicted metric, positive in the predicted direction and in units of `min_effect`, or of what the
    metric moves without a change where that is more, so that metrics compare and a prediction of next to nothing counts for
    little; `anchor_mean` is of the success on the anchor tasks. A change of two knobs counts for both. A variance of one is 0.

    Raises:
      DocumentError: for a table that cannot be read.
    """
    seen: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for file in sorted(folder.glob("runs/*/interventions.csv")):
        for row in _rows(file):
            value = lambda name: _number(row.get(name))
            if row.get("status") not in ("kept", "rolled_back"):
                continue
            unit = np.fmax(value("min_effect"), value("floor")) * (1 if row.get("direction") == "up" else -1)
            effect = (value("after") - value("before")) / unit if unit else math.nan
            for move in filter(None, (row.get("moves") or "").split("; ")):
                found = seen.setdefault((row.get("fault") or "", move), [])
                found.append((effect, value("anchor_after") - value("anchor_before")))
    table: dict[str, dict[str, dict[str, float]]] = {}
    for (fault, move), pairs in sorted(seen.items()):
        table.setdefault(fault, {})[move] = _moments("", [pair[0] for pair in pairs]) | _moments(
            "anchor_", [pair[1] for pair in pairs])
    return table


def _rows(file: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    except (ValueError, csv.Error) as error:
        refuse(str(file), f"it is no table as a harvest writes it: {error}")


def _moments(prefix: str, values: Iterable[float]) -> dict[str, float]:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return {f"{prefix}n": 0}
    return {f"{prefix}n": len(known), f"{prefix}mean": float(np.mean(known)),
            f"{prefix}var": float(np.var(known, ddof=1)) if len(known) > 1 else 0.0}


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan
