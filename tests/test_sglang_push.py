"""New weights for SGLang servers: written whole, taken by every server, checked, and told apart token by token."""

import asyncio
import dataclasses
import json
import warnings
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

import sglang_play
from eau_jax.core.types import InfraError
from eau_jax.models import hf, lora
from eau_jax.models.config import Lora
from eau_jax.samplers import weights as store
from eau_jax.samplers.fleet import PushError
from eau_jax.samplers.sglang import SGLang
from eau_jax.samplers.weights import WeightStore
from sampler_play import QWEN3
from sglang_play import LENGTH, PARAMS, ask, run, said, sampler
from sglang_server import sglang_server

quick = pytest.fixture(autouse=True)(sglang_play.quick)


def other(weights):
    """What a scripted server draws with, but other weights."""
    embed, head = weights
    return embed[::-1], head


async def interrupted(made, server, size: int, version: int = 1):
    """An action during which other weights are pushed."""
    asking = asyncio.ensure_future(ask(made, "s", [5, 6], max_new_tokens=size, stop_ids=()))
    while not server.active or len(server.requests) < 1:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.15)
    await made.push(PARAMS[version], version, 1.0)
    return await asking


@pytest.mark.parametrize("switches", [{}, {"labels": False}, {"missing": ("/pause_generation", "/continue_generation")}])
def test_new_weights_take_over_in_the_middle_of_an_action(switches):
    with sglang_server(step_s=0.02, **switches) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        made = sampler(server)
        completion = run(made, lambda: interrupted(made, server, 30))
        (old, before), (new, after) = completion.versions
        assert (old, new, before + after) == (0, 1, 30) and before > 1 and after > 1 and completion.policy_version == 0
        expected = np.concatenate([said([5, 6], completion.tokens[:before], 0),
                                   said(completion.tokens[:before], completion.tokens[before:], 1)])
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)
        assert server.requests[-1]["input_ids"] == [5, 6, *completion.tokens[:before].tolist()]


def test_a_push_pauses_updates_checks_and_continues():
    with sglang_server() as server:
        made = sampler(server)

        async def play():
            await ask(made, "s", [5] * 20)
            assert server.held
            await made.push(PARAMS[1], 1, 1.0)
            assert not server.held                                            # nothing of the old weights is cached
            return await ask(made, "t", [5] * 20)

        completion = run(made, play)
        assert [path for path, _ in server.controls] == [
            "/pause_generation", "/update_weights_from_disk", "/continue_generation"] * 2
        body = server.controls[4][1]
        assert body["flush_cache"] is True and body["weight_version"].startswith("1.")
        np.testing.assert_allclose(completion.logprobs, said([5], completion.tokens, 1), atol=1e-5)
        assert completion.policy_version == 1 and not Path(body["model_path"]).exists()    # removed by close


def test_the_same_weights_are_not_written_again():
    with sglang_server() as server:
        made, params = sampler(server), jax.device_put(PARAMS[0])

        async def play():
            await made.push(params, 0, 0.0)
            greedy = await ask(made, "s", [5, 6])
            await made.push(params, 0, 1.0)
            updates = [path for path, _ in server.controls].count("/update_weights_from_disk")
            return greedy, await ask(made, "t", [5, 6]), updates

        greedy, drawn, updates = run(made, play)
        assert updates == 2 and greedy.logprobs.max() == 0 and drawn.logprobs.max() < 0


@pytest.mark.parametrize("switches, message", [
    ({"refuses": True}, r"HTTP 400.*no weights in .*SGLang\(weights=FOLDER\)"), ({"keeps": True}, "but it holds '0"),
    ({"mislabels": True}, "but it holds 'other'"), ({"update_500s": 9}, "HTTP 500")])
def test_a_failed_push_says_so_leaves_the_server_paused_and_draws_nothing(switches, message):
    with sglang_server() as server:
        made = sampler(server)

        async def play():
            for name, value in switches.items():
                setattr(server.switches, name, value)
            with pytest.raises(PushError, match=f"1 of 1 servers did not take the weights 1.*{message}"):
                await made.push(PARAMS[1], 1, 1.0)
            assert server.paused
            with pytest.raises(InfraError, match="the last push of weights failed, so nothing is drawn"):
                await ask(made, "s", [5, 6])
            for name in switches:
                setattr(server.switches, name, 0)
            await made.push(PARAMS[2], 2, 1.0)                                # and the next one heals it
            return await ask(made, "s", [5, 6])

        completion = run(made, play)
        assert completion.policy_version == 2 and not server.paused
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens, 2), atol=1e-5)


def test_an_update_that_fails_in_passing_is_tried_again():
    with sglang_server(update_500s=2) as server:
        made = sampler(server)
        assert run(made, lambda: ask(made, "s", [5])).tokens.size


def test_requests_wait_for_a_push_and_fail_with_it():
    with sglang_server(step_s=0.02) as server:
        made = sampler(server)

        async def play():
            server.switches.refuses = True
            with pytest.raises(InfraError):
                await interrupted(made, server, 30)
            with pytest.raises(InfraError, match="the last push"):
                await ask(made, "s2", [5, 6])

        run(made, play)


def test_all_servers_are_given_the_weights_and_the_one_that_fails_is_named():
    with sglang_server() as one, sglang_server(refuses=True) as two:
        made = sampler(one, two)
        with pytest.raises(PushError, match=f"1 of 2 servers .*{two.url}"):
            run(made, lambda: ask(made, "s", [5]))


def test_a_server_that_came_back_with_other_weights_gets_ours():
    with sglang_server() as server:
        made = sampler(server)

        async def play():
            server.label, server.weights = "default", other(server.weights)   # as after a restart by someone else
            return await ask(made, "s", [5, 6])

        completion = run(made, play)
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens), atol=1e-5)
        assert server.label.startswith("0.") and made.counts["failures"] == 1


def test_a_router_whose_server_came_back_with_other_weights():
    with sglang_server() as one, sglang_server() as router:
        router.workers = [one]
        made = SGLang((one.url,), router=router.url)(QWEN3, slots=8, length=LENGTH, top_p=1.0, top_k=0)

        async def play():
            one.label, one.weights = "default", other(one.weights)
            return await ask(made, "s", [5, 6])

        completion = run(made, play)
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens), atol=1e-5)


# What a server offers


@pytest.mark.parametrize("switches, message", [
    ({"missing": ("/update_weights_from_disk",)}, "no /update_weights_from_disk: it takes no new weights"),
    ({"missing": ("/generate",)}, "no /generate"),
    ({"context": LENGTH - 1}, f"its context is {LENGTH - 1} tokens.*start it with --context-length"),
    ({"jax": True, "overlap": True}, "--disable-overlap-schedule")])
def test_a_server_that_cannot_serve_is_refused_at_the_first_push(switches, message):
    with sglang_server(**switches) as server:
        made = sampler(server)
        with pytest.raises(PushError, match=message):
            run(made, lambda: ask(made, "s", [5]))


@pytest.mark.parametrize("switches, message", [
    ({"missing": ("/abort_request",)}, "no /abort_request: a request that nobody waits for"),
    ({"missing": ("/pause_generation",)}, "no /pause_generation: requests of other clients are not held"),
    ({"labels": False, "jax": True}, "no weight_version: which weights it holds cannot be read back")])
def test_what_is_missing_is_said_once_and_done_without(switches, message):
    with sglang_server(**switches) as server:
        made = sampler(server)

        async def play():
            await made.push(PARAMS[1], 1, 1.0)
            return await ask(made, "s", [5, 6])

        with pytest.warns(UserWarning, match=message) as said_so:
            completion = run(made, play)
        assert len(said_so) == 1
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens, 1), atol=1e-5)


def test_what_is_no_sglang_server_is_named():
    with sglang_server(missing=()) as server:
        made = SGLang((server.url + "/nothing",))(QWEN3, slots=1, length=LENGTH, top_p=1.0, top_k=0)
        with pytest.raises(PushError, match="/nothing/openapi.json: HTTP 404"):
            run(made, lambda: ask(made, "s", [5]))


# Files


def test_files_hold_the_weights_in_the_dtype_of_the_computation(tmp_path):
    files = WeightStore(dataclasses.replace(QWEN3, compute_dtype="bfloat16"), str(tmp_path))
    folder = files.write(PARAMS[0], "0.1-x")
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    read, found = hf.load(folder, param_dtype="bfloat16")
    rounded = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16), PARAMS[0])
    jax.tree.map(np.testing.assert_array_equal, rounded, found)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(found))
    assert total < (folder / "model.safetensors").stat().st_size < total + 10_000   # two bytes a number
    files.clear()
    assert not list(tmp_path.iterdir())


def test_adapters_are_merged(tmp_path):
    config = dataclasses.replace(QWEN3, lora=Lora(2, 4.0, ("q",)))
    adapters, frozen = lora.split(config, PARAMS[0], jax.random.key(0))
    adapters = jax.tree.map(lambda leaf: leaf + 0.1, adapters)
    joined = lora.join(frozen, adapters)
    files = WeightStore(config, str(tmp_path))
    folder = files.write(joined, "0.1-x")
    merged = jax.device_get(lora.merge(config, joined))
    jax.tree.map(np.testing.assert_array_equal, merged, hf.load(folder)[1])


def test_the_last_two_are_kept_and_none_is_half_written(tmp_path, monkeypatch):
    files = WeightStore(QWEN3, str(tmp_path))
    folders = [files.write(PARAMS[0], f"{number}.1-x") for number in range(3)]
    assert [folder.exists() for folder in folders] == [False, True, True]
    save = hf.save

    def full(folder, *arguments, **settings):
        save(folder, *arguments, **settings)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.hf, "save", full)
    with pytest.raises(InfraError, match=r"No space left on device; name another folder with SGLang\(weights=...\)"):
        files.write(PARAMS[0], "3.1-x")
    assert [folder.exists() for folder in folders] == [False, False, True]
    assert len(list(folders[0].parent.iterdir())) == 2                        # the last weights and the lock


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InfraError, match=r"could not be written below '.*/file/weights': .*name another folder with"):
        WeightStore(QWEN3, str(tmp_path / "file" / "weights")).write(PARAMS[0], "0.1-x")


def test_the_folder_of_weights_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)                                               # a server has a working folder of its own
    assert WeightStore(QWEN3, "here").write(PARAMS[0], "0.1-x").is_absolute()


def test_a_failed_write_leaves_the_servers_as_they_are(tmp_path, monkeypatch):
    with sglang_server() as server:
        made = sampler(server, weights=str(tmp_path))

        async def play():
            monkeypatch.setattr(store.hf, "save", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(InfraError, match="No space left"):
                await made.push(PARAMS[1], 1, 1.0)
            return await ask(made, "s", [5, 6])

        completion = run(made, play)
        assert completion.policy_version == 0 and len(server.controls) == 3
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens), atol=1e-5)


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_is_not(tmp_path):
    other, mine = WeightStore(QWEN3, str(tmp_path)), WeightStore(QWEN3, str(tmp_path))
    theirs, ours = other.write(PARAMS[0], "0.1-x"), mine.write(PARAMS[0], "0.1-y")
    assert theirs.is_dir() and ours.is_dir()
    other._lock.close()                                                       # as the system does for a process that ends
    third = WeightStore(QWEN3, str(tmp_path))
    left = third.write(PARAMS[0], "0.1-z")
    assert not theirs.exists() and ours.is_dir() and left.is_dir()
    del third
    assert not left.exists()                                                  # nothing outlives the process that wrote it
