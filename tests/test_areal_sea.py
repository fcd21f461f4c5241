"""The recipe of AReaL-SEA: its config files load and their stages fit, an ablation changes what it says and nothing else,
and (slow) all of it at the smallest size, twice."""

import dataclasses
import functools
from pathlib import Path

import pytest

from eau_jax import study as studies, study_inputs
from eau_jax.areal_sea import areal_sea
from eau_jax.cli import main
from eau_jax.config import ConfigError
from eau_jax.config_file import call, describe, replace, with_algorithm
from eau_jax.core import batching
from eau_jax.core.records import RunFolderError, read_lines
from eau_jax.folder import differing
from eau_jax.progress import Watch
from eau_jax.study import Study
from eau_jax.study_inputs import data_of, model_of
from eau_jax.synth.compose import compose
from eau_jax.synth.llm import Llm
from eau_jax.synth.plan import SynthPlan, items

ROOT = Path(__file__).resolve().parent.parent
SHARED = ("areal_sea", "no_user_sft", "no_filtering")     # methods that begin with the same fine-tuned agent
FILES = ["sft.files", "tasks.train_file"]


@functools.cache
def small():
    return call(str(ROOT / "configs" / "areal_sea_small.py"), "study", Study)


@pytest.fixture(params=["small", "telecom"])
def study(request, tmp_path, monkeypatch):
    if request.param == "small":
        return small()
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("EAU_MODEL", str(tmp_path))
    return call(str(ROOT / "configs" / "areal_sea_telecom.py"), "study", Study)


def test_an_ablation_leaves_out_what_it_says(study):
    plan, fixed, unchecked = study.data
    assert (plan.rounds > 1, fixed.rounds, unchecked.rounds) == (True, 1, 1)
    assert (plan.validated, fixed.validated, unchecked.validated) == (True, True, False)
    settings = lambda method: studies.configured(study, plan.domain.name, method, 0)
    whole = settings("areal_sea")
    changes = {method: differing(describe(whole), describe(settings(method))) for method in study.methods}
    changes = {method: [name for name in names if name != "root"] for method, names in changes.items()}
    assert changes.pop("areal_sea") == [] and changes.pop("no_filtering") == ["algorithm.keep_groups"]
    assert changes.pop("no_validation") == changes.pop("no_evolution") == FILES
    assert {name.partition(".")[0] for name in changes.pop("no_user_sft")} == {"user"} and not changes
    for method, own in (("no_validation", unchecked), ("no_evolution", fixed), ("areal_sea", plan)):
        assert settings(method).sft.files == (str(data_of(own) / "agent_sft.jsonl"),)
        assert settings(method).tasks.train_file == str(data_of(own) / "rl_train.json")
        assert settings(method).tasks.test_file == str(data_of(plan) / "rl_test.json")
    assert whole.algorithm.keep_groups is batching.informative and whole.eval.user.name == "symbolic"
    assert study.users[0].sft.files == (str(data_of(plan) / "user_sft.jsonl"),)
    assert whole.user.identity["model"] == str(model_of(study.users[0]))


def test_the_author_of_the_small_recipe_errs_in_four_tasks_of_ten():
    for plan in small().data:
        made = [compose(plan.domain, item, plan.seed).atoms for item in items(plan, [plan.evolved] * plan.rounds)]
        wrong = [any(name.startswith(("locked", "offline")) for name in atoms) for atoms in made]
        assert len(made) == plan.count and 0.35 < sum(wrong) / len(wrong) < 0.5


def test_methods_with_the_same_data_share_their_start():
    starts = {method: studies._start_of(studies.configured(small(), "telecom", method, 0)) for method in small().methods}
    assert len({starts[method] for method in SHARED}) == 1 and len(set(starts.values())) == 3


def test_ablations_of_what_is_not_there_are_refused():
    agent, made, user = small().environments["telecom"], small().users[0], small().environments["telecom"].user
    make = lambda plan=small().data[0], agent=agent: areal_sea(plan, agent, made, lambda folder: user, user, name="x")
    for changes in ({"rounds": 1}, {"rounds": 1, "validated": False}):
        with pytest.raises(ConfigError, match="give 2 rounds or more, validated"):
            make(dataclasses.replace(small().data[0], **changes))
    with pytest.raises(ConfigError, match="no_filtering would be the same method"):
        make(agent=with_algorithm(agent, keep_groups=batching.every))
    with pytest.raises(ConfigError, match="would do nothing, because sft.steps is 0"):
        make(agent=replace(agent, {"sft": type(agent.sft)()}))


class Planner:
    """A client that is never asked here."""

    identity = {"model": "m"}

    async def complete(self, messages):
        raise AssertionError("asked")


def test_a_plan_that_stays_as_it_is_has_no_planner():
    agent, made, user = small().environments["telecom"], small().users[0], small().environments["telecom"].user
    for models, left in ((Llm(planner=Planner()), None), (Llm(planner=(one := Planner()), composer=one), Llm(composer=one))):
        plan = dataclasses.replace(small().data[0], jobs=1, llm=models, probes=5)
        data = areal_sea(plan, agent, made, lambda folder: user, user, name="x").data
        assert data[0] is plan and [each.llm for each in data[1:]] == [left, left]
        assert {each.probes for each in data[1:]} == {SynthPlan.probes}


@pytest.mark.slow
def test_the_whole_recipe_and_again(tmp_path, capsys, monkeypatch):
    """Three sets of tasks, a model of the user and five agents out of one file. The second time nothing is made, and with
    another user's model nothing goes on."""
    monkeypatch.setenv("XLA_FLAGS", "")     # of the processes that it starts: one device each
    file = tmp_path / "recipe.py"
    file.write_text(RECIPE.format(root=str(tmp_path), tests=str(ROOT / "tests")))
    with pytest.raises(SystemExit) as ended:
        main(["compare-methods", str(file)])
    one = call(str(file), "study", Study)
    runs = {cell.method: studies.folder_of(one, cell) for cell in studies.cells(one)}
    logs = "".join(run.with_name("0.log").read_text()[-2000:] for run in runs.values() if run.with_name("0.log").exists())
    assert ended.value.code == 0, capsys.readouterr().out + logs
    for plan in one.data:
        assert {path.name for path in data_of(plan).iterdir()} == {*study_inputs.MADE, "card.json", "card.md"}
    spoke = {method: {turn["spoke"] for line in read_lines(run / "episodes" / "1.jsonl") for turn in line["turns"]}
             for method, run in runs.items()}
    assert spoke["areal_sea"] & {"llm", "draft"} and not spoke["no_user_sft"] & {"llm", "draft"}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.suffix in (".jsonl", ".safetensors")}
    with pytest.raises(SystemExit) as ended:
        main(["compare-methods", str(file)])
    assert ended.value.code == 0 and all(path.stat().st_mtime_ns == then for path, then in before.items())
    weights = model_of(one.users[0]) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with Watch() as watch, pytest.raises(RunFolderError, match="begun with another content of .*model.safetensors"):
        studies.run_missing(one, "", watch)


RECIPE = '''
import sys
sys.path.insert(0, {tests!r})
from eau_jax.areal_sea import areal_sea
from eau_jax.config import Evaluation, Sft
from eau_jax.config_file import load_method, replace
from eau_jax.local_chat import LocalChat
from eau_jax.rollout.template import TINY
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.record import Evolved
from eau_jax.users.noisy import noisy
from eau_jax.users.role_play import role_play
from eau_jax.users.symbolic import symbolic
from eau_jax.algorithms.group import grpo
from eau_jax.algorithms.whiten import none
from eau_jax.config_file import with_algorithm
from eau_jax.core.batching import informative
from tiny_config import config as tiny

ROOT = {root!r}
PLAN = SynthPlan(domain=telecom, name="tasks", root=ROOT + "/synth", count=8, seed=3, rounds=2, probes=2, distractors=(0,),
                 outcomes={{"fulfil": 1.0}}, sizes={{1: 1.0}}, evolved=Evolved(gates={{"tries": 1}}))


def study():
    base = with_algorithm(replace(tiny(), {{
        "env": telecom.env, "swaps": (), "rollout.max_tokens": 1500, "root": ROOT,
        "knobs": {{"env.max_turns": 3, "rl.policy_optimizer.learning_rate": 1e-3}},
        "sft": Sft(steps=2, batch=2), "eval": Evaluation(user=symbolic)}}),
        advantage=grpo, normalise=none, keep_groups=informative)
    return areal_sea(PLAN, base, base, lambda folder: role_play(LocalChat(folder, TINY, max_new_tokens=16)), noisy,
                     name="s", root=ROOT + "/studies", seeds=(0,), updates=2)
'''
