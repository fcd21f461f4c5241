"""Causal tests: what happens to the same tasks, with the same draws, when one thing is different.

Each test is a function of `play`, which plays episodes and returns their records; `player` makes one of a run's parts. A
test with more than 40 % of its episodes lost outside the agent's control finds nothing (`Result.confirmed` is None).
"""

import dataclasses
import json
import math
from typing import Any, Callable, Collection, Mapping, Sequence

import numpy as np

from eau_jax.core import knobs as knob
from eau_jax.core.part import Env, User
from eau_jax.core.records import plain
from eau_jax.core.types import Task
from eau_jax.meta.attribution import Attribution, Experiment, Result, attribute
from eau_jax.meta.measure import Record, measure, progressing
from eau_jax.meta.signals import Signal
from eau_jax.rollout.agent import Agent, demonstrator
from eau_jax.rollout.collect import collect, run, to_record
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.rollout.template import Chat
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

COVERAGE = 0.6       # share of usable episodes that a test needs
SCRIPTED = 64        # episodes of a test in which no model plays, unless told
SWAPPED = 128        # of each arm of SYMBOLIC_USER
LENGTHENED = 64      # episodes of MORE_TURNS
ROOM = 4.0           # times as many turns as now, for the environment's script
FEW = 4              # turns that MORE_TURNS adds at least
MOST_TOKENS = 1_000_000   # of a scripted episode
TURNS = "env.max_turns"
FEW_BAD = 0.1             # share of the tested tasks up to which it is the tasks that are broken, not checker or tools


@dataclasses.dataclass(frozen=True)
class Trial:
    """What is to be played. Two trials of one seed play the same tasks with the same draws."""

    agent: str            # "policy" | "expert" (the environment's script) | "idle" (answers 0, then ends)
    episodes: int             # about as many
    seed: int
    own_user: bool = False    # the symbolic user under the environment's own rules, in place of the user in force
    turns: float = 1.0        # times the limit of turns in force, rounded up, within its bounds
    more: int = 0             # turns added to it at least
    group: int = 1            # episodes of a task at least; more where there are too few tasks


Play = Callable[[Trial], Sequence[Record]]   # records as of `rollout.collect.to_record`, infrastructure errors among them


def gold_replay(play: Play, limits: Mapping[str, float], seed: int = 0, scripted: int = SCRIPTED) -> Result:
    """The environment's script must solve every task, with the user out of the way and turns to spare."""
    records, enough = _usable(play(Trial("expert", scripted, seed, own_user=True, turns=ROOM)))
    value = _mean(record["success"] for record in records)
    failed = tuple(sorted({record["task"] for record in records if not record["success"]}))
    few = _few(failed, records)
    return _result(Experiment.GOLD_REPLAY, value < limits["gold_success"] and not few, "broken_checker_negative", value,
                   limits["gold_success"], records, enough, "the environment's own script succeeds in a share of {0:.3f}; "
                   "needed: {1:g}, or failures in few tasks", failed, few)


def idle_agent(play: Play, limits: Mapping[str, float], seed: int = 0, scripted: int = SCRIPTED) -> Result:
    """An agent that does nothing must not succeed."""
    records, enough = _usable(play(Trial("idle", scripted, seed, own_user=True)))
    value = _mean(record["success"] for record in records)
    won = tuple(sorted({record["task"] for record in records if record["success"]}))
    return _result(Experiment.IDLE_AGENT, value > limits["idle_success"], "broken_checker_positive", value,
                   limits["idle_success"], records, enough, "an agent that does nothing succeeds in a share of {0:.3f}; "
                   "allowed: {1:g}", won)


def repeat(play: Play, limits: Mapping[str, float], seed: int = 0, scripted: int = SCRIPTED) -> Result:
    """The same episodes twice, and several of each task. What follows from the same conversation must be the same: where it
    is not, it is the checker if rewards or success differ, and a tool if replies do."""
    trial = Trial("expert", scripted, seed, own_user=True, group=4)
    first, enough = _usable(play(trial))
    second, again = _usable(play(trial))
    pairs = _pairs(first, second)
    tools = sorted({a["task"] for a, b in pairs if _talk(a) != _talk(b)})
    checks = sorted({a["task"] for a, b in pairs if _talk(a) == _talk(b) and _earned(a) != _earned(b)})
    shares = measure(first, trial.seed)
    tool = max(_mean(a["task"] in tools for a, _ in pairs), _known(shares["meta/tool_differs"]))
    checker = max(_mean(a["task"] in checks for a, _ in pairs), _known(shares["meta/outcome_differs"]))
    value, limit = max(tool, checker), limits["repeat_differs"]
    fault = "flaky_tool" if tool >= checker else "broken_checker_negative"
    bad = tuple(sorted({*tools, *checks}))
    few = _few(bad, first)
    return _result(Experiment.REPEAT, value > limit and not (few and fault != "flaky_tool"), fault, value, limit, first,
                   enough and again, "of what was the same so far a share of {0:.3f} goes on differently; allowed: {1:g} "
                   f"(replies {tool:.3f}, rewards and success {checker:.3f})", bad, few)


def _few(bad: Sequence[str], records: Sequence[Record]) -> bool:
    """Whether some of the tested tasks are bad, but so few that nothing is wrong with what all of them share."""
    return 0 < len(bad) <= FEW_BAD * len({record["task"] for record in records})


def symbolic_user(play: Play, limits: Mapping[str, float], seed: int = 0) -> Result:
    """The policy on the same tasks with the user in force and with the environment's own rules and words.

    The change is that of success or of score, whichever is larger: a user who keeps the agent from anything may leave no
    success to lose.
    """
    arms = [_usable(play(Trial("policy", SWAPPED, seed, own_user=own))) for own in (False, True)]
    (now, enough), (own, again) = arms
    changes = [_mean(record[what] for record in own) - _mean(record[what] for record in now)
               for what in ("success", "score")]
    value = max(changes, key=abs)
    fault = "stonewalling_user" if value > 0 else "leaky_user"
    said = (f"with the environment's own user success changes by {changes[0]:+.3f} and score by {changes[1]:+.3f}; "
            "a change of {1:g} shows that the user " + ("hinders" if value > 0 else "helps"))
    return _result(Experiment.SYMBOLIC_USER, abs(value) > limits["symbolic_change"], fault, value, limits["symbolic_change"],
                   now, enough and again, said)


def more_turns(play: Play, limits: Mapping[str, float], seed: int = 0) -> Result:
    """What becomes of episodes that the limit of turns cut while they were progressing, with half as many turns again; and
    of all that it cut, progressing or not, by the success that is gained.

    Both arms have the same draws, so the longer one begins with the very turns of the shorter.
    """
    short, enough = _usable(play(Trial("policy", LENGTHENED, seed)))
    long, again = _usable(play(Trial("policy", LENGTHENED, seed, turns=1.5, more=FEW)))
    pairs = _pairs(short, long)
    cut = [(a, b) for a, b in pairs if a["stop"] == "max_turns" and progressing(a)]
    value = _mean(b["success"] for _, b in cut) if len(cut) >= 5 else 0.0
    gain = _known(_mean(b["success"] and a["stop"] == "max_turns" for a, b in pairs))
    few = (value >= limits["more_turns"] and len(cut) >= 5) or gain > limits["turns_gain"]
    return _result(Experiment.MORE_TURNS, few, "too_few_turns", value, limits["more_turns"], short, enough and again,
                   f"of {len(cut)} episodes that were cut while progressing a share of {{0:.3f}} succeeds with half as many "
                   f"turns again; needed: {{1:g}}, or {limits['turns_gain']:g} of all episodes, of which {gain:.3f} do")


BY_SCRIPT: Mapping[Experiment, Callable[..., Result]] = {   # under the environment's own user: whatever the run's one is
    Experiment.GOLD_REPLAY: gold_replay, Experiment.IDLE_AGENT: idle_agent, Experiment.REPEAT: repeat}
BY_POLICY: Mapping[Experiment, Callable[..., Result]] = {
    Experiment.SYMBOLIC_USER: symbolic_user, Experiment.MORE_TURNS: more_turns}


def investigate(signals: Sequence[Signal], results: Mapping[Experiment, Result], play: Play, limits: Mapping[str, float],
                seed: int = 0, without: Collection[Experiment] = (),
                scripted: int = SCRIPTED) -> tuple[Attribution, dict[Experiment, Result]]:
    """Runs what the attribution asks for until it asks for nothing. Returns it, and all results.

    Args:
      scripted: episodes of a test in which no model plays.
    """
    results = dict(results)
    while (found := attribute(signals, results, without)).test is not None:
        test = found.test
        results[test] = (BY_SCRIPT[test](play, limits, seed, scripted) if test in BY_SCRIPT else
                         BY_POLICY[test](play, limits, seed))
    return found, results


def player(env: Env, user: User, tasks: Sequence[Task], chat: Chat, budgets: Budgets, policy: Agent,
           run_seed: int) -> Callable[..., Play]:
    """A `Play` for whatever knobs and rules are in force, and without some rows of the tasks. Its simulators are compiled at
    their first episode, once.

    Args:
      user: in force; it has the "user" branch of the knobs.
      tasks: of the training split; `rollout.collect` refuses others.
      budgets: of the policy's episodes; scripts may talk as long as they like.
      policy: with the weights that are in question.
    """
    current, own = simulator(env, user, tuple(tasks)), simulator(env, symbolic, tuple(tasks))
    agents = {"policy": policy, "expert": demonstrator(env.expert, chat), "idle": demonstrator(_idle, chat)}
    roomy = dataclasses.replace(budgets, max_tokens=MOST_TOKENS, max_new_tokens=MOST_TOKENS)

    def under(pinned: Pinned, without: Collection[int] = ()) -> Play:
        chosen = [row for row in range(len(tasks)) if row not in without]

        def play(trial: Trial) -> list[dict[str, Any]]:
            tree, rules = pinned.knobs, pinned.rules
            spec = knob.specs(tree).get(TURNS)
            if spec is not None:
                now = int(knob.get(tree, TURNS))
                tree = knob.patch(tree, {TURNS: int(min(max(math.ceil(now * trial.turns), now + trial.more), spec.high))})
            if trial.own_user:
                tree, rules = {**tree, "user": symbolic.knobs}, compile_rules(env.rules, env.features)
            rows = np.random.default_rng(trial.seed).permutation(chosen)[:max(trial.episodes // trial.group, 1)]
            groups, _ = run(collect(own if trial.own_user else current, agents[trial.agent], chat,
                                    Pinned(tree, rules, pinned.generation), budgets if trial.agent == "policy" else roomy,
                                    indices=rows.tolist(), group_size=max(trial.episodes // len(rows), trial.group),
                                    run_seed=run_seed, step=trial.seed))
            return json.loads(json.dumps([plain(to_record(episode)) for group in groups for episode in group]))
        return play
    return under


def _idle(task: Task, state: Any, rng: np.random.Generator) -> str:
    return "[answer] 0" if int(getattr(state, "turn", 0)) == 0 else "[finish]"


def _usable(records: Sequence[Record]) -> tuple[list[Record], bool]:
    """Usable episodes, and whether they are enough."""
    usable = [record for record in records if record["stop"] != "infra_error"]
    return usable, bool(usable) and len(usable) >= COVERAGE * len(records)


def _pairs(first: Sequence[Record], second: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Records of the same task and seed."""
    name = lambda record: (record["task"], record["seed"])
    others = {name(record): record for record in second}
    return [(record, others[name(record)]) for record in first if name(record) in others]


def _talk(record: Record) -> list[Any]:
    return [(turn["agent"], turn["reply"], turn["act"]) for turn in record["turns"]]


def _earned(record: Record) -> tuple[Any, ...]:
    return (record["success"], record["score"], record["stop"], [turn["reward"] for turn in record["turns"]])


def _result(experiment: Experiment, confirmed: bool, fault: str, value: float, limit: float, records: Sequence[Record],
            enough: bool, said: str, tasks: tuple[str, ...] = (), few: bool = False) -> Result:
    words = said.format(value, limit) if enough else "too many episodes failed outside the agent's control to tell"
    return Result(experiment, bool(confirmed) if enough else None, fault, value, limit, len(records),
                  f"{experiment.value}: {words}", tasks if confirmed or few else (), few and enough)


def _known(value: float) -> float:
    """0 for nan."""
    return 0.0 if math.isnan(value) else value


def _mean(values: Any) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else math.nan
