"""The chat client and the LLM user against a real server over HTTP."""

import asyncio
import email.utils
import itertools
import json
import logging
import re
import time

import pytest
from chat_server import chat_server, completion, refusal

from eau_jax.clients import chat
from eau_jax.clients.answer import read
from eau_jax.clients.chat import ChatClient
from eau_jax.core.part import Words
from eau_jax.core.types import ContextFull, InfraError, Said
from eau_jax.users.faithful import tells
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
    date = email.utils.formatdate(time.time() + 2)    # whole seconds: between one and two from now
    with chat_server("limited", retry_after=date) as server:
        start = time.monotonic()
        assert asyncio.run(client(server).complete(ASK)) == "Hello" and time.monotonic() - start > 0.5
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
        one_slot = client(server, timeout_s=0.5, deadline_s=0.5, max_concurrency=1)

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
    (dict(timeout_s=0.0), "timeout_s is 0.0; allowed: above 0"), (dict(max_retries=-1), "max_retries is -1"),
    (dict(max_concurrency=0), "max_concurrency is 0"), (dict(deadline_s=float("nan")), "deadline_s is nan"),
    (dict(base_url="localhost:8000"), "must begin with http"), (dict(base_url="http://"), "name a server"),
    (dict(base_url="http://host:port/v1"), "name a server"), (dict(base_url=None), "name a server"),
    (dict(model=""), "model is ''"), (dict(timeout_s=300.0), "raise deadline_s, to a few times timeout_s"),
    (dict(max_tokens=1.5), "an integer, 1 or more"), (dict(timeout_s="30"), "timeout_s is '30'; allowed: above 0")])
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
        assert asyncio.run(speak(user, user.knobs, words())) == Spoken("The date is May.", "draft", leaked=False)
        server.mode = "broken"
        with pytest.raises(InfraError):
            asyncio.run(speak(llm(client(server, max_retries=0)), Knobs(), words()))


TOO_LONG = [   # the words of OpenAI, vLLM (three versions), SGLang (two), llama.cpp, TGI, a gateway's, Anthropic's, Gemini's
    (400, refusal("Your input is too much.", code="context_length_exceeded")),
    (400, {"object": "error", "type": "BadRequestError", "code": 400, "message": "This model's maximum context length is "
           "4096 tokens. However, you requested 5000 tokens (4700 in the messages, 300 in the completion)."}),
    (400, refusal("'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 4096 "
                  "tokens and your request has 90 input tokens (4096 > 4096 - 90).")),
    (400, {"object": "error", "message": "max_tokens must be at least 1, got -186.", "code": 400}),
    (400, {"object": "error", "message": "The input (5000 tokens) is longer than the model's context length (4096)."}),
    (400, {"object": "error", "message": "Requested token count exceeds the model's maximum context length of 4096."}),
    (400, refusal("the request exceeds the available context size. try increasing it", type="exceed_context_size_error")),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}),
    (200, refusal("This endpoint's maximum context length is 4096 tokens.", code=400)),
    (413, refusal("prompt is too long: 210000 tokens > 200000 maximum")),
    (400, refusal("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
]
NOT_TOO_LONG = [
    (400, refusal("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.")),
    (413, refusal("Request too large for model `m` on tokens per minute (TPM): Limit 6000. Too many tokens.")),
    (400, refusal("no such model")), (401, refusal("context length of the key")), (429, refusal("Too many tokens per day"))]


@pytest.mark.parametrize("status, body", TOO_LONG)
def test_a_conversation_that_does_not_fit_is_told_apart(status, body):
    with chat_server() as server:
        server.script = [(status, body)]
        with pytest.raises(ContextFull, match=r"max_tokens \(256\), does not fit into the model's context: serve it with"):
            asyncio.run(client(server).complete(ASK))
        assert len(server.requests) == 1


@pytest.mark.parametrize("status, body", NOT_TOO_LONG)
def test_other_refusals_are_none_of_the_context(status, body):
    with chat_server() as server:
        server.script = [(status, body)]
        with pytest.raises(InfraError) as failed:
            asyncio.run(client(server, max_retries=0).complete(ASK))
        assert not isinstance(failed.value, ContextFull)


CALL = {"id": "1", "type": "function", "function": {"name": "get_user", "arguments": '{"id": "é 1"}'}}
WRITTEN = '<tool_call>{"name": "get_user", "arguments": {"id": "é 1"}}</tool_call>'


@pytest.mark.parametrize("body, text, finish", [
    (completion("cut o", "length"), "cut o", "length"),
    (completion(None, "length", reasoning_content="all the budget"), "", "length"),
    (completion(None, "content_filter"), "", "content_filter"),
    (completion(None), "", "stop"), (completion("", None), "", "stop"),
    (completion([{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "t"}, {"type": "text", "text": "b"}]), "ab",
     "stop"),
    (completion(None, "tool_calls", tool_calls=[CALL]), WRITTEN, "tool_calls"),
    (completion("So.", "tool_calls", tool_calls=[CALL, CALL]), f"So.\n{WRITTEN}\n{WRITTEN}", "tool_calls"),
    (completion(None, "function_call", function_call={"name": "f", "arguments": "{broken"}),
     '<tool_call>{"name": "f", "arguments": "{broken"}</tool_call>', "function_call"),
    (completion(None, refusal="I cannot."), "I cannot.", "stop"),
    (completion("a\ud800b\udfff \U0001f600"), "a\ufffdb\ufffd \U0001f600", "stop"),
])
def test_what_a_model_may_answer(body, text, finish):
    with chat_server() as server:
        server.script = [(200, body)]
        said = asyncio.run(client(server).complete(ASK))
    assert isinstance(said, Said) and (said, said.finish) == (text, finish)
    assert said.encode("utf-8").decode("utf-8") == text


def test_halves_of_surrogate_pairs_are_not_sent_either():
    with chat_server() as server:
        assert asyncio.run(client(server).complete([{"role": "user", "content": "a\ud800"}])) == "a\ufffd"


def test_a_filter_that_refuses_the_request_is_an_empty_answer():
    with chat_server() as server:
        server.script = [(400, refusal("The response was filtered", code="content_filter"))]
        said = asyncio.run(client(server).complete(ASK))
    assert (said, said.finish) == ("", "content_filter")


@pytest.mark.parametrize("body, said", [
    ("<!doctype html><title>Welcome</title>", "base_url may be another page of the server: <!doctype"), ("", "nothing"),
    ("[" * 100_000, "not JSON"), ([1], "not a chat completion"), ({"choices": []}, "not a chat completion"),
    ({"choices": [3]}, "not a chat completion"), ({"choices": {"0": 1}}, "not a chat completion"),
    (completion({"a": 1}), "is no text"), (completion("", "abort"), "broke off .finish_reason 'abort'"),
    (refusal("upstream is away", code=502), "an error in place of an answer.*upstream is away")])
def test_answers_that_are_none_are_retried_and_shown(body, said):
    with chat_server() as server:
        server.script = [(200, body)]
        with pytest.raises(InfraError, match=rf"after 2 attempt\(s\): unusable answer: .*{said}") as failed:
            asyncio.run(client(server, max_retries=1).complete(ASK))
        assert len(str(failed.value)) < 600
        server.script = [(200, body), (200, completion("well"))]
        assert asyncio.run(client(server).complete(ASK)) == "well"


@pytest.mark.parametrize("status, body, mend", [
    (404, "<html>Not Found</html>", "check base_url, which ends in /v1 as a rule, and the model's name"),
    (401, refusal("who are you?"), "set the environment variable OPENAI_API_KEY to a valid key"),
    (403, refusal("not for you"), "to a key that may use this model"),
    (429, refusal("pay first", code="insufficient_quota"), "pay first")])
def test_what_waiting_does_not_mend_is_not_tried_again(status, body, mend):
    with chat_server() as server:
        server.script = [(status, body)]
        with pytest.raises(InfraError, match=rf"after 1 attempt\(s\): HTTP {status}: .*{mend}"):
            asyncio.run(client(server).complete(ASK))


def test_models_that_know_only_the_newer_name_of_the_limit():
    with chat_server() as server:
        server.script = [(400, refusal("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")),
                         (200, completion("well"))]
        newer = client(server, max_retries=0)
        assert [asyncio.run(newer.complete(ASK)) for _ in range(2)] == ["well"] * 2
    assert ["max_tokens" in sent for sent in server.requests] == [True, False, False]
    assert server.requests[-1]["max_completion_tokens"] == 256


def test_no_key_and_no_password_is_recorded(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret-key\n")    # read from a file, with its line break
    with chat_server() as server:
        address = server.base_url.replace("http://", "http://me:hush@") + "?token=quiet"
        asked = ChatClient(address, "m", max_retries=0)
        server.script = [(401, refusal("x" * 280 + " bad key a-secret-key for hush, token=quiet"))]
        with pytest.raises(InfraError) as failed:
            asyncio.run(asked.complete(ASK))
        assert server.headers[0]["authorization"] in ("Bearer a-secret-key", "Basic bWU6aHVzaA==")
        known = json.dumps(asked.identity) + str(failed.value)
        assert not any(secret in known for secret in ("a-secret", "hush", "me:", "quiet")) and "/v1 (model m)" in known
        assert asked.identity["service"]["server"] == server.base_url.split("/")[2]
    monkeypatch.setenv("OPENAI_API_KEY", "two\nlines")
    with pytest.raises(ValueError, match="OPENAI_API_KEY holds characters that no key has") as failed:
        asyncio.run(ChatClient("http://127.0.0.1:9/v1", "m").complete(ASK))
    assert "two" not in str(failed.value)


def told(*answers, **changes):
    """What the agent hears of a user whose model answers so, and what that model was asked."""
    with chat_server() as server:
        server.script = [(200, answer if isinstance(answer, dict) else completion(answer)) for answer in answers]
        user = llm(client(server))
        spoken = asyncio.run(speak(user, user.knobs, words(**changes)))
        return spoken, [sent["messages"][-1]["content"] for sent in server.requests]


LEFT_OUT = "An earlier try was refused: it left out what it must mention, word for word: May."


def test_a_user_who_leaves_out_what_it_must_tell_is_asked_again_then_replaced():
    spoken, asked = told("I would rather not say.", "It is in May, of course.")
    assert spoken == Spoken("It is in May, of course.", "llm", leaked=False)
    assert len(asked) == 2 and LEFT_OUT in asked[1] and LEFT_OUT not in asked[0]
    spoken, asked = told("I would rather not say.")
    assert spoken == Spoken("The date is May.", "draft", leaked=False) and len(asked) == 2
    assert told("Maybe later.")[0].spoke == "draft", "May is not a part of Maybe"
    assert told("MAY it is!")[0] == ("MAY it is!", "llm", False)
    assert told("Who knows.", disclosed=("June",))[0].text == "Who knows.", "the draft does not say it either"


@pytest.mark.parametrize("bad, why", [
    ("May " * 61, "it was too long; write at most 30 words"), ("May" + "x" * 800, "it was too long"), ("", "it was empty"),
    ("<think>May? I wonder", "it was empty"), (completion("It is May and also", "length"), "it was too long"),
    (completion("May", "tool_calls", tool_calls=[CALL]), "it was a tool call")])
def test_replies_that_will_not_do(bad, why):
    spoken, asked = told(bad, "So: May.")
    assert spoken == Spoken("So: May.", "llm", leaked=False) and why in asked[1]
    assert told(bad)[0] == Spoken("The date is May.", "draft", leaked=False)


def test_a_long_draft_may_be_said_at_length_and_a_leak_is_still_a_leak():
    draft = "The date is May. " + "word " * 100
    assert told("The date is May. " * 37, draft=draft)[0].spoke == "llm" and told("May " * 250, draft=draft)[0].spoke == "draft"
    assert told("It is blue jazz.")[0] == Spoken("The date is May.", "llm", leaked=True)


@pytest.mark.parametrize("text, value, says", [
    ("I live in  NEW york.", "New York", True), ("New Jersey", "New York", False), ("anything", "", True),
    ("he drove the car at night, hungry", "The man drove his car at night because he was hungry.", True),
    ("he slept", "The man drove his car at night because he was hungry.", False),
    ("flight HAT204 costs 120 dollars in all", "flight HAT204 in economy costs 120 dollars", True),
    ("flight HAT205 costs 120 dollars in economy", "flight HAT204 in economy costs 120 dollars", False)])
def test_short_values_are_told_word_for_word_and_long_ones_by_half(text, value, says):
    assert tells(text, value) == says


ODD = (None, 5, 0, True, 2.5, "x", "", [], [5], [None], [[]], {}, {"x": 1}, [{}], [{"text": 5}], [{"function": 5}],
       {"function": []})


def _places(value, path=()):
    """Where a JSON value can be replaced: every path of keys and indices into it."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*path, key))


def test_any_field_of_an_answer_may_have_any_type():
    whole = completion([{"type": "text", "text": "May"}], tool_calls=[CALL], refusal=None, function_call=CALL["function"])
    for path, odd in itertools.product(_places(whole), ODD):
        body = json.loads(json.dumps({"body": whole}))
        place = body
        for key in ("body", *path)[:-1]:
            place = place[key]
        place[("body", *path)[-1]] = odd
        try:
            assert isinstance(read(json.dumps(body["body"])), Said)
        except ValueError as error:
            assert str(error)


@pytest.mark.parametrize("message, said", [
    ({"tool_calls": 5}, "the tool_calls are no list: 5"), ({"tool_calls": [5]}, "a call that is none: 5"),
    ({"tool_calls": [{"function": {"name": 5, "arguments": "{}"}}]}, "a call that is none"),
    ({"tool_calls": [{"function": {"name": "f", "arguments": 5}}]}, "a call that is none"),
    ({"content": [{"type": "text", "text": 5}]}, "the content is no text"), ({"content": [5]}, "the content is no text")])
def test_an_answer_of_odd_shape_is_an_infrastructure_error(message, said):
    with chat_server() as server:
        server.script = [(200, completion(None) | {"choices": [{"message": message, "finish_reason": "stop"}]})]
        with pytest.raises(InfraError, match=re.escape(said)):
            asyncio.run(ChatClient(server.base_url, "m", max_retries=0).complete([{"role": "user", "content": "Hi"}]))


def test_an_answer_nested_without_end_is_named():
    with pytest.raises(ValueError):
        read('{"choices": ' + "[" * 200_000)
    with pytest.raises(ValueError):
        read('{"choices": [{"message": {"content": ' + "[" * 900 + "]" * 900 + "}}]}")
