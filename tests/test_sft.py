"""Supervised fine-tuning from every source, in a run folder: the agent's cold start and a model of the user."""

import asyncio
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from eau_jax import demonstrations, start, train
from eau_jax.cli import main
from eau_jax.config import ConfigError
from eau_jax.config_file import replace, runnable
from eau_jax.core.part import Words
from eau_jax.core.records import plain, read_lines
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.eval.held_out import sealed_file
from eau_jax.local_chat import LocalChat
from eau_jax.rollout.agent import demonstrator
from eau_jax.rollout.collect import collect, run
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.rollout.template import TINY, bind
from eau_jax.rollout.tokenizer import from_folder
from eau_jax.users.role_play import GREETING, role_play, system
from eau_jax.users.rules import compile_rules
from eau_jax.users.voice import speak
from tiny_config import config as tiny

TINY_FILE = str(Path(__file__).with_name("tiny_config.py"))
TALKS = [{"system": "Be kind.", "conversations": [
    {"from": "human", "value": f"Plan trip {number}."}, {"from": "gpt", "value": "[action] Which date?"},
    {"from": "observation", "value": "May"}, {"from": "gpt", "value": "[finish]"}]} for number in range(6)]


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


def fine_tune(root, **changes):
    """Runs `eau-jax sft` on the tiny config with some settings changed; returns the run folder."""
    changes = {"root": str(root), "mesh.data": 1} | {name.replace("__", "."): value for name, value in changes.items()}
    config = replace(tiny(), changes)
    train.cold_start_only(config, runnable(TINY_FILE, changes))
    return root / config.name


def losses(folder):
    return [line["nll"] for line in read_lines(folder / "sft.jsonl")]


# --- sources


@pytest.mark.slow
def test_a_sharegpt_file_is_learned_once_its_bad_row_is_mended(tmp_path):
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps(TALKS[0]) + '\n{"conversations": [{"from": "gpt", "value": 3}]}\n')
    settings = dict(sft__source="dialogues", sft__files=(str(file),), sft__episodes=512, sft__steps=24, sft__batch=6,
                    sft__learning_rate=2e-2)
    with pytest.raises(TaskFileError, match=r"talks.jsonl, line 2, field conversations\[0\].value: expected a string"):
        fine_tune(tmp_path, **settings)
    file.write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    run_folder = fine_tune(tmp_path, **settings)
    assert losses(run_folder)[-1] < 0.6 * losses(run_folder)[0]
    data = json.loads((run_folder / "sft_data.json").read_text())
    assert data["read"] == data["kept"] == 6 and 0 < data["learned tokens"] < data["tokens"]
    assert json.loads((run_folder / "cold_start" / "generation_config.json").read_text())["eos_token_id"][0] == 5
    written = (run_folder / "cold_start" / "model.safetensors").read_bytes()
    file.unlink()
    fine_tune(tmp_path, **settings)      # finished: nothing is read or done twice
    assert (run_folder / "cold_start" / "model.safetensors").read_bytes() == written


def parts_for(tmp_path, name, files, **settings):
    """Parts of a config whose model is made once, for the sources alone."""
    from eau_jax.assemble import assemble
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    config = replace(tiny(), {"root": str(tmp_path), "mesh.data": 1, "sft.episodes": 512, "sft.source": name,
                              "sft.files": tuple(map(str, files)), **changes})
    folder = start.folder_of(config, tmp_path)
    return assemble(config, folder, start.load(config, folder)[0])


class Said:
    """Collects what a run would say."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def test_of_prefix_rows_the_user_learns_the_longest_and_thresholds_want_their_fields(tmp_path):
    turns = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    about = lambda dialog, correct: {"source_dialog_id": dialog, "correct": correct, "reward": 1}
    rows = [{"messages": turns[:1], "answer": {"content": "B"}, "metadata": about(1, 1)},
            {"messages": turns, "answer": {"content": "D"}, "metadata": about(1, 1)},
            {"messages": turns, "answer": {"content": "E"}, "metadata": about(2, 0)}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def counted(**settings):
        made = parts_for(tmp_path, "dialogues", [file], **settings)
        found, counts = demonstrations.gather(made, Said())
        chat = made.chat
        return [chat.read(example.tokens[example.learned]) for example in found], counts

    assert counted()[0] == ["B", "D", "E"]
    assert counted(sft__success_only=True, sft__min_score=1.0)[0] == ["B", "D"]
    user, counts = counted(sft__role="user")
    assert user == ["AC###STOP###", "AC"] and counts["prefixes of another row"] == 1    # one that failed did not end well
    whole, recent = (demonstrations.gather(parts_for(tmp_path, "dialogues", [file], sft__recent=most), Said())[0]
                     for most in (2, 1))
    assert [len(example.tokens) for example in whole] > [len(example.tokens) for example in recent]
    assert counted(sft__recent=1)[0] == ["B", "D", "E"]
    assert counted(sft__recent=1, sft__role="user")[0] == ["###STOP###", "C"]
    file.write_text(json.dumps(TALKS[0]))
    with pytest.raises(ConfigError, match="rows.jsonl, line 1: the row does not say how it went, but sft.min_score"):
        counted(sft__min_score=0.5)


def test_what_is_cut_or_too_long_is_counted(tmp_path):
    long = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                         {"role": "user", "content": "x " * 400}, {"role": "assistant", "content": "c"}]}
    never = {"messages": [{"role": "user", "content": "x " * 400}, {"role": "assistant", "content": "c"}]}
    (tmp_path / "rows.json").write_text(json.dumps([long, never]))
    watch = Said()
    found, counts = demonstrations.gather(parts_for(tmp_path, "dialogues", [tmp_path / "rows.json"]), watch)
    assert len(found) == 1 and counts["cut to rollout.max_tokens"] == 2 and counts["with nothing left to learn"] == 1
    assert "2 cut to rollout.max_tokens, 1 with nothing left to learn, 1 kept" in watch.lines[-1]
    (tmp_path / "rows.json").write_text(json.dumps([never]))
    with pytest.raises(ConfigError, match="no example is left to learn from: 1 read"):
        demonstrations.gather(parts_for(tmp_path, "dialogues", [tmp_path / "rows.json"]), watch)


def test_recorded_episodes_are_learned_by_their_tokens_or_else_by_their_text(tmp_path):
    """With `rollout.record_tokens` a run keeps the ids; without, the text gives the same ones, and that is said."""
    def written(record_tokens):
        config = replace(tiny(), {"rollout.record_tokens": record_tokens})
        (tmp_path / "1.jsonl").write_text("".join(
            json.dumps(plain(train._readable(config, episode))) + "\n" for episode in played))
        watch = Said()
        found, counts = demonstrations.gather(parts, watch)
        return [(example.tokens.tolist(), example.learned.tolist()) for example in found], counts, watch.lines

    (tmp_path / "1.jsonl").touch()
    parts = parts_for(tmp_path, "rollouts", [tmp_path / "1.jsonl"])
    played = start.demonstrations(parts.config, parts.train.tasks[:4], parts.chat, max_tokens=256, max_new_tokens=64)
    exact, by_text = written(True), written(False)
    assert exact[0] == by_text[0] and exact[1] == by_text[1] and exact[1]["kept"] == 4
    assert len(exact[2]) == 1 and by_text[2][0].startswith("4 of 4 episodes have no token ids of this tokenizer")


def test_scripted_episodes_with_users_of_many_manners(tmp_path):
    """The first reply has the same words, with others around them."""
    parts = parts_for(tmp_path, "scripted", [])
    plain_words, manners = ([episode.turns[0].reply_text for episode in start.demonstrations(
        replace(parts.config, {"sft.persona_mix": share}), parts.train.tasks[:8], parts.chat, max_tokens=16384,
        max_new_tokens=256)] for share in (0.0, 1.0))
    assert sum(before != after for before, after in zip(plain_words, manners, strict=True)) >= 5
    assert all(before.rstrip(".") in after for before, after in zip(plain_words, manners))


@pytest.mark.parametrize("changes, words", [
    ({"sft.source": "rollouts", "sft.episodes": 512}, "sft.source = rollouts needs sft.files"),
    ({"sft.source": "rollouts", "sft.files": ("x",)}, "sft.episodes = 8 would do nothing, because sft.source is rollouts"),
    ({"sft.files": ("x",)}, "sft.files = ('x',) would do nothing, because sft.source is scripted"),
    ({"sft.min_score": 0.5}, "sft.min_score = 0.5 would do nothing"),
    ({"sft.source": "dialogues", "sft.episodes": 512, "sft.files": ("x",), "sft.per_task": 2},
     "sft.per_task = 2 would do nothing"),
    ({"sft.steps": 0, "sft.episodes": 512, "sft.batch": 32, "sft.role": "user"}, "sft.role = 'user' would do nothing"),
    ({"sft.role": "tool"}, "sft.role = 'tool'; allowed: agent, user"),
    ({"sft.source": "rollouts", "sft.episodes": 512, "sft.files": ("x",), "sft.persona_mix": 0.5},
     "sft.persona_mix = 0.5 would do nothing"),
    ({"sft.persona_mix": 1.5}, "sft.persona_mix = 1.5 is out of range; allowed: 0 to 1"),
    ({"sft.recent": 2}, "sft.recent = 2 would do nothing"), ({"sft.recent": -1}, "sft.recent"),
])
def test_settings_that_do_nothing_are_refused(changes, words):
    with pytest.raises(ConfigError) as error:
        replace(tiny(), changes)
    assert words in str(error.value)


def test_the_command_line_refuses_what_cannot_be_trained(tmp_path, capsys):
    def refused(command, *arguments):
        with pytest.raises(SystemExit) as stopped:
            main([command, TINY_FILE, "--root", str(tmp_path), *arguments])
        assert stopped.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    assert "makes a model of the user" in refused("train", "--sft.role", "user")
    rollouts = ["--sft.source", "rollouts", "--sft.files", "no/such", "--sft.episodes", "512"]
    assert "'no/such' is not there" in refused("sft", *rollouts)
    assert not (tmp_path / "tiny").exists()     # nothing was written


# --- a model of the user


@pytest.mark.slow
def test_a_users_model_is_trained_and_plays_the_user(tmp_path):
    folder = fine_tune(tmp_path, sft__role="user", sft__steps=3, rollout__max_tokens=512)
    assert losses(folder)[-1] < losses(folder)[0]
    client = LocalChat(str(folder / "cold_start"), TINY, slots=2, max_tokens=512, max_new_tokens=6, seed=3)
    user = role_play(client)
    task = intention_tasks.generate("train", 1, 0)
    world = simulator(intention, user, task)
    pinned = Pinned({"env": intention.knobs.replace(max_turns=np.int32(2)), "user": user.knobs, "rl": {}},
                    compile_rules(intention.rules, intention.features), generation=0)
    chat = bind(TINY, from_folder(folder / "cold_start"))

    def play():
        groups, stats = run(collect(world, demonstrator(intention.expert, chat), chat, pinned, Budgets(512, 64), indices=[0],
                                    group_size=1, run_seed=0, step=0, retries=0))
        return groups[0][0], stats

    episode, stats = play()
    assert episode.stop.usable, episode.error
    assert episode.turns[0].spoke in ("llm", "draft") and episode.turns[0].reply_text
    assert client._calls == 1        # the model was asked once: after the last turn nobody is
    assert play()[0].turns[0].reply_text == episode.turns[0].reply_text


def test_a_served_users_model_is_asked_with_its_training_prompt_and_held_to_the_draft():
    class Client:
        """A client that answers with one text and keeps what it was asked."""

        identity = {"model": "scripted"}

        def __init__(self, text):
            self.text, self.asked = text, []

        async def complete(self, messages):
            self.asked.append(messages)
            return self.text

    words = Words(draft="The date is May.", disclosed=("May",), secrets=("jazz",), opening="Plan a trip.", seed=0, group_seed=0,
                  agent_text="<think>hm</think>[action] Which date?<tool_call>{}</tool_call>",
                  history=(("user", "Plan a trip."), ("agent", "[action] Where?"), ("user", "Rome.")), known=("Rome", "May"))

    def said(text):
        user = role_play(client := Client(text))
        return asyncio.run(speak(user, user.knobs, words)), client.asked

    spoken, asked = said("In May, please. ###STOP###")
    assert (spoken.text, spoken.spoke, spoken.leaked) == ("In May, please.", "llm", False)
    assert [(message["role"], message["content"]) for message in asked[0]] == [
        ("system", system("Request: Plan a trip.\nKnown: Rome\nKnown: May")), ("user", GREETING), ("assistant", "Plan a trip."),
        ("user", "[action] Where?"), ("assistant", "Rome."), ("user", "[action] Which date?")]
    assert "jazz" not in json.dumps(asked)
    for bad in ("###STOP###", "", "In June.", '<tool_call>{"name": "look"}</tool_call> May'):
        assert said(bad)[0][:2] == ("The date is May.", "draft")
    assert said("May, and jazz.")[0] == ("The date is May.", "llm", True)     # a secret never passes


# --- the whole way


@pytest.mark.slow
def test_fine_tuning_on_its_own_best_episodes_lifts_the_score(tmp_path):
    size = {"model.d_model": 64, "model.num_layers": 2, "model.num_heads": 4, "model.num_kv_heads": 2, "model.d_ff": 192,
            "model.vocab_size": 400}
    common = {"root": str(tmp_path), "mesh.data": 1, "learn.steps": 1, "learn.critic_warmup": 0, "rollout.tasks": 96,
              "rollout.group": 4, "eval.samples": 4, "rollout.max_tokens": 320, "rollout.max_new_tokens": 24, "rollout.slots": 64,
              "learn.rows": 4, "tasks.train": 400, "tasks.test": 64, "swaps": (), "knobs": {"env.max_turns": 6},
              "sft.batch": 32, "sft.learning_rate": 2e-3}

    def score(changes):
        config = replace(tiny(), common | changes)
        train.train(config, runnable(TINY_FILE, {}), resume=False)
        return next(line["score"] for line in read_lines(sealed_file(tmp_path / config.name)) if line["step"] == 0)

    before = score(size | {"name": "base", "sft.episodes": 400, "sft.steps": 120})
    plain = {name: getattr(type(tiny().model)(), name.split(".")[1]) for name in size}
    after = score(plain | {"name": "filtered", "model.make": None, "model.folder": str(tmp_path / "base" / "cold_start"),
                           "sft.source": "rollouts", "sft.files": (str(tmp_path / "base"),), "sft.min_score": before + 0.15,
                           "sft.episodes": 512, "sft.steps": 60})
    assert after > before + 0.05
