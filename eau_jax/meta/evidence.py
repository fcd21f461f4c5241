"""Whether the numbers that a proposal cites are the run's own: one that is made up speaks for nothing.

Only the standard library is used, since the inbox server starts in a moment.
"""

import math
from typing import Any, Collection, Mapping, Sequence

from eau_jax.meta.proposal import Evidence

ROUNDING = 0.05   # of the largest value of a window: by so much a cited number may lie outside of it


def made_up(evidence: Sequence[Evidence], rows: Sequence[Mapping[str, Any]], signals: Collection[str]) -> list[str]:
    """One sentence for each item that tells of updates that are not done, of what nobody records, or of a value that is
    neither in its window nor between two that are.

    Args:
      rows: of metrics.jsonl.
      signals: names of detectors, which may be cited too; their numbers are the trainer's and are not held against rows.
    """
    done, found = int(rows[-1]["step"]) if rows else 0, []
    for item in evidence:
        window = f"updates {item.first} to {item.last}"
        values = [float(row[item.metric]) for row in rows if item.first <= row["step"] <= item.last
                  and isinstance(row.get(item.metric), (int, float)) and math.isfinite(row[item.metric])]
        if item.last > done:
            found.append(f"the evidence is of {window}, but {done} are done")
        elif item.metric in signals:
            continue
        elif not values:
            found.append(f"the evidence names {item.metric!r}, which {window} did not record; cite what "
                         f"metrics.jsonl holds, or a signal of diagnosis.json")
        elif abs(item.value - min(max(item.value, min(values)), max(values))) > ROUNDING * max(map(abs, values)):
            found.append(f"the evidence says that {item.metric} was {item.value:g} in {window}; it was {min(values):g} to "
                         f"{max(values):g}")
    return found
