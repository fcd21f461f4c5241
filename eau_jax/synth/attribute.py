"""Attribute: whose fault it is that a conversation failed. Execution decides; the first that applies, in this order:

    infra     something outside the agent's control failed
    env       a gold step fails now
    checker   the gold plan does not pass now; or all that the user wanted was done, and the checker says no
    user      told what was never disclosed, made something up, left before what was agreed on was done, or kept to himself
              what he was asked for
    agent     policy, grounding, guess, over_action, recovery, missing_question, missing_write, unsaid, gave_up
    task      of several conversations: the oracle fails as well (`attribute_all`)

`last_hope` is the counterfactual: from which turn on even a perfect agent could not have succeeded.
"""

import collections
import re
from typing import Any, Iterable, NamedTuple, Sequence

from eau_jax.core.types import StopReason
from eau_jax.synth.domain import Case, Domain, Look, Param, State, Step, Wish, parts
from eau_jax.synth.ground import gold
from eau_jax.synth.record import Fault, Instance, Rollout, Scenario
from eau_jax.synth.search import Seen, note
from eau_jax.synth.user import hard

_TOKEN = re.compile(r"[#\w@.-]*\d[\w@-]*")
STOP = "###STOP###"


class Trace(NamedTuple):
    """A conversation, carried out again."""

    steps: tuple[Step, ...]
    turns: tuple[int, ...]             # turn of each step
    states: tuple[State, ...]          # before the first step, and after each
    failed: tuple[bool, ...]
    texts: tuple[str, ...]             # what each step returned
    said: tuple[str, ...]              # the agent's words


def attribute(domain: Domain, instance: Instance, scenario: Scenario, rollout: Rollout) -> Fault:
    """The fault of one conversation; side "none" where it succeeded."""
    if rollout.stop == StopReason.INFRA_ERROR.value:
        return Fault("infra", "infra", rollout.error)
    if rollout.success:
        return Fault("none", "none", "")
    case, wishes, plan = domain.case(instance.record), [Wish(**each) for each in instance.wishes], gold(instance)
    trace = traced(case, rollout)
    return (_gold_fault(case, wishes, plan) or _checker_fault(domain, case, wishes, plan, trace)
            or user_fault(scenario, rollout) or agent_fault(domain, case, wishes, plan, rollout, trace))


def traced(case: Case, rollout: Rollout) -> Trace:
    """Every call of a conversation, carried out again."""
    states, failed, texts, steps, places = [case.start], [], [], [], []
    for place, turn in enumerate(rollout.turns):
        if turn["call"] is not None:
            step = Step(*turn["call"])
            result = case.call(states[-1], step)
            states.append(result.state)
            failed.append(result.failed)
            texts.append(result.text)
            steps.append(step)
            places.append(place)
    said = tuple(turn["agent"] for turn in rollout.turns if turn["call"] is None)
    return Trace(tuple(steps), tuple(places), tuple(states), tuple(failed), tuple(texts), said)


def _gold_fault(case: Case, wishes: Sequence[Wish], plan: Sequence[Step]) -> Fault | None:
    state = case.start
    for step in plan:
        result = case.call(state, step)
        if result.failed:
            return Fault("env", "gold_fails", f"{step.tool}: {result.text}")
        state = result.state
    verdict = case.judge(state, plan, [each for wish in wishes for each in wish.tell])
    return None if verdict.solved else Fault("checker", "gold_rejected", "; ".join(verdict.evidence))


def _checker_fault(domain: Domain, case: Case, wishes: Sequence[Wish], plan: Sequence[Step], trace: Trace) -> Fault | None:
    """A false negative: everything that was wanted is done and said, by no more writes than the gold plan has, nothing else
    has changed, no rule was broken."""
    final = trace.states[-1]
    granted = all(case.value(final, tuple(place)) == value for wish in wishes for place, value in wish.goal)
    text = " ".join(trace.said).lower().replace(",", "")
    heard = all(each.lower() in text for wish in wishes for each in wish.tell)
    if not granted or not heard or case.judge(final, trace.steps, trace.said).solved:
        return None
    made = [step for step, failed in zip(trace.steps, trace.failed) if not failed]
    if _writes(domain, made) - _writes(domain, plan):
        return None
    wanted = {place for wish in wishes for place, _ in map(tuple, wish.goal) for place in [tuple(place)]}
    gold_changes = set(case.changes(case.start, _after(case, [Step(*step) for wish in wishes for step in wish.steps])))
    extra = set(case.changes(case.start, final)) - gold_changes - wanted
    if extra or _broken(domain, case, trace):
        return None
    differs = "; ".join(case.judge(final, trace.steps, trace.said).evidence)
    return Fault("checker", "false_negative", f"all wishes are granted; the checker finds: {differs}")


def _writes(domain: Domain, steps: Iterable[Step]) -> collections.Counter:
    """Tool -> how often it writes."""
    return collections.Counter(step.tool for step in steps if step.tool in domain.writes)


def _after(case: Case, steps: Iterable[Step]) -> State:
    state = case.start
    for step in steps:
        state = case.call(state, step).state
    return state


def user_fault(scenario: Scenario, rollout: Rollout) -> Fault | None:
    """What the user said that the rules had not disclosed or that nobody knows, or a stop that came too early. None for a
    task whose record does not hold its user: what a phone shows is no invention."""
    if "user" not in scenario.record:
        return None
    told_so_far, heard = set(), set()
    goals = scenario.record["user"]["goals"]
    secret = {value for goal in goals for part in goal["values"] for value in part}
    secret |= {fact[1] for fact in scenario.record["user"]["facts"].values()}
    known = set(_TOKEN.findall(" ".join(_texts(scenario.record["user_scenario"])).lower()))
    for place, turn in enumerate(rollout.turns):
        heard |= set(_TOKEN.findall(turn["agent"].lower()))
        if turn["by"] != "user":
            continue
        told_so_far |= set(turn["told"])
        rest = _without_told(turn["reply"], goals, told_so_far)
        early = next((value for value in sorted(secret) if hard(value) and value in rest and value not in told_so_far
                      and value.lower() not in heard), None)
        if early is not None:
            return Fault("user", "early_secret", f"told {early} before the rules disclosed it", place)
        made_up = set(_TOKEN.findall(turn["reply"].lower())) - known - heard - {value.lower() for value in told_so_far}
        if made_up:
            return Fault("user", "unsupported", f"said {', '.join(sorted(made_up))}, which nobody knows", place)
    last = rollout.turns[-1] if rollout.turns else None
    if last is not None and last["by"] == "user" and STOP in last["reply"]:
        agreed = _agreed(goals, rollout)
        if agreed:
            return Fault("user", "premature_stop", f"left before what was agreed on was done: {agreed}",
                         len(rollout.turns) - 1)
    return None


def _without_told(reply: str, goals: Sequence[Any], told_so_far: set[str]) -> str:
    """A reply without the sentences whose secrets have been disclosed: they may hold words that elsewhere are secret."""
    for goal in goals:
        for sentence, values in zip(goal["says"], goal["values"]):
            if sentence and set(values) <= told_so_far:
                reply = reply.replace(sentence, "")
    return reply


def _agreed(goals: Sequence[Any], rollout: Rollout) -> str:
    """The write that the agent proposed last and never made, where the user ended the talk right after agreeing to it."""
    if len(rollout.turns) < 2 or rollout.turns[-1]["call"] is not None:
        return ""
    before, last = rollout.turns[-2], rollout.turns[-1]
    if before["by"] != "user" or before["act"] != "confirm":
        return ""
    open_goals = [goal["tool"] for goal in goals if goal["tool"] and not any(
        turn["call"] and turn["call"][0] == goal["tool"] and turn["call"][1] == goal["arguments"] for turn in rollout.turns)]
    ends = re.search(r"\b(else|done|completed|cannot|can't|unable|not (possible|able|allowed))\b", last["agent"].lower())
    return open_goals[0] if open_goals and not ends else ""


def agent_fault(domain: Domain, case: Case, wishes: Sequence[Wish], plan: Sequence[Step], rollout: Rollout,
                trace: Trace) -> Fault:
    """What the agent did wrong first, compared with the gold plan."""
    turn = last_hope(case, wishes, plan, trace)
    broken = _broken(domain, case, trace)
    if broken:
        return Fault("agent", "policy", broken[1], trace.turns[broken[0]])
    wrong = _wrong_write(domain, case, plan, rollout, trace)
    if wrong is not None:
        return wrong
    missing = [step for step in plan if domain.actions[step.tool].kind == "write"
               and not any(made.key == step.key and not failed for made, failed in zip(trace.steps, trace.failed))]
    for step in missing:
        tried = [place for place, made in enumerate(trace.steps) if made.tool == step.tool and trace.failed[place]]
        if tried:
            return Fault("agent", "recovery",
                         f"{step.tool} failed ({trace.texts[tried[-1]][:100]}) and was not tried rightly",
                         trace.turns[tried[-1]])
    given = {value for line in rollout.turns for value in line["told"]}
    for step in missing:
        wish = next((wish for wish in wishes if any(Step(*each).key == step.key for each in wish.steps)), None)
        left = [value for _, _, value in wish.slots if hard(value) and value not in given] if wish else []
        if left:
            asked = _asked_in_vain(rollout)
            if asked is not None:
                return Fault("user", "withheld", f"was asked and did not tell {', '.join(left)}", asked)
            return Fault("agent", "missing_question", f"{', '.join(left)} was never asked for", turn)
    if missing:
        return Fault("agent", "missing_write", f"{missing[0].tool} was never made", turn)
    heard = " ".join(trace.said).lower().replace(",", "")
    unsaid = [each for wish in wishes for each in wish.tell if each.lower() not in heard]
    if unsaid:
        return Fault("agent", "unsaid", f"{', '.join(unsaid)} was never said", turn)
    return Fault("agent", "gave_up", f"the conversation ended with {rollout.stop}", len(rollout.turns) - 1)


def _wrong_write(domain: Domain, case: Case, plan: Sequence[Step], rollout: Rollout, trace: Trace) -> Fault | None:
    """The first write that succeeded and is not in the gold plan, or not so often."""
    wanted = {step.key: step for step in plan}
    seen: Seen = {}
    left = collections.Counter(step.key for step in plan)
    for place, step in enumerate(trace.steps):
        action = domain.actions.get(step.tool)
        if action is not None and action.kind == "write" and not trace.failed[place] and step.key not in wanted:
            meant = [each for each in plan if each.tool == step.tool]
            if not meant:
                return Fault("agent", "over_action", f"nobody wanted {step.tool}", trace.turns[place])
            wrong = [name for name, value in meant[0].arguments.items() if step.arguments.get(name) != value]
            heard = " ".join(turn["reply"] for turn in rollout.turns[:trace.turns[place]])
            known = all(_is_known(action.params[name], meant[0].arguments[name], seen, heard) for name in wrong
                        if name in action.params)
            label = "grounding" if known else "guess"
            return Fault("agent", label, f"{step.tool}: wrong {', '.join(wrong)}; the right value was "
                         f"{'known' if known else 'not known yet'}", trace.turns[place])
        if action is not None and not trace.failed[place]:
            note(domain, step, trace.texts[place], seen)
            left[step.key] -= 1
            if action.kind == "write" and left[step.key] < 0 and case.changes(trace.states[place], trace.states[place + 1]):
                return Fault("agent", "over_action", f"{step.tool} was made once more", trace.turns[place])
    return None


def _is_known(param: Param, value: Any, seen: Seen, heard: str) -> bool:
    """Whether a value has been shown, said, or need be neither."""
    return all(each.source == "const" or text in seen.get(each.type, ()) or text.lower() in heard.lower()
               for each, text in parts(param, value))


def _broken(domain: Domain, case: Case, trace: Trace) -> tuple[int, str] | None:
    """(place of the first step that breaks a rule and succeeded, which rule)."""
    seen: Seen = {}
    for place, step in enumerate(trace.steps):
        if step.tool not in domain.actions or trace.failed[place]:
            continue
        look = Look(case, trace.states[place], step, seen)
        rule = next((rule.id for rule in domain.rules if rule.breaks(look)), None)
        if rule is not None:
            return place, f"{step.tool} breaks the rule {rule!r}"
        note(domain, step, trace.texts[place], seen)
    return None


def _asked_in_vain(rollout: Rollout) -> int | None:
    """A turn in which the agent asked and the user kept it to himself, in whatever words."""
    return next((place for place, turn in enumerate(rollout.turns) if turn["by"] == "user" and "?" in turn["agent"]
                 and not turn["told"] and turn["act"] == "withhold"), None)


def last_hope(case: Case, wishes: Sequence[Wish], plan: Sequence[Step], trace: Trace) -> int:
    """The turn after which no gold step, in the plan's order and those made left out, leads to success any more; -1: to
    the end
    it could have."""
    said = [each for wish in wishes for each in wish.tell]
    for place in range(len(trace.steps) + 1):
        made = {step.key for step, failed in zip(trace.steps[:place], trace.failed) if not failed}
        state, rest = trace.states[place], [step for step in plan if step.key not in made]
        for step in rest:
            state = case.call(state, step).state
        if not case.judge(state, (*trace.steps[:place], *rest), said).solved:
            return trace.turns[place - 1] if place else 0
    return -1


def attribute_all(oracle: Sequence[Fault], others: Sequence[Fault]) -> Fault:
    """What several conversations about one task say together: whether the task is at fault, or hard.

    Args:
      oracle: of the oracle's conversations, successes as "none".
      others: of policies that may learn from it, infrastructure failures included.
    """
    counted = [fault for fault in others if fault.side != "infra"]
    blocked = [fault for fault in oracle if fault.side not in ("none", "infra")]
    if blocked and len(blocked) == sum(fault.side != "infra" for fault in oracle):
        return Fault("task", "oracle_fails", f"the oracle failed {len(blocked)} of {len(blocked)} times")
    users = [fault for fault in counted if fault.side == "user"]
    if len(users) * 2 > len(counted) > 0:
        return Fault("user", users[0].label, f"the user was at fault in {len(users)} of {len(counted)} conversations")
    if counted and all(fault.side != "none" for fault in counted):
        return Fault("agent", "deferred", f"hard: failed {len(counted)} of {len(counted)} times, and the oracle passes")
    return Fault("none", "none", "")


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return [value]
    return [text for item in value.values() for text in _texts(item)] if isinstance(value, dict) else []
