"""Co-evolution on the smallest run: changes from a script are gated, tried, adopted, watched, kept and taken back; killed at
any moment the run goes on as it was; and where nothing is changed nothing else is different."""

import hashlib
import json
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from test_train import launch

from eau_jax import assemble, coevolve, start, train
from eau_jax.algorithms import shaping
from eau_jax.config import Checkpoint, ConfigError, Meta, Swap
from eau_jax.config_file import replace
from eau_jax.core.knobs import knob
from eau_jax.core.records import read_lines
from eau_jax.core.sharding import make_mesh
from eau_jax.envs.gyms import function_tasks, intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.learner.checkpoint import find_step, load_params
from eau_jax.meta import audit
from eau_jax.meta.attribution import Experiment
from eau_jax.meta.proposal import Batch, Diagnosis, Evidence
from eau_jax.meta.proposer import Proposer
from eau_jax.meta.rule_proposer import rules
from eau_jax.users.noisy import noisy
from tiny_config import config as tiny

STEPS = 19
CHANGES = {"learn.steps": STEPS, "learn.critic_warmup": 0, "rollout.tasks": 4, "sft.steps": 0,
           "sft.episodes": 512, "sft.batch": 32}
META = dict(every=2, burn_in=2, ttl_least=2, cooldown=0, canary_tasks=4, anchor_tasks=3, anchor_every=4, causal_tests=False)
KNOBS = {**tiny().knobs, "env.max_turns": 2, "user.leak": 0.0}
MIX = {"details_3": 0.3, "details_4": 0.375, "details_5": 0.325}
LEAK = 0.08   # the canary of update 13 draws nothing below it, the batch of update 14 does
PENALTY = {"env.invalid_penalty": 0.25}
ONE_MORE = '\n[[rule]]\nwhen = { vague = 1 }\nreply = "WITHHOLD"\n'   # that never decides, behind the environment's own


def text(generation, owner, metric="rollout/turns_mean", direction="up", ttl=2, **what):
    """A proposal as its author would write it."""
    return json.dumps({"base_generation": generation, "diagnosis": {"owner": owner, "fault": "too_few_turns"},
                       "prediction": {"metric": metric, "direction": direction, "min_effect": 0.05, "within_updates": ttl},
                       "ttl_updates": ttl, "why": "A script says so."} | what)


STORY = {   # updates done -> texts, given the number of the generation
    2: lambda now: [text(now, "env", changes={"env.max_turns": 99}),
                    text(now, "env", "rollout/return_mean", "down", changes=PENALTY), "unread"],
    4: lambda now: [text(now, "env", changes={"env.max_turns": 6})],
    6: lambda now: [text(now, "user", changes={"user.leak": 0.25})],   # no scripted agent of the gate hears words
    8: lambda now: [text(now, "user", "rollout/leak_rate", changes={"user.leak": 1e-6})],
    12: lambda now: ["This is prose.", text(now, "user", "rollout/leak_rate", "up", 3, changes={"user.leak": LEAK})],
    16: lambda now: [text(now, "env", task_mix=MIX)],
}


def script(view, budget):
    now = view.json("knobs/current.json")
    if now["step"] not in STORY:
        return Batch("empty")
    return Batch("ok", tuple(STORY[now["step"]](now["generation"])))


def parts(proposer=Proposer("script", script, at_once=True), meta=META, **more):
    bucketed = replace(tiny().tasks, {"bucket": intention_tasks.bucket}) if proposer else tiny().tasks
    return {"swaps": (), "user": noisy, "knobs": KNOBS, "meta": Meta(proposer=proposer, **meta) if proposer else Meta(),
            "tasks": bucketed, "checkpoint": Checkpoint(every=1, keep=1)} | more


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


def quickly(factory, *arguments, **more):
    with pytest.MonkeyPatch.context() as patch:
        first = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: first)
        return launch(factory.mktemp("runs"), *arguments, **more)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return quickly(tmp_path_factory, CHANGES, parts=parts())


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory):
    """Without a meta-agent."""
    return quickly(tmp_path_factory, {**CHANGES, "learn.steps": 6}, parts=parts(None))


def record(run, name):
    return json.loads((run / name).read_text())


def lines(run, name="metrics.jsonl"):
    return list(read_lines(run / name))


def files(run):
    """Every record of a run but its times, and the hash of its last weights."""
    kinds = ("metrics.jsonl", "audit.jsonl", "episodes/*", "knobs/*", "rules/*", "proposals/*/*", "rounds/*")
    found = {str(file.relative_to(run)): file.read_text() for kind in kinds for file in sorted(run.glob(kind))}
    return found | {"weights": weights(run)}


def weights(run):
    model, _ = start.load(replace(tiny(), {"mesh.data": 1}), run / "model")
    folder = run / "checkpoints"
    params = load_params(folder, find_step(folder, "latest"), model, make_mesh(devices=jax.devices()))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()


# --- a change's way -------------------------------------------------------------------------------------------------------

def test_an_accepted_change_is_tried_adopted_watched_and_kept(story):
    assert record(story, "proposals/3-2/gate.json")["accepted"]
    tried = record(story, "proposals/3-2/canary.json")
    assert (tried["step"], tried["passed"], tried["numbers"]["tasks"]) == (3, True, 4)
    assert [line["generation"] for line in lines(story)[:5]] == [0, 0, 0, 1, 1]     # adopted at the next boundary
    journal = record(story, "knobs/1.json")
    assert journal["step"] == 4 and journal["changes"] == {"env.invalid_penalty": [0, 0.25]}
    verdict = record(story, "proposals/3-2/verdict.json")
    assert (verdict["step"], verdict["status"], verdict["result"]) == (6, "kept", "helpful")
    assert [line.get("learn/critic_refit") for line in lines(story)[2:7]] == [None, 1, 1, 0, 0], "rewards changed"
    assert not (story / "proposals/3-3").exists(), "nothing is read after the first that is accepted"


def test_a_refused_change_is_recorded_with_its_reason(story):
    assert "99 is out of range" in record(story, "proposals/3-1/gate.json")["reason"]
    assert "under watch (proposal 3-2)" in record(story, "proposals/5-1/gate.json")["reason"]
    assert "not JSON" in record(story, "proposals/13-1/gate.json")["reason"]
    assert record(story, "proposals/13-1/proposal.json") | {"text": ""} == {
        "step": 13, "id": "13-1", "author": "script", "text": "", "proposal": None}


def test_a_change_that_breaks_something_is_refused_by_its_canary(story):
    assert record(story, "proposals/7-1/gate.json")["accepted"]
    tried = record(story, "proposals/7-1/canary.json")
    assert tried["passed"] is False and "replies that leak" in tried["reason"]
    assert not (story / "proposals/7-1/verdict.json").exists()
    assert not any(line["event"] == "adopted" and line["id"] == "7-1" for line in lines(story, "audit.jsonl"))


def test_canary_episodes_have_the_draws_of_the_batch_and_stay_out_of_it(story):
    """A change that changes nothing: all words are those of the batch, whose own episodes are the only ones learned from."""
    tried, batch = lines(story, "proposals/9-1/9.jsonl"), lines(story, "episodes/9.jsonl")
    same = [episode | {"generation": 0} for episode in tried]
    seen = [{key: value for key, value in episode.items() if key not in ("system", "opening")} | {"generation": 0}
            for episode in batch]
    assert same == seen and {episode["generation"] for episode in tried} == {2}
    assert {episode["generation"] for episode in batch} == {1}
    row = lines(story)[8]
    assert (row["meta/canary_episodes"], row["rollout/episodes"], row["learn/episodes"]) == (8, 8, 8)
    spreads = [np.std([episode["score"] for episode in batch[place:place + 2]]) for place in (0, 2, 4, 6)]
    assert row["meta/group_std"] == pytest.approx(np.mean(spreads))


def test_a_harmful_change_is_taken_back(story):
    verdict = record(story, "proposals/13-2/verdict.json")
    assert record(story, "proposals/13-2/canary.json")["passed"] and verdict["status"] == "rolled_back"
    assert [trigger["name"] for trigger in verdict["triggers"]] == ["leak"] and verdict["triggers"][0]["hard"]
    back = record(story, "knobs/4.json")
    assert back["changes"] == {"user.leak": [LEAK, pytest.approx(1e-6)]} and back["step"] == verdict["step"] <= 17


@struct.dataclass
class PoisonKnobs:
    poison: float = knob(0.0, 0.0, 1.0, "rewards are no numbers from 0.5 on", trust=1.0)


def poisoned(trajectory, knobs):
    return trajectory.replace(rewards=jnp.where(knobs.poison > 0.5, jnp.nan, trajectory.rewards))


@pytest.mark.slow
def test_a_change_that_gives_no_numbers_is_taken_back_and_the_update_made_again(tmp_path):
    def once(view, budget):
        now = view.json("knobs/current.json")
        return Batch("ok", (text(0, "rl", changes={"rl.shaping.poison": 1.0}),)) if now["step"] == 2 else Batch("empty")

    proposer = Proposer("once", once, at_once=True)
    made = parts(proposer, **{"algorithm.shaping": shaping.Shaping(PoisonKnobs(), poisoned, "poison")})
    run = launch(tmp_path, {**CHANGES, "learn.steps": 5}, parts=made)
    assert [(line["step"], line["generation"]) for line in lines(run)] == [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2)]
    assert record(run, "knobs/1.json")["step"] == 4 and {e["generation"] for e in lines(run, "episodes/4.jsonl")} == {2}
    verdict = record(run, "proposals/3-1/verdict.json")
    assert (verdict["step"], verdict["triggers"][0]["name"]) == (4, "nan") and "not applied" in verdict["reason"]
    assert record(run, "knobs/2.json")["changes"] == {"rl.shaping.poison": [1.0, 0.0]}


def test_the_task_mix_is_swapped_and_drawn(story):
    assert "no conversation depends" in record(story, "proposals/17-1/canary.json")["reason"]
    journal = record(story, "knobs/5.json")
    assert journal["task_mix"] == MIX and journal["step"] == 18 and journal["changes"] == {}
    config = replace(tiny(), {"tasks.bucket": intention_tasks.bucket, "meta": Meta(proposer=rules, canary_tasks=2)})
    bucket = {task.id: intention_tasks.bucket(task) for task in assemble.tasks(config, "train")}
    for step in (18, 19):
        names = [bucket[episode["task"]] for episode in lines(story, f"episodes/{step}.jsonl")[::2]]
        assert [round(4 * MIX[name] - 0.5) <= names.count(name) <= round(4 * MIX[name] + 0.5) for name in MIX] == [True] * 3


def test_every_stage_is_in_the_audit_and_values_are_read_back(story):
    audited = lines(story, "audit.jsonl")
    assert audit.verify(story / "audit.jsonl") == len(audited)
    way = [line["event"] for line in audited if line.get("id") == "13-2"]
    assert way == ["gate", "canary", "adopted", "rolled_back"]
    for line in audited:
        if line["event"] in ("adopted", "in_force"):
            values = record(story, f"knobs/{line['generation']}.json")["values"]
            assert line["values"] == {path: values[path] for path in line["values"]}
    forced = [line for line in audited if line["event"] == "in_force"]
    assert [line["episodes"] for line in forced] == [{str(number): 8} for number in (1, 2, 3, 4, 5)]
    assert [line["step"] for line in audited] == sorted(line["step"] for line in audited)


def test_anchor_tasks_are_the_same_and_played_under_the_first_settings(story):
    rows = {line["step"]: line for line in lines(story)}
    played = [step for step, row in rows.items() if "anchor/score" in row]
    assert played == [1, 4, 8, 12, 16]
    assert all(rows[step]["anchor/episodes"] == rows[step]["meta/anchor_episodes"] == 3 for step in played)
    assert rows[2]["meta/anchor_episodes"] == 0


# --- exactness ------------------------------------------------------------------------------------------------------------

class Killed(Exception):
    """The process dies here."""


def killed_and_resumed(root, monkeypatch, crashes, changes=CHANGES, made=parts):
    """A run that dies once in each update of `crashes`, after everything that is done before the update."""
    left, real = list(crashes), train.one_update

    def dying(parts, collecting, state, *rest):
        if left and int(state.step) + 1 == left[0]:
            left.pop(0)
            raise Killed
        return real(parts, collecting, state, *rest)

    monkeypatch.setattr(train, "one_update", dying)
    for number in range(len(crashes)):
        with pytest.raises(Killed):
            launch(root, changes, resume=number > 0, parts=made())
    return launch(root, changes, resume=True, parts=made())


@pytest.mark.slow
def test_killed_in_a_canary_and_in_a_watch_window_it_goes_on_as_it_was(story, tmp_path, monkeypatch):
    changed = lambda: parts(checkpoint=Checkpoint(every=2, keep=1))
    run = killed_and_resumed(tmp_path, monkeypatch, (9, 15), made=changed)
    assert files(run) == files(story)


@pytest.mark.slow
def test_killed_at_every_phase_it_goes_on_as_it_was(story, tmp_path, monkeypatch):
    run = killed_and_resumed(tmp_path, monkeypatch, range(2, STEPS + 1))
    assert files(run) == files(story)


@pytest.mark.slow
def test_without_a_proposal_nothing_else_changes(plain_run, tmp_path):
    nobody = Proposer("nobody", lambda view, budget: Batch("empty"), at_once=True)
    run = launch(tmp_path, {**CHANGES, "learn.steps": 6}, parts=parts(nobody))
    assert lines(plain_run) == [{name: value for name, value in line.items() if not name.startswith(("anchor/", "meta/"))}
                                for line in lines(run)]
    assert {name: text for name, text in files(run).items() if name.startswith(("episodes/", "weights"))} == {
        name: text for name, text in files(plain_run).items() if name.startswith(("episodes/", "weights"))}
    assert not list(plain_run.glob("rounds")) and not (plain_run / "audit.jsonl").exists()


@pytest.mark.slow
def test_swapping_identical_knobs_and_rules_changes_no_token(plain_run, tmp_path):
    """One that changes nothing is refused in a config; so there are two before one update, there and back."""
    swaps = (Swap(3, {"env.max_turns": 3, "user.leak": 0.1}, intention.rules + ONE_MORE),
             Swap(3, {"env.max_turns": 2, "user.leak": 0.0}, intention.rules))
    run = launch(tmp_path, {**CHANGES, "learn.steps": 6}, parts=parts(None, swaps=swaps))
    assert [line["generation"] for line in lines(run)] == [0, 0, 2, 2, 2, 2]
    for step in range(1, 7):
        once, again = ([episode | {"generation": 0} for episode in lines(side, f"episodes/{step}.jsonl")]
                       for side in (run, plain_run))
        assert once == again
    assert weights(run) == weights(plain_run)


@pytest.mark.slow
def test_a_hundred_swaps_compile_nothing(tmp_path, monkeypatch):
    made, real = [], coevolve.lanes
    monkeypatch.setattr(coevolve, "lanes", lambda *arguments: made.append(real(*arguments)) or made[-1])

    def busy(view, budget):
        now = view.json("knobs/current.json")
        patience, rate = (now["values"][name] for name in ("env.patience", "rl.policy_optimizer.learning_rate"))
        owner, chosen = (("rl", {"changes": {"rl.policy_optimizer.learning_rate": rate * (1.5 if rate < 1e-3 else 0.7)}}),
                         ("env", {"changes": {"env.patience": 13 - patience}}),
                         ("user", {"rules": _other(view)}))[now["generation"] % 3]
        return Batch("ok", (text(now["generation"], owner, "rollout/success_rate", ttl=1, **chosen),))

    settings = META | dict(every=1, burn_in=1, ttl_least=1, swaps=100, anchor_tasks=0, blast=1.0)
    settings.pop("anchor_every")
    run = launch(tmp_path, {**CHANGES, "learn.steps": 105},
                 parts=parts(Proposer("busy", busy, at_once=True), settings, checkpoint=Checkpoint(every=100, keep=1)))
    adopted = [line for line in lines(run, "audit.jsonl") if line["event"] == "adopted"]
    assert len(adopted) == 100 and {tuple(line["values"]) for line in adopted} == {
        ("env.patience",), ("rl.policy_optimizer.learning_rate",), ()}
    traces = [line["traces"] for line in lines(run, "timings.jsonl")]
    assert traces[9] == traces[-1]
    assert len(made) == 1 and set(made[0].traces.values()) == {1}


def _other(view):
    """The environment's rules, or the same with one more that never matches, whichever is not in force."""
    own, now = ((view.folder / f"rules/{name}.toml").read_text() for name in ("own", "current"))
    return own + ONE_MORE if now == own else own


# --- rounds ---------------------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_a_slow_proposer_is_not_waited_for_and_a_failed_one_is_replaced(tmp_path, monkeypatch):
    """Two failures, and the rules answer; later an answer that takes three updates, of a round that a kill interrupted."""
    seen, go = types.SimpleNamespace(asked=[], left=[]), threading.Event()   # no setting, so no part of the proposer's code

    def slow(view, budget):
        step = view.json("knobs/current.json")["step"]
        seen.asked.append(step)
        if step > 2:
            go.wait(60)
        seen.left.append(step)
        return Batch("ok", (text(0, "env", changes=PENALTY),)) if step > 2 else Batch("timeout", problem="too slow")

    real = train.report

    def reporting(*arguments):
        real(*arguments)
        step = arguments[-1]
        if step == 6:
            go.set()
        deadline = time.monotonic() + 60
        while len(seen.left) < {3: 2, 6: 4}.get(step, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2 if step in (3, 6) else 0.0)    # until the thread has kept what was said

    monkeypatch.setattr(train, "report", reporting)
    made = lambda: parts(Proposer("slow", slow))
    run = killed_and_resumed(tmp_path, monkeypatch, (6,), {**CHANGES, "learn.steps": 8}, made)
    assert seen.asked == [2, 2, 4, 5], "one more try after a failure; begun again where there was no answer yet"
    answers = record(run, "rounds/4.json")["answers"]
    assert [(answer["author"], answer["status"]) for answer in answers] == [("slow", "timeout"), ("rules", "empty")]
    late = record(run, "rounds/7.json")
    assert (late["asked"], late["answers"][0]["status"]) == (6, "ok")
    assert record(run, "proposals/7-1/canary.json")["passed"] and record(run, "knobs/1.json")["step"] == 8


@pytest.mark.slow
def test_causal_tests_are_played_and_counted(tmp_path):
    meta = META | dict(causal_tests=True, anchor_tasks=0)
    meta.pop("anchor_every")
    run = launch(tmp_path, {**CHANGES, "learn.steps": 3}, parts=parts(rules, meta))
    row = lines(run)[2]
    report = record(run, "rounds/3.json")["report"]
    assert row["meta/causal_episodes"] == sum(result["episodes"] * (2 if name == "repeat" else 1) for name, result in
                                              report["results"].items()) > 0
    assert record(run, "rounds/3.json")["answers"][0]["author"] == "rules"


def test_only_a_change_of_learning_asks_for_the_weights_of_before():
    cited = (Evidence("update_kl", 8, 12, 0.3, 0.05), Evidence("approx_kl", 6, 10, 0.1, 0.02))
    found = lambda fault: Diagnosis("rl", fault, 0.9, cited)
    assert coevolve._worn("rl", found("large_updates")) == 6
    assert coevolve._worn("user", found("large_updates")) == coevolve._worn("rl", found("entropy_collapse")) == 0
    assert coevolve._worn("rl", Diagnosis("rl", "large_updates")) == 0, "nothing was cited"


def test_what_a_causal_test_found_holds_while_its_world_is_the_same():
    """Scripts play under the environment's knobs alone, the policy under everything."""
    first = assemble.first_generation(tiny())
    kept = {"generation": 0, "world": coevolve._world(first)}
    learning = first.swapped(5, {"rl.policy_loss.clip_low": 0.1}, "", tiny().env)
    harder = first.swapped(5, {"env.max_turns": 2}, "", tiny().env)
    holds = lambda test, now: coevolve._holds(Experiment(test), kept, now)
    assert all(holds(test.value, first) for test in Experiment)
    assert [test.value for test in Experiment if holds(test.value, learning)] == ["gold_replay", "idle_agent", "repeat"]
    assert not any(holds(test.value, harder) for test in Experiment)


# --- settings -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes, words", [
    ({"meta.every": 3}, "meta.every = 3 would do nothing, because meta.proposer is None"),
    ({"meta": lambda: Meta(proposer=rules, canary_tasks=2, causal_tests=False, scripted_episodes=8)},
     "meta.scripted_episodes = 8 would do nothing, because meta.causal_tests is False"),
    ({"meta": lambda: Meta(proposer=rules, scripted_episodes=3)}, "scripted_episodes = 3 is out of range"),
    ({"tasks.bucket": len}, "tasks.bucket = .* would do nothing, because nothing changes the task mix"),
    ({"meta": Meta(proposer=rules)}, "meta.canary_tasks = 16, but an update has rollout.tasks = 2"),
    ({"meta": lambda: Meta(proposer=rules, canary_tasks=2, seconds=5)}, "meta.seconds = 5 would do nothing"),
    ({"meta": lambda: Meta(proposer=rules, canary_tasks=2, anchor_tasks=0, anchor_every=2)}, "anchor_every = 2 would do"),
    ({"meta": lambda: Meta(proposer=rules, ttl_least=9, ttl_most=8)}, "meta.ttl_most = 8 is out of range; allowed: 9"),
    ({"meta": lambda: Meta(proposer=rules, blast=0)}, "meta.blast = 0 is out of range; allowed: above 0, up to 1"),
])
def test_bad_settings_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(tiny(), {name: value() if callable(value) and name == "meta" else value for name, value in changes.items()})


def test_rewards_may_change_where_somebody_proposes():
    config = replace(tiny(), {"learn.critic_refit": 3, "meta": Meta(proposer=rules, canary_tasks=2)})
    assert config.learn.critic_refit == 3


@pytest.mark.parametrize("bucket, words", [
    (lambda task: "one", "puts them all in one"),
    (lambda task: "rare" if task.id == assemble.tasks(tiny(), "train")[0].id else "other", "")])
def test_buckets_must_be_large_enough(bucket, words):
    config = replace(tiny(), {"tasks.bucket": bucket, "tasks.train": 100, "meta": Meta(proposer=rules, canary_tasks=2)})
    with pytest.raises(ConfigError, match=words or "only 1 of 100 training tasks in 'rare'"):
        assemble.check(config)


def test_a_scheduled_mix_must_name_every_bucket(tmp_path):
    for mix, words in (({"details_3": 1.0}, "it must give each of details_3, details_4, details_5 a share"),
                       ({**MIX, "details_5": 0.4}, "must sum to 1")):
        config = replace(tiny(), {"tasks.bucket": intention_tasks.bucket, "swaps": (Swap(step=2, task_mix=mix),)})
        with pytest.raises(ConfigError, match=words):
            assemble.check(config)


# --- the task mix ---------------------------------------------------------------------------------------------------------

ROWS = {"a": tuple(range(0, 40)), "b": tuple(range(40, 60)), "c": tuple(range(60, 63))}


def test_the_quota_of_each_bucket_is_met_and_exact_in_the_mean():
    mix, counts = {"a": 0.5, "b": 0.33, "c": 0.17}, []
    for step in range(1, 401):
        rows = assemble.draw_mixed(0, ROWS, mix, step, 0, 10, ())
        assert len(set(rows)) == 10 and rows == assemble.draw_mixed(0, ROWS, mix, step, 0, 10, ())
        counts.append([sum(row in ROWS[name] for row in rows) for name in ROWS])
    counts = np.array(counts)
    assert (np.abs(counts - 10 * np.array(list(mix.values()))) < 1).all()
    np.testing.assert_allclose(counts.mean(0), [5.0, 3.3, 1.7], atol=0.06)
    assert {row for step in range(1, 401) for row in assemble.draw_mixed(0, ROWS, mix, step, 0, 10, ())} == set(range(63))


def test_what_a_bucket_is_too_small_for_comes_from_the_others():
    rows = assemble.draw_mixed(0, ROWS, {"a": 0.1, "b": 0.1, "c": 0.8}, 1, 0, 20, ())
    assert len(set(rows)) == 20 and set(ROWS["c"]) <= set(rows)
    later = assemble.draw_mixed(0, ROWS, {"a": 0.1, "b": 0.1, "c": 0.8}, 1, 1, 50, rows)
    assert len(later) == 43 and not set(later) & set(rows), "all that is left"


def test_bucket_functions_tell_easier_tasks_from_harder_ones():
    for module, names in ((intention_tasks, {"details_3", "details_4", "details_5"}),
                          (function_tasks, {f"operations_{n}" for n in range(4)}),
                          (telecom_tasks, {"faults_1", "faults_2", "faults_3"})):
        assert {module.bucket(task) for task in module.generate("train", 100, 0)} == names
