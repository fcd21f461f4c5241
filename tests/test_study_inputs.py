"""What a study makes before its first run: what does not fit together is refused before anything is made, what is there is
not made again, and nothing goes on with other data. A whole recipe is made in test_areal_sea.py."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from eau_jax import study_inputs
from eau_jax.config import ConfigError, Model, Sft, Tasks
from eau_jax.config_file import replace
from eau_jax.core.records import RunFolder, RunFolderError
from eau_jax.envs.telecom.telecom import telecom as telecom_env
from eau_jax.folder import begin
from eau_jax.local_chat import LocalChat
from eau_jax.progress import Watch
from eau_jax.rollout.template import QWEN3, TINY
from eau_jax.study import Study
from eau_jax.study_inputs import data_of, model_of
from eau_jax.synth import pipeline
from eau_jax.synth.domains.telecom import telecom
from eau_jax.synth.domains.workshop import workshop
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.record import code_digest
from eau_jax.users.mixture import mixture
from eau_jax.users.role_play import role_play
from eau_jax.users.symbolic import symbolic
from tiny_config import config as tiny



class Recipe:
    """Three parts that fit together: a plan, a model of the user, and the config of a study's runs."""

    def __init__(self, root):
        self.plan = SynthPlan(domain=telecom, name="tasks", root=str(root / "synth"), count=3, outcomes={"fulfil": 1.0})
        data = data_of(self.plan)
        self.agent = replace(tiny(), {
            "env": telecom_env, "swaps": (), "knobs": {},
            "sft": Sft(steps=2, source="dialogues", files=(str(data / "agent_sft.jsonl"),)),
            "tasks": Tasks(generate=tiny().tasks.generate, load=len, train_file=str(data / "rl_train.json"),
                           test_file=str(data / "rl_test.json"))})
        self.user = replace(self.agent, {"name": "user", "root": str(root / "users"),
                                         "sft.files": (str(data / "user_sft.jsonl"),)})
        self.agent = replace(self.agent, {"user": role_play(LocalChat(str(model_of(self.user)), TINY))})
        self.root = root

    def study(self, agent=(), user=(), **changes):
        return Study(**{"name": "s", "environments": {"telecom": replace(self.agent, dict(agent))}, "baseline": "a",
                        "methods": {"a": lambda config: config}, "seeds": (0,), "updates": 2,
                        "root": str(self.root / "studies"), "data": (self.plan,),
                        "users": (replace(self.user, dict(user)),)} | changes)


@pytest.fixture
def recipe(tmp_path):
    return Recipe(tmp_path)


def finished(plan, **card):
    """The folder of a synthesis that is over, as `_finished` reads it."""
    data = data_of(plan)
    data.mkdir(parents=True)
    for name in study_inputs.MADE:
        (data / name).write_text(f"{name}\n")
    files = {name: hashlib.sha256(f"{name}\n".encode()).hexdigest() for name in study_inputs.MADE}
    (data / "card.json").write_text(json.dumps({"files": files, "kept": 3, "agent": {"rows": 2}} | card))
    (data.parent / "manifest.json").write_text(json.dumps({
        "plan": pipeline.settings(plan), "generator": {"code": code_digest(*plan.domain.sources)}}))


def make(study, begun=False):
    with Watch() as watch:
        study_inputs.make(study.folder, study.data, study.users, [], "", begun, watch)


# What fits together


def test_parts_that_fit(recipe):
    recipe.study()
    recipe.study(user={"sft.role": "user", "sft.files": (str(data_of(recipe.plan) / "agent_sft.jsonl"),)})
    recipe.study(agent={"user": mixture(symbolic, recipe.agent.user)})
    recipe.study(agent={"user": symbolic, "eval.user": recipe.agent.user})
    Study("plain", {"intention": tiny()}, {"a": lambda config: config}, "a")


@pytest.mark.parametrize("where, setting, name, wanted", [
    ("agent", "sft.files", "user_sft.jsonl", "expected conversations of agents, agent_sft.jsonl"),
    ("agent", "sft.files", "agent_stf.jsonl", "did you mean 'agent_sft.jsonl'"),
    ("agent", "tasks.train_file", "rl_test.json", "expected training tasks, rl_train.json"),
    ("agent", "tasks.test_file", "rl_train.json", "expected held-out tasks, rl_test.json"),
    ("user", "sft.files", "agent_sft.jsonl", "expected turns of users, user_sft.jsonl"),
    ("user", "sft.files", "user_test.jsonl", "held-out turns of users; expected turns of users"),
])
def test_files_that_hold_something_else_are_refused(recipe, where, setting, name, wanted):
    file = str(data_of(recipe.plan) / name)
    with pytest.raises(ConfigError, match=f"{name}.*{wanted}"):
        recipe.study(**{where: {setting: (file,) if setting == "sft.files" else file}})


def test_roles_that_would_be_exchanged_twice_are_refused(recipe):
    with pytest.raises(ConfigError, match="turns of users; expected conversations of agents.*exchanges the roles itself"):
        recipe.study(user={"sft.role": "user"})


def test_a_file_that_nothing_makes_is_refused(recipe, tmp_path):
    wrong = str(tmp_path / "synth" / "task" / "data" / "agent_sft.jsonl")
    with pytest.raises(ConfigError, match="method 'a' on 'telecom': sft.files = .*no plan of the study's data makes it; did "
                                          "you mean"):
        recipe.study(agent={"sft.files": (wrong,)})
    Path(wrong).parent.mkdir(parents=True)
    Path(wrong).write_text("")
    recipe.study(agent={"sft.files": (wrong,)})     # data of the user's own


def test_tasks_of_another_world_are_refused(recipe):
    with pytest.raises(ConfigError, match="its tasks are of telecom, but the config's env is tau2_workshop"):
        recipe.study(agent={"env": workshop.env})
    with pytest.raises(ConfigError, match="begin with the prompt of the domain's env, but the config's env has another"):
        recipe.study(agent={"env": telecom_env._replace(prompt=lambda task: ("", ""))})


def test_a_user_whose_model_nothing_makes_is_refused(recipe, tmp_path):
    other = role_play(LocalChat(str(tmp_path / "users" / "usr" / "cold_start"), TINY))
    with pytest.raises(ConfigError, match="usr/cold_start', which is not there, and none of the study's users makes it"):
        recipe.study(agent={"user": mixture(symbolic, other)})
    with pytest.raises(ConfigError, match="usr/cold_start', which is not there"):
        recipe.study(agent={"eval.user": other})
    asked = role_play(LocalChat(str(model_of(recipe.user)), QWEN3))
    with pytest.raises(ConfigError, match=f"asked in the template {QWEN3.name}, but 'user' is trained in {TINY.name}"):
        recipe.study(agent={"user": asked})
    brief = role_play(LocalChat(str(model_of(recipe.user)), TINY), 2)
    with pytest.raises(ConfigError, match="asked with recent = 2 exchanges .* but 'user' is trained with sft.recent = 0"):
        recipe.study(agent={"user": mixture(symbolic, brief)})
    recipe.study(agent={"user": brief}, user={"sft.recent": 2})


def test_what_would_be_made_for_nothing_is_refused(recipe):
    with pytest.raises(ConfigError, match="'user' would be made for nothing"):
        recipe.study(agent={"user": symbolic})
    with pytest.raises(ConfigError, match="'more' would be made for nothing"):
        recipe.study(data=(recipe.plan, dataclasses.replace(recipe.plan, name="more")))
    with pytest.raises(ConfigError, match="named 'tasks'"):
        recipe.study(data=(recipe.plan, recipe.plan))
    with pytest.raises(ConfigError, match="'user' has sft.steps = 0"):
        recipe.study(user={"sft": Sft()})
    for wrong in ({"data": recipe.plan}, {"data": ("tasks",)}, {"users": recipe.user}, {"users": (recipe.plan,)}):
        with pytest.raises(ConfigError, match="give a tuple of (SynthPlan|Config)"):
            recipe.study(**wrong)


# What is there


def test_finished_data_are_taken_as_they_are(recipe, capsys):
    finished(recipe.plan)
    make(recipe.study(data=(recipe.plan,), users=(), agent={"user": symbolic}))
    assert "tasks tasks: 3 kept, 2 conversations" in capsys.readouterr().out
    manifest = data_of(recipe.plan).parent / "manifest.json"
    manifest.write_text(manifest.read_text().replace(code_digest(*telecom.sources), "0123456789abcdef"))
    make(recipe.study(data=(recipe.plan,), users=(), agent={"user": symbolic}))
    assert "made by other code" in capsys.readouterr().out


@pytest.mark.parametrize("edit", ["", None])
def test_data_that_were_changed_are_refused(recipe, edit):
    finished(recipe.plan)
    file = data_of(recipe.plan) / "rl_train.json"
    file.unlink() if edit is None else file.write_text(edit)
    with pytest.raises(RunFolderError, match="rl_train.json is not as it was written; run `eau-jax synth export"):
        make(recipe.study(users=(), agent={"user": symbolic}))


@pytest.mark.parametrize("name, text, wanted", [
    ("manifest.json", "{}", "'generator' is missing"), ("manifest.json", "", "not JSON"),
    ("data/card.json", "[]", "not an object"),
    ("data/card.json", '{"files": {}, "kept": "3", "agent": {"rows": 1}}', "kept: .* is not allowed here")])
def test_broken_records_are_named(recipe, name, text, wanted):
    finished(recipe.plan)
    (data_of(recipe.plan).parent / name).write_text(text)
    with pytest.raises(RunFolderError, match=f"{name}.*{wanted}"):
        make(recipe.study(users=(), agent={"user": symbolic}))


def test_data_of_another_plan_are_refused(recipe):
    finished(recipe.plan)
    (data_of(recipe.plan).parent / "plan.json").write_text("{}")
    other = dataclasses.replace(recipe.plan, seed=1)
    with pytest.raises(RunFolderError, match="was begun with another plan"):
        make(recipe.study(data=(other,), users=(), agent={"user": symbolic}))


def test_data_without_tasks_are_refused(recipe):
    finished(recipe.plan, kept=0)
    with pytest.raises(RunFolderError, match="none of 3 tasks passed the gates"):
        make(recipe.study(users=(), agent={"user": symbolic}))


def test_runs_do_not_go_on_with_other_data(recipe):
    one = recipe.study(users=(), agent={"user": symbolic})
    finished(recipe.plan)
    make(one)
    card = data_of(recipe.plan) / "card.json"
    card.write_text(card.read_text().replace('"rows": 2', '"rows": 1'))
    with pytest.raises(RunFolderError, match="s was begun with another content of .*card.json; restore that"):
        make(one, begun=True)
    make(one)                 # no run has begun yet
    make(one, begun=True)


def test_a_model_of_the_user_that_was_made_with_other_settings_or_data_is_refused(recipe, capsys):
    """Also where a study was stopped between its stages: nothing of the runs is there yet."""
    finished(recipe.plan)
    with RunFolder(model_of(recipe.user).parent) as folder:
        begin(folder, recipe.user, "", resume=False)
    model_of(recipe.user).mkdir()
    make(recipe.study())
    assert f"user user: {model_of(recipe.user)}" in capsys.readouterr().out
    with pytest.raises(RunFolderError, match="user holds a run with sft.steps = 2, but 3 is asked for"):
        make(recipe.study(user={"sft.steps": 3}))
    card, turns = data_of(recipe.plan) / "card.json", data_of(recipe.plan) / "user_sft.jsonl"
    before = hashlib.sha256(turns.read_bytes()).hexdigest()
    turns.write_text("another\n")
    card.write_text(card.read_text().replace(before, hashlib.sha256(b"another\n").hexdigest()))
    with pytest.raises(RunFolderError, match="user was begun with another content of .*user_sft.jsonl"):
        make(recipe.study())


def test_weights_that_are_missing_are_said_before_anything_is_made(recipe):
    one, lost = recipe.study(), replace(tiny(), {"model": Model(folder="no/where")})
    with Watch() as watch, pytest.raises(ConfigError, match="model.folder = 'no/where' is not there"):
        study_inputs.make(one.folder, one.data, one.users, [lost], "", False, watch)
    assert not Path(recipe.plan.root).exists()
