"""A snapshot holds training-side records without hidden values, nothing of an evaluation, and shows when it was touched."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import jax
import pytest
from play import built_in, play
from rounds import KNOBS, TASKS, write_run
from tiny_config import config as tiny

from eau_jax import train
from eau_jax.config import Sft
from eau_jax.config_file import replace, runnable
from eau_jax.core import knobs as knob
from eau_jax.core.records import read_lines
from eau_jax.core.types import HeldOutTask
from eau_jax.envs.gyms.intention import intention
from eau_jax.eval.held_out import sealed_file
from eau_jax.meta.lesson import Case, Lesson, dump
from eau_jax.meta.snapshot import Limits, SnapshotError, Sources, build, hidden, manifest, masked, tampered
from eau_jax.users.mixture import mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.symbolic import symbolic
from eau_jax.users.voice import leaks

ROOT = Path(__file__).resolve().parent.parent.parent


def sources(run, **more):
    return dataclasses.replace(Sources(run, intention, TASKS, KNOBS, intention.rules, generation=3, step=9), **more)


def texts(folder):
    """{file: its text} of everything below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def strings(value):
    """Every string in JSON values."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(item)


def recorded(env, task, seed=0):
    """A record of an episode that a good agent played, with what it must not hold beside it."""
    lines = play(env, task, env.expert, seed=seed)
    turns = [{"agent": line.agent, "reply": line.reply, "spoke": "symbolic", "reward": line.reward,
              "act": {"kind": "ACTION"}, "told": list(env.disclosed(task, line.disclosed, seed)), "observation_ids": [1, 2],
              "action_ids": [3], "logprobs": [0.0], "note": "not allowed"} for line in lines]
    return {"task": task.id, "env": env.name, "user": "symbolic", "seed": seed, "generation": 3, "stop": "completed",
            "score": 1.0, "return": 1.0, "success": True, "error": "", "tokens": 9, "final_ids": [4], "system": "s",
            "opening": env.prompt(task)[1], "answer": "not allowed", "turns": turns}


def write_episodes(run, records, step=5):
    (run / "episodes").mkdir(parents=True, exist_ok=True)
    (run / "episodes" / f"{step}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize("name", ["intention", "travel", "turtle", "telepathy"])
def test_values_that_a_task_hides_are_handles(tmp_path, name):
    env, tasks = built_in(name, 3)
    records = [recorded(env, task) for task in tasks]
    said = [value for record, task in zip(records, tasks, strict=True) for text in strings(record)
            for value in leaks(text, hidden(env, task, record))]
    assert said, "the episodes tell nothing, so this test would prove nothing"
    write_episodes(write_run(tmp_path / "run"), records)
    view = build(tmp_path / "snap", sources(tmp_path / "run", env=env, tasks=tasks, knobs={"env": env.knobs},
                                            rules=env.rules))
    seen = view.episodes()[5]
    for record, task in zip(seen, tasks, strict=True):
        found = [value for text in strings(record) for value in leaks(text, env.secrets(task, 0, 0))]
        assert found == [], f"{name} shows {found[0]!r}"
    assert "<hidden_" in json.dumps(seen)
    assert set(seen[0]) <= {"task", "env", "user", "generation", "stop", "score", "return", "success", "error", "tokens",
                            "opening", "turns"}
    assert "_ids" not in json.dumps(seen) and "logprobs" not in json.dumps(seen) and "not allowed" not in json.dumps(seen)


@pytest.mark.parametrize("text, secrets, expected", [
    ("I want Thai food", ("thai",), "I want <hidden_0> food"),
    ("thailand", ("thai",), "thailand"),
    ("a New\n York trip, then york", ("york", "new york"), "a <hidden_1> trip, then <hidden_0>"),
    ("it is 2, not 12", ("2",), "it is <hidden_0>, not 12"),
    ("cafe Café", ("café",), "<hidden_0> (a text that holds it in another spelling was left out)"),
    ("a (b) c", ("(b)",), "a <hidden_0> c"),
    ("nothing", (), "nothing"), ("nothing", ("", " "), "nothing"),
])
def test_masking(text, secrets, expected):
    assert masked(text, secrets) == expected
    assert leaks(masked(text, secrets), secrets) == ()


def test_what_no_change_may_touch_is_not_shown(tmp_path):
    knobs = {"env": intention.knobs, "user": mixture(symbolic, noisy).knobs}
    given = dict(knobs=knobs, first=knob.values(knobs), fixed=("user", "env.max_turns"))
    view = build(tmp_path / "snap", sources(write_run(tmp_path / "run"), **given))
    current, schema = view.json("knobs/current.json"), view.json("knobs/schema.json")
    assert schema.keys() == current["values"].keys() == current["first"].keys()
    assert "env.patience" in schema and not {"env.max_turns", "user.epsilon", "user.second.leak"} & schema.keys()


def test_only_what_is_named_is_copied(tmp_path):
    run = write_run(tmp_path / "run")
    for name in ("config.py", "audit.jsonl", "timings.jsonl", "checkpoints/1/weights"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("of no concern")
    pool = tmp_path / "pool"
    (pool / "lessons").mkdir(parents=True)
    lesson = Lesson("L-1", "intention", "all_hard", "env", "do", (Case("helpful", "r", "a"),), text="Ask first.")
    (pool / "lessons" / "L-1.md").write_text(dump(lesson))
    (pool / "lessons" / "notes.md").write_text("no lesson")
    (pool / "secret.md").symlink_to(run / "config.py")
    view = build(tmp_path / "snap", sources(run, pool=pool, history=[{"id": "1", "verdict": "kept"}]))
    assert sorted(texts(view.folder)) == [
        "SKILL.md", "diagnosis.json", "history.json", "knobs/current.json", "knobs/schema.json", "metrics.jsonl",
        "pool/L-1.md", "rules/current.toml", "rules/features.json",
        "rules/own.toml"]
    assert view.lines("metrics.jsonl")[0] == {"step": 1, "generation": 3, "rollout/stop_max_turns": 0.4}
    current = view.json("knobs/current.json")
    assert (current["generation"], current["values"]["env.max_turns"], current["cooldown"]) == (3, 16, 0)
    assert view.json("knobs/schema.json")["env.max_turns"]["high"] == 64
    assert not any("of no concern" in text for text in texts(view.folder).values())
    assert list(view.inbox.iterdir()) == list(view.home.iterdir()) == []


def test_sizes_are_limited(tmp_path):
    run = write_run(tmp_path / "run")
    record = recorded(intention, TASKS[0])
    record["turns"][0]["agent"] = "x" * 50_000
    for step in range(1, 6):
        write_episodes(run, [record] * 20, step)
    view = build(tmp_path / "a", sources(run), Limits(rows=2, updates=3, episodes=4, characters=1000))
    assert [line["step"] for line in view.lines("metrics.jsonl")] == [4, 5]
    assert {step: len(lines) for step, lines in view.episodes().items()} == {3: 4, 4: 4, 5: 4}
    assert len(view.episodes()[5][0]["turns"][0]["agent"]) < 1100
    small = build(tmp_path / "b", sources(run), Limits(episodes=4, characters=1000, episode_bytes=20_000))
    assert 0 < len(small.episodes()) < 5 and max(small.episodes()) == 5


def test_a_task_of_an_evaluation_is_refused(tmp_path):
    run = write_run(tmp_path / "run")
    held_out = HeldOutTask(**{name: getattr(TASKS[0], name) for name in ("id", "env", "data")})
    with pytest.raises(SnapshotError, match="belongs to an evaluation"):
        build(tmp_path / "a", sources(run, tasks=(held_out,)))
    write_episodes(run, [recorded(intention, TASKS[0])])
    with pytest.raises(SnapshotError, match="none of the training tasks"):
        build(tmp_path / "b", sources(run, tasks=TASKS[1:]))


@pytest.mark.parametrize("touch, said", [
    (lambda folder: (folder / "metrics.jsonl").write_text("{}\n"), "metrics.jsonl was changed"),
    (lambda folder: (folder / "more").write_text(""), "more was added"),
    (lambda folder: (folder / "sub").mkdir(), "sub was added"),
    (lambda folder: (folder / "history.json").unlink(), "history.json was removed"),
    (lambda folder: (folder / "link").symlink_to("/etc/passwd"), "link was added"),
    (lambda folder: ((folder / "history.json").unlink(), (folder / "history.json").symlink_to("/dev/null")),
     "history.json was changed"),
    (lambda folder: ((folder / "history.json").unlink(), os.mkfifo(folder / "history.json")), "history.json was changed"),
    (lambda folder: shutil.rmtree(folder), "was removed"),
    (lambda folder: None, ""),
])
def test_whatever_was_touched_is_seen(tmp_path, touch, said):
    view = build(tmp_path / "snap", sources(write_run(tmp_path / "run")))
    before = manifest(view.folder)
    for path in [view.folder, *view.folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    touch(view.folder)
    found = tampered(view.folder, before)
    assert (said in found[0]) if said else found == []


@pytest.mark.slow
def test_a_snapshot_of_a_real_run_holds_nothing_of_its_evaluation(tmp_path, monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)
    (tmp_path / ".jax_cache").symlink_to(ROOT / ".jax_cache", target_is_directory=True)
    changes = {"root": str(tmp_path), "mesh.data": 1, "learn.steps": 2, "swaps": (), "rollout.record_tokens": True}
    config = dataclasses.replace(replace(tiny(), changes), sft=Sft())
    train.train(config, runnable(str(ROOT / "tests" / "tiny_config.py"), changes), resume=False)
    run, tasks = tmp_path / config.name, config.tasks.generate("train", config.tasks.train, config.seed)
    held_out = config.tasks.generate("test", config.tasks.test, config.seed)
    sealed = [line for line in read_lines(sealed_file(run))]
    assert {task.id for task in held_out} == set(sealed[0]["by_task"])
    view = build(tmp_path / "snap", sources(run, tasks=tasks, step=2))
    seen = texts(view.folder)
    assert len(view.episodes()) == 2 and "episodes/1.jsonl" in seen
    whole = "\n".join(seen.values())
    for forbidden in [*(task.id for task in held_out), *(key for key in sealed[0] if "_" in key), "sealed", "final_ids",
                      "logprobs", "action_ids", *(task.data["task"] for task in held_out)]:
        assert forbidden not in whole, f"a snapshot holds {forbidden!r}"
    by_id = {task.id: task for task in tasks}
    for record in view.episodes()[1]:
        values = intention.secrets(by_id[record["task"]], 0, 0)
        assert values and not any(leaks(text, values) for text in strings(record))
