"""Many conversations of a simulator side by side, for the checks of the gate.

A lane is one conversation. All lanes take their turns together in one compiled call, whose shapes never change, so that
checks of other knobs and rules compile nothing. A host world's lanes are stepped one after the other.
"""

import collections
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from eau_jax.core.part import Act, Kind, TimeStep
from eau_jax.envs import message
from eau_jax.rollout.simulator import Simulator


class Moved(NamedTuple):
    """One lane after one turn."""

    state: Any
    time_step: TimeStep
    reply: int


class Lanes(NamedTuple):
    """Made once per run."""

    simulator: Simulator
    size: int
    begin: Callable[[Any, Sequence[int], Sequence[int]], list[Any]]   # (knobs, task indices, seeds) -> states, one a lane
    step: Callable[..., dict[int, Moved]]    # (knobs, rules, states, {lane: act}, seeds, turn) -> the lanes that moved
    traces: collections.Counter              # how often "begin" and "step" were traced


def lanes(simulator: Simulator, size: int) -> Lanes:
    """At most `size` conversations at a time. Draws are those of `Simulator.step`, so a lane equals that episode."""
    env, user, host = simulator.env, simulator.user, jax.local_devices(backend="cpu")[0]
    traces: collections.Counter = collections.Counter()

    def one_by_one(knobs: Any, rules: Any, states: Sequence[Any], acts: Mapping[int, Act], seeds: Sequence[int],
                   turn: int) -> dict[int, Moved]:
        moved = {lane: simulator.step(knobs, rules, states[lane], act, seeds[lane], turn) for lane, act in acts.items()}
        return {lane: Moved(state, time_step, int(reply)) for lane, (state, time_step, reply) in moved.items()}

    if env.host:
        return Lanes(simulator, size, lambda knobs, indices, seeds: [
            simulator.reset(knobs, index, seed) for index, seed in zip(indices, seeds, strict=True)], one_by_one, traces)

    def first(table: Any, knobs: Any, index: Any, seed: Any) -> Any:
        traces["begin"] += 1
        return env.reset(table, knobs["env"], index, jax.random.key(seed))

    def turn_of(table: Any, knobs: Any, rules: Any, state: Any, act: Act, seed: Any, turn: Any) -> Any:
        traces["step"] += 1
        decide, advance = jax.random.split(jax.random.fold_in(jax.random.key(seed), turn))
        reply = user.respond(rules, knobs["user"], env.observe(table, knobs["env"], state, act), decide)
        return (*env.step(table, knobs["env"], state, act, reply, advance), reply)

    resets = jax.jit(jax.vmap(first, (None, None, 0, 0)))
    steps = jax.jit(jax.vmap(turn_of, (None, None, None, 0, 0, 0, None)))

    def begin(knobs: Any, indices: Sequence[int], seeds: Sequence[int]) -> list[Any]:
        with jax.default_device(host):
            states = resets(simulator.table, _live(knobs), _filled(indices, size, np.int32), _filled(seeds, size, np.uint32))
        return _rows(states, range(len(indices)))

    def step(knobs: Any, rules: Any, states: Sequence[Any], acts: Mapping[int, Act], seeds: Sequence[int],
             turn: int) -> dict[int, Moved]:
        if not acts:
            return {}
        live = list(acts)
        fill = [live[0]] * (size - len(live))
        state = _stack([states[lane] for lane in live + fill])
        act = _stack([acts[lane].replace(call="") for lane in live + fill])
        seed = _filled([seeds[lane] for lane in live], size, np.uint32)
        with jax.default_device(host):
            moved = steps(simulator.table, _live(knobs), rules, state, act, seed, np.int32(turn))
        return {lane: Moved(state, time_step, int(reply))
                for lane, (state, time_step, reply) in zip(live, _rows(moved, range(len(live))), strict=True)}

    return Lanes(simulator, size, begin, step, traces)


def recorded_act(record: Mapping[str, Any]) -> Act:
    """The act of a turn of episodes/<step>.jsonl."""
    values = tuple(np.nan if value is None else value for value in record["values"])   # JSON has no nan
    act = message.act(Kind[record["kind"]], record["code"], record["mask"], values)
    return act.replace(flags=np.int32(record["flags"]))


def _live(knobs: Any) -> dict[str, Any]:
    return {"env": knobs["env"], "user": knobs["user"]}


def _filled(numbers: Sequence[int], size: int, dtype: Any) -> np.ndarray:
    """The numbers, then the first of them again up to `size`."""
    return np.array([*numbers, *[numbers[0]] * (size - len(numbers))], dtype)


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def _rows(tree: Any, rows: Sequence[int]) -> list[Any]:
    """Trees of numpy arrays without their leading axis."""
    leaves, form = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    return [jax.tree.unflatten(form, [leaf[row] for leaf in leaves]) for row in rows]
