"""What must hold under any knobs and rules, whatever the policy: scripted agents play training tasks under them.

    no leak         no reply of the user says a hidden value, and none is offered at once to agents that ask for nothing
    progress        the environment's expert solves what it solved before
    no free lunch   agents that do not try earn nothing, in score, success or return, and trying pays more
    stop sanity     the user does not leave an expert at work, nor anybody at the first readable message

Each is judged against what the same agents do under reference settings, on the same tasks with the same draws: the run's
first generation, the current one, and the environment's own defaults.
"""

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from eau_jax.core.part import Kind
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.ending import stop_reason
from eau_jax.meta.lanes import Lanes
from eau_jax.meta.leak import told
from eau_jax.meta.stage import Stage, verdict
from eau_jax.rollout.seeds import turn_seed
from eau_jax.users.rules import compile_rules

PROGRESS = 0.99      # share of the tasks which the expert solved before that it must still solve
FREE_SCORE = 0.02    # by how much the mean score, or the share of successes, of agents that do not try may rise
FREE_RETURN = 0.05   # the same of the mean return, as a share of the expert's
OFFERED = 0.3        # by how many the hidden values told at once to agents that ask for nothing may rise
MOST_TURNS = 256     # no episode is longer
KEPT = 8             # settings whose trials are kept

_ASKED = ("budget date time place size color style level length language format food music hotel transport guests purpose "
          "audience theme duration location genre reason name number price").split()
_TRANSFER = '<tool_call>{"name": "transfer_to_human_agents", "arguments": {"summary": "They need help."}}</tool_call>'
NULLS: Mapping[str, Callable[[Sequence[str], int], str]] = {   # ((system text, opening, replies so far), turn) -> message
    "silent": lambda seen, number: "",
    "stops": lambda seen, number: "[finish]",
    "continues": lambda seen, number: "[action] Please continue.",
    "asks for everything": lambda seen, number: f"[action] What about {', '.join(_ASKED)}? {seen[1]}",
    "transfers": lambda seen, number: "[action] You are being transferred. Please hold on." if number % 2 else _TRANSFER,
    "echoes": lambda seen, number: f"[answer] {seen[1]}" if number % 2 else f"[action] {seen[-1]}",
}
ASK_NOTHING = ("silent", "continues", "transfers")
AGENTS = ("expert", "novice", *NULLS)


class Trials(NamedTuple):
    """What every agent of AGENTS did on every task; arrays are [agents, tasks]."""

    score: np.ndarray      # f64, the environment's, 0..1
    success: np.ndarray    # bool
    total: np.ndarray      # f64, undiscounted return
    left: np.ndarray       # bool: the user left before the task was solved
    left_first: np.ndarray # bool: in reply to the first message, which could be read
    offered: np.ndarray    # f64: hidden values told in the first reply
    leaks: tuple[str, ...] # replies that say a hidden value, as sentences

    def mean(self, agent: str, what: str) -> float:
        """Of one array's row."""
        return float(getattr(self, what)[AGENTS.index(agent)].mean())


Play = Callable[[Any, str], Trials]   # (knob tree, rules as TOML) -> trials


def player(lanes: Lanes, seed: int) -> Play:
    """Plays AGENTS on as many of the simulator's tasks as there are lanes for. The latest settings' trials are kept.

    Raises, when called:
      RuleError: for rules that do not compile; RuntimeError: when an episode does not end.
    """
    env, tasks = lanes.simulator.env, lanes.simulator.tasks
    indices = range(min(len(tasks), lanes.size // len(AGENTS)))
    kept: dict[Any, Trials] = {}

    def play(knobs: Any, rules: str) -> Trials:
        name = (*(float(value) for value in _leaves(knobs)), rules)
        if name not in kept:
            kept[name] = _play(lanes, knobs, compile_rules(rules, env.features), list(indices), seed)
            if len(kept) > KEPT:
                kept.pop(next(iter(kept)))
        return kept[name]

    return play


def check(candidate: Trials, first: Trials, current: Trials, defaults: Trials) -> list[Stage]:
    """The four invariants of a candidate."""
    return [no_leak(candidate, (first, defaults)), progress(candidate, (first, current)),
            no_free_lunch(candidate, (first, defaults), current), stop_sanity(candidate, (first, current))]


def no_leak(candidate: Trials, references: Sequence[Trials]) -> Stage:
    """No hidden value in words, nor offered at once, beyond what the most open of the references offers.

    A value that the agent has read already, or that is part of one which is disclosed, is not hidden from it.
    """
    complaints = list(candidate.leaks[:3])
    for agent in ASK_NOTHING:
        offered = candidate.mean(agent, "offered")
        allowed = max(trial.mean(agent, "offered") for trial in references) + OFFERED
        if offered > allowed:
            complaints.append(f"the user tells {offered:.2f} hidden values in its first reply to an agent that asks for "
                              f"nothing ({agent}); allowed: {allowed:.2f}")
            break
    return verdict("no_leak", complaints, {"leaks": len(candidate.leaks)} | {
        f"offered to: {agent}": candidate.mean(agent, "offered") for agent in ASK_NOTHING})


def progress(candidate: Trials, references: Sequence[Trials]) -> Stage:
    """The expert solves PROGRESS of what it solves under each reference, task by task."""
    complaints, expert = [], AGENTS.index("expert")
    for reference in references:
        solved = reference.success[expert]
        still = int((candidate.success[expert] & solved).sum())
        if still < PROGRESS * solved.sum():
            complaints.append(f"the environment's expert solves {still} of the {int(solved.sum())} tasks that it solved "
                              f"before; needed: {PROGRESS:.0%}. The user stonewalls or leaves, or the episode is too short")
            break
    return verdict("progress", complaints, {"expert_success": candidate.mean("expert", "success")})


def no_free_lunch(candidate: Trials, references: Sequence[Trials], current: Trials) -> Stage:
    """Agents that do not try get no more than under the more generous reference, and less than the expert; or less than they
    get now, where that is more than they should: a fault may be mended in steps."""
    complaints: list[str] = []
    scale = max(abs(trial.mean("expert", "total")) for trial in references)
    for agent in NULLS:
        for what, word, room in (("score", "score", FREE_SCORE), ("success", "success", FREE_SCORE),
                                 ("total", "return", FREE_RETURN * scale)):
            got = candidate.mean(agent, what)
            allowed = max(0.0, *(trial.mean(agent, what) for trial in references)) + room
            if got > allowed and got >= current.mean(agent, what):
                complaints.append(f"an agent that does not try ({agent}) gets a mean {word} of {got:.3f}; allowed: "
                                  f"{allowed:.3f}")
    best = lambda trial: max(trial.mean(agent, "total") for agent in NULLS)
    margin = lambda trial: trial.mean("expert", "total") - best(trial)
    if margin(candidate) <= 0 and margin(candidate) <= margin(current) and all(margin(trial) > 0 for trial in references):
        complaints.append(f"not trying pays: the expert's mean return is {candidate.mean('expert', 'total'):.3f}, the best "
                          f"agent's that does not try {best(candidate):.3f}")
    return verdict("no_free_lunch", complaints[:3], {"expert_return": candidate.mean("expert", "total"),
                                                     "best_null_return": best(candidate)})


def stop_sanity(candidate: Trials, references: Sequence[Trials]) -> Stage:
    """The user leaves nobody whom it stays with under every reference: the expert anywhere, others at their first message.

    The expert's confirmations and writes are among its turns, so a user that leaves between the two is seen.
    """
    expert = AGENTS.index("expert")
    mid = candidate.left[expert] & ~np.any([trial.left[expert] for trial in references], axis=0)
    early = candidate.left_first & ~np.any([trial.left_first for trial in references], axis=0)
    complaints = []
    if mid.any():
        complaints.append(f"the user leaves the environment's expert at work in {int(mid.sum())} of {mid.size} tasks; "
                          f"allowed: none")
    if early.any():
        complaints.append(f"the user leaves at the first message in {int(early.sum())} of {early.size} episodes; "
                          f"allowed: none")
    return verdict("stop_sanity", complaints, {"left_expert": int(mid.sum()), "left_first": int(early.sum())})


class _Seat(NamedTuple):
    """Who plays which task in a lane."""

    agent: int
    place: int
    task: Task
    seed: int
    seen: list[str]
    random: np.random.Generator


def _play(lanes: Lanes, knobs: Any, rules: Any, indices: list[int], seed: int) -> Trials:
    env, tasks = lanes.simulator.env, lanes.simulator.tasks
    seats = [_Seat(a, p, tasks[index], turn_seed(seed, index), list(env.prompt(tasks[index])),
                   np.random.default_rng((seed, a, index)))
             for a in range(len(AGENTS)) for p, index in enumerate(indices)]
    seeds = [seat.seed for seat in seats]
    states = lanes.begin(knobs, [indices[seat.place] for seat in seats], seeds)
    kinds = (float, bool, float, bool, bool, float)
    out = Trials(*(np.zeros((len(AGENTS), len(indices)), kind) for kind in kinds), leaks=())
    known, leaks, live = [0] * len(seats), [], list(range(len(seats)))
    for turn in range(MOST_TURNS):
        said = {lane: _say(env, seats[lane], states[lane], turn) for lane in live}
        acts = {lane: env.parse(seats[lane].task, said[lane], states[lane]) for lane in live}
        for lane, moved in lanes.step(knobs, rules, states, acts, seeds, turn).items():
            states[lane], seat, act = moved.state, seats[lane], acts[lane]
            cell, step, words = (seat.agent, seat.place), moved.time_step, turn_seed(seat.seed, turn)
            before = env.secrets(seat.task, known[lane], words)
            known[lane] |= int(step.disclosed)
            hidden = env.secrets(seat.task, known[lane], words)
            reply = env.render(seat.task, act, step, moved.state, words)
            if not (step.done or step.tool) and (found := told(reply, hidden)):
                public = told("\n".join([*seat.seen, *env.disclosed(seat.task, int(step.disclosed), words)]), found)
                leaks += [f"a reply says the hidden value {value!r}: {reply[:120]!r}"
                          for value in found if value not in public]
            seat.seen.append(reply)
            out.total[cell] += step.reward
            out.success[cell] |= bool(step.success)
            if step.done:
                left = stop_reason(step.stop) is StopReason.USER_LEFT and not out.success[cell]
                out.left[cell], out.left_first[cell] = left, left and turn == 0 and int(act.kind) != Kind.MALFORMED
                out.score[cell] = env.score(seat.task, moved.state, out.total[cell])
            if turn == 0:
                out.offered[cell] = len(before) - len(hidden)
        live = [lane for lane in live if not states[lane].done]
        if not live:
            return out._replace(leaks=tuple(leaks))
    raise RuntimeError(f"an episode of {env.name} does not end within {MOST_TURNS} messages")


def _say(env: Any, seat: _Seat, state: Any, turn: int) -> str:
    name = AGENTS[seat.agent]
    if name in NULLS:
        return NULLS[name](seat.seen, turn)
    return (env.expert if name == "expert" else env.novice)(seat.task, state, seat.random)


def _leaves(knobs: Any) -> list[Any]:
    return jax.tree.leaves({"env": knobs["env"], "user": knobs["user"]})
