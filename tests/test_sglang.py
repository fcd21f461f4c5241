"""The SGLang sampler over a real local server: what reaches it, what comes back, what is done when it fails."""

import asyncio
import dataclasses

import jax
import numpy as np
import pytest

import sglang_play
import tiny_config
from eau_jax.clients.server import LocalServer
from eau_jax.config import Rollout
from eau_jax.config_file import describe
from eau_jax.core.types import InfraError
from eau_jax.samplers import fleet
from eau_jax.samplers.places import Places
from eau_jax.samplers.sglang import SGLang
from eau_jax.samplers.types import TokenRequest
from sampler_play import QWEN3, STOP, V
from sglang_play import LENGTH, PARAMS, ask, episode, run, said, sampler
from sglang_server import sglang_server

quick = pytest.fixture(autouse=True)(sglang_play.quick)

# What is asked, and what comes back


def test_three_turns_keep_their_server_their_prefix_and_their_logprobs():
    with sglang_server() as one, sglang_server() as two:
        made = sampler(one, two)
        names = [f"e{number}" for number in range(6)]
        episodes = run(made, lambda: asyncio.gather(*(episode(made, name) for name in names)), temperature=0.7)
        for played in episodes:
            for history, completion in played:
                np.testing.assert_allclose(completion.logprobs, said(history, completion.tokens, 0, 0.7), atol=1e-5)
                assert completion.policy_version == 0 and completion.versions == ()
                ended = STOP in completion.tokens
                assert completion.stop == ("end_of_turn" if ended else "length")
                assert completion.tokens.tolist().count(STOP) == ended == (completion.tokens[-1] == STOP)
                assert ended or len(completion.tokens) == 6
        homes = {name: {url for url, server in (("one", one), ("two", two)) for headers in server.headers
                        if headers["x-smg-routing-key"] == name} for name in names}
        assert all(len(urls) == 1 for urls in homes.values())                 # a session stays where it is
        assert sorted(len(server.requests) for server in (one, two)) == [9, 9]  # and the servers share them
        # The cache holds all of a turn but what was appended after it.
        expected = sum(len(history) + len(completion.tokens) for played in episodes for history, completion in played[:-1])
        assert made.counts["cached_tokens"] >= expected
        histories = [history.tolist() for played in episodes for history, _ in played]
        assert sorted(body["input_ids"] for server in (one, two) for body in server.requests) == sorted(histories)


def test_what_a_request_holds():
    with sglang_server() as server:
        made = sampler(server)
        run(made, lambda: ask(made, "s", [5, 6], max_new_tokens=100, seed=2 ** 40 + 9, stop_ids=(7, 8)), temperature=0.5)
        [body] = server.requests
        assert body["return_logprob"] is True and body["input_ids"] == [5, 6]
        assert body["sampling_params"] == {
            "temperature": 0.5, "top_p": 1.0, "top_k": -1, "max_new_tokens": LENGTH - 2, "stop_token_ids": [7, 8],
            "sampling_seed": 9, "skip_special_tokens": False, "no_stop_trim": True}
        assert "stream" not in body and "text" not in body


def test_greedy_is_certain():
    with sglang_server() as server:
        made = sampler(server)
        completion = run(made, lambda: ask(made, "s", [5, 6]), temperature=0.0)
        assert completion.logprobs.tolist() == [0.0] * len(completion.tokens)


@pytest.mark.parametrize("size", [60, 230])
def test_repeated_logprobs_are_not_taken_twice(size):
    with sglang_server(repeats=50) as server:
        made = SGLang((server.url,))(QWEN3, slots=2, length=400, top_p=1.0, top_k=0)
        completion = run(made, lambda: ask(made, "s", [5], max_new_tokens=size, stop_ids=()))
        assert len(completion.tokens) == len(completion.logprobs) == size
        np.testing.assert_allclose(completion.logprobs, said([5], completion.tokens), atol=1e-5)


def test_a_stop_token_that_is_not_ours_does_not_end_the_action():
    with sglang_server(eos=29) as server:
        made = sampler(server)
        completion = run(made, lambda: ask(made, "s", [9], max_new_tokens=40, stop_ids=()))
        assert 29 in completion.tokens[:-1] and len(completion.tokens) == 40 and completion.stop == "length"
        assert len(server.requests) > 1
        assert [body["input_ids"] for body in server.requests][1] == [9, *completion.tokens[:len(
            server.requests[1]["input_ids"]) - 1].tolist()]


def test_slots_bound_the_requests_in_flight():
    with sglang_server(step_s=0.003) as server:
        made = sampler(server, slots=3)
        run(made, lambda: asyncio.gather(*(ask(made, f"s{n}", [5, 6], stop_ids=()) for n in range(10))))
        assert server.most_active == 3


def test_episodes_that_have_begun_go_first():
    with sglang_server(step_s=0.002) as server:
        made = sampler(server, slots=2)
        names = [f"e{number}" for number in range(8)]
        run(made, lambda: asyncio.gather(*(episode(made, name) for name in names)))
        order = [headers["x-smg-routing-key"] for headers in server.headers]
        last = {name: len(order) - order[::-1].index(name) for name in names}
        opened = [sum(order.index(name) <= moment < last[name] for name in names) for moment in range(len(order))]
        assert len(order) == 24 and max(opened) <= 5          # all eight, were they served in the order of asking


def test_a_place_is_not_lost_when_who_gets_it_is_cancelled():
    places, got = Places(1), []

    async def hold(name: str):
        async with places.place(False):
            got.append(name)

    async def play():
        async with places.place(False):
            got.append("first")
            second, third = (asyncio.ensure_future(hold(name)) for name in ("second", "third"))
            await asyncio.sleep(0.01)
        second.cancel()                                       # the place was passed on to it, but it has not run yet
        await asyncio.wait([second, third])
        await asyncio.wait_for(hold("fourth"), 5)

    asyncio.run(play())
    assert got == ["first", "third", "fourth"]


@pytest.mark.parametrize("settings, message", [
    (dict(tokens=[]), "history has shape"), (dict(tokens=[5] * LENGTH), "leaves no room"),
    (dict(tokens=[V]), f"the model's are 0..{V - 1}"), (dict(tokens=[5], max_new_tokens=0), "must be at least 1"),
    (dict(tokens=[5], seed=-1), "seed is -1")])
def test_a_request_that_would_kill_a_server_does_not_reach_it(settings, message):
    with sglang_server() as server:
        made = sampler(server)
        with pytest.raises(ValueError, match=message):
            run(made, lambda: ask(made, "s", **settings))
        assert not server.requests


def test_one_request_of_a_session_at_a_time():
    with sglang_server(step_s=0.01) as server:
        made = sampler(server)
        with pytest.raises(ValueError, match="has an open request already"):
            run(made, lambda: asyncio.gather(ask(made, "s", [5]), ask(made, "s", [6])))


def test_a_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "hush")
    with sglang_server(key="hush") as server:
        made = sampler(server)
        assert run(made, lambda: ask(made, "s", [5])).tokens.size
        monkeypatch.setenv("SGLANG_API_KEY", "wrong")
        with pytest.raises(InfraError, match="401.*set the environment variable SGLANG_API_KEY") as caught:
            made = sampler(server)
            run(made, lambda: ask(made, "s", [5]))
        assert "wrong" not in str(caught.value)
        monkeypatch.setenv("SGLANG_API_KEY", "clé")
        with pytest.raises(ValueError, match="SGLANG_API_KEY holds characters that no key has"):
            made = sampler(server)
            run(made, lambda: ask(made, "s", [5]))


# What fails


@pytest.mark.parametrize("kind", ["500", "reset", "garbage", "odd", "short", "null", "huge", "abort"])
def test_what_fails_once_leaves_no_trace(kind):
    with sglang_server() as calm, sglang_server() as server:
        undisturbed = sampler(calm)
        expected = run(undisturbed, lambda: ask(undisturbed, "s", [5, 6], seed=4))
        made = sampler(server)
        server.script = [kind]
        found = run(made, lambda: ask(made, "s", [5, 6], seed=4))
        assert found.tokens.tolist() == expected.tokens.tolist() and len(server.requests) == 2
        np.testing.assert_array_equal(found.logprobs, expected.logprobs)
        assert made.counts["failures"] == 1


def test_a_stalled_attempt_is_given_up_and_made_again():
    with sglang_server() as server:
        made = sampler(server, timeout_s=0.2)
        server.script = ["stall"]
        assert run(made, lambda: ask(made, "s", [5, 6])).tokens.size
        assert ("/abort_request", {"rid": server.requests[0]["rid"]}) in server.controls


def test_what_keeps_failing_is_an_infrastructure_error():
    with sglang_server() as server:
        made = sampler(server, retries=2)
        server.script = ["500"] * 9
        with pytest.raises(InfraError, match=r"gave up after 3 attempt\(s\): http.*/generate: HTTP 500: .*it broke"):
            run(made, lambda: ask(made, "s", [5, 6]))
        assert len(server.requests) == 3


def test_what_the_server_refuses_is_not_asked_again():
    with sglang_server() as server:
        made = sampler(server)
        server.script = ["400"]
        with pytest.raises(InfraError, match="HTTP 400"):
            run(made, lambda: ask(made, "s", [5, 6]))
        assert len(server.requests) == 1


def test_a_session_moves_to_a_server_that_answers(monkeypatch):
    with sglang_server() as one, sglang_server() as two:
        made = sampler(one, two)
        monkeypatch.setattr(fleet, "REST_S", 60.0)
        one.script = ["500"]

        async def play():
            return [await ask(made, f"s{number}", [5, 6]) for number in range(4)]

        assert len(run(made, play)) == 4
        assert len(one.requests) == 1 and len(two.requests) == 4 and made.counts["failures"] == 1


@pytest.mark.parametrize("how", ["gone", "other weights"])
def test_a_server_that_cannot_be_brought_back_takes_no_episodes_with_it(how):
    with sglang_server() as one, sglang_server() as two:
        made = sampler(one, two)

        async def play():
            if how == "gone":
                one.switches.gone = True
            else:
                one.script, one.label, one.switches.refuses = ["500"], "default", True
            for number in range(4):
                for server in made._fleet.servers:
                    server.rests_until = 0.0                  # time passes
                await ask(made, f"s{number}", [5, 6])
                await made.release(f"s{number}")

        run(made, play)
        assert len(two.requests) == 4 and made.counts["failures"] == 4      # each was tried once on the other


def test_a_router_goes_on_without_a_server_that_is_gone():
    with sglang_server() as one, sglang_server() as two, sglang_server() as router:
        router.workers = [two]
        made = SGLang((one.url, two.url), router=router.url)(QWEN3, slots=8, length=LENGTH, top_p=1.0, top_k=0)

        async def play():
            one.switches.gone = True
            router.script = ["reset"]
            return await ask(made, "s", [5, 6])

        assert run(made, play).tokens.size and made.counts["failures"] == 1


def test_a_change_of_temperature_leaves_what_is_being_drawn_as_it_is():
    with sglang_server(step_s=0.02) as server:
        made, params = sampler(server), jax.device_put(PARAMS[0])

        async def play():
            await made.push(params, 0, 0.7)
            asking = asyncio.ensure_future(ask(made, "s", [5, 6], max_new_tokens=20, stop_ids=()))
            while not server.active:
                await asyncio.sleep(0.005)
            await made.push(params, 0, 0.0)
            return await asking

        completion = run(made, play)
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens, 0, 0.7), atol=1e-5)


def test_an_interrupted_action_goes_on_from_what_it_has():
    with sglang_server() as server:
        made = sampler(server)
        server.script = ["cut", "cut"]
        completion = run(made, lambda: ask(made, "s", [5, 6], max_new_tokens=7, stop_ids=()))
        sizes = [(len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]) for body in server.requests]
        assert sizes == [(2, 7), (4, 5), (6, 3)] and len(completion.tokens) == 7
        assert server.requests[2]["input_ids"] == [5, 6, *completion.tokens[:4].tolist()]
        np.testing.assert_allclose(completion.logprobs, said([5, 6], completion.tokens), atol=1e-5)
        assert made.counts["failures"] == 0


def test_a_deadline_ends_the_request_on_the_server_too():
    with sglang_server(step_s=0.05) as server:
        made = sampler(server)

        async def play():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await ask(made, "s", [5, 6], max_new_tokens=60, stop_ids=())
            await asyncio.sleep(0.2)
            assert not server.active
            return await ask(made, "s", [5, 6], max_new_tokens=2)   # the session can ask again

        assert run(made, play).tokens.size
        assert ("/abort_request", {"rid": server.requests[0]["rid"]}) in server.controls


@pytest.mark.parametrize("end", ["release", "close"])
def test_a_released_session_is_aborted(end):
    with sglang_server(step_s=0.05) as server:
        made = sampler(server)

        async def play():
            asking = asyncio.ensure_future(ask(made, "s", [5, 6], max_new_tokens=60, stop_ids=()))
            await asyncio.sleep(0.2)
            await (made.release("s") if end == "release" else made.close())
            return await asking

        assert run(made, play).stop == "aborted"
        with pytest.raises(RuntimeError, match="closed"):
            asyncio.run(ask(made, "s", [5]))


def test_a_router_gets_the_requests_and_the_session_and_servers_get_the_weights():
    with sglang_server() as one, sglang_server() as two, sglang_server(missing=("/update_weights_from_disk",)) as router:
        router.workers = [one, two]
        made = SGLang((one.url, two.url), router=router.url)(QWEN3, slots=8, length=LENGTH, top_p=1.0, top_k=0)
        episodes = run(made, lambda: asyncio.gather(*(episode(made, f"episode {n}") for n in range(5))))
        assert {headers["x-smg-routing-key"] for headers in router.headers} == {f"episode {n}" for n in range(5)}
        assert len(router.requests) == 15 and not one.requests and not router.controls
        controls = ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]
        assert [path for path, _ in one.controls] == controls
        for played in episodes:
            for history, completion in played:
                np.testing.assert_allclose(completion.logprobs, said(history, completion.tokens), atol=1e-5)
        assert made.counts["cached_tokens"] > 0


# Several event loops, and what a sampler must refuse


def test_every_event_loop_has_its_own_connections():
    with sglang_server() as server:
        made = sampler(server)
        asyncio.run(made.push(PARAMS[0], 0, 1.0))
        made.warm_up()
        made.drop_cache()
        first, again = (asyncio.run(ask(made, "s", [5, 6], seed=3)) for _ in range(2))
        assert first.tokens.tolist() == again.tokens.tolist()
        asyncio.run(made.close())


def test_a_request_before_the_first_push_is_refused():
    with sglang_server() as server, pytest.raises(RuntimeError, match="call push"):
        asyncio.run(sampler(server).generate([TokenRequest("s", np.array([1]), 1, 0, ())]))


@pytest.mark.parametrize("settings, message", [
    (dict(servers=()), "give a tuple of addresses"), (dict(servers="http://a:1"), "give a tuple of addresses"),
    (dict(servers=("http://a:1", "http://a:1")), "occurs twice"),
    (dict(servers=(LocalServer(),), router="http://a:1"), "a router does not know"),
    (dict(servers=(LocalServer(start_s=60.0),), push_s=50.0), "start_s is 60 and push_s 50; .* raise push_s"),
    (dict(servers=("http://a:1",), retries=-1), "retries"), (dict(servers=("http://a:1",), timeout_s=0.0), "timeout_s"),
    (dict(servers=("localhost:30000",)), "no server's address"), (dict(servers=("http://me:pw@a:1",)), "would be recorded")])
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SGLang(**settings)


def test_a_config_chooses_it_records_it_and_refuses_what_it_cannot_do():
    servers = SGLang(("http://a:1", LocalServer(tensor=2)))
    chosen = dataclasses.replace(tiny_config.config(), rollout=Rollout(sampler=servers))
    told = describe(chosen)["rollout"]["sampler"]
    assert told["servers"][0] == "http://a:1" and told["servers"][1]["tensor"] == 2 and told["retries"] == 3
    with pytest.raises(ValueError, match="rollout.top_k = 5 cannot be used with SGLang"):
        dataclasses.replace(chosen.rollout, top_k=5)


@pytest.mark.parametrize("filters", [dict(top_p=0.9, top_k=0), dict(top_p=1.0, top_k=5)])
def test_a_restricted_distribution_is_refused(filters):
    with pytest.raises(ValueError, match="log-probabilities of the whole distribution"):
        SGLang(("http://a:1",))(QWEN3, slots=1, length=8, **filters)
