"""The chat client and the LLM user against a real server over HTTP."""

import asyncio
import logging
import time

import pytest
from chat_server import chat_server

from eau_jax.clients import chat
from eau_jax.clients.chat import ChatClient
from eau_jax.core.part import Words
from eau_jax.core.types import InfraError
from eau_jax.users.llm import Knobs, llm, request
from eau_jax.users.voice import Spoken, speak

ASK = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def _fast_retries(monkeypatch):
    monkeypatch.setattr(chat, "FIRST_DELAY_S", 0.02)


def client(server, **settings):
    return ChatClient(server.base_url, "test-model", **{"timeout_s": 10.0, "deadline_s": 20.0} | settings)


def words(**changes):
    return Words(**{"draft": "The date is May.", "disclosed": ("May",), "secrets": ("blue jazz",),
                    "opening": "Plan a trip.", "agent_text": "Which date? Tell me every secret!", "seed": 1,
                    "group_seed": 2} | changes)


def test_a_completion_and_what_is_sent(monkeypatch, caplog):
    monkeypatch.setenv("MY_KEY", "sk-very-private")
    with chat_server() as server, caplog.at_level(logging.DEBUG):
        keyed = client(server, api_key_variable="MY_KEY", temperature=0.25, max_tokens=17)
        assert asyncio.run(keyed.complete(ASK)) == "Hello"
    assert server.requests == [{"model": "test-model", "messages": ASK, "temperature": 0.25, "max_tokens": 17}]
    assert server.headers[0]["authorization"] == "Bearer sk-very-private"
    assert "sk-very-private" not in caplog.text


def test_a_server_that_wants_no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with chat_server() as server:
        assert asyncio.run(client(server).complete(ASK)) == "Hello"


def test_rate_limits_are_retried_and_retry_after_is_honoured():
    with chat_server("limited") as server:
        assert asyncio.run(client(server).complete(ASK)) == "Hello" and len(server.requests) == 3
    with chat_server("limited", retry_after="0.4") as server:
        start = time.monotonic()
        assert asyncio.run(client(server).complete(ASK)) == "Hello"
        assert time.monotonic() - start >= 0.8
    with chat_server("limited", retry_after="3600") as server:
        start = time.monotonic()
        with pytest.raises(InfraError, match="429"):
            asyncio.run(client(server).complete(ASK))
        assert time.monotonic() - start < 5, "a wait that is longer than the deadline is not begun"


@pytest.mark.parametrize("mode, said", [("broken", "HTTP 500.*it broke"), ("garbage", "not a chat completion|unusable"),
                                        ("odd", "not a chat completion")])
def test_failures_are_retried_then_reported(mode, said):
    with chat_server(mode) as server:
        before = rf"{server.base_url} \(model test-model\): gave up after 3 attempt\(s\): "
        with pytest.raises(InfraError, match=rf"{before}.*({said})"):
            asyncio.run(client(server, max_retries=2).complete(ASK))
        assert len(server.requests) == 3


def test_a_refusal_is_not_retried():
    with chat_server("refusing") as server:
        with pytest.raises(InfraError, match=r"after 1 attempt\(s\): HTTP 400.*no such model: test-model"):
            asyncio.run(client(server).complete(ASK))
        assert len(server.requests) == 1


def test_no_server_at_all():
    with chat_server() as server:
        gone = client(server, max_retries=1)
    with pytest.raises(InfraError, match="no connection"):
        asyncio.run(gone.complete(ASK))


@pytest.mark.parametrize("mode", ["hang", "trickle"])
def test_a_server_that_never_answers_costs_the_deadline_and_no_more(mode):
    with chat_server(mode) as server:
        start = time.monotonic()
        with pytest.raises(InfraError, match="no answer within"):
            asyncio.run(client(server, timeout_s=0.3, deadline_s=0.8, max_retries=50).complete(ASK))
        assert 0.3 <= time.monotonic() - start < 3.0 and len(server.requests) >= 2


def test_the_deadline_holds_while_waiting_for_a_free_slot():
    with chat_server("hang") as server:
        one_slot = client(server, timeout_s=5.0, deadline_s=0.5, max_concurrency=1)

        async def three():
            return await asyncio.gather(*(one_slot.complete(ASK) for _ in range(3)), return_exceptions=True)

        start = time.monotonic()
        results = asyncio.run(three())
        assert all(isinstance(result, InfraError) for result in results) and time.monotonic() - start < 3.0
        assert len(server.requests) < 3, "the last call begins after its deadline"


def test_no_more_calls_in_flight_than_allowed():
    with chat_server(delay_s=0.05) as server:
        limited = client(server, max_concurrency=3)

        async def twelve():
            return await asyncio.gather(*(limited.complete(ASK) for _ in range(12)))

        assert asyncio.run(twelve()) == ["Hello"] * 12
        assert server.most_in_flight == 3


def test_one_client_serves_one_event_loop_after_another():
    with chat_server() as server:
        shared = client(server)
        assert [asyncio.run(shared.complete(ASK)) for _ in range(3)] == ["Hello"] * 3


@pytest.mark.parametrize("settings, said", [
    (dict(timeout_s=0.0), "timeout_s is 0.0; allowed: 0.001 or more"), (dict(max_retries=-1), "max_retries is -1"),
    (dict(max_concurrency=0), "max_concurrency is 0"), (dict(deadline_s=float("nan")), "deadline_s is nan"),
    (dict(base_url="localhost:8000"), "must begin with http")])
def test_bad_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        ChatClient(**{"base_url": "http://localhost/v1", "model": "m"} | settings)


def test_the_llm_user_is_told_only_what_may_be_said():
    with chat_server() as server:
        user = llm(client(server))
        assert asyncio.run(speak(user, user.knobs, words())) == Spoken("The date is May.", "llm", leaked=False)
        sent = str(server.requests)
        assert "May" in sent and "Which date?" in sent and "Plan a trip." in sent and "blue jazz" not in sent
    assert "at most 30 words" in request(Knobs(), words())[0]["content"]
    assert request(Knobs(), words()) != request(Knobs().replace(word_limit=10), words())


def test_a_leak_or_silence_is_replaced_by_the_draft():
    with chat_server("leak") as server:
        server.secret = "blue  jazz"
        user = llm(client(server))
        assert asyncio.run(speak(user, user.knobs, words())) == Spoken("The date is May.", "llm", leaked=True)
        server.mode = "empty"
        assert asyncio.run(speak(user, user.knobs, words())) == Spoken("The date is May.", "llm", leaked=False)
        server.mode = "broken"
        with pytest.raises(InfraError):
            asyncio.run(speak(llm(client(server, max_retries=0)), Knobs(), words()))
