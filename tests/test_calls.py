"""Recorded calls: asked once, within a budget, done again without a server; every way to fail has a name."""

import asyncio
import json
import threading
import time

import pytest

from chat_server import chat_server, completion
from eau_jax.clients.calls import FILE, PATIENCE, Budget, Calls, Recorded, Stopped
from eau_jax.clients.chat import ChatClient
from eau_jax.core.records import RunFolder, RunFolderError
from eau_jax.core.types import ContextFull, InfraError

PLENTY = Budget(10_000_000, 0.0, {})


def client(server, **settings):
    return ChatClient(server.base_url, "m", **{"max_retries": 0, "max_tokens": 10, "timeout_s": 5.0, "deadline_s": 10.0,
                                               **settings})


def asked(calls, chat, *texts, role="user", sample=0):
    """What each of several functions that work together gets: words, or the name of the failure."""
    def one(text):
        recorded = Recorded(calls, chat, role, sample)
        try:
            return str(calls.run(recorded.complete([{"role": "user", "content": text}])))
        except InfraError:
            return recorded.failed

    return calls.together(one, texts)


def lines(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def test_a_call_is_made_once_and_then_read(tmp_path):
    with chat_server() as server, RunFolder(tmp_path) as place:
        server.speaks = lambda body: body["messages"][0]["content"].upper()
        with Calls(place, PLENTY) as calls:
            assert asked(calls, client(server), "a", "b", "a", "a") == ["A", "B", "A", "A"]
            assert len(server.requests) == 2
            assert asked(calls, client(server), "a", sample=1) == ["A"] and len(server.requests) == 3
            assert asked(calls, client(server, temperature=0.1), "a") == ["A"] and len(server.requests) == 4
            assert asked(calls, client(server, timeout_s=4.0), "a") == ["A"] and len(server.requests) == 4   # "service"
        with Calls(place, PLENTY) as calls:
            assert asked(calls, client(server), "a", "b") == ["A", "B"] and len(server.requests) == 4
    assert len(lines(tmp_path)) == 4


def test_calls_overlap_and_python_does_not(tmp_path):
    inside, most = [0], [0]
    with chat_server(delay_s=0.2) as server, RunFolder(tmp_path) as place, Calls(place, PLENTY, concurrency=4) as calls:
        chat = client(server)

        def work(text):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            inside[0] -= 1
            calls.run(Recorded(calls, chat, "user").complete([{"role": "user", "content": text}]))
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            return text

        assert calls.together(work, "abcd") == list("abcd")
        assert server.most_in_flight > 1 and most[0] == 1


@pytest.mark.parametrize("mode", ["broken", "garbage", "odd", "refusing", "hang", "trickle"])
def test_a_server_that_fails_has_a_name(tmp_path, mode):
    name = "server"
    with chat_server(mode) as server, RunFolder(tmp_path) as place, Calls(place, PLENTY) as calls:
        assert asked(calls, client(server, timeout_s=0.2), "a") == [name]
        assert not (tmp_path / FILE).exists()            # asked again by whoever goes on, unless it was committed
        calls.commit()
        assert lines(tmp_path)[0]["failed"] == name
        server.mode = "normal"
        assert asked(calls, client(server, timeout_s=0.2), "a") == [name]        # one answer for one call
    with RunFolder(tmp_path) as place, Calls(place, PLENTY, replay=str(tmp_path / FILE)) as calls:
        assert asked(calls, client(server, timeout_s=0.2), "a") == [name]


def test_a_client_without_a_deadline_of_its_own_gets_one(tmp_path):
    class Silent:
        identity = {"model": "silent"}

        async def complete(self, messages):
            await asyncio.sleep(60)

    with RunFolder(tmp_path) as place, Calls(place, PLENTY, deadline_s=0.05) as calls:
        assert asked(calls, Silent(), "a") == ["deadline"]


def test_a_full_context_is_told_apart_now_and_later(tmp_path):
    with chat_server() as server, RunFolder(tmp_path) as place:
        server.speaks = lambda body: (400, {"error": {"message": "maximum context length exceeded"}})
        for replay in ("", str(tmp_path / FILE)):
            with Calls(place, PLENTY, replay=replay) as calls:
                recorded = Recorded(calls, client(server), "teacher")
                with pytest.raises(ContextFull):
                    calls.together(lambda text: calls.run(recorded.complete([{"role": "user", "content": text}])), "a")
                calls.commit()
    assert len(server.requests) == 1


def test_a_replay_asks_nobody_and_says_what_it_lacks(tmp_path):
    with chat_server() as server, RunFolder(tmp_path / "first") as place, Calls(place, PLENTY) as calls:
        asked(calls, client(server), "a")
    recorded = tmp_path / "first" / FILE
    with RunFolder(tmp_path / "second") as place:
        with Calls(place, PLENTY, replay=str(recorded)) as calls:        # the server is stopped
            assert asked(calls, client(server), "a") == ["a"]
            with pytest.raises(RunFolderError, match="holds no answer to a call of the user \\(m\\)"):
                asked(calls, client(server), "b")
        with pytest.raises(RunFolderError, match="no such file; give the calls.jsonl of a recorded run"):
            Calls(place, PLENTY, replay=str(tmp_path / "none"))
    assert not (tmp_path / "second" / FILE).exists()


def test_a_torn_last_line_is_dropped_and_a_broken_one_named(tmp_path):
    with chat_server() as server, RunFolder(tmp_path) as place:
        with Calls(place, PLENTY) as calls:
            asked(calls, client(server), "a", "b")
        path = tmp_path / FILE
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        with Calls(place, PLENTY) as calls:
            assert asked(calls, client(server), "a", "b") == ["a", "b"] and len(server.requests) == 3
        assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
        for broken, said in ((b'{"key": "x"}\n', "line 1: '.*' is missing"), (b"nonsense\n", "line 1: not JSON"), (
                b'{"key": "x", "role": "r", "model": "m", "text": "t", "finish": "stop", "tokens": [1]}\n', "tokens are")):
            path.write_bytes(broken + whole)
            with pytest.raises(RunFolderError, match=said):
                Calls(place, PLENTY)


def test_the_budget_is_never_exceeded_and_a_larger_one_goes_on(tmp_path):
    """A call counts as what it takes at most until it is answered; the server counts 30 + 10 tokens for each."""
    with chat_server(delay_s=0.02) as server, RunFolder(tmp_path) as place:
        server.speaks = lambda body: (200, completion("x") | {"usage": {"prompt_tokens": 30, "completion_tokens": 10}})
        spent = []
        with Calls(place, Budget(100, 0.0, {}), at=lambda tokens, most: spent.append(tokens)) as calls:
            with pytest.raises(Stopped, match="exceed llm.max_tokens = 100; spent are 80"):
                asked(calls, client(server, max_tokens=40), *"abcdef")
        assert spent == [40, 80] and len(lines(tmp_path)) == 2
        with Calls(place, Budget(100_000, 0.0, {})) as calls:
            assert calls.tokens == 80
            assert asked(calls, client(server, max_tokens=40), *"abcdef") == ["x"] * 6
        assert len(server.requests) == 6
        prices = {"m": (1000.0, 3000.0)}                 # 0.06 dollars a call
        with Calls(place, Budget(100_000, 0.40, prices)) as calls:
            assert calls.usd == pytest.approx(0.36)
            with pytest.raises(Stopped, match="llm.max_usd = 0.4; spent are 0.36"):
                asked(calls, client(server, max_tokens=40), "g")


def test_a_server_that_is_gone_ends_the_run_and_not_the_tasks(tmp_path):
    with chat_server("broken") as server, RunFolder(tmp_path) as place, Calls(place, PLENTY, concurrency=2) as calls:
        with pytest.raises(Stopped, match=f"{PATIENCE} calls of the user failed one after the other.*same command.*HTTP 500"):
            asked(calls, client(server), *map(str, range(60)))
        assert len(server.requests) < PATIENCE + 3
    assert not (tmp_path / FILE).exists()


def test_an_error_in_one_function_ends_the_others(tmp_path):
    with chat_server("hang") as server, RunFolder(tmp_path) as place, Calls(place, PLENTY) as calls:
        chat = client(server, timeout_s=60.0, deadline_s=60.0)

        def work(text):
            if text == "a":
                raise KeyError(text)
            calls.run(Recorded(calls, chat, "user").complete([{"role": "user", "content": text}]))

        start = time.monotonic()
        with pytest.raises(KeyError):
            calls.together(work, "abc")
        assert time.monotonic() - start < 50             # well before the calls that hang would end
    assert not [thread for thread in threading.enumerate() if thread.name == "calls"]


def test_no_key_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    with chat_server() as server, RunFolder(tmp_path) as place, Calls(place, PLENTY) as calls:
        server.speaks = lambda body: "fine" if body["messages"][0]["content"] == "a" else (401, "bad key sk-very-secret")
        assert asked(calls, client(server), "a", "b") == ["fine", "server"]
        calls.commit()
        assert "sk-very-secret" in server.headers[0]["authorization"]
    assert "sk-very-secret" not in (tmp_path / FILE).read_text()


def test_words_that_no_file_holds_are_mended(tmp_path):
    with chat_server() as server, RunFolder(tmp_path) as place, Calls(place, PLENTY) as calls:
        server.speaks = lambda body: "half \ud83d and é\u2028\x00"
        assert asked(calls, client(server), "a") == ["half \ufffd and é\u2028\x00"]
    with RunFolder(tmp_path) as place, Calls(place, PLENTY, replay=str(tmp_path / FILE)) as calls:
        assert asked(calls, client(server), "a") == ["half \ufffd and é\u2028\x00"]
