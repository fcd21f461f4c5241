"""What self-evolution may change about a plan, within which bounds, and what follows from it.

    weights      cell -> factor on its share
    parameters   difficulty: tilts the shares towards large tasks with many distractors (above 0) or away from them;
                 per_signature: tasks of one signature that are kept
    gates        fields of `gates.Limits`, which may only become stricter
    quarantine   what is not used any more, with all sub-tasks that need it:
                 atom/NAME, family/NAME, template/ATOM/PART/TEXT; effect/TOOL: a tool that does not do what is declared;
                 checker/WRONG PLAN: a kind of wrong plan, as `mutants` names it, that checkers let pass

Everything has a name, a value now and bounds, so that any change is a pair of values for a name.
"""

import math
import random
import re
from typing import Any, Iterable, Mapping, NamedTuple

from eau_jax.core.knobs import nearest
from eau_jax.synth.domain import Atom, Domain
from eau_jax.synth.gates import Limits
from eau_jax.synth.mutants import UNSAID
from eau_jax.synth.record import Evolved

PARTS = {"opening": "openings", "number": "number", "details": "details", "payment": "payment"}
HUGE = 1e300             # no number of a plan is near it
WORLDS = 4               # worlds that are built to see which tools a sub-task needs


class Bound(NamedTuple):
    """What a number may be. `step`: the most that one change adds or takes away; `factor`: by which it multiplies."""

    low: float
    high: float
    step: float = math.inf
    factor: float = math.inf
    whole: bool = False
    stricter: int = 0              # -1: lower values are stricter, 1: higher ones, 0: neither


WEIGHT = Bound(0.1, 8.0, factor=2.0)
PARAMETERS = {"difficulty": Bound(-2.0, 2.0, step=0.5), "per_signature": Bound(1, 1_000_000, factor=2.0, whole=True)}
GATES = {"null": Bound(0.0, 0.01, step=0.01, stricter=-1), "killed": Bound(0.95, 1.0, step=0.02, stricter=1),
         "tries": Bound(1, 1000, factor=2.0, whole=True, stricter=1), "time": Bound(0.4, 0.8, step=0.1, stricter=-1)}


def bound(kind: str, name: str) -> Bound:
    """Of a number. Raises ValueError for an unknown name of a parameter or gate."""
    known = {"weights": {name: WEIGHT}, "parameters": PARAMETERS, "gates": GATES}[kind]
    if name not in known:
        raise ValueError(f"{kind}: unknown name {name!r}{nearest(name, known)}")
    return known[name]


def limits(evolved: Evolved) -> Limits:
    """How strict the gates are."""
    return Limits()._replace(**evolved.gates)


def factor(evolved: Evolved, name: str, hardness: float) -> float:
    """On the share of a cell. hardness: 0 for the easiest cells of a plan, 1 for the hardest."""
    return evolved.weights.get(name, 1.0) * math.exp(evolved.parameters.get("difficulty", 0.0) * (2.0 * hardness - 1.0))


def check(domain: Domain, evolved: Evolved) -> None:
    """Raises ValueError for what is unknown, no number or out of range. The gates of a plan's author may be any."""
    for kind in ("weights", "parameters", "gates"):
        for name, value in getattr(evolved, kind).items():
            limit = bound(kind, name)
            low, high = (0.0, math.inf) if kind == "gates" else (limit.low, limit.high)
            if not number(value, limit.whole) or not low <= value <= high:
                raise ValueError(f"evolved.{kind}: {name} = {value!r}; allowed: {'whole numbers ' if limit.whole else ''}"
                                 f"{low:g} to {high:g}")
    for what in evolved.quarantine:
        known(domain, what)


def number(value: Any, whole: bool = False) -> bool:
    """Whether a JSON value is a finite number, a whole one where that is asked for."""
    kind = int if whole else (int, float)
    return isinstance(value, kind) and not isinstance(value, bool) and -HUGE < value < HUGE


def known(domain: Domain, what: str) -> None:
    """Raises ValueError for something to put into quarantine that the domain does not have."""
    kind, _, name = what.partition("/")
    kinds = {"atom": [atom.id for atom in domain.atoms], "family": sorted({atom.family for atom in domain.atoms}),
             "effect": list(domain.actions), "checker": list(domain.actions), "template": [
                 "/".join(each) for each in templates(domain.atoms)]}
    if kind not in kinds:
        raise ValueError(f"quarantine: unknown kind {what!r:.60}; allowed: {', '.join(f'{each}/...' for each in kinds)}")
    sought = tool(name) if kind == "checker" else name
    if sought not in kinds[kind] and not (kind == "checker" and name == UNSAID):
        raise ValueError(f"quarantine: {domain.name} has no {kind} {name!r:.80}{nearest(sought, kinds[kind])}")


def templates(atoms: Iterable[Atom]) -> list[tuple[str, str, str]]:
    """(sub-task, part, text) of every template."""
    return [(atom.id, part, text) for atom in atoms for part, field in PARTS.items() for text in getattr(atom, field)]


def tool(mutant: str) -> str:
    """The tool in the name of a wrong plan: "cancel with another reason", "without cancel", "cancel besides"."""
    return re.sub(r"^(by hand: )?(without )?", "", mutant).split(" ", 1)[0]


def active(domain: Domain, quarantine: Iterable[str]) -> Domain:
    """The domain without what is in quarantine and the sub-tasks that need it."""
    quarantine = sorted(quarantine)
    if not quarantine:
        return domain
    gone = {what.removeprefix("template/") for what in quarantine if what.startswith("template/")}
    trimmed = {atom.id: _without(atom, gone) for atom in domain.atoms}
    out = {atom.id for atom in domain.atoms for what in quarantine if _needs(domain, atom, what)}
    out |= {name for name, atom in trimmed.items() if any(
        getattr(domain.atom(name), field) and not getattr(atom, field) for field in PARTS.values())}
    while more := {atom.id for atom in domain.atoms if atom.requires in out} - out:
        out |= more
    return domain._replace(atoms=tuple(atom for name, atom in trimmed.items() if name not in out))


def _without(atom: Atom, gone: set[str]) -> Atom:
    left = {field: tuple(text for text in getattr(atom, field) if f"{atom.id}/{part}/{text}" not in gone)
            for part, field in PARTS.items()}
    return atom._replace(**left) if any(left[field] != getattr(atom, field) for field in left) else atom


def _needs(domain: Domain, atom: Atom, what: str) -> bool:
    kind, _, name = what.partition("/")
    if kind in ("atom", "family"):
        return name == (atom.id if kind == "atom" else atom.family)
    if kind in ("effect", "checker"):
        return (name if kind == "effect" or name == UNSAID else tool(name)) in uses(domain, atom)
    return False


def uses(domain: Domain, atom: Atom) -> frozenset[str]:
    """The tools in what a sub-task wants or is refused, and UNSAID where something has to be said."""
    found: set[str] = set()
    for seed in range(WORLDS):
        rng = random.Random(seed)
        cell = {"domain": domain.name, "outcome": "fulfil", "size": 1, "persona": next(iter(domain.personas)),
                "distractors": 0, "split": "train"}
        try:
            world = domain.build(rng, cell)
            for each in (domain.atom(atom.requires), atom) if atom.requires else (atom,):
                wish = each.make(world, rng)
        except ValueError:      # no sound world: nothing is known of its tools
            continue
        if wish is not None:
            found |= {step[0] for step in (*wish.steps, *wish.forbidden)} | ({UNSAID} if wish.tell else set())
    return frozenset(found)


def value(evolved: Evolved, kind: str, name: str, per_signature: int) -> Any:
    """What stands at a name now. `per_signature`: of the plan."""
    plain: Mapping[str, Any] = {"parameters": {"difficulty": 0.0, "per_signature": per_signature},
                                "gates": Limits()._asdict()}.get(kind, {})
    found: Mapping[str, Any] = getattr(evolved, kind)
    return name in found if kind == "quarantine" else found.get(name, plain.get(name, 1.0))
