"""What each ablation takes away from a config with all of EAU, and that the studies of them can be run."""

import functools
import json
import os
import subprocess
import sys
from dataclasses import replace as replaced
from pathlib import Path

import pytest

from eau_jax import study as studies, train
from eau_jax.config import Config, ConfigError, Meta, knob_tree
from eau_jax.config_file import call, load_config, load_method, replace
from eau_jax.core import knobs as knob
from eau_jax.core.records import RunFolder, read_lines
from eau_jax.eval.held_out import sealed_file
from eau_jax.meta import interventions
from eau_jax.report import study as page
from eau_jax.study import Study, configured

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
WHOLE = load_config(str(CONFIGS / "eau_rules.py"))


def ablated(name: str, base: Config = WHOLE) -> Config:
    return load_method(f"{CONFIGS / 'ablations.py'}:{name}")(base)


def epsilon(config: Config) -> float:
    return float(knob.values(knob_tree(config))["user.epsilon"])


def test_each_takes_away_what_its_name_says():
    assert ablated("eau") == WHOLE and WHOLE.meta.proposer is not None
    none = ablated("none")
    assert none.meta == Meta() and none.tasks.bucket is None and epsilon(none) == 0.5
    generic = ablated("generic")
    assert generic.meta.between_runs and generic.meta.fixed == ("user",) and not generic.meta.causal_tests
    assert epsilon(generic) == 0.0 and generic.meta.proposer == WHOLE.meta.proposer
    cross = ablated("cross_run")
    assert cross.meta.between_runs and not cross.meta.fixed and cross.meta.causal_tests and epsilon(cross) == 0.5
    assert not ablated("in_run", replace(WHOLE, {"meta.pool": "pool"})).meta.pool
    for name, share in (("epsilon_0", 0.0), ("epsilon_half", 0.5), ("epsilon_1", 1.0)):
        made = ablated(name)
        assert epsilon(made) == share and made.meta.fixed == ("user.epsilon",) and not made.meta.between_runs


@pytest.mark.parametrize("rl", ["ppo", "userrl", "infopo"])
def test_each_stands_on_each_method(rl):
    based = load_method(CONFIGS / "methods" / f"{rl}.py")(WHOLE)
    for name in ("none", "generic", "cross_run", "in_run", "eau", "epsilon_1"):
        made = ablated(name, based)
        assert made.algorithm == based.algorithm and made.algorithm != WHOLE.algorithm


@functools.cache
def study(name: str) -> Study:
    return call(str(CONFIGS / f"{name}.py"), "study", Study)


def test_the_study_of_eau():
    one = study("study_eau")
    assert list(one.methods) == ["ppo", "generic", "cross_run", "eau"]
    assert one.campaigns.keys() == one.methods.keys() - {"ppo"}
    assert one.seeds == (0, 1, 2, 3, 4) and one.by_episodes and list(one.environments) == ["intention", "colbench"]
    arms = {method: configured(one, "colbench", method, 0) for method in one.methods}
    assert [epsilon(made) for made in arms.values()] == [0.0, 0.0, 0.5, 0.5]
    assert [made.meta.between_runs for made in arms.values()] == [False, True, True, False]
    batch = arms["ppo"].rollout.tasks * arms["ppo"].rollout.group
    assert arms["ppo"].meta.proposer is None and arms["ppo"].learn.episodes == one.updates * batch
    for made in arms.values():
        values = knob.values(knob_tree(made))
        training = [values[f"user.{name}"] for name in ("first.drift", "first.leave", "second.paraphrase", "second.leak")]
        held_out = [float(getattr(made.eval.user.knobs, name)) for name in ("drift", "leave", "paraphrase", "leak")]
        assert min(training) > 0 and all(a != b for a, b in zip(training, held_out, strict=True))


def test_the_study_of_ablations():
    one = study("study_ablations")
    assert len(one.methods) == 24 and one.baseline == "ppo+none" and len(one.campaigns) == 18


def test_a_run_ends_where_no_further_batch_is_within_its_episodes(tmp_path):
    """Batches of 128; an update with the anchor tasks plays 144."""
    config = replace(WHOLE, {"learn.episodes": 400, "learn.critic_warmup": 0})
    with RunFolder(tmp_path / "run") as folder:
        seen = []
        for step in range(1, 4):
            folder.append("metrics.jsonl", {"step": step, "rollout/episodes": 127.0, "rollout/infra_rate": 1 / 128,
                                            "meta/anchor_episodes": 16.0 * (step == 1)})
            seen.append([train.ended(one, folder, step) for one in (config, replace(config, {"learn.episodes": 0}),
                                                                     replace(config, {"learn.steps": 2}))])
    assert seen == [[False, False, False], [False, False, True], [True, False, True]]     # 144, 272, 400 of 400
    assert not train.ended(config, folder, 0)


@pytest.mark.slow
def test_every_arm_from_end_to_end(tmp_path):
    """16 updates' worth of 8 episodes; runs of a campaign share it, what a meta-agent plays beside the batches counts."""
    here = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", "from eau_jax.cli import main; main()", "compare-methods",
                           str(here / "arms_study.py"), "--root", str(tmp_path)], capture_output=True, text=True,
                          env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(here.parent)})
    assert done.returncode == 0, done.stdout + done.stderr
    one = replaced(call(str(here / "arms_study.py"), "study", Study), root=str(tmp_path))
    lines = {line.method: line for line in page.summarise(one, page.read(one)).lines}
    assert list(lines) == list(one.methods) and all(112 <= line.episodes <= 128 + 11 for line in lines.values())
    assert lines["none"].updates == 16 and lines["none"].beside == 0 < lines["in_run"].beside
    home = {name: studies.folder_of(one, studies.Cell("intention", name, 0)) for name in one.methods}
    for name in ("generic", "cross_run"):
        first, second = (home[name] / run for run in ("run-01", "run-02"))
        status = [change.status for run in (first, second) for change in interventions.read(run)]
        assert status == ["deferred"] and json.loads((first / "knobs/current").read_text()) == 0
        assert json.loads((second / "knobs/1.json").read_text())["changes"] == {"env.invalid_penalty": [0, 0.25]}
    changed = [change.status for change in interventions.read(home["in_run"])]
    assert changed == ["kept"] and json.loads((home["in_run"] / "knobs/1.json").read_text())["step"] == 4
    sealed = list(read_lines(sealed_file(home["none"])))
    assert [line["turns"] for line in sealed] == [1.0, 1.0], "on held-out tasks the user leaves at once"


@pytest.mark.parametrize("changes, words", [
    ({"meta.fixed": ("user", "env", "rl")}, "leaves nothing to change"),
    ({"meta.between_runs": True, "meta.swaps": 3}, "meta.swaps = 3 would do nothing, because meta.between_runs makes no"),
    ({"learn.episodes": 127}, "learn.episodes = 127 is less than one batch of rollout.tasks . rollout.group = 128"),
    ({"learn.episodes": -1}, "learn.episodes = -1 is out of range")])
def test_settings_that_cannot_be(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(WHOLE, changes)
