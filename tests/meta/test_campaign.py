"""Campaigns: runs begin with what the pool recommends, restarts count, anchor tasks alone choose, a killed one goes on."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from campaign_run import played

from eau_jax import campaign as campaigns, child
from eau_jax.campaign import Campaign, Launch, summary
from eau_jax.campaign_start import usable
from eau_jax.config import ConfigError
from eau_jax.config_file import describe, load_config, replace
from eau_jax.core.records import read_lines
from eau_jax.meta.pool import read
from eau_jax.meta.recommend import Start
from eau_jax.meta.rule_proposer import rules
from eau_jax.progress import Watch
from eau_jax.users.symbolic import symbolic

ROOT = Path(__file__).resolve().parents[2]
SOURCE = f'''
import sys
sys.path[:0] = [{str(ROOT / "tests")!r}]
from tiny_config import config as tiny
from eau_jax.config import Meta
from eau_jax.config_file import replace
from eau_jax.meta.rule_proposer import rules
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.symbolic import symbolic


def config():
    base = tiny()
    return replace(base, {{"name": "c", "root": ROOT, "swaps": (), "learn.steps": 40, "learn.rows": 8,   # eight devices
                          "user": mixture(symbolic, noisy),
                          "knobs": {{**base.knobs, "env.max_turns": 16}}, "meta": Meta(proposer=rules, canary_tasks=2)}})
'''


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """A campaign whose runs are written by hand, after a plan {run: what happens in it}. Its child processes are played for
    real in the slow test below, and in those of studies."""
    file = tmp_path / "config.py"
    file.write_text(SOURCE.replace("ROOT,", f"{str(tmp_path)!r},"))
    plans = {}

    def play(child_file, log, look, stop):
        config = load_config(str(child_file))
        (child_file.parent / f"{config.name}.asked.json").write_text(json.dumps(describe(config)))
        plan = plans.get(config.name, {})
        log.write_text(plan.get("said", ""))
        status = played(config, plan)
        look()
        return 1 if stop.is_set() else status

    monkeypatch.setattr(child, "play", play)

    def begun(plan, most=3, pool="", changes=None, **launch):
        plans.clear()
        plans.update(plan)
        with Watch() as watch:
            made = Campaign(replace(load_config(str(file)), changes or {}), source(changes or {}),
                            Launch(most, pool, **launch), watch)
            made.play()
            watch.console.print(summary(made))
        return made

    def source(changes):
        text = file.read_text()
        return text.replace("mixture(symbolic, noisy)", "symbolic") if "user" in changes else text

    return begun


def asked(made, name):
    return json.loads((made.home / f"{name}.asked.json").read_text())


def test_runs_begin_with_what_was_found_out(begin, capsys):
    made = begin({"run-01": {"anchor": (0.2, 0.9)}, "run-02": {"anchor": (0.2, 0.5), "quiet": True}}, most=5)
    assert [(run.name, run.status) for run in made.runs] == [("run-01", "finished"), ("run-02", "finished")]
    assert asked(made, "run-01")["swaps"] == []
    assert asked(made, "run-02")["swaps"] == [{"step": 1, "knobs": {"env.max_turns": 20}, "rules": "", "task_mix": {},
                                               "set_aside": [], "weights": 0}]
    # the first generation, and with it the anchor, is the config's
    assert asked(made, "run-02")["knobs"]["env.max_turns"] == 16
    assert asked(made, "run-02")["meta"]["pool"] == str(made.home / "pool")
    kept = json.loads((made.home / "campaign.json").read_text())
    assert kept["best"] == "run-01" == made.best.name
    assert kept["total"]["training"] == 2 * 2520 and kept["total"]["agent_tokens"] == 1000 and kept["total"]["seconds"] == 80
    assert (made.home / "anchor.png").stat().st_size > 1000
    said = capsys.readouterr().out
    assert "run-02 begins with env.max_turns = 20" in said and "run-01 (best)" in said and "2,744" in said
    used = next(one for one in read(made.home / "pool").lessons if one.fault == "too_few_turns")
    assert (used.helpful, used.harmful) == (1, 1)                      # it helped within run-01, and run-02 ended lower
    assert "the next run would be run-01 again" in said                # so nothing is recommended


def test_a_campaign_ends_where_the_next_run_would_be_one_of_its_own(begin, capsys):
    made = begin({}, most=5)
    assert [run.name for run in made.runs] == ["run-01", "run-02"]
    assert "the next run would be run-02 again, for nothing else is recommended" in capsys.readouterr().out
    assert begin({}, most=5).runs == made.runs                         # the same command does nothing more


def test_an_ill_run_is_ended_early_and_counts(begin):
    made = begin({"run-01": {"leak": True}, "run-02": {"leak": True}}, most=3)
    assert [run.status for run in made.runs] == ["restarted", "restarted", "finished"]
    assert "tell hidden values" in made.runs[0].why and made.runs[0].updates == 4
    first, second = (asked(made, name)["swaps"][0]["knobs"] for name in ("run-02", "run-03"))
    assert (first, second) == ({"user.second.leak": 0.0}, {"user.epsilon": 0.65})    # what did not help is not done again
    assert (made.home / "pool/runs/c-run-01/why_stopped.md").exists() and made.best.name == "run-03"


def test_a_run_without_a_cure_ends_the_campaign(begin, capsys):
    made = begin({"run-01": {"leak": True}}, changes={"user": symbolic})
    assert [run.status for run in made.runs] == ["restarted"] and made.best is None
    assert "again, for it was ended early: in each of 3 updates" in capsys.readouterr().out


def test_losses_that_are_no_numbers(begin):
    made = begin({"run-01": {"exit": 3, "said": "loss nan"}}, most=2)
    assert [(run.status, run.tries) for run in made.runs] == [("restarted", 2), ("finished", 0)]
    assert asked(made, "run-02")["swaps"][0]["knobs"]["rl.policy_optimizer.learning_rate"] == pytest.approx(5e-4)


def test_a_run_that_fails_is_continued_by_the_same_command(begin):
    with pytest.raises(ConfigError, match="run-01 failed .exit status 2.: the server is away. The same command con"):
        begin({"run-01": {"exit": 2, "said": "the server is away"}})
    assert [run.name for run in begin({}, most=1).runs] == ["run-01"]


def test_another_config_or_pool_is_refused(begin, tmp_path):
    begin({}, most=1)
    with pytest.raises(ConfigError, match="another learn.epochs"):
        begin({}, changes={"learn.epochs": 2})
    with pytest.raises(ConfigError, match="with the pool"):
        begin({}, pool=str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="max_runs = 0 is out of range"):
        Launch(0)


def test_a_folder_that_holds_something_else_is_refused(begin, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no campaign, but 'metrics.jsonl'"):
        begin({}, most=1)


@pytest.mark.parametrize("old, new, said", [
    ('\n "pool"', '\n "pond"', "'pool' is missing"), ('"updates": 40', '"updates": []', "updates"),
    ('"runs": [', '"runs": 3, "x": [', "runs"), ("{", "[", "not JSON")])
def test_a_damaged_record_of_a_campaign_is_named(begin, old, new, said):
    file = begin({}, most=1).home / "campaign.json"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"campaign.json.*{said}"):
        begin({}, most=1)


def test_a_pool_of_another_campaign_is_used(begin, tmp_path):
    first = begin({}, most=1, pool=str(tmp_path / "shared"))
    os.rename(first.home, tmp_path / "before")
    made = begin({}, most=1, pool=str(tmp_path / "shared"), changes={"name": "c"})
    assert asked(made, "run-01")["swaps"][0]["knobs"] == {"env.max_turns": 20}


def test_only_what_the_config_can_begin_with_is_taken():
    config = load_config(str(ROOT / "tests" / "tiny_config.py"))
    start = Start({"env.max_turns": 4.0, "env.max_turn": 4.0, "rl.policy_loss.clip_low": 9.0, "rl.sampler.temperature": 1.0},
                  "reply = 1", {"easy": 1.0}, ("L-0001",), ("because",))
    found = usable(start, config, {})
    assert found.knobs == {"env.max_turns": 4} and isinstance(found.knobs["env.max_turns"], int)
    assert not found.rules and not found.task_mix and found.lessons == ("L-0001",)
    assert [reason.split(":")[0] for reason in found.reasons] == ["because", "left out", "left out", "rules left out",
                                                                  "task mix left out"]
    assert "did you mean 'env.max_turns'" in found.reasons[1]
    assert usable(start, config, {"easy": 1.0}).task_mix == {"easy": 1.0}


def test_runs_share_a_number_of_episodes(begin):
    """A batch of 64; a run of 10 updates plays 2 times 16 anchor episodes beside it, one of 30 or more 6 times 16 and 24."""
    share = {"episodes": 2560, "share": 0.25, "changes": {"rollout.tasks": 16, "rollout.group": 4}}
    made = begin({"run-01": {"anchor": (0.2, 0.9)}, "run-02": {"anchor": (0.2, 0.5)}}, most=2, **share)
    first, second = made.runs
    assert (asked(made, "run-01")["learn"]["episodes"], first.updates) == (640, 10)
    left = 2560 - 640 - 32
    assert (asked(made, "run-02")["learn"]["episodes"], second.updates) == (left, left // 64)
    kept = json.loads((made.home / "campaign.json").read_text())
    assert kept["over"] and kept["total"]["training"] + kept["total"]["failed"] == 640 + 64 * second.updates
    assert made.best is first, "0.4 more, by errors of 0.08 and 0.09"
    with pytest.raises(ConfigError, match="a campaign of 2560 episodes, but 640 is asked for"):
        begin({}, most=2, **share | {"episodes": 640})


def test_a_shorter_run_must_be_clearly_better(begin):
    share = {"episodes": 2560, "share": 0.25, "changes": {"rollout.tasks": 16, "rollout.group": 4}}
    made = begin({"run-01": {"anchor": (0.2, 0.6)}, "run-02": {"anchor": (0.2, 0.5)}}, most=2, **share)
    assert [run.updates for run in made.runs] == [10, 29] and made.best.name == "run-02"


def test_where_the_next_run_would_repeat_one_that_goes_on(begin, capsys):
    share = {"episodes": 2560, "share": 0.25, "changes": {"rollout.tasks": 16, "rollout.group": 4}}
    made = begin({"run-01": {"quiet": True}}, most=3, **share)
    assert [(run.name, run.status, run.episodes, run.updates) for run in made.runs] == [("run-01", "finished", 2560, 40)]
    assert asked(made, "run-01")["learn"]["episodes"] == 2560 and made.best.name == "run-01"
    assert "run-01 goes on with the 1888 episodes that are left" in capsys.readouterr().out


def test_without_episodes_for_a_batch_no_run_is_begun(begin):
    """What is found out when all is used up is for another campaign."""
    share = {"episodes": 2560, "share": 0.25, "changes": {"rollout.tasks": 16, "rollout.group": 4}}
    made = begin({"run-01": {"quiet": True, "then": {}}}, most=3, **share)
    assert [(run.name, run.updates) for run in made.runs] == [("run-01", 40)] and read(made.home / "pool").lessons


@pytest.mark.parametrize("launch, words", [
    ({"episodes": -1}, "episodes = -1 is out of range"),
    ({"episodes": 64, "max_runs": 5, "share": 0.25}, "leaves nothing for one of them; allowed: above 0, below 0.25"),
    ({"episodes": 64, "share": -0.1}, "allowed: above 0"), ({"share": 0.25}, "share = 0.25 would do nothing"),
    ({"episodes": 64, "share": 0.25, "max_runs": 1}, "would do nothing")])
def test_a_share_that_cannot_be(launch, words):
    with pytest.raises(ConfigError, match=words):
        Launch(**{"max_runs": 2} | launch)


@pytest.mark.parametrize("most, part", [(2, 0.25), (4, 0.25), (5, 0.2), (8, 0.125)])
def test_each_run_has_a_part_without_a_share(most, part):
    assert Launch(most, episodes=640).part == part


def test_episodes_that_are_no_batch_are_refused(begin):
    with pytest.raises(ConfigError, match="episodes = 12 give the first run less than one batch of 4"):
        begin({}, most=2, episodes=12, share=0.25)


def test_what_stays_as_it_is_is_not_begun_with():
    config = replace(load_config(str(ROOT / "tests" / "tiny_config.py")), {"meta.proposer": rules, "meta.fixed": (
        "env.max_turns", "user", "task_mix"), "meta.canary_tasks": 2})
    start = Start({"env.max_turns": 4.0, "env.patience": 9.0}, config.env.rules, {"easy": 1.0}, (), ())
    found = usable(start, config, {"easy": 1.0})
    assert (dict(found.knobs), found.rules, found.task_mix) == ({"env.patience": 9}, "", {})
    assert found.reasons == ("left out: env.max_turns stays as it is (meta.fixed)",)


def test_held_out_results_do_not_choose(begin):
    plan = {"run-01": {"anchor": (0.2, 0.9)}}
    made = begin(plan, most=2)
    sealed = made.home / "sealed" / "run-02"
    sealed.mkdir(parents=True)
    (sealed / "eval.jsonl").write_text('{"step": 40, "score": 1.0}\n')
    assert begin(plan, most=2).best.name == "run-01"
    names = {node.value for node in ast.walk(ast.parse(Path(campaigns.__file__).read_text()))
             if isinstance(node, ast.Constant)
             and isinstance(node.value, str)}
    assert not any("eval.jsonl" in name for name in names)


# The real thing


def command(*arguments):
    return subprocess.Popen([sys.executable, "-c", "from eau_jax.cli import main; main()", *map(str, arguments)], text=True,
                            env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def told(*arguments, code=0):
    process = command(*arguments)
    output, _ = process.communicate()
    assert process.returncode == code, output
    return output


def records(home):
    """What must not depend on interruptions: the runs' records, how they began, and what the pool learned."""
    kinds = ("run-*/metrics.jsonl", "run-*/audit.jsonl", "run-*/episodes/*", "run-*/knobs/*", "run-*/proposals/*/*",
             "pool/lessons/*.md")
    found = {str(file.relative_to(home)): file.read_text() for kind in kinds for file in sorted(home.glob(kind))}
    kept = json.loads((home / "campaign.json").read_text())
    for run in kept["runs"]:
        del run["cost"]["seconds"]
    return found | {"runs": kept["runs"], "best": kept["best"]}


@pytest.mark.slow
def test_killed_in_the_middle_a_campaign_goes_on(tmp_path):
    """Twice, in both runs; then: the second one began with what helped, the records agree, and a replay is the run."""
    arguments = ("campaign", ROOT / "tests" / "meta" / "scripted_config.py", "--max-runs", "2", "--root")
    told(*arguments, tmp_path / "calm")
    stormy = tmp_path / "stormy" / "c"
    for name in ("run-01", "run-02"):
        process, metrics = command(*arguments, tmp_path / "stormy"), stormy / name / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and len(list(read_lines(metrics))) >= 3):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    told(*arguments, tmp_path / "stormy")
    calm = tmp_path / "calm" / "c"
    first, second = records(calm), records(stormy)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert first["runs"][1]["start"]["knobs"] == {"env.invalid_penalty": 0.25}
    assert "run-01/proposals/3-1/verdict.json" in first
    for name in ("run-01", "run-02"):
        assert "all agree" in told("audit", calm / name)
    told("train", calm / "run-01", "--method", calm / "run-01" / "schedule.py", "--name", "replayed")
    ours, again = (list(read_lines(calm / name / "metrics.jsonl")) for name in ("run-01", "replayed"))
    assert len(again) == 8 and not any("anchor/success" in row for row in again)
    assert all(row.items() <= own.items() for own, row in zip(ours, again, strict=True))
    last = [(calm / name / "episodes" / "8.jsonl").read_bytes() for name in ("run-01", "replayed")]
    assert last[0] == last[1]
