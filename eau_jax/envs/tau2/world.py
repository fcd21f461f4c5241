"""tau2-bench airline, retail and mock as host worlds: the agent talks with a symbolic user and calls tools.

    env = world(load("data/tau2/retail"));  tasks = load("data/tau2/retail").split("train")

`reset` and `step` are plain Python over an immutable state (`tau2.episode`). A tool call is answered by its output, words by
the user. Only an episode that the user ends with ###STOP### or ###TRANSFER### is scored (`tau2.evaluate`); every other
ending is worth 0. Upstream counts deliveries, about two for each agent message, and stops at 100 of them and at 10 tool
errors. `tau2.solo` is the same without a user.

The system text is the policy and the schemas of all tools, as upstream's: about 4000 tokens of a large model's tokenizer for
airline and retail. A model whose context is small can be trained with a `system` text of your own; what it is scored on with
that is not the benchmark.
"""

import dataclasses
import functools
import json
from importlib import resources
from typing import Any, Callable, Mapping

from eau_jax.core.part import Act, Env, Kind, Reply, TimeStep
from eau_jax.core.types import StopReason, Task
from eau_jax.envs import message
from eau_jax.envs.tau2 import message as tau2_message
from eau_jax.envs.tau2.agent import agents
from eau_jax.envs.tau2.call import Tool, call
from eau_jax.envs.tau2.data import check
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.episode import (
    FEATURES, Knobs, Row, State, answered, begun, called, ended, malformed, observe, time_step)
from eau_jax.envs.tau2.evaluate import gold, start
from eau_jax.envs.tau2.floor import floor
from eau_jax.envs.tau2.plan import plan
from eau_jax.envs.tau2.retail_tools import retail_tools
from eau_jax.envs.tau2.ruling import described, verdict
from eau_jax.envs.tau2.user import OPEN, Do, Say, first_open, read, secrets, values, words

SYSTEM = ("You are a customer service agent. Follow the policy. In each turn either write to the user or make one tool "
          "call, never both. A tool call is\n<tool_call>{\"name\": ..., \"arguments\": {...}}</tool_call>")
Rows = Callable[[Task], Row]
Tools = Mapping[str, Tool]


def world(domain: Domain, system: str | None = None) -> Env:
    """The environment of a domain. A judge, where a run or a plan has one, decides NL_ASSERTION; without one the basis is as
    `tau2.evaluate` says.

    Args:
      system: the whole system text; None: how to write, the policy, and every tool's schema.
    """
    tools = (domain.tools, retail_tools(last_item_wins=True) if domain.name == "retail" else domain.tools)
    row = rows(domain, tools)
    expert, novice = agents(domain, lambda task: row(task).plan)
    system = system_text(SYSTEM, domain.policy, domain.tools) if system is None else system
    prompt = lambda task: (system, opening(row(task)))
    return Env(
        name=f"tau2_{domain.name}", knobs=Knobs(), features=FEATURES,
        rules=resources.files("eau_jax.envs").joinpath("rules/tau2.toml").read_text(encoding="utf-8"),
        table=lambda tasks: tuple(map(row, tasks)),
        reset=lambda table, knobs, index, key: begun(int(index), table[int(index)]),
        observe=observe, step=functools.partial(_step, domain, tools), prompt=prompt,
        parse=functools.partial(_parse, domain, row), render=functools.partial(_render, row),
        disclosed=lambda task, mask, seed: values(row(task).plan, mask),
        secrets=lambda task, mask, seed: secrets(row(task).plan, mask, opening(row(task))),
        score=score, metric=score, expert=expert, novice=novice,
        verdict=functools.partial(verdict, domain), basis=described, floor=floor(domain, domain.tasks), host=True)


def rows(domain: Domain, tools: tuple[Tools, Tools]) -> Rows:
    """task -> its row, made once. It raises ValueError for a task that cannot be played; it names the task and the field."""
    made: dict[str, Row] = {}

    def row(task: Task) -> Row:
        if task.id not in made or made[task.id].task.data is not task.data:
            try:
                own = domain.at(task)
                check(task.data, own)
            except ValueError as error:
                raise ValueError(f"task {task.id!r}, field {error}") from None
            begin = start(own, task)
            wanted = tuple(gold(own._replace(tools=each), task, begin) for each in tools)
            made[task.id] = Row(task, plan(own, task), begin, wanted)
        return made[task.id]

    return row


def system_text(how: str, policy: str, tools: Tools) -> str:
    """How to write, the policy, and every tool's schema."""
    catalogue = "\n".join(json.dumps(tool.schema) for tool in tools.values())
    return f"{how}\n\n# Policy\n{policy.strip()}\n\n# Tools\n{catalogue}"


def opening(here: Row) -> str:
    """The user's first message, after the words of the task's message history."""
    return "\n".join([*(f"({role}) {text}" for role, text in here.start.talk),
                      f"(user) {here.plan.opening}" if here.start.talk else here.plan.opening])


def score(task: Task, state: State, total: float) -> float:
    """The reward by the task's whole basis, whatever the knobs pay."""
    return state.outcome.reward if state.outcome else 0.0


def _parse(domain: Domain, row: Rows, task: Task, text: str, state: State | None) -> Act:
    heard, who = tau2_message.read(text), row(task).plan
    if isinstance(heard, tau2_message.Words):
        status = (OPEN,) * len(who.goals) if state is None else state.status
        code, mask, pair = read(domain.at(task), who, status, heard.text)
        return message.act(Kind.ACTION, code, mask, pair).replace(call=json.dumps(heard.text))
    return as_act(heard)


def as_act(heard: tau2_message.Call | tau2_message.Broken) -> Act:
    """A tool call, or what is neither that nor words."""
    if isinstance(heard, tau2_message.Broken):
        return message.act(Kind.MALFORMED, Do.MALFORMED).replace(call=json.dumps(heard.why))
    return message.act(Kind.SEARCH, Do.CALL).replace(
        call=json.dumps({"name": heard.name, "arguments": dict(heard.arguments)}))


def _step(domain: Domain, tools: tuple[Tools, Tools], table: tuple[Row, ...], knobs: Knobs, state: State, act: Act,
          reply: Any, key: Any) -> tuple[State, TimeStep]:
    if state.done:
        return state, time_step(dataclasses.replace(state, tells=0), Say.LEFT, 0.0)
    here, code, last_wins = table[state.task], Do(int(act.code)), int(knobs.last_item_wins)
    domain = domain.at(here.task)
    state = dataclasses.replace(state, turn=state.turn + 1, tells=0)
    if code is Do.CALL:
        state, say = called(domain, tools[last_wins], here, state, json.loads(act.call)), Say.TOOL
        end = StopReason.TOOL_ERROR if state.errors >= int(knobs.error_limit) else None
    elif code is Do.MALFORMED:
        state, say = malformed(state, json.loads(act.call or '"I cannot read that."')), Say.MALFORMED
        end = StopReason.PARSE_ERROR if state.invalid >= int(knobs.max_invalid) else None
    else:
        state, say = answered(here.plan, knobs, state, act, code, Reply(int(reply)))
        end = {Say.STOP: StopReason.COMPLETED, Say.TRANSFERRED: StopReason.COMPLETED,
               Say.LEFT: StopReason.USER_LEFT}.get(say)
    if end is None and state.turn >= int(knobs.max_turns):
        end = StopReason.MAX_TURNS
    if end is None:
        return state, time_step(state, say, 0.0)
    for notification in here.plan.dismisses if end is StopReason.COMPLETED else ():
        dismissed = call(domain.user_tools, domain.base, state.changed, "dismiss_notification",
                         {"notification_id": notification})
        state = dataclasses.replace(state, changed=dismissed.changed)
    state, reward = ended(domain, here, knobs, state, end, here.gold[last_wins])
    return state, time_step(state, say, reward)


def _render(row: Rows, task: Task, act: Act, step: TimeStep, state: State, seed: int) -> str:
    say, who = Say(int(step.code)), row(task).plan
    if say in (Say.TOOL, Say.MALFORMED):
        return state.output
    goal = int(act.values[0]) if say is Say.CORRECT else first_open(state.status)
    return words(who, say, int(act.mask), int(step.disclosed), goal, seed)
