"""Whether a run is so ill from the start that it should be begun anew, and with what. Its first fifth decides.

    checker     scripted agents find that the checker is broken                     nothing that a run can change mends it
    leak        the user tells hidden values under the first settings               the user's row of `moves`
    dead        no success in MOST_UPDATES updates, and a round that looked at the  the row of `all_hard`
                checker did not find it broken
    not finite  a loss or gradient that is no number, twice                         the row of `large_updates`

Smaller faults are for the changes within a run.
"""

import math
from typing import Any, Collection, Mapping, Sequence

from eau_jax.meta import attribution, moves, watch
from eau_jax.meta.harvest import Remedy
from eau_jax.meta.lesson import bare
from eau_jax.meta.scene import Scene
from eau_jax.meta.signals import column, slope

SHARE = 0.2            # of the updates, whose records decide
LATEST = 0.3           # of the updates, after which no run is begun anew
LEAK_UPDATES = 3       # under the first settings, in all of which the user leaks
LEAKS = 0.05           # share of the user's replies; less is for a change within the run
MOST_UPDATES = 10      # without any success
SUCCESS = 0.01         # of episodes, below which there is none
STEEP = 2.0            # standard errors from which the scores rise
Row = Mapping[str, Any]


def severe(rows: Sequence[Row], rounds: Sequence[Mapping[str, Any]], updates: int) -> tuple[str, str] | None:
    """(fault, why) of a run that should be begun anew; None where it should go on.

    Args:
      rows: of its metrics.jsonl.
      rounds: of rounds/<step>.json.
      updates: that the run is meant to make.
    """
    if not rows or int(rows[-1]["step"]) > LATEST * updates:
        return None
    rows = [row for row in rows if int(row["step"]) <= SHARE * updates]
    diagnoses = [record["report"]["diagnosis"] for record in rounds   # the trainer's own, whatever the proposer says
                 if record.get("report") and int(record["step"]) <= SHARE * updates + 1]
    for found in diagnoses:
        if found["owner"] == "checker" and found.get("confidence", 0.0) >= attribution.CONFIRMED:
            return found["fault"], f"the checker is broken: {'; '.join(found.get('tests', []))}"
    first = [row for row in rows if row.get("generation") == rows[0].get("generation")]   # under which it began
    leaks = _numbers(first, "rollout/leak_rate")[-LEAK_UPDATES:]
    if len(leaks) == LEAK_UPDATES and min(leaks) > LEAKS:
        return "leaky_user", (f"in each of {LEAK_UPDATES} updates under the first settings {min(leaks):.1%} of the user's "
                              f"replies or more tell hidden values; allowed: {LEAKS:.0%}")
    wins = _numbers(rows, "rollout/success_rate")
    flat = slope(column(rows, "rollout/score_mean")) <= STEEP
    if diagnoses and len(wins) >= MOST_UPDATES and max(wins) < SUCCESS and flat:
        return "all_hard", (f"in {len(wins)} updates {max(wins):.1%} of the episodes succeeded at most, and scores do not "
                            f"rise")
    return None


def remedy(fault: str, why: str, scene: Scene, tried: Collection[tuple[str, ...]] = ()) -> Remedy:
    """The first change against the fault that this run can begin with; without an owner where there is none.

    Args:
      tried: moves, as of `watch.moves`, with which runs were begun that had to be ended for the same fault.
    """
    for move in moves.table(scene):
        changes = {path: (float(scene.values[path]), float(new)) for path, new in move.changes.items()}
        mix = {name: (scene.mix[name], share) for name, share in move.task_mix.items() if share != scene.mix[name]}
        if move.changes_anything and watch.moves(changes, bare(move.rules), mix) not in tried:
            return Remedy(fault, why, move.owner, changes,
                          {name: (scene.mix[name], share) for name, share in move.task_mix.items()}, move.rules)
    return Remedy(fault, why)


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if isinstance(row.get(name), (int, float)) and math.isfinite(row[name])]
