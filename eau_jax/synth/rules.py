"""The planner of our own: what it proposes after a round of a self-evolution follows from the round's records by rules.

    effect      a declaration that is not what the tool does
    checker     a kind of wrong plan that checkers let pass
    atom        a sub-task whose tasks are rejected more often than others; its template or its whole family, where the fault
                is theirs
    difficulty  up where the novice solves nearly everything in two rounds, down where it solves next to nothing
    per_signature   down where few signatures make up too much
    weights     towards cells whose tasks are learnable (the novice solves some, not all), novel and sound
    gates       up to half-way to what all tasks of two rounds have reached

It nominates liberally: `Evolution.submit` decides, by the same trials.
"""

import collections
from typing import Iterator, Mapping

from eau_jax.synth import evolved as rule
from eau_jax.synth.evolve import Evolution
from eau_jax.synth.observe import NOBODY, together
from eau_jax.synth.plan import cells
from eau_jax.synth.record import Diff
from eau_jax.synth.trials import TEXTS

SUSPECT = 0.15               # share of rejected tasks from which on a sub-task is tried
SEEN = 4                     # tasks: a sub-task that has been in fewer is tried in any case
EASY, HARD = 0.9, 0.1        # of the novice's conversations are won in two rounds running
STEP = 0.5                   # of difficulty
TOP5 = 0.2                   # of the tasks that passed may have one of the five commonest signatures
FLOOR = 0.02                 # of a weight before it is compared with the others
PRIOR = 8.0                  # tasks or conversations that the mean of all cells counts as in the estimate of one
MANY = 100                   # tasks that passed, in each of two rounds, before a gate becomes stricter
HALF = 0.5                   # of the way


def propose(evolution: Evolution) -> None:
    """Hands in what follows from the round's records."""
    for tool, (kind, detail) in sorted(evolution.trials.effects().items()):
        if f"effect/{tool}" not in evolution.state.quarantine:
            _isolate(evolution, f"effect/{tool}", f"{kind}: {detail}")
    _checkers(evolution)
    _atoms(evolution)
    for diff in (*_difficulty(evolution), *_signatures(evolution), *_weights(evolution), *_gates(evolution)):
        evolution.submit(diff)


def _isolate(evolution: Evolution, what: str, why: str) -> bool:
    return evolution.submit(Diff("quarantine", {what: [False, True]}, why)).adopted


def _checkers(evolution: Evolution) -> None:
    """The kinds of wrong plan that escaped, the commonest first."""
    escaped = evolution.history[-1].escaped
    for mutant in sorted(escaped, key=lambda name: (-escaped[name], name)):
        if evolution.trials.checker(evolution.state, mutant).guilty:
            _isolate(evolution, f"checker/{mutant}", f"escaped {escaped[mutant]} checkers of {evolution.history[-1].tried}")


def _atoms(evolution: Evolution) -> None:
    """The most suspicious one is tried, then the next; tasks with one that was found guilty speak against nobody else."""
    tried: set[str] = set()
    while True:
        active = {atom.id: atom for atom in evolution.now.active.atoms}
        shares = _suspicion(evolution, set(active))
        name = next((name for name, share in shares if name not in tried and share >= SUSPECT), None)
        if name is None:
            return
        tried.add(name)
        found = evolution.trials.atom(evolution.state, name)
        codes = {*found.codes, *(code for atoms, code in evolution.made if name in atoms)}
        if codes & set(TEXTS) and _templates(evolution, name):
            continue
        if found.guilty:
            _blame(evolution, name, found.codes[0])


def _suspicion(evolution: Evolution, active: set[str]) -> list[tuple[str, float]]:
    """(sub-task, share of its tasks that are rejected), highest first; 1 for one that has hardly been seen."""
    seen, bad = collections.Counter(), collections.Counter()
    for atoms, code in evolution.made:
        if set(atoms) <= active and code not in NOBODY:
            seen.update(atoms)
            bad.update(atoms if code else ())
    share = {name: bad[name] / seen[name] if seen[name] >= SEEN else 1.0 for name in sorted(active)}
    return sorted(share.items(), key=lambda each: (-each[1], -seen[each[0]], each[0]))


def _templates(evolution: Evolution, name: str) -> bool:
    """Whether single templates of a sub-task are at fault; they go."""
    listed = rule.templates([next(each for each in evolution.now.active.atoms if each.id == name)])
    return any([_isolate(evolution, f"template/{'/'.join(each)}", f"{name} fails with it")
                for each in listed if evolution.trials.template(evolution.state, *each).guilty])


def _blame(evolution: Evolution, name: str, code: str) -> None:
    """The family, where all of it fails alike, else the sub-task."""
    atoms = evolution.now.active.atoms
    family = next(atom.family for atom in atoms if atom.id == name)
    members = [atom.id for atom in atoms if atom.family == family]
    found = [evolution.trials.atom(evolution.state, each) for each in members] if len(members) > 1 else []
    whole = found and all(each.guilty and each.codes[0] == code for each in found)
    what = f"family/{family}" if whole else f"atom/{name}"
    count = sum(bool(code) and name in atoms for atoms, code in evolution.made)
    _isolate(evolution, what, f"{count} of the round's tasks with {name} were rejected")


def _rates(evolution: Evolution) -> list[float]:
    """Share of its conversations that the novice won in each of the last two rounds that have any."""
    found = []
    for observed in evolution.history[-2:]:
        played = sum(cell["played"] for cell in observed.cells.values())
        solved = sum(cell["solved"] for cell in observed.cells.values())
        found += [solved / played] if played else []
    return found


def _difficulty(evolution: Evolution) -> Iterator[Diff]:
    rates, now = _rates(evolution), evolution.value("parameters", "difficulty")
    step = STEP * (all(rate >= EASY for rate in rates) - all(rate <= HARD for rate in rates)) if len(rates) == 2 else 0.0
    then = min(max(now + step, rule.PARAMETERS["difficulty"].low), rule.PARAMETERS["difficulty"].high)
    if then != now:
        yield Diff("parameters", {"difficulty": [now, then]}, f"the novice won {rates[0]:.0%}, then {rates[1]:.0%}")


def _signatures(evolution: Evolution) -> Iterator[Diff]:
    share, passed = evolution.history[-1].extremes["top5_share"], sum(each.passed for each in evolution.history)
    now, least = evolution.value("parameters", "per_signature"), max(1, round(TOP5 / 5 * passed))
    then = max(least, -(-now // 2))
    if share > TOP5 and passed >= MANY and then < now:
        why = f"the five commonest signatures have {share:.0%} of the tasks"
        yield Diff("parameters", {"per_signature": [now, then]}, why)


def _weights(evolution: Evolution) -> Iterator[Diff]:
    counts, shares = together(evolution.history), cells(evolution.now)
    wanted = _wanted({name: counts[name] for name in shares if name in counts})
    changes = {}
    for name, value in wanted.items():
        now = evolution.value("weights", name)
        low, high = max(rule.WEIGHT.low, now / rule.WEIGHT.factor), min(rule.WEIGHT.high, now * rule.WEIGHT.factor)
        then = round(min(max(value, low), high), 3)
        if abs(then - now) > 0.05 * now:
            changes[name] = [now, then]
    if changes:
        yield Diff("weights", changes, "learnable, novel and sound cells weigh more")


def _wanted(counts: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """The weight of each cell: FLOOR + 4 p (1 - p) novelty soundness, over the mean of all. p: share of the conversations
    that the novice won. The shares of single cells are drawn towards that of all, as far as little is known of them."""
    total = collections.Counter()
    for cell in counts.values():
        total.update(cell)

    def share(cell: Mapping[str, int], part: str, whole: str) -> float:
        mean = total[part] / total[whole] if total[whole] else 0.0
        return (cell[part] + PRIOR * mean) / (cell[whole] + PRIOR)

    value = {}
    for name, cell in counts.items():
        solved = share(cell, "solved", "played") if total["played"] else 0.5
        blamed = min(share(cell, "faults", "played"), 1.0) if total["played"] else 0.0
        sound = share(cell, "passed", "tried") * (1.0 - blamed)
        value[name] = FLOOR + 4.0 * solved * (1.0 - solved) * share(cell, "signatures", "passed") * sound
    mean = sum(value.values()) / max(len(value), 1)
    return {name: each / mean for name, each in value.items()}


def _gates(evolution: Evolution) -> Iterator[Diff]:
    last = evolution.history[-2:]
    if len(last) < 2 or min(each.passed for each in last) < MANY:
        return
    for name, reached in (("killed", min(each.extremes["killed"] for each in last)),
                          ("null", max(each.extremes["null"] for each in last))):
        limit, now = rule.GATES[name], evolution.value("gates", name)
        way = min(HALF * abs(reached - now), limit.step)
        then = round(now + limit.stricter * way, 4)
        if (reached - now) * limit.stricter > 0 and then != now:
            yield Diff("gates", {name: [now, then]}, f"all tasks of two rounds reach {reached:g}")
