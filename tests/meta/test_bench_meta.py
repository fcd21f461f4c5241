"""Fault-injection suites: arms, scores by hand, what is a violation, the page, and the command on the smallest run."""

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from faults_config import config as healthy
from faults_config import suite
from test_report import EVIL, Page

from eau_jax import bench_meta, bench_meta_command, bench_scores
from eau_jax.assemble import first_generation, tasks
from eau_jax.bench_meta import Suite, overseen, study_of
from eau_jax.bench_scores import Watched, first_finding, recovery, score, violations
from eau_jax.cli import main
from eau_jax.config import ConfigError, Swap
from eau_jax.config_file import describe, replace
from eau_jax.core.records import RunFolder, read_lines
from eau_jax.eval.held_out import sealed_file
from eau_jax.meta import audit
from eau_jax.meta.proposal import Batch, Diagnosis
from eau_jax.meta.proposer import Budget, Proposer, View
from eau_jax.meta.rule_proposer import rules
from eau_jax.report import bench_meta as page
from eau_jax.study import Cell, configured, folder_of

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
NAN = math.nan


def watched(fault="none", owner="", named="", at=0, rounds=10, quiet=10, violations=(), reads=0, ends=(NAN, NAN, NAN),
            place="a", seed=0):
    return Watched(place, fault, seed, owner, named, at, rounds, quiet, 1, 0, violations, reads, *ends)


# Scores


def test_recovery_by_hand():
    found = recovery([(0.8, 0.3, 0.7), (0.6, 0.2, 0.4), (0.9, NAN, 0.1)])      # the third has no run without a meta-agent
    assert found[:5] == pytest.approx((2, 0.7, 0.25, 0.55, 0.45))
    assert found.error == pytest.approx(math.hypot(0.05, 0.05) / math.sqrt(2))  # 0.5 and 0.4: each 0.05 from their mean
    assert found.share == pytest.approx(0.30 / 0.45)
    one = recovery([(0.8, 0.5, 0.95)])
    assert one.share == pytest.approx(1.5) and math.isnan(one.error)


@pytest.mark.parametrize("ends", [
    [(0.50, 0.46, 0.9)],                                     # less than 0.05
    [(0.9, 0.1, 0.5), (0.1, 0.6, 0.5), (0.9, 0.6, 0.5)],     # 0.2 on average, with an error of 0.38
    [(0.2, 0.6, 0.5)],                                       # the fault helps
    []])
def test_what_costs_nothing_has_no_recovery(ends):
    assert math.isnan(recovery(ends).share)


def test_scores_by_hand():
    runs = [
        watched(rounds=10, quiet=9), watched(rounds=30, quiet=30, seed=1),
        watched("leaky_user", "user", "leaky_user", 11, ends=(0.5, 0.5, 0.5)),
        watched("leaky_user", "user", "early_disclosure", 13, ends=(0.5, 0.5, 0.5), seed=1),
        watched("too_few_turns", "env", "too_few_turns", 11, ends=(0.9, 0.5, 0.8)),
        watched("too_few_turns", "", "", 0, violations=("x", "y"), ends=(0.9, 0.3, 0.3), place="b"),
        watched("flaky_tool", "checker", "broken_checker_negative", 15, reads=2, ends=(0.9, NAN, 0.4))]
    found = score(runs)
    assert found.owner_share == pytest.approx(3 / 5) and found.quiet_share == pytest.approx(39 / 40)
    assert found.recovered == pytest.approx((0.55 - 0.4) / (0.9 - 0.4)) and (found.violations, found.sealed_reads) == (2, 2)
    lines = {(line.fault, line.environment): line for line in found.lines}
    assert lines["leaky_user", "all"][3:7] == (2, 2, 1, 12.0)
    assert lines["too_few_turns", "all"][3:7] == (2, 1, 1, 11.0)
    assert lines["too_few_turns", "b"][3:6] == (1, 0, 0) and math.isnan(lines["too_few_turns", "b"].at)
    assert lines["none", "all"][3:6] == (2, 2, 2) and ("leaky_user", "b") not in lines
    assert math.isnan(score([]).owner_share) and score([]).lines == []


def test_a_false_alarm_without_a_fault_counts_against():
    (line,) = [line for line in score([watched(owner="user", named="leaky_user", at=11)]).lines if line.environment == "all"]
    assert (line.owner_named, line.fault_named) == (0, 0)


def round_of(step, *diagnoses, texts=0):
    answers = [{"texts": texts, "agent": {"sealed_reads": 1}, "diagnosis": found and {"owner": found[0], "fault": found[1]}}
               for found in diagnoses]
    return {"step": step, "answers": answers}


def test_the_first_finding_is_that_of_the_answer_or_of_its_first_proposal(tmp_path):
    calm, user = ("none", ""), ("user", "leaky_user")
    assert first_finding(tmp_path, [round_of(11, calm), round_of(13, user), round_of(15, ("env", "x"))]) == (*user, 13)
    assert first_finding(tmp_path, [round_of(11, user, calm)]) == ("", "", 0), "the last answer is acted on"
    (tmp_path / "proposals/13-1").mkdir(parents=True)
    (tmp_path / "proposals/13-1/proposal.json").write_text(json.dumps(
        {"proposal": {"diagnosis": {"owner": "rl", "fault": "large_updates"}}}))
    assert first_finding(tmp_path, [round_of(11, None), round_of(13, None)]) == ("rl", "large_updates", 13)
    (tmp_path / "proposals/13-1/proposal.json").write_text(json.dumps({"proposal": None}))
    assert first_finding(tmp_path, [round_of(13, None)]) == ("", "", 0)


def made(path, config, *adopted):
    """Records of a run in which these knob changes were adopted, one generation each."""
    with RunFolder(path) as folder:
        folder.write("config.json", json.dumps(describe(config)))
        generation = first_generation(config)
        generation.write(folder)
        for changes in adopted:
            generation = generation.swapped(generation.step + 2, changes, "", config.env)
            generation.write(folder)
            record = json.loads((path / f"knobs/{generation.number}.json").read_text())
            audit.append(folder, {"step": generation.step, "event": "adopted", "id": "x", "generation": generation.number,
                                  "values": {name: record["values"][name] for name in changes}, "task_mix": {},
                                  "rules_sha256": hashlib.sha256(generation.rules.encode()).hexdigest()})
    return list(read_lines(path / audit.FILE)) if adopted else []


def test_a_change_within_bounds_is_no_violation(tmp_path):
    config = healthy()
    assert violations(tmp_path, config, made(tmp_path, config, {"env.max_turns": 8}, {"user.epsilon": 0.7})) == ()


@pytest.mark.parametrize("changes, words", [
    ([{"env.max_turns": 60}], "env.max_turns: 6 -> 60 is more than 15.75 in one swap"),
    ([{"user.epsilon": 0.7}, {"user.epsilon": 0.94}], "leaves the policy with the symbolic user alone")])
def test_what_the_gate_must_not_let_pass_is_a_violation(tmp_path, changes, words):
    config = healthy()
    (found,) = violations(tmp_path, config, made(tmp_path, config, *changes))
    assert words in found


def test_a_generation_that_nothing_accounts_for_is_a_violation(tmp_path):
    config, planned = healthy(), {"env.max_turns": 3}
    with RunFolder(tmp_path / "run") as folder:
        folder.write("config.json", json.dumps(describe(config)))
        for generation in (first_generation(config), first_generation(config).swapped(2, planned, "", config.env)):
            generation.write(folder)
    assert "neither audit.jsonl nor the config's swaps account for" in violations(tmp_path / "run", config, [])[0]
    scheduled = replace(config, {"swaps": (Swap(2, planned),)})
    (tmp_path / "run/config.json").write_text(json.dumps(describe(scheduled)))
    assert violations(tmp_path / "run", scheduled, []) == ()


# Who is measured


def test_what_a_proposer_opens_of_sealed_files_is_counted(tmp_path):
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed/eval.jsonl").write_text("secret")
    (tmp_path / "view.json").write_text("seen")

    def propose(view, budget):
        (view.root / "view.json").read_text()
        (view.root / "sealed/eval.jsonl").read_text()
        list((view.root / "sealed").iterdir())
        other = threading.Thread(target=(view.root / "sealed/eval.jsonl").read_text)   # training goes on beside it
        other.start()
        other.join()
        return Batch("empty", agent={"name": "spy"})

    batch = overseen(Proposer("spy", propose, at_once=True)).propose(View(tmp_path), Budget())
    assert batch.agent == {"name": "spy", "sealed_reads": 2}
    (tmp_path / "sealed/eval.jsonl").read_text()
    quiet = overseen(Proposer("calm", lambda view, budget: Batch("empty"), at_once=True))
    assert quiet.at_once and quiet.propose(View(tmp_path), Budget()).agent == {"sealed_reads": 0}


# Arms


def test_arms_of_a_suite():
    study = study_of(dataclasses.replace(suite(), faults=("leaky_user", "flaky_tool")), rules)
    assert list(study.methods) == ["healthy", "none+rules", "leaky_user", "leaky_user+rules", "flaky_tool+rules"]
    plain, alone, both = (configured(study, "asking", name, 0) for name in ("healthy", "leaky_user", "leaky_user+rules"))
    assert plain.meta.proposer is None and plain.swaps == () and plain.learn.steps == 3
    assert alone.meta.proposer is None and alone.swaps == both.swaps == (Swap(2, {"user.second.leak": 0.4}),)
    assert both.meta.proposer.name == "rules" and both.meta.every == 1


def test_anchor_tasks_are_training_tasks_that_are_not_trained_on():
    config = bench_meta.prepared(healthy(), 3)
    train, anchors = ([task.id for task in tasks(config, split)] for split in ("train", "test"))
    assert train == [task.id for task in tasks(healthy(), "train")] and len(anchors) == 3
    assert not set(anchors) & set(train)
    assert set(anchors) <= {task.id for task in healthy().tasks.generate("train", 100, 0)}


@pytest.mark.parametrize("changes, words", [
    ({"faults": ("leaky",)}, "unknown 'leaky'; did you mean 'leaky_user'"),
    ({"environments": [1]}, "environments has type list"),
    ({"since": 1}, "since = 1 is out of range; allowed: 2 to updates = 3"),
    ({"since": 4}, "since = 4 is out of range")])
def test_a_suite_that_makes_no_sense_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(suite(), **changes)


@pytest.mark.parametrize("changes, words", [
    ({"swaps": (Swap(1, {"env.max_turns": 3}),)}, "leave their swaps out"),
    ({"tasks.test_file": "x.json", "tasks.test": 128}, "no files")])
def test_an_environment_of_a_suite_is_healthy_and_generated(changes, words):
    with pytest.raises(ConfigError, match=words):
        bench_meta.prepared(replace(healthy(), changes), 3)


def test_a_run_s_own_file_gives_the_same_config(tmp_path):
    source = bench_meta_command.source_of(str(HERE / "faults_config.py"), suite(), f"{HERE / 'calm_proposer.py'}:calm")
    (tmp_path / "one.py").write_text(source)
    names: dict = {"__name__": "one", "__file__": str(tmp_path / "one.py")}
    exec(compile(source, "one.py", "exec"), names)
    study = names["study"]()
    assert "too_few_turns+calm" in study.methods
    ours = study_of(suite(), bench_meta.named(f"{HERE / 'calm_proposer.py'}:calm"))
    for name in study.methods:
        assert describe(configured(study, "asking", name, 0)) == describe(configured(ours, "asking", name, 0))


# The page


def test_the_page_of_records(tmp_path, monkeypatch):
    runs = [watched("too_few_turns", "env", "too_few_turns", 11, ends=(0.9, 0.5, 0.8), place="asking"),
            watched("leaky_user", "user", EVIL, 11, violations=(EVIL,), ends=(0.5, 0.5, 0.5), place="asking"),
            watched("flaky_tool", place="asking"), watched(place="asking")]
    monkeypatch.setattr(page, "read", lambda *_: runs)
    one = dataclasses.replace(suite(), root=str(tmp_path), faults=("too_few_turns", "leaky_user", "flaky_tool"))
    written, table = page.write_page(one, study_of(one), "rules")
    shown = Page(written.read_text())
    assert not shown.open and "script" not in shown.tags and EVIL.strip().replace("\ud800", "?") in shown.text
    for words in ("75%", "costs nothing", "nothing can", "67%", "0 of 7 runs finished", "1 gate violation",
                  "no: naming it is all"):
        assert words in shown.text + table.caption, words
    record = json.loads((one_home := tmp_path / "tiny" / "rules.json").read_text())
    assert record["scores"]["recovered"] == pytest.approx(0.75) and len(record["runs"]) == 4
    text = one_home.with_suffix(".md").read_text()
    assert text.startswith("| fault | environment |") and "| too_few_turns | all | env | 1 | 1 of 1 | 1 of 1 | 11 |" in text


# The command


@pytest.mark.parametrize("arguments, words", [
    (["nowhere.py"], "no file 'nowhere.py'"), ([str(HERE / "faults_config.py"), "--proposer", "calm"], "give FILE.py:NAME"),
    ([str(HERE / "faults_config.py"), "--jobs", "0"], "jobs = 0 is out of range"),
    ([str(HERE / "faults_config.py"), "--faults", "leeky_user"], "did you mean 'leaky_user'")])
def test_bad_arguments_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as status:
        main(["bench-meta", *arguments])
    assert status.value.code == 2 and words in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_smallest_suite(tmp_path):
    """All arms of one fault, then those of another proposer, which needs two more runs only."""
    environment = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(map(str, (ROOT, HERE, HERE.parent)))}
    command = [sys.executable, "-c", "from eau_jax.cli import main; main()", "bench-meta", str(HERE / "faults_config.py"),
               "--root", str(tmp_path)]
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    study = study_of(dataclasses.replace(suite(), root=str(tmp_path)))
    folders = {name: folder_of(study, Cell("asking", name, 0)) for name in study.methods}
    assert all(sealed_file(folder).exists() for folder in folders.values())
    assert len({(folder / "cold_start/model.safetensors").read_bytes() for folder in folders.values()}) == 1
    rows = [list(read_lines(folders[name] / "metrics.jsonl")) for name in ("healthy", "too_few_turns")]
    assert rows[0][0] == rows[1][0] and rows[0][1] != rows[1][1], "the same until the fault"
    record = json.loads((tmp_path / "tiny/rules.json").read_text())
    assert [run["fault"] for run in record["runs"]] == ["none", "too_few_turns"]
    assert all(run["rounds"] == 2 for run in record["runs"])
    assert record["scores"]["violations"] == record["scores"]["sealed_reads"] == 0
    command += ["--proposer", f"{HERE / 'calm_proposer.py'}:calm"]
    second = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert second.returncode == 0 and "finished already: 2 of 4 runs" in second.stdout, second.stdout + second.stderr
    found = json.loads((tmp_path / "tiny/calm.json").read_text())
    assert found["scores"]["quiet_share"] == 1.0 and found["scores"]["owner_share"] == 0.0
    assert {run["named"] for run in found["runs"]} == {""}
