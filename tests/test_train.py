"""The whole loop on the smallest run: records, resume to the bit, swaps without a new trace, and what a run is used for."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from eau_jax import assemble, memory, start, train, trained
from eau_jax.collector import NothingCollectedError
from eau_jax.config import ConfigError
from eau_jax.config_file import load_config, replace, runnable
from eau_jax.core.records import RunFolder, RunFolderError, read_lines
from eau_jax.eval.held_out import sealed_file
from eau_jax.eval.looks import SecondLookError
from eau_jax.eval.play import evaluate
from eau_jax.folder import begin
from chat_server import chat_server
from eau_jax.clients.chat import ChatClient
from eau_jax.users.llm import llm
from tiny_config import config as tiny

TINY = str(Path(__file__).with_name("tiny_config.py"))
CACHE = Path(__file__).resolve().parent.parent / ".jax_cache"
# Seven episodes in eight devices' rows would be all padding: the loop is tested on one device, sharding elsewhere.
ONE_DEVICE = {"mesh.data": 1}


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)


def launch(root, changes=None, resume=False, parts=None):
    """Runs the tiny config below `root`, with plain settings and parts changed; returns its run folder."""
    changes = {"root": str(root), **ONE_DEVICE, **(changes or {})}
    config = replace(tiny(), {**changes, **(parts or {})})
    if not (root / ".jax_cache").exists():  # what one run compiles, the next ones find
        (root / ".jax_cache").symlink_to(CACHE, target_is_directory=True)
    train.train(config, runnable(TINY, changes), resume=resume)
    return root / config.name


def digest(run):
    """Hash of the last checkpoint's arrays, optimizer state included, and of every record but the times."""
    records = {name: (run / name).read_text() for name in ("metrics.jsonl", "sft.jsonl")}
    records |= {f"{file.parent.name}/{file.name}": file.read_text() for kind in ("episodes", "knobs", "rules")
                for file in sorted((run / kind).iterdir())}
    records["sealed"] = sealed_file(run).read_text()
    parts, weights, step = trained.load(str(run), "latest")
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(weights))]
    return records, step, hashlib.sha256(b"".join(leaves)).hexdigest()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        first = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_: first)
        yield launch(tmp_path_factory.mktemp("runs"))


def test_every_update_is_recorded_once(finished):
    lines = list(read_lines(finished / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [line["generation"] for line in lines] == [0, 0, 1, 1]
    assert all(np.isfinite(line["rollout/score_mean"]) for line in lines)
    assert lines[0]["learn/policy_steps"] == 0 and lines[1]["learn/policy_steps"] == 1    # one update of critic warm-up
    for step in (1, 2, 3, 4):
        episodes = list(read_lines(finished / "episodes" / f"{step}.jsonl"))
        assert len(episodes) == 4 and episodes[0]["opening"]
        assert np.isclose(np.mean([episode["score"] for episode in episodes]), lines[step - 1]["rollout/score_mean"])


def test_a_swap_takes_effect_at_its_update_and_is_in_the_journal(finished):
    journal = json.loads((finished / "knobs" / "1.json").read_text())
    assert journal["step"] == 3 and journal["rules_changed"]
    assert journal["changes"] == {"env.max_turns": [3, 2], "rl.policy_loss.clip_low": [0.2, 0.1]}
    assert (finished / "knobs" / "current").read_text() == "1\n"
    assert (finished / "rules" / "1.toml").read_text().endswith("# swapped\n")
    turns = {step: max(len(episode["turns"]) for episode in read_lines(finished / "episodes" / f"{step}.jsonl"))
             for step in (2, 3)}
    assert turns[3] <= 2


def test_nothing_is_traced_again_after_the_second_update(finished):
    traces = [line["traces"] for line in read_lines(finished / "timings.jsonl")]
    assert traces[1] == traces[2] == traces[3]    # knobs and rules changed before the third


def test_held_out_results_lie_outside_the_run_folder(finished):
    assert [(line["step"], line["phase"]) for line in read_lines(sealed_file(finished))] == [(0, "cold_start"), (4, "final")]
    looks = [line for line in read_lines(finished.parent / "sealed" / "looks.jsonl") if line.get("who") == finished.name]
    assert [(line["by"], line["step"]) for line in looks] == [("train", 0), ("train", 4)]
    assert not list(finished.rglob("eval.jsonl"))


@pytest.mark.slow
def test_stopped_and_resumed_is_the_same_run(finished, tmp_path, monkeypatch):
    real, updates = train.one_update, []

    def stopping(*arguments):
        updates.append(1)
        if len(updates) in (1, 3):
            train.ask_to_stop()
        return real(*arguments)

    monkeypatch.setattr(train, "one_update", stopping)
    for resume in (False, True):
        with pytest.raises(SystemExit) as stopped:
            launch(tmp_path, resume=resume)
        assert stopped.value.code == train.STOPPED
        train._stop.clear()
    run = launch(tmp_path, resume=True)
    assert len(updates) == 4
    assert digest(run) == digest(finished)


def test_nothing_of_the_held_out_tasks_is_in_the_run_folder(finished):
    """Their ids hold a hash, so they stand for canaries; what is sealed has them."""
    ids = [task.id for task in assemble.tasks(load_config(str(finished)), "test")]
    for file in finished.rglob("*"):
        if file.is_file():
            text = file.read_bytes().decode("utf-8", "ignore")
            assert not [task_id for task_id in ids if task_id in text], file


@pytest.mark.slow
def test_a_torn_checkpoint_is_skipped(finished, tmp_path):
    run = tmp_path / "tiny"
    shutil.copytree(finished, run)
    shutil.copytree(sealed_file(finished).parent, sealed_file(run).parent)
    for file in sorted((run / "checkpoints" / "4" / "training").rglob("*")):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:7])
    launch(tmp_path, resume=True)
    assert digest(run) == digest(finished)


@pytest.mark.slow
def test_the_kept_config_gives_the_same_run(finished, tmp_path):
    config = replace(load_config(str(finished)), {"root": str(tmp_path)})
    train.train(config, runnable(str(finished), {"root": str(tmp_path)}), resume=False)
    assert digest(tmp_path / "tiny") == digest(finished)


@pytest.mark.parametrize("changes, resume, words", [
    ({}, False, "already holds a run; continue it with --resume"),
    ({"seed": 1}, True, "holds a run with seed = 0, but 1 is asked for"),
])
def test_a_used_folder_is_refused(finished, changes, resume, words):
    before = digest(finished)
    with pytest.raises(RunFolderError, match=words):
        launch(finished.parent, changes, resume)
    assert digest(finished) == before


def test_an_edited_file_is_noticed(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text(tiny().env.rules)
    config = replace(tiny(), {"root": str(tmp_path), "rules": str(rules)})
    with RunFolder(tmp_path / "tiny") as folder:
        begin(folder, config, "", resume=False)
        (folder.path / "model").mkdir()
        begin(folder, config, "", resume=True)
        rules.write_text(tiny().env.rules + "\n")
        with pytest.raises(RunFolderError, match="another content of the file given as rules"):
            begin(folder, config, "", resume=True)


def test_a_run_of_before_a_setting_was_there_goes_on_at_its_default(tmp_path):
    """config.json of an older package lacks it; at any other value than the default it is another run."""
    config = replace(tiny(), {"root": str(tmp_path)})
    with RunFolder(tmp_path / "tiny") as folder:
        begin(folder, config, "", resume=False)
        (folder.path / "model").mkdir()
        older = json.loads((folder.path / "config.json").read_text())
        del older["learn"]["critic_updates"], older["track"]
        folder.write("config.json", json.dumps(older))
        with pytest.raises(RunFolderError, match="learn.critic_updates = None, but 3 is asked for"):
            begin(folder, replace(config, {"learn.critic_updates": 3}), "", resume=True)
        begin(folder, config, "", resume=True)
        assert "track" in json.loads((folder.path / "config.json").read_text())
        del older["learn"]["steps"], older["sft"]["steps"]   # the config sets it: what it was before is not known
        folder.write("config.json", json.dumps(older))
        with pytest.raises(RunFolderError, match="sft.steps = None, but 2 is asked for"):
            begin(folder, config, "", resume=True)


def test_a_run_goes_on_on_other_devices_with_other_memory(tmp_path):
    """On sixteen where there were eight, say, with rows for all of them. What is learned stays as it was."""
    config = replace(tiny(), {"root": str(tmp_path)})
    with RunFolder(tmp_path / "tiny") as folder:
        begin(folder, config, "", resume=False)
        (folder.path / "model").mkdir()
        begin(folder, replace(config, {"mesh.fsdp": 16, "learn.rows": 16, "learn.chunk": 16, "rollout.slots": 2,
                                       "model.remat": "all", "model.attention": "xla"}), "", resume=True)
        for other in ({"learn.minibatches": 2}, {"rollout.max_tokens": 128}, {"model.compute_dtype": "bfloat16"}):
            with pytest.raises(RunFolderError, match="is asked for"):
                begin(folder, replace(config, other), "", resume=True)


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.py").write_text("precious")
    with pytest.raises(RunFolderError, match="exists and is no run folder"):
        launch(tmp_path)
    assert (tmp_path / "tiny" / "config.py").read_text() == "precious"


def test_a_failed_start_does_not_take_the_name(tmp_path):
    with pytest.raises(ConfigError, match="rules = 'no/such.toml' is not there"):
        launch(tmp_path, {"rules": "no/such.toml"})
    assert not (tmp_path / "tiny").exists()


def test_weights_that_are_no_numbers_are_refused(finished, tmp_path):
    from safetensors.numpy import load_file, save_file
    shutil.copytree(finished / "model", tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ConfigError, match="parameter final_norm holds NaN"):
        start.load(tiny(), tmp_path / "model")


def test_a_folder_in_use_is_refused(finished):
    with RunFolder(finished):
        with pytest.raises(RunFolderError, match="in use by another process"):
            launch(finished.parent, resume=True)


def test_export_is_read_by_transformers(finished, tmp_path):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    trained.export(str(finished), str(tmp_path / "hf"), "latest", False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    parts, weights, _ = trained.load(str(finished), "latest")
    tokens = parts.chat.opening("Help.", "Plan a trip to Oslo.")
    from eau_jax.models import heads, transformer
    ours = heads.logits(weights, parts.model, transformer.forward(
        weights, parts.model, tokens[None], np.arange(len(tokens), dtype=np.int32)[None], np.ones_like(tokens)[None])[0])
    with torch.no_grad():
        theirs = model(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "hf").decode(tokens).endswith("<|agent|>")
    with pytest.raises(ConfigError, match="exists already"):
        trained.export(str(finished), str(tmp_path / "hf"), "latest", False)


def test_a_checkpoint_is_evaluated_once_and_repeats_itself(finished, tmp_path):
    run = tmp_path / "tiny"
    shutil.copytree(finished, run)
    plan = trained.plan_of(str(run), "latest", 1, 1.0)
    first = json.loads((evaluate(plan) / "record.json").read_text())
    assert first["identity"]["update"] == 4 and first["results"]["intention"]["episodes"] == 4
    with pytest.raises(SecondLookError, match="tiny was scored on 4 of the 4 tasks"):
        evaluate(trained.plan_of(str(run), "4", 1, 1.0))
    again = json.loads((evaluate(dataclasses.replace(plan, name="again"), again=True) / "record.json").read_text())
    assert again["results"] == first["results"] and again["second_look"]


def test_chat_answers_until_an_empty_line(finished, capsys, monkeypatch):
    lines = iter(["Plan a trip to Oslo.", "In May.", ""])
    monkeypatch.setattr(trained, "_ask", lambda console: next(lines))
    trained.chat(str(finished), "latest", 1.0, 0)
    assert capsys.readouterr().out.count("agent:") == 2


def test_a_run_is_used_on_other_devices_than_it_was_trained_on(finished, monkeypatch):
    """Trained on one, by two rows at a time; used on four, over which neither that mesh nor those rows can be spread."""
    _, trained_on, _ = trained.load(str(finished), "latest")
    four = jax.local_devices()[:4]
    monkeypatch.setattr(jax, "devices", lambda *_: four)
    parts, weights, step = trained.load(str(finished), "latest")
    assert parts.learner.mesh.size == 4 and step == 4
    jax.tree.map(np.testing.assert_array_equal, weights, trained_on)
    trained.plan_of(str(finished), "latest", 1, 1.0)


@pytest.mark.slow
def test_a_plan_counts_the_state_to_the_byte(finished):
    config = replace(tiny(), ONE_DEVICE)
    sizes = memory.estimate(config, assemble.learner(config, start.architecture(config)))
    parts, weights, _ = trained.load(str(finished), "latest")
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    assert sizes["policy parameters"] == held
    assert sizes["peak"] > sizes["policy parameters"] + sizes["critic parameters"] + sizes["optimizer moments"]


def test_missing_model_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match="model.folder = 'no/such' is not there"):
        launch(tmp_path, {"model.make": None, "model.folder": "no/such", **{
            f"model.{name}": default for name, default in dict(
                vocab_size=512, d_model=128, num_layers=3, num_heads=4, num_kv_heads=2, d_ff=384).items()}})


def test_a_user_that_never_answers_stops_the_run_by_its_deadline(tmp_path):
    with chat_server("hang") as server:
        silent = llm(ChatClient(server.base_url, "nobody", timeout_s=5.0, max_retries=0))
        with pytest.raises(NothingCollectedError, match="all 4 episodes failed.*the user did not answer within 3 s"):
            launch(tmp_path, parts={"user": silent}, changes={"rollout.deadline_s": 3.0, "rollout.infra_retries": 0, "sft.steps": 0,
                                                              "sft.episodes": 512, "sft.batch": 32})
    assert not (tmp_path / "tiny" / "metrics.jsonl").exists()    # nothing was scored
