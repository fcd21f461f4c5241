"""The proposer without a model: each row of its table, what it may not touch, and that it leaves healthy runs alone."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_config
from series import healthy, rows

from eau_jax.algorithms.kl import k3
from eau_jax.config import Algorithm, knob_tree
from eau_jax.core import knobs as knob
from eau_jax.core.records import plain
from eau_jax.envs.colbench.colbench import Knobs as ColbenchKnobs
from eau_jax.envs.gyms.function import function
from eau_jax.envs.gyms.intention import intention
from eau_jax.meta import moves, rule_proposer, watch
from eau_jax.meta.attribution import TESTS, Experiment, Result, attribute
from eau_jax.meta.proposal import Diagnosis, parse
from eau_jax.meta.proposer import Budget, View
from eau_jax.meta.rule_proposer import propose, rules
from eau_jax.meta.scene import Move, Scene, homeward, tree
from eau_jax.meta.signals import FAULTS, detect
from eau_jax.meta.snapshot import schema
from eau_jax.meta.thresholds import DEFAULTS
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

CONFIG = dataclasses.replace(tiny_config.config(), user=mixture(symbolic, noisy), algorithm=Algorithm(kl=k3))
KNOBS = knob.patch(knob_tree(CONFIG), {"env.max_turns": 8})
RATE = "rl.policy_optimizer.learning_rate"
MIX = {"easy": 0.2, "middle": 0.5, "hard": 0.3}
GOOD = healthy(1)[:30]


def view(root, knobs=KNOBS, env=intention, seen=GOOD, fault="", confirmed=(), history=(), mix=None, current=None,
         report=None, first={}, cooldown=5):
    """A view folder as `snapshot.build` writes it."""
    root.mkdir(exist_ok=True)
    generation = seen[-1]["generation"] if seen else 0
    found = {"owner": FAULTS[fault or "none"], "fault": fault, "confidence": 0.9, "evidence": [], "tests": []}
    report = report or {"diagnosis": found, "signals": [], "results": {name: {"confirmed": True} for name in confirmed}}
    files = {"knobs/schema.json": schema(knobs), "knobs/current.json": {
        "generation": generation, "step": seen[-1]["step"] if seen else 0, "values": knob.values(knobs),
        "first": first, "cooldown": cooldown} | ({"task_mix": mix} if mix else {}), "diagnosis.json": report, "history.json": list(history),
        "rules/features.json": list(env.features)}
    texts = {"rules/current.toml": current or env.rules, "rules/own.toml": env.rules,
             "metrics.jsonl": "".join(json.dumps(plain(row)) + "\n" for row in seen)}
    for name, text in (texts | {name: json.dumps(plain(value)) for name, value in files.items()}).items():
        path = root / "view" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return View(root)


def change(batch, knobs=KNOBS):
    """The one proposal, read and checked as the gate does."""
    assert batch.status == "ok" and len(batch.texts) == 1, batch
    proposal = parse(batch.texts[0], "p1", rules.name)
    assert proposal.owner in knob.OWNERS and proposal.prediction.min_effect > 0
    assert proposal.prediction.within_updates <= proposal.ttl_updates
    assert knob.outside_trust(knobs, proposal.changes) == []
    assert all(value != knob.values(knobs)[path] for path, value in proposal.changes.items())
    return proposal


def swapped(**changes):
    return knob.patch(KNOBS, {path.replace("__", "."): value for path, value in changes.items()})


CRITIC = "rl.critic_optimizer.learning_rate"
SWINGING = rows(30, learn__critic_loss=lambda p: 0.2 + 0.1 * (-1) ** p, learn__explained_variance=-0.1)
ANCHOR = [row | {"anchor/success_rate": 0.4 + 0.01 * (-1) ** (row["step"] % 2)} for row in healthy(2, 45)]
# fault -> (what the view holds, what is proposed); a second view in which it can do nothing
ROWS = {
    "leaky_user": (dict(), {"user.second.leak": 0.0}, dict(knobs=swapped(user__epsilon=0.8, user__second__leak=0.0))),
    "early_disclosure": (dict(), {"user.second.drift": 0.0}, dict(knobs=swapped(env__disclose_cap=1, user__second__drift=0.0,
                                                                              user__epsilon=0.8))),
    "premature_stop": (dict(), {"user.second.leave": 0.0}, dict(knobs=swapped(user__second__leave=0.0, env__patience=64))),
    "stonewalling_user": (dict(), {"user.second.drift": 0.0}, dict(knobs=swapped(user__second__drift=0.0,
                                                                                 user__epsilon=0.8))),
    "invented_facts": (dict(), {"user.epsilon": 0.65}, dict(knobs=swapped(user__epsilon=0.9))),
    "persona_drift": (dict(), {"user.epsilon": 0.65}, dict(knobs=swapped(user__epsilon=0.9))),
    "too_few_turns": (dict(), {"env.max_turns": 10}, dict(knobs=swapped(env__max_turns=32))),
    "too_many_turns": (dict(knobs=swapped(env__max_turns=20)), {"env.max_turns": 16}, dict()),   # successes need 8 of the 8
    "stale_weights": (dict(), {RATE: 5e-4}, dict(knobs=swapped(**{RATE.replace(".", "__"): 0.0}))),
    "large_updates": (dict(), {RATE: 5e-4, "rl.policy_loss.clip_high": 0.23}, dict(knobs=swapped(**{
        RATE.replace(".", "__"): 0.0, "rl__policy_loss__clip_high": 0.1}))),
    "gradient_spikes": (dict(), {RATE: 7e-4}, dict(knobs=swapped(**{RATE.replace(".", "__"): 0.0}))),
    "entropy_collapse": (dict(), {"rl.entropy.coef": 1e-3, "rl.policy_loss.clip_high": 0.33}, dict(knobs=swapped(
        rl__entropy__coef=0.02, rl__policy_loss__clip_high=0.4))),
    "entropy_rise": (dict(knobs=swapped(rl__entropy__coef=0.004)), {"rl.entropy.coef": 0.002}, dict(knobs=swapped(
        **{RATE.replace(".", "__"): 0.0}))),
    "weak_critic": (dict(), {CRITIC: 1.5e-3}, dict(knobs=swapped(**{CRITIC.replace(".", "__"): 0.0}))),
    "all_hard": (dict(mix=MIX), MIX | {"easy": 0.275, "hard": 0.225},
                 dict(mix={"only": 1.0}, knobs=swapped(env__done_bonus=1.0))),
    "all_easy": (dict(mix=MIX), MIX | {"easy": 0.125, "hard": 0.375}, dict(mix={"easy": 0.02, "hard": 0.98})),
    "farmed_shaping": (dict(knobs=swapped(env__done_bonus=0.5)), {"env.done_bonus": 0.25}, dict()),
}
NOBODY = ("infra", "broken_checker_negative", "broken_checker_positive", "flaky_tool", "degenerate_output")


def test_every_fault_has_a_row_or_none():
    assert moves.ROWS.keys() == ROWS.keys() | {"none"} and set(NOBODY) | set(ROWS) == FAULTS.keys() - {"none"}


@pytest.mark.parametrize("fault", ROWS)
def test_each_row(tmp_path, fault):
    given, wanted, cannot = ROWS[fault]
    proposal = change(propose(view(tmp_path / "a", fault=fault, **given), Budget()), given.get("knobs", KNOBS))
    assert (proposal.task_mix or proposal.changes) == pytest.approx(wanted)
    assert proposal.diagnosis.fault == fault and proposal.base_generation == 0
    assert proposal.prediction.metric in GOOD[-1]                     # the gate knows no other
    assert propose(view(tmp_path / "b", fault=fault, **cannot), Budget()).status == "empty"
    assert propose(view(tmp_path / "c"), Budget()).status == "empty"  # without the fault


@pytest.mark.parametrize("fault", NOBODY)
def test_what_only_a_person_can_mend(tmp_path, fault):
    batch = propose(view(tmp_path, fault=fault, mix=MIX), Budget())
    assert batch.status == "empty" and batch.diagnosis.fault == fault and batch.agent["said"].startswith(fault)


@pytest.mark.parametrize("fault, current", [
    ("stonewalling_user", 'default = "WITHHOLD"'), ("early_disclosure", 'default = "VOLUNTEER"'),
    ("premature_stop", intention.rules + '\n[[rule]]\nwhen = { turn = { min = 2 } }\nreply = "LEAVE"\n')])
def test_bad_rules_go_back_to_the_environments_own(tmp_path, fault, current):
    proposal = change(propose(view(tmp_path / "a", fault=fault, current=current), Budget()))
    assert proposal.rules == intention.rules and proposal.owner == "user" and not proposal.changes
    compile_rules(proposal.rules, intention.features)
    same = "# other words\n" + intention.rules.replace('note = "patience is used up"', "")
    assert change(propose(view(tmp_path / "b", fault=fault, current=same), Budget())).rules == ""


def test_more_turns_where_they_were_shown_to_help(tmp_path):
    proposal = change(propose(view(tmp_path, fault="too_few_turns", confirmed=("more_turns",)), Budget()))
    assert proposal.changes == {"env.max_turns": 12}
    few = swapped(env__max_turns=2)
    assert change(propose(view(tmp_path, knobs=few, fault="too_few_turns"), Budget()), few).changes == {"env.max_turns": 4}


def test_a_step_towards_the_first_value_goes_all_the_way(tmp_path):
    """A learning rate twenty times as high as the run's first one goes back at once, and no further than to it."""
    fast = swapped(**{RATE.replace(".", "__"): 2e-2})
    seen = view(tmp_path / "a", knobs=fast, fault="large_updates", first=knob.values(KNOBS))
    proposal = parse(propose(seen, Budget()).texts[0], "p1", "rules")
    assert proposal.changes == {RATE: pytest.approx(1e-3), "rl.policy_loss.clip_high": 0.23}
    assert knob.outside_trust(fast, proposal.changes) and not knob.outside_trust(fast, proposal.changes, knob.values(KNOBS))
    slow = view(tmp_path / "b", fault="large_updates", first=knob.values(fast))   # it was higher at first: the usual step
    assert change(propose(slow, Budget())).changes[RATE] == 5e-4
    scene = Scene({}, {"user.epsilon": 0.8}, 0, 0, {}, (), Diagnosis("none", ""), frozenset(), "", "", (), {},
                  {"user.epsilon": 0.0})
    least = Move("m", "down", 0.1, 5, "", {"user.epsilon": 0.7})                  # where nothing is wrong, the usual step
    assert homeward(scene, least) == least
    assert homeward(scene._replace(diagnosis=Diagnosis("user", "leaky_user")), least).changes == {"user.epsilon": 0.0}
    near = swapped(**{RATE.replace(".", "__"): 1.2e-3})                           # half is below the first value: as usual
    proposal = change(propose(view(tmp_path / "c", knobs=near, fault="large_updates", first=knob.values(KNOBS)), Budget()), near)
    assert proposal.changes[RATE] == pytest.approx(6e-4)


def test_a_swinging_critic_learns_more_slowly(tmp_path):
    proposal = change(propose(view(tmp_path, fault="weak_critic", seen=SWINGING), Budget()))
    assert proposal.changes == {CRITIC: 5e-4}


def test_the_second_choice_of_a_row(tmp_path):
    knobs = swapped(user__second__leak=0.0)
    leaky = change(propose(view(tmp_path, knobs=knobs, fault="leaky_user"), Budget()), knobs)
    assert leaky.changes == {"user.epsilon": 0.65}
    knobs = swapped(user__second__leave=0.0)
    stays = change(propose(view(tmp_path, knobs=knobs, fault="premature_stop"), Budget()), knobs)
    assert stays.changes == {"env.patience": 8}
    assert change(propose(view(tmp_path, fault="entropy_rise"), Budget())).changes == {RATE: 7e-4}    # no bonus to lower
    penalty = knob.patch(KNOBS, {"env.weight_1": 0.9})
    farmed = change(propose(view(tmp_path, knobs=penalty, fault="farmed_shaping"), Budget()), penalty)
    assert farmed.changes == {"env.weight_1": pytest.approx(0.65)}     # back towards 0.4 by what one swap may
    both = knob.patch(KNOBS, {"env.done_bonus": 1.0, "env.weight_1": 0.6})
    began = {"env.done_bonus": 1.0, "env.weight_1": 0.4}                # the bonus is the run's own
    assert change(propose(view(tmp_path, knobs=both, fault="farmed_shaping", first=began), Budget()), both).changes == {
        "env.weight_1": pytest.approx(0.4)}


def test_only_knobs_of_this_run(tmp_path):
    alone = {**KNOBS, "user": symbolic.knobs, "env": function.knobs}
    for fault in FAULTS:
        batch = propose(view(tmp_path, knobs=alone, env=function, fault=fault), Budget())
        if batch.status == "ok":
            assert set(change(batch, alone).changes) <= set(knob.specs(alone))
    assert propose(view(tmp_path, knobs=alone, env=function, fault="leaky_user"), Budget()).status == "empty"   # no epsilon
    no_critic = {**KNOBS, "rl": {name: part for name, part in KNOBS["rl"].items() if not name.startswith("critic")}}
    assert propose(view(tmp_path, knobs=no_critic, fault="weak_critic"), Budget()).status == "empty"
    colbench = knob.patch({**KNOBS, "env": ColbenchKnobs()}, {"env.volunteer_after": 4, "env.info_bonus": 0.2,
                                                                        "user.second.drift": 0.0})
    waits = change(propose(view(tmp_path, knobs=colbench, fault="early_disclosure"), Budget()), colbench)
    assert waits.changes == {"env.volunteer_after": 8}
    assert change(propose(view(tmp_path, knobs=colbench, fault="farmed_shaping"), Budget()), colbench).changes == {
        "env.info_bonus": 0.0}


def test_the_tree_of_a_schema_is_the_runs_own():
    specs, values = knob.specs(KNOBS), knob.values(KNOBS)
    again = tree(specs, values)
    assert knob.specs(again) == specs and knob.values(again) == values
    wild = {"user.epsilon": 0.9, RATE: 3e-3, "env.max_turns": 40}
    assert knob.outside_trust(again, wild) == knob.outside_trust(KNOBS, wild) != []


def test_a_change_beyond_trust_is_not_proposed(tmp_path, monkeypatch):
    monkeypatch.setattr(moves, "times", lambda scene, path, factor, *bounds, **more: {path: scene.values[path] * 0.1})
    assert propose(view(tmp_path, fault="gradient_spikes"), Budget()).status == "empty"      # the mutant is held back


def past(status, step, ended, changes=None, owner="env", **more):
    return {"step": step, "owner": owner, "changes": changes or {"env.max_turns": [8, 10]}, "rules": "", "task_mix": {},
            "status": status, "ended": ended} | more


@pytest.mark.parametrize("history, allowed", [
    ((), True),
    ((past("deferred", 25, 25),), False),
    ((past("live", 25, 25),), False),                                           # one change of an owner at a time
    ((past("live", 25, 25, {RATE: [1e-3, 5e-4]}, owner="rl"),), True),          # others do not count
    ((past("kept", 26, 29),), False), ((past("kept", 25, 30),), True),          # five updates of rest, its own time counts
    ((past("rolled_back", 10, 22, {"env.ask_cap": [2, 1]}),), False),           # ten after a change that was taken back
    ((past("rolled_back", 10, 20, {"env.ask_cap": [2, 1]}),), True),
    ((past("rolled_back", 2, 4), past("rolled_back", 5, 8)), False),            # the same move twice: locked
    ((past("rolled_back", 2, 4, {"env.max_turns": [8, 6]}), past("rolled_back", 5, 8, {"env.max_turns": [8, 6]})), True),
    ((past("refused", 20, 20),), False), ((past("refused", 20, 20, {"env.max_turns": [8, 6]}),), True)])
def test_history(tmp_path, history, allowed):
    batch = propose(view(tmp_path, fault="too_few_turns", history=history), Budget())
    assert (batch.status == "ok") is allowed, batch


def test_an_owner_rests_for_the_runs_own_cooldown(tmp_path):
    kept = past("kept", 20, 30)
    for cooldown, allowed in ((10, True), (11, False), (0, True)):
        batch = propose(view(tmp_path, fault="too_few_turns", history=(kept,), cooldown=cooldown), Budget())
        assert (batch.status == "ok") is allowed, cooldown


def test_fresh_generations(tmp_path):
    bad = dict(fault="too_few_turns")
    assert propose(view(tmp_path, seen=GOOD[:4], **bad), Budget()).status == "empty"
    assert propose(view(tmp_path, seen=GOOD[:5], **bad), Budget()).status == "ok"
    young = [row | {"generation": int(row["step"] > 26)} for row in GOOD]
    assert propose(view(tmp_path, seen=young, **bad), Budget()).status == "empty"
    assert propose(view(tmp_path, seen=[], **bad), Budget()).status == "empty"


def test_users_of_equal_worth_are_mixed_again(tmp_path):
    knobs = swapped(user__epsilon=0.7)
    equal = [row | {"meta/user_gap": 0.01} for row in GOOD]
    assert change(propose(view(tmp_path, knobs=knobs, seen=equal), Budget()), knobs).changes == {"user.epsilon": 0.6}
    apart = [row | {"meta/user_gap": 0.01 if row["step"] != 29 else 0.06} for row in GOOD]
    assert propose(view(tmp_path, knobs=knobs, seen=apart), Budget()).status == "empty"
    assert propose(view(tmp_path, seen=equal), Budget()).status == "empty"       # already half


def test_what_was_tried_least_is_tried_where_nothing_moves(tmp_path):
    assert change(propose(view(tmp_path, seen=ANCHOR), Budget())).changes == {RATE: 1.25e-3}
    tried = past("kept", 5, 10, {RATE: [1e-3, 1.25e-3]}, owner="rl")
    assert change(propose(view(tmp_path, seen=ANCHOR, history=(tried,)), Budget())).changes == {"rl.entropy.coef": 1e-3}
    for quiet in (ANCHOR[:39], [row | {"anchor/success_rate": 0.01 * row["step"]} for row in ANCHOR],
                  [row | {"anchor/success_rate": 0.95} for row in ANCHOR]):
        assert propose(view(tmp_path, seen=quiet), Budget()).status == "empty"


def test_a_view_that_cannot_be_read_is_invalid(tmp_path):
    whole = view(tmp_path)
    for name in ("knobs/schema.json", "diagnosis.json", "history.json", "metrics.jsonl", "rules/own.toml"):
        kept = (whole.folder / name).read_text()
        (whole.folder / name).write_text("[1, {")
        if name not in ("metrics.jsonl", "rules/own.toml"):                       # a torn last line is left out; rules wait
            assert propose(whole, Budget()).status == "invalid", name
        (whole.folder / name).unlink()
        broken = propose(whole, Budget())
        assert broken.status == "invalid" and "cannot be read" in broken.problem
        (whole.folder / name).write_text(kept)
    assert propose(whole, Budget()).status == "empty"
    assert propose(View(tmp_path / "nowhere"), Budget()).status == "invalid"


def test_the_same_view_gives_the_same_proposal(tmp_path):
    seen = view(tmp_path, fault="large_updates")
    assert propose(seen, Budget()).texts == propose(seen, Budget()).texts


CLEAN = {test: Result(test, False, fault, 0.0, 0.1, 64, "clean") for test, fault in (
    (Experiment.GOLD_REPLAY, "broken_checker_negative"), (Experiment.IDLE_AGENT, "broken_checker_positive"),
    (Experiment.REPEAT, "flaky_tool"))}


def round_of(tmp_path, seen, results=CLEAN, **more):
    """Signals, attribution, view, proposal: what the trainer does between two updates."""
    signals = detect(seen, DEFAULTS)
    found = attribute(signals, results)
    return propose(view(tmp_path, seen=seen, report=plain(found.report(signals, results)), **more), Budget())


def test_runs_without_faults_are_left_alone(tmp_path):
    rounds = [(seed, user, end) for seed in range(15) for user in ("mixture", "symbolic") for end in (12, 25, 40)]
    moved = [(seed, end, batch.diagnosis.fault) for seed, user, end in rounds
             if (batch := round_of(tmp_path, healthy(seed, user=user)[:end])).status != "empty"]
    assert len(moved) <= 0.05 * len(rounds), moved                                # measured: none of 90


FAULTY = {   # fault -> columns of the last updates of an otherwise healthy run
    "leaky_user": {"meta/leaks": 0.1}, "early_disclosure": {"meta/unsolicited": 0.8},
    "premature_stop": {"meta/premature_stop": 0.2}, "stonewalling_user": {"meta/stonewalled": 0.4},
    "too_few_turns": {"meta/truncated": 0.8, "meta/truncated_progressing": 0.7},
    "stale_weights": {"learn/sampler_gap": 0.01}, "large_updates": {"learn/update_kl": 0.12},
    "gradient_spikes": {"learn/policy_grad_norm": 9.0}, "all_easy": {"meta/solved_groups": 0.9},
    "flaky_tool": {"meta/tool_differs": 0.05}, "broken_checker_negative": {"meta/near_miss": 0.3},
    "infra": {"rollout/infra_rate": 0.2}, "degenerate_output": {"meta/degenerate": 0.3}}


@pytest.mark.parametrize("fault", FAULTY)
def test_from_metrics_to_the_named_fault(tmp_path, fault):
    for seed in range(5):
        seen = [row | (FAULTY[fault] if row["step"] > 14 else {}) for row in healthy(seed)[:20]]
        results = {} if fault in TESTS else CLEAN
        batch = round_of(tmp_path, seen, results, mix=MIX)
        assert batch.diagnosis.fault == fault
        assert (batch.status == "ok") is (fault not in NOBODY)


@pytest.mark.parametrize("fault", [name for name in FAULTY if name in ROWS])
def test_a_stronger_fault_is_still_acted_on(tmp_path, fault):
    for strength in np.linspace(1.0, 2.0, 4):
        worse = {name: float(value * strength if value > 1 else min(value * strength, 1.0))
                 for name, value in FAULTY[fault].items()}
        seen = [row | (worse if row["step"] > 14 else {}) for row in healthy(7)[:20]]
        assert round_of(tmp_path, seen, mix=MIX).status == "ok", strength


def test_moves_are_named_as_the_gate_names_them():
    changes, mix = {"env.max_turns": [8, 10]}, {"hard": [0.3, 0.2]}
    found = rule_proposer.Past(1, "env", changes, "", mix, "kept", 2).moves
    assert found == watch.moves(changes, "", mix) == ("env.max_turns up", "task_mix hard down")
