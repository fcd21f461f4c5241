"""The array path of a tau2-bench domain: the same world as `tau2.world`, over the records of one customer as integers.

    env = retail_slice(load("data/tau2/retail"));  table = env.table(tasks)

A task touches the records of one customer, so the state is a slice of the database: what a domain's tools may change
there, as padded arrays. `parse` turns a tool call into integers: a write within the slice keeps its arguments, everything
that changes nothing is one code with a flag for failure, and a write to any other record is one code that makes the
records wrong: nothing that follows can make them equal to the gold records again. DB holds when the slice equals the gold
slice. Words, user, rules, knobs, rewards and endings are the host world's. Three things differ from it: amounts are whole
cents, statements (NL_ASSERTION) are never judged, and a write outside the slice is made without the knob last_item_wins.

Free text and records outside the slice are digests in the arrays; a `Memory` of this process has what they stand for, so
that a later reply can show it and a later call sees what the earlier one did: an airline booking that no gold action makes
takes its seats and its money, as on the host path.
"""

import functools
import hashlib
import json
import types
from typing import Any, Callable, Mapping, NamedTuple

import jax
import numpy as np

from eau_jax.core.part import Act, Env, Kind, TimeStep
from eau_jax.core.types import Array, Task
from eau_jax.envs import message
from eau_jax.envs.tau2.arrays import (FAILED, HANDOVER, MATCH, OUTSIDE, SAID, STRINGS, WRITE, State, Table, observe, reset,
                                      score, step)
from eau_jax.envs.tau2.call import Refused, call, checked
from eau_jax.envs.tau2.database import NOTHING, Changed
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.evaluate import basis, equal_call, missing
from eau_jax.envs.tau2.user import SETTLED, Do, Say, words
from eau_jax.envs.tau2.episode import Knobs, Row
from eau_jax.envs.tau2.world import world

UNTOUCHED = (NOTHING, "")


class Slice(NamedTuple):
    """What a domain adds."""

    shared: Any
    arrays: Callable[[Row], tuple[Any, Any]]                # -> (fixed, slice at the start), without the task axis
    write: Callable[..., tuple[Any, Array]]                 # (shared, fixed, slice, knobs, act) -> (slice, failed bool[])
    pack: Callable[[Row, Any, str, Mapping[str, Any], Changed], tuple[int, int, tuple[float, ...]] | None]
    #     (row, slice, tool, checked arguments of a write, records outside) -> (code, mask, values); None: not in the slice
    records: Callable[[Row, Any, Changed], Changed]         # (row, slice, records outside) -> all that differ from the base
    output: Callable[[Row, str, Mapping[str, Any], Changed], str]    # of a write that succeeded; sees the new records


class Memory:
    """What digests stand for, the last LIMIT of them."""

    LIMIT = 20_000

    def __init__(self, *always: Any):
        self._kept, self._always = {}, {digest(each): each for each in always}

    def keep(self, name: Any, value: Any) -> int:
        """The digest of `name`, which stands for `value` from now on."""
        key = digest(name)
        if len(self._kept) >= self.LIMIT and key not in self._kept:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = value
        return key

    def get(self, key: int, otherwise: Any = None) -> Any:
        """What a digest stands for; `otherwise` where that is forgotten."""
        return self._always[key] if key in self._always else self._kept.get(key, otherwise)


class _Path(NamedTuple):
    """What the functions of one domain's array environment share."""

    domain: Domain
    own: Slice
    host: Env
    memory: Memory    # digest of the records outside -> (they, output of the call that wrote them last)

    def row(self, task: Task) -> Row:
        return self.host.table((task,))[0]


def sliced(domain: Domain, own: Slice, system: str | None) -> Env:
    """The array environment of a domain. `system` is as of `world`."""
    if domain.bases:
        raise ValueError(f"{domain.name}: its tasks are about {len(domain.bases)} databases of their own, and arrays hold "
                         f"one; play them in tau2.world")
    path = _Path(domain, own, world(domain, system), Memory())
    prepared = _preparing(path)
    by_host = lambda agent: lambda task, state, rng: agent(task, _seen(path, task, state), rng)
    return path.host._replace(
        name=f"tau2_{domain.name}_slice", table=lambda tasks: Table(shared=own.shared, **_stack(list(map(prepared, tasks)))),
        reset=reset, observe=observe, step=functools.partial(step, own.write), parse=functools.partial(_parse, path),
        render=functools.partial(_render, path), score=score, metric=score, verdict=None, host=False,
        expert=by_host(path.host.expert), novice=by_host(path.host.novice))


def _preparing(path: _Path) -> Callable[[Task], dict[str, Any]]:
    """task -> its part of the table, made once."""
    own, made = path.own, {}
    gold_of = lambda task: task.data["evaluation_criteria"].get("actions") or ()
    longest = max([len(gold_of(task)) for task in path.domain.tasks] + [1])

    @jax.jit
    def replay(shared: Any, fixed: Any, start: Any, knobs: Knobs, acts: Act) -> Any:
        return jax.lax.scan(lambda at, act: own.write(shared, fixed, at, knobs, act), start, acts)[0]

    def prepared(task: Task) -> dict[str, Any]:
        here = path.row(task)
        if task.id not in made or made[task.id][0] is not here:
            fixed, start = own.arrays(here)
            acts = _stacked([_packed(path, here, start, 0, action["name"], action["arguments"]) for action in gold_of(task)],
                            longest)
            left = [replay(own.shared, fixed, start, path.host.knobs.replace(last_item_wins=np.int32(on)), acts)
                    for on in (0, 1)]
            made[task.id] = here, dict(fixed=fixed, start=start, gold=_stack(left), **_user(here))
        return made[task.id][1]

    return prepared


def _seen(path: _Path, task: Task, state: State | None) -> Any:
    """The state as the host's functions know it."""
    if state is None:
        return None
    here, strings = path.row(task), task.data["evaluation_criteria"].get("communicate_info") or ()
    return types.SimpleNamespace(
        status=tuple(np.asarray(state.status).tolist()[:len(here.plan.goals)]), told=int(state.told), turn=int(state.turn),
        transferred=bool(state.transferred), calls=range(int(state.calls)), done=bool(state.done),
        said=tuple(each for place, each in enumerate(strings) if int(state.said) >> place & 1))


def _parse(path: _Path, task: Task, text: str, state: State | None) -> Act:
    act, here = path.host.parse(task, text, _seen(path, task, state)), path.row(task)
    if act.code == Do.MALFORMED:
        return act
    content = json.loads(act.call)
    if act.code == Do.CALL:
        at, outside = (path.own.arrays(here)[1], 0) if state is None else (state.slice, int(state.outside))
        return _packed(path, here, at, outside, content["name"], content["arguments"]).replace(call=act.call)
    criteria = task.data["evaluation_criteria"]
    strings, left = criteria.get("communicate_info") or (), missing(criteria, (content,))
    held = sum(1 << SAID + place for place, each in enumerate(strings) if each not in left)
    return act.replace(call="", flags=np.int32(held))


def _render(path: _Path, task: Task, act: Act, time_step: TimeStep, state: State, seed: int) -> str:
    say, here = Say(int(time_step.code)), path.row(task)
    if say is Say.MALFORMED:
        return json.loads(act.call or '"I cannot read that."')
    if say is Say.TOOL:
        beyond, shown = path.memory.get(int(state.outside), UNTOUCHED)
        request, changed = json.loads(act.call), path.own.records(here, state.slice, beyond)
        name, arguments = request["name"], request["arguments"]
        if act.code >= WRITE and not state.failed:
            return path.own.output(here, name, checked(path.domain.tools[name].parameters, arguments), changed)
        if act.code == OUTSIDE and int(state.outside):
            return shown
        return call(path.domain.tools, path.domain.base, changed, name, arguments).text
    goal = int(act.values[0]) if say is Say.CORRECT else None
    if say is Say.CHANGE:
        goal = int(np.argmax(np.asarray(state.status) < SETTLED))
    return words(here.plan, say, int(act.mask), int(time_step.disclosed), goal, seed)


def _packed(path: _Path, here: Row, at: Any, outside: int, name: str, arguments: Mapping[str, Any]) -> Act:
    """A tool call as integers; `at` and `outside` are the state's before it."""
    domain, own, memory = path.domain, path.own, path.memory
    beyond = memory.get(outside, UNTOUCHED)[0]
    match = sum(1 << MATCH + place for place, goal in enumerate(here.plan.goals)
                if goal.tool and equal_call(domain, {"name": goal.tool, "arguments": goal.arguments}, name, arguments))
    if name in domain.tools and domain.tools[name].kind == "write":
        try:
            inside = own.pack(here, at, name, checked(domain.tools[name].parameters, arguments), beyond)
        except Refused:
            inside = None
        if inside is not None:
            code, mask, values = inside
            return message.act(Kind.SEARCH, code, mask, values).replace(flags=np.int32(match))
    before = own.records(here, at, beyond)
    result = call(domain.tools, domain.base, before, name, arguments)
    flags = match | FAILED * result.error | HANDOVER * (name == "transfer_to_human_agents" and not result.error)
    fresh = {place: record for place, record in result.changed.items() if before.get(place) != record}
    if not fresh:
        return message.act(Kind.SEARCH, Do.CALL).replace(flags=np.int32(flags))
    now = {place: record for place, record in {**beyond, **fresh}.items() if domain.base[place[0]].get(place[1]) != record}
    key = memory.keep([outside, name, arguments], (now, result.text)) if now else 0
    return message.act(Kind.SEARCH, OUTSIDE, key).replace(flags=np.int32(flags))


def customer(domain: Domain, here: Row) -> dict[str, Any]:
    """The record of the customer whose records the slice of a task holds.

    Raises:
      ValueError: for a task whose instructions name no customer.
    """
    user = domain.base["users"].get(here.plan.user_id)
    if user is None:
        raise ValueError(f"task {here.task.id!r}: expected instructions that name a customer (by user id, e-mail, or name "
                         "and zip code), found none; play it in tau2.world")
    return user


def digest(value: Any) -> int:
    """31 bits of a JSON value."""
    text = json.dumps(value, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest()) & 2**31 - 1


def _stacked(acts: list[Act], length: int) -> Act:
    nothing = message.act(Kind.SEARCH, Do.CALL)
    return _stack([act.replace(call="") for act in acts] + [nothing] * (length - len(acts)))


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *each: np.stack(each), *trees)


def _user(here: Row) -> dict[str, np.generic]:
    """What the user's machine and the basis need of a task.

    Raises:
      ValueError: for a basis other than DB and COMMUNICATE, too many strings, or no list of gold actions.
    """
    criteria, named = here.task.data["evaluation_criteria"], basis(here.task, judged=False)
    strings = criteria.get("communicate_info") or ()
    if set(named) - {"DB", "COMMUNICATE"} or len(strings) > STRINGS or here.gold[0] is None:
        raise ValueError(f"task {here.task.id!r}: reward basis {', '.join(named)} with {len(strings)} strings; allowed: DB "
                         f"and COMMUNICATE with at most {STRINGS}, and a list of gold actions; play it in tau2.world")
    writes = sum(1 << place for place, goal in enumerate(here.plan.goals) if goal.tool)
    return dict(goals=np.int32(len(here.plan.goals)), known=np.int32(here.plan.known), writes=np.int32(writes),
                needed=np.int32((1 << len(strings)) - 1), by_db=np.bool_("DB" in named),
                by_words=np.bool_("COMMUNICATE" in named))
