"""UserGym's Tau: tau-bench v1 tasks over the tau2-bench tools, in the gyms' protocol of search, action and answer.

    [search] tools | [search] help      the list of tools, once | how to write
    [action] words                      to the user
    [answer] {"name": ..., "arguments": {...}}   or   [answer] name: {...}      a tool call
    [finish]                            ends the task without a reward

After UserRL's TauGym (Qian et al. 2025): 16 messages in all, no policy is shown, and the only reward is 1 when the user
ends the talk, the final records are those that the gold actions leave, and every output was said. The records are
tau2-bench's, which equal v1's for nearly every task. User, rules and features are those of `tau2.world`.
"""

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from eau_jax.core.knobs import nearest
from eau_jax.core.part import Act, Env, Floor, Kind, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs import file, message
from eau_jax.envs.ending import stop_code
from eau_jax.envs.tau2.agent import REFUSAL
from eau_jax.envs.tau2.airline_tools import airline_tools
from eau_jax.envs.tau2.call import Refused, checked
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.episode import FEATURES, State
from eau_jax.envs.tau2.evaluate import missing
from eau_jax.envs.tau2.plan import plan
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.tau2.ruling import described
from eau_jax.envs.tau2.user import CALLED, Do, first_open
from eau_jax.envs.tau2.world import world

BESIDE = "tau_*.json"
GYM = "TauGym"    # what its rows in upstream's files are named
LIST, HELP, BAD_SEARCH, FINISH = range(len(Do), len(Do) + 4)    # act codes besides those of `Do`
OWN = (LIST, HELP, BAD_SEARCH, FINISH)
SYSTEM = ("You are a customer service agent of {}. Write one of: [search] tools, to see your tools. [search] help. "
          "[action] and words to the user. [answer] and a tool call as JSON, {{\"name\": ..., \"arguments\": {{...}}}}. "
          "Learn who the user is and what they want, do it with the tools, and tell them.")
_TOOLS = {"retail": retail_tools(), "airline": airline_tools()}
_WHO = {"retail": "an online shop", "airline": "an airline"}
_HELP = "Write [search] tools, [action] words to the user, or [answer] {\"name\": ..., \"arguments\": {...}}."
_NAMED = re.compile(r"\s*(\w+)\s*:\s*(\{.*\})\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Gym:
    """State of an episode; `talk` is the state of the tau2-bench world below."""

    task: int
    turn: int
    done: bool
    stop: int
    talk: State
    listed: bool = False    # the tools were shown
    output: str = ""        # the last reply that is not the user's


def load(path: str | Path) -> tuple[Task, ...]:
    """Tasks of UserRL's tau_train.json or tau_test.json, or of a `.parquet` file that lies beside them.

    Raises:
      TaskFileError: for a corrupt file; it names file, line or row, field, what was expected and what was found.
    """
    records = file.read(path, check, BESIDE, gym=GYM)
    return tuple(Task(id=record["id"], env="tau", data=record) for record in records)


def check(record: Mapping[str, Any]) -> None:
    """Raises ValueError("field: expected ..., found ...") unless `record` is a Tau task."""
    name = file.text_field(record, "id")
    if name.partition("-")[0] not in _WHO:
        raise ValueError(f"id: expected one that begins with retail or airline, found {file.shown(name)}")
    file.text_field(record, "obs")
    info = record.get("info")
    task = info.get("task") if isinstance(info, Mapping) else None
    if not isinstance(task, Mapping):
        raise ValueError(f"info.task: expected an object, found {file.shown(task)}")
    file.text_field(task, "instruction", "info.task.")
    if task.get("user_id") is not None and not isinstance(task["user_id"], str):
        raise ValueError(f"info.task.user_id: expected a string, found {file.shown(task['user_id'])}")
    outputs, actions = task.get("outputs") or [], task.get("actions") or []
    if not isinstance(outputs, list) or not all(isinstance(each, str) and each for each in outputs):
        raise ValueError(f"info.task.outputs: expected a list of strings, found {file.shown(outputs)}")
    if not isinstance(actions, list):
        raise ValueError(f"info.task.actions: expected a list, found {file.shown(actions)}")
    for place, action in enumerate(actions):
        _check_action(action, f"info.task.actions[{place}]", name.partition("-")[0])


def _check_action(action: Any, where: str, domain: str) -> None:
    if not isinstance(action, Mapping) or not isinstance(action.get("kwargs"), Mapping):
        raise ValueError(f"{where}.kwargs: expected an object, found {file.shown(action)}")
    tools, called = _TOOLS[domain], file.text_field(action, "name", f"{where}.")
    if called not in tools:
        raise ValueError(f"{where}.name: expected a tool of {domain}, found {file.shown(called)}{nearest(called, tools)}")
    try:
        checked(tools[called].parameters, action["kwargs"])
    except Refused as refused:
        raise ValueError(f"{where}.kwargs, of {called}: {refused}") from None


class _Below:
    """The tau2-bench worlds below, and each task as its world knows it."""

    def __init__(self, domains: Mapping[str, Domain]):
        self.domains, self._worlds = domains, {name: world(domain) for name, domain in domains.items()}
        self._tasks: dict[str, tuple[Any, Task]] = {}

    def of(self, task: Task) -> tuple[Env, Task, Domain]:
        """The world of a task, the task there, and the domain.

        Raises:
          ValueError: for a task of a domain that was not loaded.
        """
        name = task.id.partition("-")[0]
        if name not in self.domains:
            raise ValueError(f"task {task.id!r} is of {name!r}; loaded: {', '.join(self.domains)}")
        if task.id not in self._tasks or self._tasks[task.id][0] is not task.data:
            self._tasks[task.id] = (task.data, Task(id=task.id, env="tau2", data=_record(task)))
        return self._worlds[name], self._tasks[task.id][1], self.domains[name]

    @property
    def any(self) -> Env:
        """One of the worlds: knobs and rules are the same in all."""
        return next(iter(self._worlds.values()))


def tau_gym(domains: Mapping[str, Domain]) -> Env:
    """The gym over {"retail": ..., "airline": ...}, as `tau2.data.load` reads them; a task's id names its domain."""
    below = _Below(domains)

    def table(tasks: tuple[Task, ...]) -> tuple[tuple[Env, Any], ...]:
        return tuple((env, env.table((converted,))) for env, converted, _ in map(below.of, tasks))

    def reset(table: Any, knobs: Any, index: int, key: Any) -> Gym:
        env, rows = table[int(index)]
        return Gym(task=int(index), turn=0, done=False, stop=0, talk=env.reset(rows, knobs, 0, key))

    def told(name: str) -> Any:
        return lambda task, mask, seed: getattr(below.of(task)[0], name)(below.of(task)[1], mask, seed)

    part = lambda function: functools.partial(function, below)
    return Env(
        name="tau", knobs=below.any.knobs.replace(max_turns=np.int32(16)), features=FEATURES, rules=below.any.rules,
        table=table, reset=reset, observe=_observe, step=part(_step),
        prompt=lambda task: (SYSTEM.format(_WHO[task.id.partition("-")[0]]), task.data["obs"]), parse=part(_parse),
        render=part(_render), disclosed=told("disclosed"), secrets=told("secrets"), score=_score, metric=_score,
        expert=part(_expert), novice=part(_novice),
        basis=lambda task, knobs, judged: described(below.of(task)[1], knobs, judged=False),
        floor=Floor(idle=0.16), host=True)   # tasks whose gold actions leave nothing


def _parse(below: _Below, task: Task, text: str, state: Gym | None) -> Act:
    kind, content = message.split(text)
    env, converted, _ = below.of(task)
    if kind is Kind.SEARCH:
        word = content.strip().lower().rstrip(".")
        return message.act(kind, {"tools": LIST, "help": HELP}.get(word, BAD_SEARCH))
    if kind is Kind.FINISH:
        return message.act(kind, FINISH)
    if kind is Kind.ANSWER:
        request = _request(content)
        if request is not None:
            return message.act(kind, Do.CALL).replace(call=json.dumps(request))
    if kind is Kind.ACTION and content:
        return env.parse(converted, content, None if state is None else state.talk)
    return message.act(Kind.MALFORMED, Do.MALFORMED).replace(call=json.dumps(_HELP))


def _observe(table: Any, knobs: Any, state: Gym, act: Act) -> np.ndarray:
    env, rows = table[state.task]
    seen = env.observe(rows, knobs, state.talk, act)
    seen[FEATURES.index("turn")] = state.turn + 1
    return seen


def _step(below: _Below, table: Any, knobs: Any, state: Gym, act: Act, reply: Any, key: Any) -> tuple[Gym, TimeStep]:
    env, rows = table[state.task]
    code, turn = int(act.code), state.turn + 1
    if code in OWN and not state.done:
        name = env.name.removeprefix("tau2_")
        output, reason = _found(below.domains[name], code, state.listed), StopReason.COMPLETED if code == FINISH else None
        state = dataclasses.replace(state, turn=turn, output=output, listed=state.listed or code == LIST)
        return _limited(knobs, state, _own(code), reason)
    talk, time_step = env.step(rows, knobs, state.talk, act, reply, key)
    if state.done:
        return state, time_step
    state = dataclasses.replace(state, turn=turn, talk=talk, done=talk.done, stop=talk.stop, output=talk.output)
    return (state, time_step) if talk.done else _limited(knobs, state, time_step, None)


def _render(below: _Below, task: Task, act: Act, time_step: TimeStep, state: Gym, seed: int) -> str:
    env, converted, _ = below.of(task)
    return state.output if int(act.code) in OWN else env.render(converted, act, time_step, state.talk, seed)


def _score(task: Task, state: Gym, total: float) -> float:
    return state.talk.outcome.reward if state.talk.outcome else 0.0


def _expert(below: _Below, task: Task, state: Gym, rng: np.random.Generator) -> str:
    """Makes the gold writes, then says what has to be said. It asks nothing: 16 messages are few."""
    _, converted, domain = below.of(task)
    goals, current = plan(domain, converted).goals, first_open(state.talk.status)
    for goal, status in zip(goals, state.talk.status):
        if goal.tool and status < CALLED:
            return f"[answer] {json.dumps({'name': goal.tool, 'arguments': goal.arguments})}"
    say = missing(converted.data["evaluation_criteria"], state.talk.said)
    if say:
        return f"[action] You wanted to know: {'; '.join(say)}. It is done. Is there anything else?"
    return f"[action] {REFUSAL if current == 0 and not goals[0].tool else 'It is done. Is there anything else?'}"


def _novice(below: _Below, task: Task, state: Gym, rng: np.random.Generator) -> str:
    """What the expert does most of the time; else it looks at the tools, chats, refuses or finishes."""
    others = ("[search] tools", "[action] What is your name?", f"[action] {REFUSAL}", "[finish]",
              "[answer] get_user_details: {}")
    return _expert(below, task, state, rng) if rng.random() < 0.65 else others[int(rng.integers(len(others)))]


def _record(task: Task) -> dict[str, Any]:
    """A v1 task as tau2-bench writes it."""
    old = task.data["info"]["task"]
    actions = [{"name": action["name"], "arguments": action["kwargs"]} for action in old.get("actions") or ()]
    return {"id": task.id, "user_scenario": {"instructions": old["instruction"], "user_id": old.get("user_id")},
            "evaluation_criteria": {"actions": actions, "communicate_info": list(old.get("outputs") or ()),
                                    "reward_basis": ["DB", "COMMUNICATE"]}}


def _request(content: str) -> dict[str, Any] | None:
    """A tool call in either form; None when there is none."""
    named = _NAMED.fullmatch(content)
    try:
        found = {"name": named[1], "arguments": json.loads(named[2])} if named else json.loads(content)
        name, arguments = found["name"], found.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return {"name": name, "arguments": arguments} if isinstance(name, str) and isinstance(arguments, dict) else None


def _found(domain: Domain, code: int, listed: bool) -> str:
    if code == LIST:
        shown = "\n".join(json.dumps(tool.schema) for tool in domain.tools.values())
        return "The tools were shown already." if listed else shown
    return {HELP: _HELP, BAD_SEARCH: "Only [search] tools and [search] help are possible.", FINISH: "Goodbye."}[code]


def _own(code: int) -> TimeStep:
    """A reply that neither the user nor a tool gives."""
    return TimeStep(code=np.int32(code), disclosed=np.int32(0), reward=np.float32(0), discount=np.float32(1),
                    done=np.bool_(False), success=np.bool_(False), stop=np.int32(0), tool=np.bool_(True))


def _limited(knobs: Any, state: Gym, time_step: TimeStep, reason: StopReason | None) -> tuple[Gym, TimeStep]:
    """Ends the episode for a reason, or at the turn limit; it is worth nothing then."""
    reason = reason or (StopReason.MAX_TURNS if state.turn >= int(knobs.max_turns) else None)
    if reason is None:
        return state, time_step
    return (dataclasses.replace(state, done=True, stop=stop_code(reason)),
            time_step.replace(discount=np.float32(0), done=np.bool_(True), stop=np.int32(stop_code(reason))))
