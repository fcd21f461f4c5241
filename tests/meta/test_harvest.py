"""From a run folder to the pool: what each change became, lessons, votes, costs, what must not get in."""

import csv
import io
import json
import math

import pytest
from campaign_run import make, note

from eau_jax.core.records import RunFolder, RunFolderError
from eau_jax.meta import interventions
from eau_jax.meta.document import DocumentError
from eau_jax.meta.harvest import Remedy, cost, harvest, success
from eau_jax.meta.pool import Pool, expired, read
from eau_jax.meta.recommend import recommend
from eau_jax.meta.restart import remedy, severe


def take(folder, run, name="", **more):
    with Pool(folder, more.pop("sealed", ())) as pool:
        return harvest(run, pool, name, **more)


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_what_became_of_each_change(tmp_path):
    found = {one.id: one for one in interventions.read(make(tmp_path / "run"))}
    assert list(found) == ["11-1", "16-1", "21-1", "26-1", "31-1", "31-2", "36-1"]
    seen = {id: (one.status, one.since, one.ended, one.generation, one.back_generation) for id, one in found.items()}
    assert seen == {"11-1": ("kept", 12, 17, 1, 0), "16-1": ("unreadable", 0, 16, 0, 0),
                    "21-1": ("rolled_back", 22, 27, 2, 3),
                    "26-1": ("refused", 0, 26, 0, 0), "31-1": ("live", 32, 0, 4, 0), "31-2": ("refused", 0, 31, 0, 0),
                    "36-1": ("canary", 0, 0, 0, 0)}
    assert found["11-1"].changes == {"env.max_turns": (16, 20)} and found["21-1"].changes == {"env.max_turns": (20, 15)}
    assert found["36-1"].task_mix == {"easy": (0.5, 0.6), "hard": (0.5, 0.4)} and found["31-1"].owner == "user"
    assert found["31-2"].reason == "no_leak: the user says a hidden value" and found["11-1"].told == "env.max_turns 16 → 20"
    plays = interventions.anchors(interventions_rows(tmp_path / "run"))
    assert interventions.around(plays, found["11-1"]) == pytest.approx((0.275, 0.35))    # updates 5 and 10, and 15
    assert all(map(math.isnan, interventions.around(plays, found["26-1"])))


def test_what_waits_for_the_next_run_is_what_it_begins_with(tmp_path):
    run = make(tmp_path / "run")
    with RunFolder(run) as folder:
        note(folder, 36, "deferred", id="36-1")
    assert {one.id: one.status for one in interventions.read(run)}["36-1"] == "deferred"
    contents = take(tmp_path / "pool", run)
    lesson = next(one for one in contents.lessons if one.task_mix)
    assert (lesson.advice, [case.vote for case in lesson.cases], lesson.fault) == ("do", ["untried"], "all_hard")
    assert recommend(contents, "intention", lesson.backbone).task_mix == {"easy": 0.6, "hard": 0.4}


def test_runs_of_another_length_do_not_vote(tmp_path):
    """The second one has more success on the anchor tasks, and three times as many updates."""
    for updates, votes in ((40, 1), (120, 0)):
        pool = tmp_path / str(updates)
        first = take(pool, make(tmp_path / f"first{updates}", 40, (0.2, 0.5), created="2026-01-01"), "a")
        begun = [one.id for one in first.lessons if one.advice == "do"]
        run = make(tmp_path / f"second{updates}", updates, (0.2, 0.95), created="2026-01-02")
        after = take(pool, run, "b", started_from=begun)
        lesson = next(one for one in after.lessons if one.id == begun[0])
        assert sum(case.audit == "anchor_curve" for case in lesson.cases) == votes


def interventions_rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_lessons_of_a_run(tmp_path):
    run = make(tmp_path / "run")
    contents = take(tmp_path / "pool", run)
    assert sorted((one.fault, one.advice, one.helpful) for one in contents.lessons) == [
        ("stonewalling_user", "avoid", 1), ("too_few_turns", "do", 1), ("too_many_turns", "avoid", 1)]
    again = take(tmp_path / "pool", run)
    assert again == contents                                   # once more changes nothing
    files = {file.name for file in (tmp_path / "pool" / "runs" / "run").iterdir()}
    assert files == {"summary.md", "interventions.csv", "schedule.json", "anchor_curve.csv"}
    rows = list(csv.DictReader(io.StringIO((tmp_path / "pool/runs/run/interventions.csv").read_text())))
    assert [row["status"] for row in rows] == ["kept", "unreadable", "rolled_back", "refused", "live", "refused", "canary"]
    assert rows[0]["anchor_before"] and rows[0]["before"] == "0.4" and len(rows[0]["audit"]) == 16
    effects = json.loads((tmp_path / "pool/priors/knob_effects.json").read_text())
    assert effects["too_few_turns"]["env.max_turns up"]["mean"] == pytest.approx(6.0)      # 0.3 down, in units of 0.05
    assert effects["too_many_turns"]["env.max_turns down"]["anchor_n"] == 1
    schedule = json.loads((tmp_path / "pool/runs/run/schedule.json").read_text())
    assert [(swap["step"], swap["knobs"], bool(swap["rules"])) for swap in schedule] == [
        (12, {"env.max_turns": 20}, False), (22, {"env.max_turns": 15}, False), (27, {"env.max_turns": 20}, False),
        (32, {}, True)]
    start = recommend(contents, "intention", "new 1x16")
    assert start.knobs == {"env.max_turns": 20.0} and not start.rules
    curve = (tmp_path / "pool/runs/run/anchor_curve.csv").read_text()
    assert curve.splitlines()[:2] == ["step,generation,success,episodes", "5,0,0.25,16"]


def test_a_run_that_goes_on_adds_to_its_lessons(tmp_path):
    run = make(tmp_path / "run")
    (run / "proposals/21-1/verdict.json").rename(tmp_path / "later")
    before = take(tmp_path / "pool", run)
    assert len(before.lessons) == 2
    (tmp_path / "later").rename(run / "proposals/21-1/verdict.json")
    assert len(take(tmp_path / "pool", run).lessons) == 3


def test_cost_by_hand(tmp_path):
    used = cost(make(tmp_path / "run"))
    assert used == (40 * 63, 40, 48, 8 * 16, 8, 40 * 6300, 1000, 0.25)
    assert used.episodes == 2520 + 40 + 48 + 128 + 8
    assert cost(tmp_path / "none").episodes == 0


def test_success_on_the_anchor_tasks_by_hand():
    rows = [{"step": step, "anchor/success": value, "anchor/episodes": 16}
            for step, value in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.7))]
    first, last, error = success(rows)
    assert (first, last) == pytest.approx((0.15, 0.6)) and error == pytest.approx(math.sqrt(0.24 / 32))
    assert success([{"step": 1}, {"step": 2, "anchor/success": None}]) == (-1.0, -1.0, 0.0)


@pytest.mark.parametrize("anchor, votes", [((0.2, 0.9), (2, 0)), ((0.2, 0.1), (1, 1)), ((0.2, 0.63), (1, 0))])
def test_a_start_is_judged_on_the_anchor_tasks(tmp_path, anchor, votes):
    contents = take(tmp_path / "pool", make(tmp_path / "a", created="2026-01-01"), "c-01")
    start = recommend(contents, "intention", "new 1x16")
    run = make(tmp_path / "b", anchor=anchor, created="2026-01-02")
    for file in (run / "proposals").glob("*/*"):
        file.unlink()
    for _ in range(2):
        contents = take(tmp_path / "pool", run, "c-02", started_from=start.lessons)
    one = next(one for one in contents.lessons if one.id in start.lessons)
    assert (one.helpful, one.harmful) == votes and one.last_used_run == "c-02" and not expired(one, contents)
    assert contents.runs[1].started_from == start.lessons


def test_held_out_results_decide_nothing(tmp_path):
    """With or without the sealed results beside the run, whatever they say, the pool is the same to the byte."""
    written = []
    for name, text in (("a", None), ("b", '{"step": 40, "score": 0.99}\n')):
        run = make(tmp_path / name / "run")
        if text:
            (tmp_path / name / "sealed/run").mkdir(parents=True)
            (tmp_path / name / "sealed/run/eval.jsonl").write_text(text)
        take(tmp_path / name / "pool", run)
        written.append({file.relative_to(tmp_path / name): file.read_bytes()
                        for file in (tmp_path / name / "pool").rglob("*") if file.is_file()})
    assert written[0] == written[1]


def test_a_proposers_words_do_not_get_what_is_sealed_into_the_pool(tmp_path):
    run = make(tmp_path / "run")
    edit(run / "proposals/11-1/verdict.json", "went from", "of goal-17 went from")
    edit(run / "proposals/31-1/proposal.json", "# other", "# as in runs/sealed/x")
    edit(run / "rules/4.toml", "# other", "# as in runs/sealed/x")
    contents = take(tmp_path / "pool", run, sealed={"goal-17"})
    kept = next(one for one in contents.lessons if one.fault == "too_few_turns")
    assert "left out" in kept.cases[0].said and kept.helpful == 1
    texts = [file.read_text() for file in (tmp_path / "pool").rglob("*.*") if file.is_file()]
    assert not any("goal-17" in text or "sealed" in text for text in texts)
    assert read(tmp_path / "pool", {"goal-17"}) == contents


def test_tampered_and_broken_records_are_refused(tmp_path):
    run = make(tmp_path / "run")
    edit(run / "audit.jsonl", "helpful", "harmful")
    with pytest.raises(RunFolderError, match="its hash is not that of line"):
        take(tmp_path / "pool", run)
    run = make(tmp_path / "other")
    (run / "proposals/11-1/verdict.json").write_text("{")
    with pytest.raises(RunFolderError, match="verdict.json is not JSON"):
        take(tmp_path / "pool", run)
    (run / "proposals/11-1/verdict.json").write_text('{"result": 1}')
    with pytest.raises(RunFolderError, match="verdict.json: 'reason' is missing"):
        take(tmp_path / "pool", run)
    with pytest.raises(RunFolderError, match="no run folder"):
        take(tmp_path / "pool", tmp_path)
    assert not (tmp_path / "pool/runs").exists()
    take(tmp_path / "pool", make(tmp_path / "one", created="2026-05-01"), "x")
    with pytest.raises(DocumentError, match="another run"):
        take(tmp_path / "pool", make(tmp_path / "two", created="2026-06-01"), "x")


# Restarts


def rows(count, **more):
    return [{"step": step + 1, "generation": 0, "rollout/success_rate": 0.3, "rollout/leak_rate": 0.0,
             "rollout/score_mean": 0.2 + 0.01 * (step % 2)}
            | {name.replace("_", "/", 1): value for name, value in more.items()} for step in range(count)]


def rounds(owner="none", fault="", confidence=0.95):
    claim = {"owner": "checker", "fault": "all is lost", "confidence": 1.0, "tests": ["a proposer's word ends no run"]}
    return [{"step": 11, "answers": [{"diagnosis": claim}], "report": {"diagnosis": {
        "owner": owner, "fault": fault, "confidence": confidence, "tests": ["gold_replay: 3 of 4"]}}}]


def test_what_begins_a_run_anew():
    dead = {"rollout_success_rate": 0.0}
    assert severe(rows(10), rounds(), 50) is None
    assert severe(rows(10), rounds("checker", "broken_checker_negative"), 50)[0] == "broken_checker_negative"
    assert severe(rows(10), rounds("checker", "broken_checker_negative", 0.6), 50) is None
    assert severe(rows(3, rollout_leak_rate=0.06), [], 50)[0] == "leaky_user"
    assert severe(rows(2, rollout_leak_rate=0.06), [], 50) is None
    assert severe(rows(16, rollout_leak_rate=0.06), [], 50) is None
    assert severe(rows(5, rollout_leak_rate=0.06, generation=1), [], 50) is not None     # a start that the pool recommended
    late = [row | {"generation": int(row["step"] > 2), "rollout/leak_rate": 0.06 * (row["step"] > 2)} for row in rows(6)]
    # a change made it: that is taken back
    assert severe(late, [], 50) is None
    assert severe(rows(10, **dead), rounds(), 50)[0] == "all_hard"
    assert severe(rows(10, **dead), [], 50) is None and severe(rows(9, **dead), rounds(), 50) is None
    rising = [row | {"rollout/score_mean": 0.01 * n} for n, row in enumerate(rows(10, **dead))]
    assert severe(rising, rounds(), 50) is None and severe([], [], 50) is None


def test_a_remedy_is_tried_by_the_next_run_and_forgotten_when_it_fails(tmp_path):
    cure = Remedy("leaky_user", "the user leaks", "user", {"user.epsilon": (0.5, 0.65)})
    run = make(tmp_path / "a", created="2026-01-01")
    contents = take(tmp_path / "pool", run, "c-01", remedy=cure)
    assert (tmp_path / "pool/runs/c-01/why_stopped.md").read_text() == "the user leaks\n"
    start = recommend(contents, "intention", "new 1x16")
    assert start.knobs["user.epsilon"] == 0.65 and len(start.lessons) == 2
    contents = take(tmp_path / "pool", make(tmp_path / "b", created="2026-01-02"), "c-02", started_from=start.lessons,
                    remedy=Remedy("leaky_user", "it leaks still"))
    assert "user.epsilon" not in recommend(contents, "intention", "new 1x16").knobs
