"""One conversation as a coroutine: tokens in, tokens out, rewards where the agent's own tokens end.

    request -> completion -> text -> act -> features -> reply -> state, time step -> draft -> wording -> observation

What was fed and what was sampled is only ever appended to. What fails outside the agent's control ends the episode as
INFRA_ERROR, which is dropped and counted; an error in our own code is raised.
"""

import asyncio
import dataclasses
from typing import Any, Awaitable, NamedTuple

import numpy as np

from eau_jax.core import time_limit
from eau_jax.core.part import Act, Kind, Reply, TimeStep, Words
from eau_jax.core.types import ContextFull, Episode, InfraError, StopReason, Task, Turn
from eau_jax.rollout.agent import Agent
from eau_jax.rollout.seeds import turn_seed
from eau_jax.rollout.simulator import Simulator
from eau_jax.rollout.template import Chat, visible
from eau_jax.samplers.types import Completion, TokenRequest
from eau_jax.users.voice import Spoken, speak

STOPS = tuple(StopReason)
VERDICTS = 2    # times that a judge is asked for a verdict it can be read from


@dataclasses.dataclass(frozen=True)
class Budgets:
    """What one episode may use."""

    max_tokens: int               # of the whole episode, prompt included
    max_new_tokens: int           # of one agent turn
    min_new_tokens: int = 1       # a turn that would have less room than this is not begun: the episode is cut instead
    agent_seconds: float = 600.0  # one call of the sampler, its queue included
    user_seconds: float = 60.0    # one reply of the user, its retries included

    def __post_init__(self):
        if not 1 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(f"min_new_tokens is {self.min_new_tokens} and max_new_tokens {self.max_new_tokens}; a "
                             "turn needs 1 <= min_new_tokens <= max_new_tokens")
        if not (time_limit.fits(self.agent_seconds) and time_limit.fits(self.user_seconds)):
            raise ValueError(f"agent_seconds is {self.agent_seconds} and user_seconds {self.user_seconds}; allowed: "
                             f"{time_limit.ALLOWED}")


class Pinned(NamedTuple):
    """What an episode is pinned to when it begins; a swap between two updates never reaches into it."""

    knobs: Any                    # the whole tree {"user", "env", "rl"}
    rules: Any                    # the symbolic user's compiled decision list
    generation: int               # version number of the two


async def run_episode(simulator: Simulator, agent: Agent, chat: Chat, pinned: Pinned, budgets: Budgets, *,
                      index: int, seed: int, group: int, session: str) -> Episode:
    """Plays one episode of task `index`.

    Args:
      seed: of this episode, in [0, 2**31).
      group: seed shared by the episodes of a group: the initial state and the draws that a group shares follow from it.
      session: names the episode to the sampler; it is released at the end, whatever happened.

    Returns:
      The episode. With INFRA_ERROR it holds the turns that were complete, `error` says what failed and `score` is nan. Where
      the agent's context is full it is cut (MAX_TOKENS) and scored by what it has earned.

    Raises:
      ValueError: when the prompt leaves no room for an action, or the sampler breaks its contract.
    """
    task = simulator.tasks[index]
    turns: list[Turn] = []
    try:
        try:
            final, stop, success, state, full = await _converse(simulator, agent, chat, pinned, budgets, index, seed, group,
                                                                session, turns)
        finally:
            await agent.release(session)
    except InfraError as error:
        return _episode(simulator, pinned, task, seed, turns, np.zeros(0, np.int32), StopReason.INFRA_ERROR, False,
                        float("nan"), f"turn {len(turns) + 1}: {error}")
    env, total = simulator.env, float(sum(turn.reward for turn in turns))
    return dataclasses.replace(
        _episode(simulator, pinned, task, seed, turns, final, stop, success, float(env.score(task, state, total)), full),
        metric=float(env.metric(task, state, total)))


async def _converse(simulator: Simulator, agent: Agent, chat: Chat, pinned: Pinned, budgets: Budgets, index: int,
                    seed: int, group: int, session: str, turns: list[Turn]) -> tuple[np.ndarray, StopReason, bool, Any, str]:
    """Adds to `turns` as they are complete; returns the final tokens, the stop reason, the success, the last state, and why
    the agent's context was full, where it was."""
    env, user, task = simulator.env, simulator.user, simulator.tasks[index]
    system, opening = env.prompt(task)
    observation = chat.opening(system, opening)
    if len(observation) + budgets.min_new_tokens > budgets.max_tokens:
        raise ValueError(f"the prompt of task {task.id!r} has {len(observation)} tokens, and an episode may have "
                         f"{budgets.max_tokens}: raise rollout.max_tokens, leave long tasks out, or shorten the system text, "
                         f"which has {len(system)} characters (some environments take one of your own: `system=...`)")
    state = simulator.reset(pinned.knobs, index, group)
    history, told, talk, known, solved = np.zeros(0, np.int32), 0, [("user", opening)], [], False
    while True:
        number, reply_seed = len(turns), turn_seed(seed, len(turns))
        history = np.concatenate([history, observation])
        room = min(budgets.max_new_tokens, budgets.max_tokens - len(history))
        request = TokenRequest(session, history, room, seed, chat.stop_ids)
        try:
            completion = await _within(budgets.agent_seconds, "the agent", agent.speak(request, task, state))
        except ContextFull as error:
            return observation, StopReason.MAX_TOKENS, solved, state, f"turn {number + 1}: {error}"
        action = _checked(completion, room)
        history = np.concatenate([history, action])
        agent_text = chat.read(action)
        said = visible(agent_text)
        act, judged, unreadable = await _read(simulator, budgets, task, said, state)
        state, time_step, reply = simulator.step(pinned.knobs, pinned.rules, state, act, seed, number)
        if time_step.done and simulator.judge is not None and env.verdict is not None:
            state, time_step, ruled = await _ruled(simulator, budgets, pinned, state, time_step)
            judged = judged or ruled
        solved = bool(time_step.success)
        told |= int(time_step.disclosed)
        draft = env.render(task, act, time_step, state, reply_seed)
        spoken = Spoken(draft, "tool" if time_step.tool else "none", leaked=False)
        values: tuple[str, ...] = ()
        if not time_step.done and not time_step.tool:  # nobody reads the last reply, so nobody is asked to word it
            values = env.disclosed(task, int(time_step.disclosed), reply_seed)
            known += values
            words = Words(draft=spoken.text, disclosed=values, secrets=env.secrets(task, told, reply_seed), opening=opening,
                          agent_text=said, seed=reply_seed, group_seed=turn_seed(group, number), history=tuple(talk),
                          known=tuple(known))
            spoken = await _within(budgets.user_seconds, "the user", speak(user, pinned.knobs["user"], words))
            talk += [("agent", said), ("user", spoken.text)]
        turns.append(Turn(
            observation=observation, action=action, logprobs=np.asarray(completion.logprobs, np.float32),
            reward=float(time_step.reward), policy_version=completion.policy_version, spoke=spoken.spoke,
            act=_record(act, time_step, reply), agent_text=agent_text, reply_text=spoken.text,
            parse_failed=int(act.kind) == Kind.MALFORMED, leaked=spoken.leaked, judged=judged, told=values,
            unreadable=unreadable, ended=completion.stop))
        if time_step.done:
            end = chat.closing(action)
            return end[:budgets.max_tokens - len(history)], _reason(time_step), solved, state, ""
        observation = chat.reply(spoken.text, "tool" if spoken.spoke == "tool" else "user", action)
        if len(history) + len(observation) + budgets.min_new_tokens > budgets.max_tokens:
            # The whole observation, or none of it: a value is bootstrapped from the last token.
            fits = len(history) + len(observation) <= budgets.max_tokens
            return observation if fits else observation[:0], StopReason.MAX_TOKENS, solved, state, ""


async def _read(simulator: Simulator, budgets: Budgets, task: Task, said: str, state: Any) -> tuple[Act, bool, bool]:
    """The agent's message as an act; whether the judge decided it; whether its answer could not be read, so that `parse`'s
    act stands."""
    env, judge = simulator.env, simulator.judge
    act = await asyncio.to_thread(env.parse, task, said, state) if env.slow_parse else env.parse(task, said, state)
    question = env.question(task, said, state) if judge is not None and env.question is not None else None
    if question is None:
        return act, False, False
    answer = question.read(visible(await _within(budgets.user_seconds, "the judge", judge.complete(question.messages))))
    return (act, False, True) if answer is None else (answer, True, False)


async def _ruled(simulator: Simulator, budgets: Budgets, pinned: Pinned, state: Any,
                 time_step: TimeStep) -> tuple[Any, TimeStep, bool]:
    """The last state and time step by the judge's verdict, and whether it was asked for one.

    Raises:
      InfraError: when none of VERDICTS answers can be read: a score that is made of something else would not compare.
    """
    verdict = simulator.env.verdict(simulator.table, pinned.knobs["env"], state, time_step)
    if verdict is None or not verdict.messages:
        return *(verdict.read("") if verdict else (state, time_step)), False
    for _ in range(VERDICTS):
        said = visible(await _within(budgets.user_seconds, "the judge", simulator.judge.complete(verdict.messages)))
        found = verdict.read(said)
        if found is not None:
            return *found, True
    raise InfraError(f"the judge's verdict cannot be read, {VERDICTS} times; the last: {said[:200]!r}; take another model")


async def _within(seconds: float, who: str, call: Awaitable[Any]) -> Any:
    """The call's result; InfraError when it takes longer than `seconds`. What fails names who it was."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise InfraError(f"{who} did not answer within {seconds:g} s") from None
    except InfraError as error:
        raise type(error)(f"{who}: {error}") from error


def _checked(completion: Completion, room: int) -> np.ndarray:
    """The action's tokens, i32[a], 1 <= a <= room."""
    if completion.stop == "aborted":
        raise InfraError("the sampler was closed before it had answered")
    action = np.asarray(completion.tokens, np.int32)
    if not 1 <= len(action) <= room or len(completion.logprobs) != len(action):
        raise ValueError(f"the sampler returned {len(action)} tokens with {len(completion.logprobs)} log-probabilities"
                         f"; allowed: 1 to {room} tokens, as many log-probabilities")
    return action


def _reason(time_step: TimeStep) -> StopReason:
    """Why the environment ended the episode."""
    if not 1 <= int(time_step.stop) <= len(STOPS):
        raise ValueError(f"the environment is done with stop code {int(time_step.stop)}; allowed: 1 to {len(STOPS)}")
    return STOPS[int(time_step.stop) - 1]


def _record(act: Act, time_step: TimeStep, reply: Any) -> dict[str, Any]:
    """The act, the user's decision and the environment's answer as JSON values."""
    return {"kind": Kind(int(act.kind)).name, "code": int(act.code), "mask": int(act.mask),
            "values": [float(value) for value in act.values], "flags": int(act.flags),
            "reply": Reply(int(reply)).name, "response": int(time_step.code), "disclosed": int(time_step.disclosed)}


def _episode(simulator: Simulator, pinned: Pinned, task: Task, seed: int, turns: list[Turn], final: np.ndarray,
             stop: StopReason, success: bool, score: float, error: str) -> Episode:
    return Episode(task=task, seed=seed, turns=tuple(turns), final=final, stop=stop, score=score, success=success,
                   generation=pinned.generation, user=simulator.user.name, error=error)
