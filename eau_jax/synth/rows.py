"""Rows for supervised fine-tuning out of recorded conversations: the agent's side, and the user's with the roles exchanged.

    agent   {"id", "messages": [system, user, assistant, tool, ...], "reward", "correct", "metadata"}   a conversation a row;
            an assistant message with "weight": 0 is context only
    user    {"id", "messages": [system, user, ...], "answer": {...}, "reward", "correct", "metadata"}   a turn of the user
            a row; the user's words are the assistant's, the answer alone is learned, metadata.act says what it is; the
            messages are those that `users.role_play` asks with

Every row is read back (`rollout.dialogue_file`) before it is kept: what a model would learn is what was said, to the
character, but for what a user's model writes as a number (`role_play.numbered`). Files of either kind are learned with
sft.source = dialogues and sft.role = agent: the roles are exchanged here.
"""

import json
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from eau_jax.core.types import StopReason
from eau_jax.envs.tau2.message import Call, read as read_message
from eau_jax.rollout import dialogue_file
from eau_jax.rollout.dialogue import View, agent_view, user_view
from eau_jax.synth.acts import ENDS, KEEPS, RECOVERS, TOOL
from eau_jax.synth.ask import NO_CHARACTER
from eau_jax.synth.attribute import user_fault
from eau_jax.synth.domain import Domain
from eau_jax.synth.play import task_of
from eau_jax.synth.record import Fault, Instance, Report, Rollout, Scenario, digest
from eau_jax.users import role_play

SLIPS = (*RECOVERS, *KEEPS, *ENDS, "go_on")      # acts that a clean message of an agent does not earn, "stop" aside
FIRST = "open"                                   # the act of a user's first words
Json = Any
Count = Callable[[str], None]                    # takes the reason why something was left out


class Source(NamedTuple):
    """A task that was kept, with what was played about it."""

    instance: Instance
    scenario: Scenario
    report: Report
    rollouts: tuple[Rollout, ...]
    split: str
    faults: tuple[Fault, ...] = ()        # of the conversations that failed, in their order

    @property
    def id(self) -> str:
        """Of the task."""
        return self.scenario.record["id"]


class UserTurn(NamedTuple):
    """One turn of a user, as a row that is not written yet."""

    system: str               # what the user's model is told in this turn
    view: View                # of the conversation, from the user's side
    place: int                # of the turn among the view's exchanges
    act: str                  # one of `acts.ACTS`, or FIRST
    facts: Mapping[str, Json]
    success: bool
    answer: str               # what is learned: what is said, as of `role_play.numbered`

    @property
    def row(self) -> dict[str, Json]:
        """As JSON values."""
        messages = [{"role": "system", "content": self.system}]
        for exchange in self.view.exchanges[:self.place]:
            messages += [{"role": "user", "content": exchange.heard}, {"role": "assistant", "content": exchange.said}]
        messages.append({"role": "user", "content": self.view.exchanges[self.place].heard})
        return named({"messages": messages, "answer": {"role": "assistant", "content": self.answer},
                      "reward": float(self.success), "correct": 1,
                      "metadata": {**self.facts, "turn_index": self.place, "act": self.act}})

    @property
    def key(self) -> str:
        """The same for turns with the same words before them and in them."""
        return digest([self.system, [list(each) for each in self.view.exchanges[:self.place + 1]]], 32)


def agent_row(domain: Domain, source: Source, rollout: Rollout, out: Count,
              validated: bool = True) -> dict[str, Json] | None:
    """The agent's side of a conversation that succeeded; None, and the reason to `out`, where it is no use.

    Only clean messages are learned: all of the oracle's, of other agents those that no tool and no user put right.
    `validated`: False takes conversations that failed as well, and all that is said in any of them.
    """
    if rollout.stop == StopReason.INFRA_ERROR.value:
        return out("infrastructure error")
    if validated and not rollout.success:
        return out("failed")
    system, opening = domain.env.prompt(task_of(domain, domain.dressed(source.scenario.record, rollout.persona)))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": opening}]
    for place, turn in enumerate(rollout.turns):
        said = _message(turn["agent"], f"call_{place}")
        learned = not validated or rollout.agent == "oracle" or clean(turn)
        messages.append(said if learned else {**said, "weight": 0})
        to = {"tool_call_id": f"call_{place}"} if "tool_calls" in said else {}
        messages.append({"role": "tool", "content": turn["reply"], **to} if turn["by"] == "tool" else
                        {"role": "user", "content": turn["reply"]})
    row = {"messages": messages, "reward": float(rollout.success), "correct": int(rollout.success),
           "metadata": _facts(domain, source, rollout)}
    try:
        view = agent_view(dialogue_file.to_row(row, "").dialogue, thoughts=True)
    except ValueError as error:
        return out(f"cannot be written as messages ({str(error)[:80]})")
    if [exchange.said for exchange in view.exchanges] != [turn["agent"] for turn in rollout.turns]:
        return out("reads back otherwise")
    return named(row) if any(exchange.learned for exchange in view.exchanges) else out("nothing clean")


def clean(turn: Mapping[str, Json]) -> bool:
    """Whether an agent's message is whole, and was put right by neither a tool nor the user."""
    if NO_CHARACTER in turn["agent"]:
        return False
    if turn["act"] == TOOL:
        return not turn["reply"].startswith("Error")
    return turn["act"] == "stop" or turn["act"] not in SLIPS


def user_turns(domain: Domain, source: Source, rollout: Rollout, out: Count) -> Iterator[UserTurn]:
    """The turns of a conversation's user, up to the first in which the user is at fault. Those of a conversation that
    failed count too; its end does not, nor does leaving. Each comes with the prompt that `users.role_play` has for it."""
    task = task_of(domain, domain.dressed(source.scenario.record, rollout.persona))
    opening = domain.env.prompt(task)[1]
    said: list[dict[str, str]] = [{"role": "user", "content": opening}]
    asked = lambda known, reply: (role_play.system(role_play.scenario(opening, known, reply)),
                                  role_play.numbered(reply, known))
    known: list[str] = []
    prompts, acts, fault = [asked((), opening)], [FIRST], user_fault(source.scenario, rollout)
    for place, turn in enumerate(rollout.turns):
        if fault is not None and place >= fault.turn:
            out(f"user at fault: {fault.label}")
            break
        if turn["by"] == "user":
            said += [{"role": "assistant", "content": turn["agent"]}, {"role": "user", "content": turn["reply"]}]
            acts.append(turn["act"])
            known += turn["told"]
            prompts.append(asked(known, turn["reply"]))
    try:
        row = dialogue_file.to_row({"messages": said, "correct": rollout.success}, "")
        view = user_view(row.dialogue)
    except ValueError as error:       # a conversation that the agent never came into
        return out(f"cannot be written as messages ({str(error)[:80]})")
    if [exchange.said for exchange in view.exchanges] != [each["content"] for each in said if each["role"] == "user"]:
        return out("reads back otherwise")
    for place, ((system, answer), act) in enumerate(zip(prompts, acts, strict=True)):
        if act == "leave" or act == "stop" and not rollout.success:
            out(f"{act} of a conversation that failed")
        else:
            yield UserTurn(system, view, place, act, _facts(domain, source, rollout), rollout.success, answer)


def named(row: Mapping[str, Json]) -> dict[str, Json]:
    """A row with an id that depends on all of its content."""
    return {"id": digest(row, 24), **row}


def _facts(domain: Domain, source: Source, rollout: Rollout) -> dict[str, Json]:
    return {"domain": domain.name, "task_id": source.id, "split": source.split, "agent": rollout.agent,
            "persona": rollout.persona,
            "source_dialog_id": digest([source.id, rollout.agent, rollout.persona, list(rollout.turns)])}


def _message(text: str, name: str) -> dict[str, Json]:
    """A message of the agent: with a tool call in the API's form where it reads back as the same text."""
    heard = read_message(text)
    if isinstance(heard, Call):
        call = {"name": heard.name, "arguments": json.dumps(dict(heard.arguments), ensure_ascii=False)}
        whole = json.dumps({"name": heard.name, "arguments": dict(heard.arguments)}, ensure_ascii=False)
        if text == f"<tool_call>{whole}</tool_call>":
            return {"role": "assistant", "content": None, "tool_calls": [{"id": name, "type": "function", "function": call}]}
    return {"role": "assistant", "content": text}
