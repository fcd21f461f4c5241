"""Studies: statistics by hand and against rliable, the page, bad files, sharing, and a study that is killed and goes on."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eau_jax import campaign_start, child, study as studies
from eau_jax.cli import main
from eau_jax.config_file import call, describe, load_config, placed, replace
from eau_jax.core.records import RunFolder, RunFolderError, read_lines
from eau_jax.eval.aggregate import interquartile_mean, nested, paired_by_seed, probability_of_improvement, student
from eau_jax.eval.held_out import sealed_file
from eau_jax.progress import Watch
from eau_jax.report import study as page
from eau_jax.study import Cell, Study
from test_report import EVIL, Page
from tiny_config import config as tiny

ROOT = Path(__file__).resolve().parent.parent
TINY = str(ROOT / "tests" / "tiny_config.py")
# Ten runs of two methods on two environments, and what rliable 1.2.0 says of them (numpy 2.4.6, pandas 2, 20 000 draws).
OURS = {"x": (0.3, 0.2, 0.9, 0.7, 0.6), "y": (0.6, 0.9, 1.0, 0.7, 0.4)}
THEIRS = {"x": (0.1, 0.2, 0.4, 0.8, 0.3), "y": (0.5, 0.5, 0.9, 0.7, 0.2)}


def study(root, **changes):
    return Study(**{"name": "s", "environments": {"intention": tiny()}, "baseline": "a", "seeds": (0, 1), "updates": 2,
                    "methods": {"a": lambda config: config, "b": lambda config: replace(config, {"learn.epochs": 2})},
                    "root": str(root)} | changes)


def fake(one, cell, score, updates=None, by_task=None):
    """The records of a run that ended with a held-out score, or that got as far as `updates`."""
    folder, steps = studies.folder_of(one, cell), one.updates if updates is None else updates
    folder.mkdir(parents=True)
    lines = [{"step": step + 1, "rollout/score_mean": 0.1 * step + 0.05 * cell.seed, "rollout/success_rate": 0.0, "rollout/episodes": 8.0,
              "rollout/tokens_mean": 100.0, "rollout/turns_mean": 3.0, "rollout/action_tokens_mean": 5.0}
             for step in range(steps)]
    times = [{"step": line["step"], "rollout_s": 20.0, "annotate_s": 4.0, "update_s": 6.0} for line in lines]
    for name, records in (("metrics.jsonl", lines), ("timings.jsonl", times)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in records))
    if updates is None:
        sealed = sealed_file(folder)
        sealed.parent.mkdir(parents=True)
        end = {"step": one.updates, "phase": "final", "score": score} | ({"by_task": by_task} if by_task else {})
        start = {"step": 0, "phase": "cold_start", "score": 0.25} | ({"by_task": dict.fromkeys(by_task, 0.25)} if by_task else {})
        sealed.write_text(json.dumps(start) + "\n" + json.dumps(end) + "\n")
    return folder


# Numbers


def test_statistics_are_those_of_rliable():
    assert interquartile_mean(THEIRS) == pytest.approx((0.4333333, 0.2666667, 0.65), abs=1e-6)
    assert interquartile_mean(OURS) == pytest.approx((0.65, 0.45, 0.8166667), abs=1e-6)
    assert probability_of_improvement(OURS, THEIRS) == pytest.approx((0.68, 0.42, 0.90), abs=0.011)


def test_interquartile_mean_by_hand():
    assert interquartile_mean({"x": [0.0, 0.2], "y": [9.0, 0.4]}).mean == pytest.approx(0.3)   # 0 and 9 are left out
    assert interquartile_mean({"x": [0.0, 0.6, 0.9]}).mean == pytest.approx(0.5)               # a quarter of three is none
    assert interquartile_mean({"x": [0.5] * 4, "y": []}) == (0.5, 0.5, 0.5)
    assert np.isnan(interquartile_mean({"x": []}).mean)


def test_probability_of_improvement_by_hand():
    assert probability_of_improvement({"x": [1.0, 2.0]}, {"x": [1.0, 0.0]}).mean == pytest.approx((0.5 + 1 + 1 + 1) / 4)
    assert probability_of_improvement({"x": [1.0], "y": [0.0]}, {"x": [0.0], "y": [1.0]}) == (0.5, 0.5, 0.5)
    assert probability_of_improvement({"x": [1.0], "y": [0.0]}, {"x": [0.0], "y": []}).mean == 1.0   # y has no pair
    assert np.isnan(probability_of_improvement({"x": [1.0]}, {"z": [1.0]}).mean)


def test_two_levels_of_chance():
    assert nested([[0.5, 0.5], [0.5]]) == (0.5, 0.5, 0.5)
    assert nested([[0.0, 1.0, 1.0, 1.0], [0.25]]).mean == pytest.approx(0.5)             # runs count the same, tasks do not
    rng = np.random.default_rng(0)
    runs = [rng.normal(centre, 1.0, 100) for centre in rng.normal(0.0, 0.3, 40)]         # 0.3² + 1²/100 = 0.1, twice 0.01
    found = nested(runs)
    spread = np.sqrt((np.var([run.mean() for run in runs]) + np.mean([run.var() for run in runs]) / 100) / 40)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * spread, rel=0.05)


def test_paired_by_seed_and_task_by_hand():
    left = {0: {"p": 0.1, "q": 0.5}, 1: {"p": 0.2}, 2: {"p": 0.9}}
    right = {0: {"p": 0.3, "q": 0.5, "r": 9.0}, 1: {"p": 0.1}, 3: {"p": 0.0}}
    found = paired_by_seed(left, right)                  # seed 0: mean of +0.2 and 0, r has no pair; seed 1: -0.1
    assert found.drawn.mean == found.student.mean == pytest.approx(0.0) and (found.seeds, found.higher) == (2, 1)
    assert found.student.high == pytest.approx(12.706 * 0.1 * np.sqrt(2) / np.sqrt(2))
    assert found.drawn.low == pytest.approx(-0.1) and found.drawn.high == pytest.approx(0.15, abs=0.051)
    assert student([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.0 - 4.303 / np.sqrt(3), 2.0 + 4.303 / np.sqrt(3)))
    assert np.isnan(student([1.0]).low) and np.isnan(paired_by_seed(left, {}).drawn.mean)


# The page


def test_the_page_of_records(tmp_path):
    one = study(tmp_path)
    for cell, score in zip(studies.cells(one), (0.5, 0.7, 0.4)):
        fake(one, cell, score, by_task={"p": score - 0.1, "q": score + 0.1})
        (studies.folder_of(one, cell) / "manifest.json").write_text(json.dumps({"git_revision": f"rev{cell.seed}"}))
    folder = fake(one, Cell("intention", "b", 1), None, updates=1)
    folder.with_name("1.log").write_bytes(f"first\n{EVIL}\n\n".encode("utf-8", "replace"))
    written = page.write_page(one, EVIL)
    shown = Page(written.read_text())
    assert not shown.open and "script" not in shown.tags and EVIL.strip().replace("\ud800", "?") in shown.text
    sources = [value for name, value in shown.attributes if name == "src"]
    assert len(sources) == 6 and all(value.startswith("data:image/png;base64,") for value in sources)
    assert {file.name for file in (one.folder / "plots").iterdir()} == {
        "curves.png", "success.png", "scores.png", "differences.png", "overall.png", "chances.png"}
    for text in ("3 of 4 runs finished", "Not finished: 1 of 4 runs", "2 seeds a method",
                 "2 revisions of the code (rev0, rev1)", "one seed", "+0.200", "stopped or failed", "1,600", "240", "1.0"):
        assert text in shown.text, text
    first, second = page.summarise(one, page.read(one)).lines
    assert (first.method, first.runs, first.start, first.score.mean) == ("a", 2, 0.25, pytest.approx(0.45))
    assert first.gain.student.mean == pytest.approx(0.2) and (first.gain.seeds, first.gain.higher) == (2, 2)
    assert second.gain.student.mean == pytest.approx(0.45)
    assert first.tokens == 2 * 8 * 100 and first.sampled == 2 * 8 * 3 * 5 and first.updates == 2
    assert second.runs == 1 and second.difference.seeds == 1 and second.difference.drawn.mean == pytest.approx(0.2)
    assert page.read(one)[0].seconds == 60.0
    record = json.loads((one.folder / "study.json").read_text())
    assert record["unfinished"] == ["intention b seed 1"] and record["overall"][1]["improvement"]["mean"] == 1.0


def test_the_page_says_in_how_many_updates_the_policy_learned(tmp_path):
    """Of method a in one of two, of b in none."""
    one = study(tmp_path, seeds=(0,))
    for method, steps in (("a", (0.0, 4.0)), ("b", (0.0, 0.0))):
        folder = fake(one, Cell("intention", method, 0), 0.5, by_task={"p": 0.5})
        lines = [line | {"learn/policy_steps": number} for line, number in zip(read_lines(folder / "metrics.jsonl"), steps)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = Page(page.write_page(one, "").read_text()).text
    assert [run.learned for run in page.read(one)] == [1, 0]
    assert "2 (policy 1)" in text and "2 (policy 0)" in text
    assert "The policy learned in no update of b on intention: the scores are those of the start." in text


def test_the_page_of_nothing(tmp_path):
    one = study(tmp_path)
    text = Page(page.write_page(one, "").read_text()).text
    assert "0 of 4 runs finished" in text and "not started" in text
    fake(one, Cell("intention", "b", 0), 0.5)                                   # no task in the record, no baseline yet
    text = Page(page.write_page(one, "").read_text()).text
    assert "no pair yet" in text and "0.500 (0.500 to 0.500)" in text


# A budget of episodes, and campaigns that share it


def by_episodes(root, **changes):
    return study(root, **{"methods": {name: lambda config: config for name in "abc"}, "by_episodes": True, "updates": 5,
                          "seeds": (0,), "campaigns": {"c": 2}} | changes)


def played(folder, updates, beside=0, score=None):
    """Records of a run of batches of 4 episodes; its held-out record is of the last update."""
    folder.mkdir(parents=True)
    lines = [{"step": step + 1, "rollout/episodes": 4.0, "rollout/tokens_mean": 10.0, "rollout/infra_rate": 0.0,
              "meta/anchor_episodes": float(beside), "rollout/score_mean": 0.5, "rollout/success_rate": 0.5} for step in range(updates)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sealed = sealed_file(folder)
    sealed.parent.mkdir(parents=True)
    ends = [{"step": 0, "score": 0.1}] + ([{"step": updates, "score": score}] if score is not None else [])
    sealed.write_text("".join(json.dumps(line) + "\n" for line in ends))


def test_a_run_is_over_when_no_further_batch_is_within_its_episodes(tmp_path):
    one = by_episodes(tmp_path)
    assert studies.budget(one, "intention") == 20 and studies.budget(study(tmp_path), "intention") == 0
    assert [studies.configured(one, "intention", name, 0).learn.episodes for name in "abc"] == [20, 20, 0]
    a, b = Cell("intention", "a", 0), Cell("intention", "b", 0)
    played(studies.folder_of(one, a), 3, beside=1, score=0.7)     # 15 of 20: another one would fit
    played(studies.folder_of(one, b), 4, beside=1, score=0.8)     # 20
    assert [tuple(studies.progress(one, cell)) for cell in (a, b)] == [(3, False), (4, True)]
    assert studies.last_score(studies.folder_of(one, b))["score"] == 0.8


def test_a_campaign_counts_by_its_best_run(tmp_path):
    one, cell = by_episodes(tmp_path), Cell("intention", "c", 0)
    assert tuple(studies.progress(one, cell)) == (0, False) and studies.result_of(one, cell).name == "run-01"
    home = studies.folder_of(one, cell)
    for name, updates, score in (("run-01", 1, 0.9), ("run-02", 3, 0.6)):
        played(home / name, updates, 1, score)
    state = {"best": "run-02", "over": False}
    (home / "campaign.json").write_text(json.dumps(state))
    assert tuple(studies.progress(one, cell)) == (4, False)
    (home / "campaign.json").write_text(json.dumps(state | {"over": True}))
    assert tuple(studies.progress(one, cell)) == (4, True)
    played(studies.folder_of(one, Cell("intention", "a", 0)), 5, 0, 0.5)
    written = page.write_page(one, "")
    line = next(line for line in page.summarise(one, page.read(one)).lines if line.method == "c")
    assert (line.updates, line.episodes, line.beside, line.score.mean, line.start) == (4, 20, 4, 0.6, 0.1)
    assert "beside batches" in Page(written.read_text()).text
    twin = studies.folder_of(one, Cell("intention", "b", 0))
    (home / "run-01" / "model").mkdir()
    studies.copy_start(one, Cell("intention", "b", 0))
    assert (twin / "model").is_dir(), "a campaign's first run begins as all others of the seed do"


def test_the_file_of_a_campaigns_run_gives_its_config(tmp_path):
    """A study's text, then which cell it is, then which run of that cell's campaign."""
    file = tmp_path / "study.py"
    file.write_text(GOOD.replace("CHANGES", "by_episodes=True, campaigns={'a': 2}"))
    one = dataclasses.replace(call(str(file), "study", Study), root=str(tmp_path / "runs"))
    cell = Cell("intention", "a", 0)
    text, whole = studies.source_of(one, cell, placed(str(file))), studies.configured(one, *cell)
    begins = {"knobs": {"env.max_turns": 2}, "rules": "", "task_mix": {}}
    (tmp_path / "run-02.py").write_text(campaign_start.source_of(text, whole, "run-02", "pool", begins, 8))
    made = load_config(str(tmp_path / "run-02.py"))
    assert (made.root, made.name, made.seed, made.learn.episodes) == (str(studies.folder_of(one, cell)), "run-02", 0, 8)
    assert dict(made.swaps[0].knobs) == {"env.max_turns": 2}


def test_a_campaign_is_started_with_its_budget(tmp_path, monkeypatch):
    one, seen = by_episodes(tmp_path), {}
    monkeypatch.setattr(child, "play", lambda file, log, look, stop, command: seen.update({file.parent.name: command}) or 1)
    with Watch() as watch:
        studies.run_missing(one, "", watch)
    assert seen["c"] == ("campaign", "--max-runs", "2", "--episodes", "20") and seen["a"] == ("train", "--resume", "--no-report")
    links = [studies.folder_of(one, Cell("intention", "c", 0)) / ".jax_cache", one.folder / "intention" / "a" / ".jax_cache"]
    assert all(link.resolve() == (one.folder / ".jax_cache").resolve() for link in links)


# What is refused


GOOD = ("from pathlib import Path\nfrom eau_jax.config_file import load_config, replace\nfrom eau_jax.study import Study\n"
        f"BASE = load_config({TINY!r})\n\n\n"
        "def study():\n    return Study(**dict(name='s', environments={'intention': BASE}, methods={'a': lambda config: config},\n"
        "                 baseline='a', updates=2) | dict(CHANGES))\n")


@pytest.mark.parametrize("changes, arguments, words", [
    ("baseline='by_tokn', methods={'by_token': lambda c: c}", [], "baseline = 'by_tokn' is none of the methods; did you mean 'by_token'"),
    ("methods={'a': lambda c: None}", [], "method 'a' on 'intention' gave type NoneType; it must return a Config"),
    ("methods={'a': lambda c: replace(c, {'learn.stepz': 3})}", [], "method 'a' on 'intention': no setting 'stepz' in Learn; did you mean 'steps'"),
    ("methods={'a': lambda c: replace(c, {'learn.minibatches': 3})}", [], "method 'a' on 'intention': rollout.tasks = 2"),
    ("methods={'a': lambda c: replace(c, {'knobs': {'rl.gama': 1}})}", [], "method 'a' on 'intention': unknown knob 'rl.gama'"),
    ("methods={'a': lambda c: 1 / 0}", [], "method 'a' on 'intention': ZeroDivisionError: division by zero"),
    ("methods={'a/b': lambda c: c}", [], "method 'a/b' cannot be a folder"),
    ("campaigns={'a': 2}", [], "give methods of the study, 2 or more runs each, and by_episodes=True"),
    ("campaigns={'b': 2}, by_episodes=True", [], "give methods of the study"),
    ("environments={'sealed': BASE}", [], "environment 'sealed' cannot be a folder"),
    ("environments={'x': lambda: BASE}", [], "environment 'x' has type function; it must be a Config"),
    ("methods={'a': 3}", [], "method 'a' has type int; it must be a function of a Config"),
    ("environments={}", [], "at least one environment and one method"),
    ("seeds=(1, 1)", [], "seeds = (1, 1); give at least one, 0 or more, none of them twice"),
    ("seeds=(0, 2**31)", [], "seeds = (0, 2147483648); give at least one"),
    ("seeds=(0.5,)", [], "seeds = (0.5,)"),
    ("seeds=3", [], "seeds = 3; give at least one, 0 or more, none of them twice, in a tuple"),
    ("updates=1.5", [], "updates = 1.5 is out of range; allowed: a whole number"), ("updates=True", [], "updates = True"),
    ("root=''", [], "root = '' names no folder"), ("methods=[lambda c: c]", [], "methods has type list; give a dict"),
    ("methods={None: lambda c: c}", [], "method None cannot be a folder"), ("name=3", [], "name 3 cannot be a folder"),
    ("environments={'study.html': BASE}", [], "environment 'study.html' cannot be a folder"),
    ("methods={'a': lambda c: replace(c, {'sft.role': 'user'})}", [], "'intention': sft.role = user makes a model"),
    ("updates=1", [], "'intention': the policy would never learn: in the first learn.critic_warmup = 1 updates"),
    ("", ["--updates", "0"], "updates = 0 is out of range"),
    ("", ["--seeds", "-1"], "seeds = (-1,)"),
    ("", ["--baseline", "z"], "baseline = 'z' is none of the methods"),
    ("wrong=1", [], "unexpected keyword argument 'wrong'"),
])
def test_bad_studies_are_refused(tmp_path, capsys, changes, arguments, words):
    file = tmp_path / "study.py"
    file.write_text(GOOD.replace("CHANGES", changes))
    with pytest.raises(SystemExit) as ended:
        main(["compare-methods", str(file), "--root", str(tmp_path / "runs"), *arguments])
    assert ended.value.code == 2 and not (tmp_path / "runs").exists()
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert words in message, message


def test_a_file_without_a_study_is_refused(tmp_path, capsys):
    for file, words in ((str(tmp_path / "none.py"), "no file"), (TINY, "no function `study`")):
        with pytest.raises(SystemExit) as ended:
            main(["compare-methods", file])
        assert ended.value.code == 2 and words in capsys.readouterr().err
    (tmp_path / "passwd").write_text("root:x:0:0\n")
    with pytest.raises(SystemExit):
        main(["compare-methods", str(tmp_path / "passwd")])
    assert "passwd' of Python; give one (.py) with `study() -> Study`" in capsys.readouterr().err


def test_records_of_another_study_are_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a run was started"))
    one = study(tmp_path)
    folder = fake(one, Cell("intention", "b", 1), None, updates=3)
    with Watch() as watch, pytest.raises(RunFolderError, match="more than the study's budget of 2; give --updates 3"):
        studies.run_missing(one, "", watch)
    stored = json.loads(json.dumps(describe(studies.configured(one, "intention", "b", 1)))) | {"sha256": {}}
    stored["learn"]["epochs"] = 7
    (folder / "config.json").write_text(json.dumps(stored))
    with Watch() as watch, pytest.raises(RunFolderError, match="learn.epochs = 7, but 2 is asked for"):
        studies.run_missing(one, "", watch)


# Runs


def test_the_kept_text_gives_the_same_run_anywhere(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "base.py").write_text(Path(TINY).read_text())
    file = tmp_path / "there" / "study.py"
    file.write_text('"""A study."""\n\nfrom __future__ import annotations\n\n' + GOOD.replace(
        f"load_config({TINY!r})", "load_config(str(Path(__file__).with_name('base.py')))").replace("CHANGES", ""))
    one = call(str(file), "study", Study)
    arguments = ["--updates", "5", "--seeds", "3", "4", "--root", str(tmp_path / "runs"), "--name", "n"]
    one, _ = studies.parse(str(file), one, arguments)
    kept = tmp_path / "elsewhere.py"
    kept.write_text(studies.source_of(one, Cell("intention", "a", 3), placed(str(file))))
    config = load_config(str(kept))
    assert describe(config) == describe(studies.configured(one, "intention", "a", 3))
    assert (config.name, config.seed, config.learn.steps) == ("3", 3, 5)
    assert config.root == str(tmp_path / "runs" / "n" / "intention" / "a")


def test_only_equal_starts_are_shared(tmp_path):
    longer = lambda config: replace(config, {"sft.steps": 3})
    tuned = lambda config: replace(config, {"knobs": {**config.knobs, "rl.policy_loss.clip_low": 0.1}})
    one = study(tmp_path, methods={"a": lambda config: config, "longer": longer, "tuned": tuned}, updates=3)
    there = studies.folder_of(one, Cell("intention", "a", 0))
    for name in ("model", "cold_start"):
        (there / name).mkdir(parents=True)
        (there / name / "weights").write_text(name)
    (there / "sft.jsonl").write_text("{}\n")
    for method in ("tuned", "longer"):
        studies.copy_start(one, Cell("intention", method, 0))
    studies.copy_start(one, Cell("intention", "tuned", 1))
    here = studies.folder_of(one, Cell("intention", "tuned", 0))
    assert (here / "cold_start" / "weights").read_text() == "cold_start" and (here / "sft.jsonl").read_text() == "{}\n"
    assert not studies.folder_of(one, Cell("intention", "longer", 0)).exists()
    assert not studies.folder_of(one, Cell("intention", "tuned", 1)).exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_finished_runs_stay_and_failed_ones_do_not_stop_the_others(tmp_path, monkeypatch, capsys, jobs):
    one = study(tmp_path)
    fake(one, Cell("intention", "a", 0), 0.5)
    monkeypatch.setattr(child, "CHILD", "import sys; print('no good:', sys.argv[1]); sys.exit(3)")
    with Watch() as watch:
        failed = studies.run_missing(one, "", watch, jobs)
    assert failed == [Cell("intention", "b", 0), Cell("intention", "a", 1), Cell("intention", "b", 1)]
    said = capsys.readouterr().out
    assert "finished already: 1 of 4 runs" in said and "failed (exit status 3): no good: " in said
    assert "stopped or failed: no good: " in Page(page.write_page(one, "").read_text()).text


def test_an_interruption_ends_all_children(tmp_path, monkeypatch):
    """Each would sleep for ten minutes; the second one interrupts the study."""
    monkeypatch.setattr(child, "CHILD", "import os, sys, threading, time\nfrom eau_jax.child import end_with_the_parent\n"
                        "threading.Thread(target=end_with_the_parent, daemon=True).start()\n"
                        "print('here', flush=True)\ntime.sleep(600)")
    one, real = study(tmp_path), studies.threading.Event.wait
    began = time.monotonic()

    def interrupting(event, timeout=None):
        logs = [studies.folder_of(one, Cell("intention", "a", seed)).with_name(f"{seed}.log") for seed in (0, 1)]
        if all(log.exists() and log.read_text() for log in logs):
            os.kill(os.getpid(), signal.SIGINT)
        return real(event, timeout)

    monkeypatch.setattr(studies.threading.Event, "wait", interrupting)
    with Watch() as watch, pytest.raises(KeyboardInterrupt):
        studies.run_missing(one, "", watch, 2)
    assert time.monotonic() - began < 60


def test_a_study_in_use_is_refused(tmp_path):
    one = study(tmp_path)
    with RunFolder(one.folder), Watch() as watch, pytest.raises(RunFolderError, match="in use by another process"):
        studies.run_missing(one, "", watch)


KILLED = '''
from eau_jax.algorithms.group import grpo
from eau_jax.config_file import load_config, replace
from eau_jax.learner.critic import no_critic
from eau_jax.study import Study


def without_critic(config):
    knobs = {path: value for path, value in config.knobs.items() if not path.startswith("rl.critic_optimizer.")}
    return replace(config, {"algorithm.advantage": grpo, "algorithm.critic": no_critic, "learn.critic_warmup": 0,
                            "knobs": knobs})


def study():
    base = replace(load_config(BASE), {"mesh.data": 1, "swaps": ()})
    return Study(name="s", environments={"intention": base}, methods={"ppo": lambda config: config, "grpo": without_critic},
                 baseline="ppo", seeds=(0, 1), updates=3)
'''


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_to_the_same_page(tmp_path):
    file = tmp_path / "study.py"
    file.write_text(KILLED.replace("BASE", repr(TINY)))
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", "from eau_jax.cli import main; main()", "compare-methods", str(file), "--root"]
    records = {}
    for name in ("calm", "stormy"):
        root = tmp_path / name
        if name == "stormy":
            victim = root / "s" / "intention" / "grpo" / "0"
            process = subprocess.Popen([*command, str(root)], env=environment, stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 300
            while not (victim / "metrics.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(3)                                   # its child notices and ends
            with RunFolder(victim):
                assert len(list(read_lines(victim / "metrics.jsonl"))) < 3
        done = subprocess.run([*command, str(root)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        files = [root / "s" / "study.json", *sorted(root.rglob("metrics.jsonl")), *sorted(root.rglob("eval.jsonl")),
                 *sorted(root.rglob("sft.jsonl")), *sorted((root / "s" / "plots").iterdir())]
        records[name] = {str(file.relative_to(root)): file.read_bytes() for file in files}
        assert len(list(root.rglob("metrics.jsonl"))) == 4
    assert records["calm"] == records["stormy"]
    assert "finished already: 1 of 4 runs" in done.stdout
    first, second = (tmp_path / "calm" / "s" / "intention" / method / "0" / "cold_start" for method in ("ppo", "grpo"))
    assert {f.name: f.read_bytes() for f in first.iterdir()} == {f.name: f.read_bytes() for f in second.iterdir()}
