"""Whether a proposal may be tried: trusted code between what a proposer writes and a running training.

    parse -> generation -> scope -> knobs -> task_mix -> (python ->) rules -> timing -> invariants -> replay -> rewards
          -> steps, shares

Cheap checks come first and the first that fails ends it. What is not a knob, a rule of the symbolic user or a share of the
task mix cannot be named in a proposal at all: verifier, evaluation, hidden answers, parser, reference policy and the limits
here are out of its reach.
"""

import dataclasses
import math
from typing import Any, Mapping, NamedTuple, Sequence

from eau_jax.clients.executor import Executor
from eau_jax.core import knobs as knob
from eau_jax.core.knobs import KnobError
from eau_jax.core.types import InfraError
from eau_jax.meta import invariants, python_rules, replay_gate, trial, watch
from eau_jax.meta.evidence import made_up
from eau_jax.meta.invariants import Play
from eau_jax.meta.lanes import Lanes
from eau_jax.meta.proposal import MOST_CHANGES, MOST_RULES, Proposal, ProposalError, is_fixed, parse
from eau_jax.meta.python_code import PythonError
from eau_jax.meta.replay_gate import Settings
from eau_jax.meta.signals import DETECTORS
from eau_jax.meta.stage import Stage, verdict
from eau_jax.users.rules import RuleError, compile_rules, dump

EPSILON_MOST = 0.9       # share of replies that the symbolic user words: the policy shall always hear another one too
SIGNALS = frozenset(detector.name for detector in DETECTORS)
MIX_FLOOR = 0.02         # smallest share of a bucket of tasks
MIX_STEP = 0.15          # sum of the absolute changes of shares in one swap


class Limits(NamedTuple):
    """What the config of a run allows."""

    blast: float = replay_gate.BLAST   # share of recorded turns that one change may make different
    fixed: tuple[str, ...] = ()        # knobs, owners and lanes that no change may touch


@dataclasses.dataclass(frozen=True)
class Context:
    """What a proposal is held against. `current` and `first` are settings of the newest and of the first generation."""

    generation: int                    # number of the current one
    step: int                          # the update before which a change would take effect
    current: Settings
    first: Settings
    lanes: Lanes                       # over the run's training tasks
    play: Play                         # `invariants.player` over them
    metrics: frozenset[str]            # names that a prediction may be about: those in metrics.jsonl
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)   # {bucket: share}; {}: tasks have no buckets
    live: Mapping[str, str] = dataclasses.field(default_factory=dict)         # {owner: id of its proposal that is not over}
    cooldowns: Mapping[str, int] = dataclasses.field(default_factory=dict)    # as of `watch.cooldowns`
    lockouts: Mapping[str, int] = dataclasses.field(default_factory=dict)     # as of `watch.lockouts`
    swaps_left: int = 1
    episodes: Sequence[Mapping[str, Any]] = ()   # recent records of episodes/<step>.jsonl, each with its "step"
    rows: Sequence[Mapping[str, Any]] = ()       # of metrics.jsonl
    buckets: Mapping[str, str] = dataclasses.field(default_factory=dict)      # {task: its bucket}
    limits: Limits = Limits()
    python: Executor | None = None     # runs rules in Python, once, to read them; None: there are none in this run


@dataclasses.dataclass(frozen=True)
class Decision:
    """What became of a proposal's text. One that is refused holds nothing that could be adopted."""

    proposal: Proposal | None          # None: it could not be read
    stages: tuple[Stage, ...]
    knobs: Mapping[str, float] = dataclasses.field(default_factory=dict)     # {path: new value}, for `Generation.swapped`
    rules: str = ""                    # the new rules as TOML; "": they stay
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)  # {bucket: new share}; {}: as it is
    moves: tuple[str, ...] = ()        # as of `watch.moves`
    rewards_changed: bool = False      # it moves what rewards mean

    @property
    def accepted(self) -> bool:
        """It may be tried on canary episodes. What could not be told refuses nothing."""
        return all(stage.passed is not False for stage in self.stages)

    @property
    def reason(self) -> str:
        """Why it is refused; empty where it is accepted."""
        return "; ".join(f"{stage.name}: {stage.reason}" for stage in self.stages if stage.passed is False)

    def record(self) -> dict[str, Any]:
        """gate.json: JSON values."""
        return {"accepted": self.accepted, "reason": self.reason, "stages": [stage.record() for stage in self.stages],
                "moves": list(self.moves), "rewards_changed": self.rewards_changed}


def gate(text: str, context: Context, *, id: str, author: str) -> Decision:
    """Holds one proposal against the context. Nothing is changed, and nothing that a proposer writes makes it raise."""
    try:
        proposal = parse(text, id, author)
    except (ProposalError, ValueError, RecursionError) as error:
        return Decision(None, (Stage("parse", False, str(error)[:2000]),))
    stages = [Stage("parse", True)]
    good = _looks(proposal, context, stages, (_generation, _scope, _knobs, _task_mix))
    if good and proposal.python is not None:
        proposal, stage = _tabulated(proposal, context)
        stages.append(stage)
        good = stage.passed
    if not (good and _looks(proposal, context, stages, (_rules, _timing))):
        return Decision(proposal, tuple(stages))
    candidate = Settings(knob.patch(context.current.knobs, proposal.changes), proposal.rules or context.current.rules)
    stages += behaviour(candidate, context) + _on_trial(proposal, context)
    if any(stage.passed is False for stage in stages):
        return Decision(proposal, tuple(stages))
    return Decision(proposal, tuple(stages), proposal.changes, proposal.rules, proposal.task_mix, _moves(proposal, context),
                    bool(_paid(context, candidate)))


def _looks(proposal: Proposal, context: Context, stages: list[Stage], looks: Sequence[Any]) -> bool:
    """Adds a stage for each look, up to the first that fails; whether none does."""
    for look in looks:
        stages.append(look(proposal, context))
        if not stages[-1].passed:
            return False
    return True


def behaviour(candidate: Settings, context: Context) -> list[Stage]:
    """What scripted agents and recorded episodes say of other settings; nothing where no conversation depends on them."""
    old, new = (knob.values({"env": side.knobs["env"], "user": side.knobs["user"]}) for side in (context.current, candidate))
    if old == new and candidate.rules == context.current.rules:
        return []
    env, user = context.lanes.simulator.env, context.lanes.simulator.user
    own = Settings({**context.first.knobs, "env": env.knobs, "user": user.knobs}, env.rules)
    try:
        return _behaviour(candidate, own, context)
    except Exception as error:   # whatever the environment raises under settings that nobody has tried
        said = f"the environment fails under this change: {type(error).__name__}: {error}"
        return [Stage("invariants", False, said[:2000])]


def _on_trial(proposal: Proposal, context: Context) -> list[Stage]:
    """What records say of changes that no conversation depends on."""
    found = []
    if any(path.startswith("rl.") for path in proposal.changes):
        found.append(trial.steps(proposal.changes, knob.values(context.current.knobs), context.rows))
    if proposal.task_mix:
        found.append(trial.shares(context.task_mix, proposal.task_mix, context.buckets, context.episodes))
    return found


def _behaviour(candidate: Settings, own: Settings, context: Context) -> list[Stage]:
    stages = invariants.check(*(context.play(*side) for side in (candidate, context.first, context.current, own)))
    if not all(stage.passed for stage in stages):
        return stages
    records = replay_gate.replayable(context.lanes, context.episodes)
    before, after, home = (replay_gate.replay(context.lanes, side, records) for side in (context.current, candidate, own))
    stages.append(replay_gate.blast(before, after, home, context.limits.blast))
    if _paid(context, candidate):
        stages.append(replay_gate.rewards(before, after, [bool(record["success"]) for record in records]))
    return stages


def _generation(proposal: Proposal, context: Context) -> Stage:
    if proposal.base_generation == context.generation:
        return Stage("generation", True)
    return Stage("generation", False, f"it is made for generation {proposal.base_generation}, and the current one is "
                                      f"{context.generation}; look at the run as it is now and propose again")


def _scope(proposal: Proposal, context: Context) -> Stage:
    """One owner, few changes, a prediction that can be judged, evidence that is there."""
    count, prediction, complaints = proposal.count, proposal.prediction, []
    unknown = [path for path in proposal.changes if path.split(".")[0] not in knob.OWNERS]
    if unknown:
        complaints.append(f"{unknown[0]!r} is no knob of {', '.join(knob.OWNERS)}; everything else is fixed for a run")
    elif "+" in proposal.owner:
        complaints.append(f"it changes what {proposal.owner.replace('+', ' and ')} own; allowed: one owner, so that an "
                          f"effect has one cause")
    if count > MOST_CHANGES:
        complaints.append(f"it makes {count} changes; allowed: {MOST_CHANGES}, rules and task mix counted as one each")
    if prediction.metric not in context.metrics:
        complaints.append(f"prediction.metric {prediction.metric!r} is not in metrics.jsonl"
                          f"{knob.nearest(prediction.metric, context.metrics)}")
    if not prediction.min_effect > 0:
        complaints.append(f"prediction.min_effect is {prediction.min_effect:g}; it must be above 0")
    if prediction.within_updates > proposal.ttl_updates:
        complaints.append(f"prediction.within_updates is {prediction.within_updates}, but the change is judged after "
                          f"ttl_updates = {proposal.ttl_updates}; the first may not be larger")
    complaints += made_up(proposal.diagnosis.evidence, context.rows, SIGNALS)
    return verdict("scope", complaints)


def _knobs(proposal: Proposal, context: Context) -> Stage:
    """Known, within bounds and trust region or on the way back to the run's first values, and really other values."""
    tree = context.current.knobs
    try:
        after, before = knob.values(knob.patch(tree, proposal.changes)), knob.values(tree)
        complaints = knob.outside_trust(tree, proposal.changes, knob.values(context.first.knobs))
    except (KnobError, OverflowError) as error:
        return Stage("knobs", False, f"{error}. What is no knob is fixed for a run")
    for path in proposal.changes:
        if after[path] == before[path]:
            complaints.append(f"{path} is {before[path]:g} already, so this changes nothing")
        if path.startswith("user.") and path.endswith("epsilon") and after[path] > max(EPSILON_MOST, before[path]):
            complaints.append(f"{path}: {after[path]:g} would leave the policy with the symbolic user alone; allowed: up to "
                              f"{EPSILON_MOST:g}")
    return verdict("knobs", complaints)


def _task_mix(proposal: Proposal, context: Context) -> Stage:
    """Shares of all buckets, none forgotten, not far from the current ones."""
    new, old = proposal.task_mix, context.task_mix
    if not new:
        return Stage("task_mix", True)
    if not old:
        return Stage("task_mix", False, "this run's tasks have no buckets, so there is no mix to change")
    if new.keys() != old.keys():
        odd = sorted(new.keys() ^ old.keys())
        return Stage("task_mix", False, f"{', '.join(map(repr, odd))[:200]}: the mix names every bucket once; the buckets "
                                        f"are {', '.join(sorted(old))}")
    complaints = [f"{name} is {share:g}; allowed: {MIX_FLOOR:g} or more" for name, share in new.items() if share < MIX_FLOOR]
    total, moved = math.fsum(new.values()), math.fsum(abs(new[name] - old[name]) for name in old)
    if abs(total - 1) > 1e-6:
        complaints.append(f"the shares sum to {total:g}; they must sum to 1")
    if moved > MIX_STEP + 1e-6:
        complaints.append(f"shares move by {moved:g} in all; allowed in one swap: {MIX_STEP:g}")
    if moved < 1e-6:
        complaints.append("the mix is what it was, so this changes nothing")
    return verdict("task_mix", complaints)


def _tabulated(proposal: Proposal, context: Context) -> tuple[Proposal, Stage]:
    """The proposal with the decision list that its function comes to; from here on that is all there is of it."""
    if context.python is None:
        said = "this run takes no rules in Python (meta.python_rules is False); give them as a list in `rules`"
        return proposal, Stage("python", False, said)
    try:
        text = python_rules.compiled(proposal.python, context.lanes.simulator.env.features, context.python)
    except PythonError as error:
        return proposal, Stage("python", False, str(error)[:2000])
    except InfraError as error:
        return proposal, Stage("python", False, f"the machine failed, which says nothing about the function: {error}"[:2000])
    return dataclasses.replace(proposal, rules=text), Stage("python", True)


def _rules(proposal: Proposal, context: Context) -> Stage:
    """Rules that compile, are not too long, and decide otherwise than the current ones."""
    if not proposal.rules:
        return Stage("rules", True)
    features = context.lanes.simulator.env.features
    try:
        size = len(proposal.rules.encode())
        if size > MOST_RULES and proposal.python is None:
            return Stage("rules", False, f"the rules have {size} bytes; allowed: {MOST_RULES}")
        same = dump(compile_rules(proposal.rules, features), features) == dump(
            compile_rules(context.current.rules, features), features)
    except (RuleError, ValueError, RecursionError) as error:
        return Stage("rules", False, str(error)[:2000])
    return verdict("rules", ["the rules are what they were, so this changes nothing"] if same else [])


def _timing(proposal: Proposal, context: Context) -> Stage:
    """Budget, what stays as it is, one live change per owner, cool-downs and lock-outs."""
    complaints = []
    if context.swaps_left < 1:
        complaints.append("this run has used up its changes; no further one is allowed")
    if proposal.owner in context.live:
        complaints.append(f"a change of {proposal.owner} waits for the next run or is still under watch (proposal "
                          f"{context.live[proposal.owner]}); allowed: one at a time for each owner")
    for what in (*proposal.changes, *(["rules"] if proposal.rules else []), *(["task_mix"] if proposal.task_mix else [])):
        if is_fixed(what, context.limits.fixed):
            complaints.append(f"{what} stays as it is in this run (meta.fixed)")
        if context.step < context.cooldowns.get(what, 0):
            complaints.append(f"{what} was changed not long ago; allowed again from update {context.cooldowns[what]}, this "
                              f"is {context.step}")
    for move in _moves(proposal, context):
        if context.step < context.lockouts.get(move, 0):
            complaints.append(f"'{move}' was taken back twice; allowed again from update {context.lockouts[move]}, this is "
                              f"{context.step}")
    return verdict("timing", complaints)


def _moves(proposal: Proposal, context: Context) -> tuple[str, ...]:
    features, before = context.lanes.simulator.env.features, knob.values(context.current.knobs)
    rules = dump(compile_rules(proposal.rules, features), features) if proposal.rules else ""
    return watch.moves({path: (before[path], value) for path, value in proposal.changes.items()}, rules,
                       {name: (context.task_mix.get(name, share), share) for name, share in proposal.task_mix.items()
                        if context.task_mix.get(name) != share})


def _paid(context: Context, candidate: Settings) -> list[str]:
    """The knobs among the changes that move what rewards mean."""
    before, after = knob.values(context.current.knobs), knob.values(candidate.knobs)
    return [path for path, spec in knob.specs(candidate.knobs).items() if spec.reward and after[path] != before[path]]
