"""What people see of a run's changes: `audit`, `watch`, the report's marks and table, the schedule that replays a run."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from campaign_run import make
from rich.console import Console
from test_report import EVIL, Page
from tiny_config import config as tiny

from eau_jax import live
from eau_jax.audit_command import check
from eau_jax.cli import main
from eau_jax.config import ConfigError, Meta
from eau_jax.config_file import load_method, replace
from eau_jax.core.records import RunFolderError
from eau_jax.envs.gyms import intention_tasks
from eau_jax.meta import audit
from eau_jax.meta.harvest import harvest
from eau_jax.meta.pool import Pool
from eau_jax.meta.rule_proposer import rules
from eau_jax.report.draw import svg
from eau_jax.report.page import render, write_report
from eau_jax.schedule import source, swaps

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path):
    return make(tmp_path / "run")


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def rechain(path):
    """The audit file with its hashes made anew, as somebody who knows how would leave it."""
    previous, lines = "0" * 64, []
    for line in path.read_text().splitlines():
        lines.append({**json.loads(line), "previous": previous})
        previous = audit.digest(lines[-1])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


# audit


def test_an_audit_of_a_whole_run(run, capsys):
    assert check(run) == ((), f"{run}: 16 audit records, chain whole; 4 changes of generation: 3 adopted, 1 taken back, 0 "
                              f"scheduled by the config; all agree")
    with pytest.raises(SystemExit) as end:
        main(["audit", str(run)])
    assert end.value.code == 0 and "all agree" in capsys.readouterr().out


@pytest.mark.parametrize("file, old, new, said", [
    ("knobs/1.json", '"step": 12', '"step": 13', "holds from update 13 on, by audit.jsonl from 12"),
    ("knobs/1.json", '"env.max_turns": 20', '"env.max_turns": 24', "knobs/1.json has env.max_turns = 24, audit.jsonl 20"),
    ("knobs/2.json", '[20, 15]', '[20, 15], "env.x": [1, 2]', "changes env.x, of which audit.jsonl says nothing"),
    ("knobs/1.json", '"task_mix": {}', '"task_mix": {"a": 1.0}', "has the task mix"),
    ("rules/4.toml", "# other", "# another", "rules/4.toml is not the list"),
    ("proposals/21-1/verdict.json", '"rolled_back"', '"kept"', "its verdict is kept, audit.jsonl says rolled_back"),
    ("proposals/26-1/gate.json", '"passed": false', '"passed": true', "differ about whether it was accepted")])
def test_records_that_do_not_agree_are_named(run, file, old, new, said, capsys):
    edit(run / file, old, new)
    found = check(run)
    assert any(said in complaint for complaint in found.complaints), found
    with pytest.raises(SystemExit) as end:
        main(["audit", str(run)])
    assert end.value.code == 1 and said.split(",")[0] in " ".join(capsys.readouterr().err.split())


def test_a_generation_that_nobody_made_is_found(run):
    (run / "knobs/5.json").write_text((run / "knobs/3.json").read_text().replace('"generation": 3', '"generation": 5'))
    assert [said for said in check(run).complaints if "knobs/5.json" in said and "neither" in said]
    edit(run / "config.json", '"swaps": []', '"swaps": [{"step": 27, "knobs": {"env.max_turns": 20}, "rules": ""}]')
    assert check(run).complaints == ()
    (run / "knobs/2.json").unlink()
    assert "knobs/2.json is missing" in check(run).complaints


def test_what_is_missing_is_found(run):
    for file in (run / "proposals/11-1").iterdir():
        file.unlink()
    assert "audit.jsonl tells of proposal 11-1, but proposals/11-1 is not there" in check(run).complaints
    path = run / "audit.jsonl"
    edit(path, '"helpful"', '"harmful"')
    with pytest.raises(RunFolderError, match="its hash is not that of line"):
        check(run)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"adopted"' not in line))
    rechain(path)     # a chain that is whole again still does not agree with knobs/
    assert sum("neither audit.jsonl nor" in said for said in check(run).complaints) == 3


def test_values_that_were_read_back_are_compared(run):
    edit(run / "audit.jsonl", '{"1": 64}', '{"0": 3, "1": 61}')
    rechain(run / "audit.jsonl")
    assert check(run).complaints == ("in update 12, episodes of generation 0 were played under 1",)
    with pytest.raises(RunFolderError, match="no run folder"):
        check(run / "knobs")


# Damaged records


def viewers(run, pool):
    """What shows or reads a run's records, each ready to be called."""
    def harvested():
        with Pool(pool) as opened:
            harvest(run, opened)
    return [lambda: check(run), lambda: live.draw(run, live.look(run), 80), lambda: render(run, None), harvested,
            lambda: source(run)]


@pytest.mark.parametrize("file, old, new, said", [
    ("knobs/2.json", '"values"', '"value"', "knobs/2.json: 'values' is missing"),
    ("knobs/3.json", '{"env.max_turns": [15, 20]}', "null", "knobs/3.json: changes"),
    ("knobs/2.json", "[20, 15]", "[20]", "knobs/2.json: changes must be pairs"),
    ("knobs/current", "4", "../4", "'../4' is no number of a generation"),
    ("rounds/11.json", '"answers": [', '"answers": "x", "y": [', "rounds/11.json: answers"),
    ("rounds/11.json", '"agent": {', '"agent": 3, "y": {', "agent: 3 (int) is not allowed"),
    ("proposals/21-1/verdict.json", '"rolled_back"', '"gone"', "'gone' is none of kept, rolled_back"),
    ("proposals/21-1/verdict.json", '"reason"', '"because"', "verdict.json: 'reason' is missing"),
    ("proposals/11-1/proposal.json", '"prediction": {', '"prediction": "up", "y": {', "proposal.json: prediction"),
    ("proposals/21-1/gate.json", '"moves": ["env.max_turns down"]', '"moves": [-1]', "gate.json: moves[0]"),
    ("proposals/11-1/canary.json", '"passed": true', '"passed": "yes"', "canary.json: passed"),
    ("metrics.jsonl", '"step": 7,', '"step": null,', "metrics.jsonl, line 7"),
    ("config.json", '"swaps": []', '"swaps": -1', "config.json: swaps"),
    ("config.json", '"steps": 40', '"steps": "all"', "config.json: learn: steps")])
def test_a_damaged_record_is_named_by_whatever_reads_it(run, tmp_path, file, old, new, said):
    edit(run / file, old, new)
    found = []
    for view in viewers(run, tmp_path / "pool"):
        try:
            view()
        except ValueError as error:      # a message of the command line, whatever else is a traceback
            found.append(str(error))
    assert found and all(file.split("/")[-1] in text for text in found), found
    assert any(said in text for text in found), found


@pytest.mark.parametrize("old, new, said", [
    ('"values": {"env.max_turns": 20}', '"values": [20]', "values"), ('"generation": 1,', '"generation": [],', "generation"),
    ('"event": "kept", "id": "11-1"', '"event": "kept", "id": []', "id"), ('"accepted": true', '"accepted": 1', "accepted")])
def test_a_damaged_line_of_the_audit_is_named_though_its_chain_is_whole(run, old, new, said):
    edit(run / "audit.jsonl", old, new)
    rechain(run / "audit.jsonl")
    with pytest.raises(RunFolderError, match=rf"audit.jsonl, line \d+: {said}"):
        check(run)


def test_the_folder_of_a_campaign_says_where_its_runs_are(run):
    for look in (check, live.look):
        with pytest.raises(RunFolderError, match="is no run folder.*a run in it is .*run"):
            look(run.parent)


# watch


def shown(run, width=120):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))
    console.print(live.draw(run, live.look(run), width))
    return console.export_text()


def contents(run):
    return {file: (file.stat().st_mtime_ns, hashlib.sha256(file.read_bytes()).hexdigest())
            for file in run.rglob("*") if file.is_file()}


def test_a_run_in_the_terminal(run):
    before = contents(run)
    text = shown(run)
    for said in ("update 40 of 40", "generation 4", "finished", "env.max_turns 16 → 20, other rules of the user",
                 "too_few_turns (env, confidence 0.8)", "live 31-1", "canary 36-1: easy 0.5 → 0.6",
                 "the last of 7 proposals", "rolled back",
                 "anchor success"):
        assert said in text, said
    marks = next(line for line in text.splitlines() if line.startswith("changes"))
    assert [place - live.NAMES + 1 for place, letter in enumerate(marks[:60]) if letter in "▲▼"] == [12, 22, 27, 32]
    assert contents(run) == before and max(map(len, shown(run, 80).splitlines())) <= 80


def test_sparklines_by_hand():
    assert live.sparkline(np.array([0.0, 0.5, 1.0]), 10) == "▁▅█" and live.sparkline(np.array([2.0, 2.0]), 10) == "▄▄"
    assert live.sparkline(np.array([0.0, np.nan, 1.0]), 10) == "▁ █" and live.sparkline(np.array([]), 5) == ""
    assert live.sparkline(np.array([0.0, 2.0, 6.0, 8.0, np.nan, np.nan]), 3) == "▁█ "


def test_an_unfinished_or_odd_run_is_shown(tmp_path, run):
    empty = tmp_path / "new"
    empty.mkdir()
    with pytest.raises(RunFolderError, match="no run folder"):
        live.look(empty)
    (empty / "config.json").write_text('{"learn": {"steps": 9}}')
    assert "update 0 of 9" in shown(empty) and "no round of proposing yet" in shown(empty)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 41, "rollout/sco')       # torn
    record = json.loads((run / "proposals/11-1/proposal.json").read_text())
    record["author"] = "\x1b]0;owned\x07 [red]x"
    (run / "proposals/11-1/proposal.json").write_text(json.dumps(record))
    assert "\x1b" not in shown(run) and "[red]" in shown(run).replace("\n", "")


@pytest.mark.parametrize("finished", [True, False])
def test_watch_ends_cleanly(run, finished):
    """On a finished run, or one that nobody sees, at once; in a terminal at Ctrl-C. It leaves the folder as it was."""
    if not finished:
        edit(run / "config.json", '"steps": 40', '"steps": 50')
    before, (master, slave) = contents(run), os.openpty()
    command = [sys.executable, "-c", "from eau_jax.cli import main; main()", "watch", str(run), "--every", "0.1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    text, until = b"", time.monotonic() + 60
    while b"proposals" not in text and time.monotonic() < until:
        text += os.read(master, 65536)
    if not finished:
        assert process.poll() is None
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0 and b"Traceback" not in text
    os.close(master)
    assert contents(run) == before


# report and schedule


def test_marks_and_the_table_of_the_report(run):
    text, charts = render(run, None)
    page = Page(text)
    assert not page.open and "script" not in page.tags
    score = next(chart for chart in charts if chart.title == "Score")
    assert [(mark.step, mark.label, mark.kind) for mark in score.marks] == [
        (12, "11-1", "good"), (22, "21-1", "bad"), (27, "21-1 back", "bad"), (32, "31-1", "")]
    drawn = Page(svg(score))
    assert drawn.text.count("21-1 back") == 1 and "21-1 taken back, too_many_turns" in drawn.text
    assert "Anchor tasks" in [chart.title for chart in charts]
    for said in ("7 proposals: 1 kept, 1 taken back, 2 under way, 3 refused.",
                 "truncated_progressing 0.42 (limit 0.25) in updates 6 to 10",
                 "rollout/truncated_rate down by 0.05 within 5 updates", "refused by no_leak: the user says a hidden value",
                 "kept at 17, helpful: rollout/truncated_rate went from 0.4 to 0.1", "refused by generation",
                 "refused by parse: no JSON",
                 "--method RUN/schedule.py"):
        assert said in page.text, said


def test_a_proposers_words_are_only_text(run):
    for file in run.glob("proposals/*/*.json"):
        evil = json.dumps(EVIL)[1:-1]
        file.write_text(file.read_text().replace("episodes are cut", evil).replace("no JSON", evil))
    page = Page(render(run, None)[0])
    assert not page.open and "script" not in page.tags and "img" not in page.tags


def test_a_schedule_replays_the_changes(run):
    write_report(run)
    found = swaps(run)
    assert [(swap.step, dict(swap.knobs)) for swap in found] == [
        (12, {"env.max_turns": 20}), (22, {"env.max_turns": 15}), (27, {"env.max_turns": 20}), (32, {})]
    assert found[3].rules == (run / "rules/4.toml").read_text() and not any(swap.task_mix for swap in found)
    bucketed = replace(tiny(), {"tasks.bucket": intention_tasks.bucket, "meta": Meta(proposer=rules, canary_tasks=2)})
    config = load_method(run / "schedule.py")(bucketed)
    assert config.swaps == found and config.meta.proposer is None and config.tasks.bucket is None
    edit(run / "knobs/4.json", '"task_mix": {}', '"task_mix": {"details_3": 1.0}')
    (run / "schedule.py").write_text(source(run))
    assert load_method(run / "schedule.py")(bucketed).tasks.bucket is intention_tasks.bucket
    with pytest.raises(ConfigError):
        load_method(run / "none.py")


def test_a_run_without_changes_has_no_schedule(run):
    for file in run.glob("proposals/*/*"):
        file.unlink()
    write_report(run)
    assert not (run / "schedule.py").exists() and "What was proposed" not in (run / "report.html").read_text()
