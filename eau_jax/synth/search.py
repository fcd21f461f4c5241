"""Finds gold plans: an order of the writes in which all of them succeed, and the look-ups that their arguments need.

Both search by execution. An order of writes is found depth first, the order of the wishes tried first; look-ups are found
breadth first from what the user can tell, by the types of arguments and of what the tools show.
"""

import itertools
import json
from typing import Any, Iterator, Mapping, Sequence

from eau_jax.synth.domain import Case, Domain, Result, State, Step, Wish, parts, steps_of

ROUNDS = 6               # look-ups that build upon one another
CALLS = 400              # look-ups that are tried for one plan
Seen = dict[str, set[str]]


class NoPlan(Exception):
    """Nothing was found; the message says what is missing."""


def shown(domain: Domain, step: Step, text: str) -> Iterator[tuple[str, str]]:
    """(type, value) of everything in a tool's answer that has a type."""
    action = domain.actions[step.tool]
    if action.returns:
        yield action.returns.format(**step.arguments), text
        return
    try:
        value = json.loads(text)
    except ValueError:
        return
    yield from _typed(domain.types, "", value)


def _typed(types: Mapping[str, str], name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        if name + "{}" in types:
            yield from ((types[name + "{}"], key) for key in value)
        for key, item in value.items():
            yield from _typed(types, key, item)
    elif isinstance(value, list):
        for item in value:
            yield from _typed(types, name, item)
    elif name in types and value is not None and value != "":
        yield types[name], value if isinstance(value, str) else str(value)


def told(wishes: Sequence[Wish], facts: Mapping[str, str]) -> Seen:
    """What the user can tell, by type."""
    known: Seen = {}
    for wish in wishes:
        for _, name, value in wish.slots:
            known.setdefault(name, set()).add(value)
    for name, value in facts.items():
        known.setdefault(name, set()).add(value)
        if name == "name":
            first, _, last = value.partition(" ")
            known.setdefault("first_name", set()).add(first)
            known.setdefault("last_name", set()).add(last)
    return known


def resolve(value: Any, outputs: Mapping[str, Mapping[str, Any]], own: str) -> Any:
    """A JSON value with every "@atom.field" replaced by what that atom's step returned.

    Raises:
      KeyError: where that step has not been made yet.
    """
    if isinstance(value, str) and value.startswith("@"):
        atom, _, field = value[1:].partition(".")
        return outputs[atom or own][field]
    if isinstance(value, list):
        return [resolve(item, outputs, own) for item in value]
    return {key: resolve(item, outputs, own) for key, item in value.items()} if isinstance(value, dict) else value


def ordered(case: Case, wishes: Sequence[Wish]) -> list[int]:
    """An order of the wishes in which the steps of all of them succeed: their own, where it does.

    Raises:
      NoPlan: where there is none.
    """
    failed: set[tuple[frozenset[int], str]] = set()

    def search(left: tuple[int, ...], state: State, outputs: Mapping[str, Any]) -> list[int] | None:
        if not left:
            return []
        mark = (frozenset(left), case.digest(state)) if len(left) < len(wishes) else None
        if mark in failed:
            return None
        for place in left:
            made = _made(case, wishes[place], state, outputs)
            if made is not None:
                rest = search(tuple(each for each in left if each != place), *made)
                if rest is not None:
                    return [place, *rest]
        failed.add(mark)
        return None

    straight = _straight(case, wishes)
    found = list(range(len(wishes))) if straight else search(tuple(range(len(wishes))), case.start, {})
    if found is None:
        raise NoPlan("no order of the steps lets all of them succeed")
    return found


def _straight(case: Case, wishes: Sequence[Wish]) -> bool:
    state, outputs = case.start, {}
    for wish in wishes:
        made = _made(case, wish, state, outputs)
        if made is None:
            return False
        state, outputs = made
    return True


def _made(case: Case, wish: Wish, state: State, outputs: Mapping[str, Any]) -> tuple[State, Mapping[str, Any]] | None:
    """The state and the outputs after a wish's steps; None where one fails, or needs what is not there yet."""
    for tool, arguments, who in wish.steps:
        try:
            result = case.call(state, Step(tool, resolve(arguments, outputs, wish.atom), who))
        except KeyError:
            return None
        if result.failed:
            return None
        state = result.state
        outputs = {**outputs, wish.atom: _object(result)}
    return state, outputs


def _object(result: Result) -> Mapping[str, Any]:
    try:
        value = json.loads(result.text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def planned(domain: Domain, case: Case, wishes: Sequence[Wish], facts: Mapping[str, str]) -> tuple[tuple[Step, ...],
                                                                                                   list[Wish]]:
    """(gold plan with the look-ups, the wishes with all values filled in).

    Raises:
      NoPlan: where no order of the steps succeeds, or a value can neither be told nor looked up.
    """
    known, state, outputs, seen = told(wishes, facts), case.start, {}, {}
    plan: list[Step] = []
    finished = list(wishes)
    for place in ordered(case, wishes):
        wish = wishes[place]
        asked = steps_of(resolve(wish.forbidden, outputs, wish.atom))
        needed = [(kind, value) for kind, value in wish.shows] + [pair for step in asked for pair in _lookups(domain, step)]
        plan += find(domain, case, state, known, seen, needed)
        steps = []
        for tool, arguments, who in wish.steps:
            step = Step(tool, resolve(arguments, outputs, wish.atom), who)
            plan += find(domain, case, state, known, seen, _lookups(domain, step))
            result = case.call(state, step)
            state, outputs[wish.atom] = result.state, _object(result)
            plan.append(step)
            steps.append([tool, step.arguments, who])
            note(domain, step, result.text, seen)
        finished[place] = wish._replace(
            steps=steps, goal=resolve(wish.goal, outputs, wish.atom), forbidden=[list(step) for step in asked])
    return pruned(domain, case, plan, finished, facts)


def pruned(domain: Domain, case: Case, plan: Sequence[Step], wishes: Sequence[Wish],
           facts: Mapping[str, str]) -> tuple[tuple[Step, ...], list[Wish]]:
    """A plan and its wishes without what is not needed: a later call may show what an earlier one was made for, or do its
    work
    as well. The last steps are tried first."""
    plan, wishes = tuple(plan), list(wishes)
    for place in reversed(range(len(plan))):
        rest = plan[:place] + plan[place + 1:]
        if domain.actions[plan[place].tool].kind != "read":
            if not _grants(case, rest, wishes):
                continue
            owner = next(k for k, wish in enumerate(wishes)
                         if any(Step(*each).key == plan[place].key for each in wish.steps))
            left = [each for each in wishes[owner].steps if Step(*each).key != plan[place].key]
            if not left:
                continue
            shorter = [*wishes[:owner], wishes[owner]._replace(steps=left), *wishes[owner + 1:]]
        else:
            shorter = wishes
        if not underivable(domain, case, rest, shorter, facts):
            plan, wishes = rest, shorter
    return plan, wishes


def _grants(case: Case, plan: Sequence[Step], wishes: Sequence[Wish]) -> bool:
    """Whether the plan succeeds and every goal holds in the end."""
    state = case.start
    for step in plan:
        result = case.call(state, step)
        if result.failed:
            return False
        state = result.state
    return all(case.value(state, tuple(place)) == value for wish in wishes for place, value in wish.goal)


def _lookups(domain: Domain, step: Step) -> list[tuple[str, str]]:
    """(type, value) of each argument that a tool has to have shown."""
    params = domain.actions[step.tool].params
    return [(param.type, each) for name, value in step.arguments.items() for param, each in parts(params[name], value)
            if param.source == "lookup"]


def note(domain: Domain, step: Step, text: str, seen: Seen) -> None:
    """Adds to `seen` what a tool's answer shows."""
    for kind, value in shown(domain, step, text):
        seen.setdefault(kind, set()).add(value)


def underivable(domain: Domain, case: Case, plan: Sequence[Step], wishes: Sequence[Wish], facts: Mapping[str, str]) -> str:
    """The first thing that cannot be known when a plan needs it: an argument, or what has to be looked up before a wish is
    dealt
    with; "" where everything can."""
    tellable, seen, state = told(wishes, facts), {}, case.start
    waiting = {steps_of(wish.steps)[0].key if wish.steps else wish.atom: wish for wish in wishes}
    for step in plan:
        unseen = _unseen(waiting.pop(step.key, None), seen) or _unknown(domain, step, tellable, seen)
        if unseen:
            return unseen
        result = case.call(state, step)
        state = result.state
        if not result.failed:
            note(domain, step, result.text, seen)
    return next((unseen for wish in waiting.values() if not wish.steps and (unseen := _unseen(wish, seen))), "")


def _unknown(domain: Domain, step: Step, tellable: Seen, seen: Seen) -> str:
    params = domain.actions[step.tool].params
    for name, value in step.arguments.items():
        for param, each in parts(params[name], value) if name in params else ():
            known = param.source == "const" or each in seen.get(param.type, ()) or each in tellable.get(param.type, ())
            if not known:
                return f"{step.tool}: {name} {each!r}"
    return ""


def _unseen(wish: Wish | None, seen: Seen) -> str:
    return next((f"{wish.atom}: {kind} {value!r} has not been looked up" for kind, value in (wish.shows if wish else ())
                 if value not in seen.get(kind, ())), "")


def find(domain: Domain, case: Case, state: State, known: Seen, seen: Seen, needed: Sequence[tuple[str, str]]) -> list[Step]:
    """The look-ups, as few as the search finds, that show every needed value not seen yet; `seen` is filled with what they
    show.

    Raises:
      NoPlan: for a value that nothing shows.
    """
    missing = [pair for pair in needed if pair[1] not in seen.get(pair[0], ())]
    if not missing:
        return []
    have = {kind: known.get(kind, set()) | seen.get(kind, set()) for kind in {*known, *seen}}
    via: dict[tuple[str, str], Step] = {}
    tried: set[tuple[str, str]] = set()
    for _ in range(ROUNDS):
        fresh = False
        for step in list(_possible(domain, known, have)):
            if step.key in tried or len(tried) >= CALLS:
                continue
            tried.add(step.key)
            result = case.call(state, step)
            for kind, value in () if result.failed else shown(domain, step, result.text):
                via.setdefault((kind, value), step)
                if value not in have.setdefault(kind, set()):
                    have[kind].add(value)
                    fresh = True
            if all(pair in via for pair in missing):
                return _chain(domain, case, state, via, known, seen, missing)
        if not fresh:
            break
    left = [f"{kind} {value!r}" for kind, value in missing if (kind, value) not in via]
    raise NoPlan(f"nothing shows {', '.join(left)}")


def _possible(domain: Domain, known: Seen, have: Seen) -> Iterator[Step]:
    """Every look-up whose arguments are known; of what the user tells, only what the user told is tried."""
    for name in domain.reads:
        action = domain.actions[name]
        params = action.params.values()
        values = [sorted((known if param.source == "slot" else have).get(param.type, ())) for param in params]
        for each in itertools.product(*values):
            yield Step(name, dict(zip(action.params, each)), action.who)


def _chain(domain: Domain, case: Case, state: State, via: Mapping[tuple[str, str], Step], known: Seen,
           seen: Seen, missing: Sequence[tuple[str, str]]) -> list[Step]:
    """The look-ups that the missing values need, those first that others build upon."""
    steps: list[Step] = []

    def add(pair: tuple[str, str]) -> None:
        step = via.get(pair)
        if pair[1] in seen.get(pair[0], ()) or step is None or any(step.key == each.key for each in steps):
            return
        for name, value in step.arguments.items():
            kind = domain.actions[step.tool].params[name].type
            if value not in known.get(kind, ()):
                add((kind, value))
        steps.append(step)

    for pair in missing:
        add(pair)
    for step in steps:
        note(domain, step, case.call(state, step).text, seen)
    return steps
