"""The scripted sampler: what its function says, cut as a policy would be."""

import asyncio

import numpy as np
import pytest

from eau_jax.samplers.scripted import Scripted, text_reply
from eau_jax.samplers.types import TokenRequest


def ask(sampler, tokens, max_new_tokens=10, stop_ids=(0,), session="a"):
    request = TokenRequest(session, np.asarray(tokens, np.int32), max_new_tokens, 0, stop_ids)
    [completion] = asyncio.run(sampler.generate([request]))
    assert completion.tokens.dtype == np.int32 and completion.logprobs.dtype == np.float32
    assert completion.logprobs.tolist() == [0.0] * len(completion.tokens)
    return completion.tokens.tolist(), completion.stop


@pytest.mark.parametrize("script, max_new_tokens, expected", [
    ([5, 6, 0], 10, ([5, 6, 0], "end_of_turn")),
    ([5, 6, 0], 3, ([5, 6, 0], "end_of_turn")),
    ([5, 6, 0], 2, ([5, 6], "length")),
    ([5, 0, 7, 0], 10, ([5, 0], "end_of_turn")),
    ([5, 6], 10, ([5, 6], "end_of_turn")),
])
def test_the_script_is_cut_at_a_stop_token_or_at_the_limit(script, max_new_tokens, expected):
    assert ask(Scripted(lambda history, session: script), [1, 2], max_new_tokens) == expected


def test_the_script_sees_the_history_and_the_session():
    sampler = Scripted(lambda history, session: [len(history), *history.tolist(), len(session)])
    assert ask(sampler, [7, 8], session="abc")[0] == [2, 7, 8, 3]


def test_text_scripts():
    reply = text_reply(lambda history, session: history.upper() + "!", lambda text: [ord(c) for c in text],
                       lambda tokens: "".join(map(chr, tokens)), end_of_turn=0)
    assert ask(Scripted(reply), [ord("h"), ord("i")]) == ([72, 73, 33, 0], "end_of_turn")


def test_an_empty_script_is_refused():
    with pytest.raises(ValueError, match="session 'a' has shape .0,.; it must be a list of at least one token"):
        ask(Scripted(lambda history, session: []), [1])


def test_the_pushed_version_is_recorded():
    async def run():
        sampler = Scripted(lambda history, session: [1])
        request = TokenRequest("a", np.array([1], np.int32), 1, 0, ())
        before = await sampler.generate([request])
        await sampler.push(None, 7, 1.0)
        after = await sampler.generate([request, request])
        await sampler.release("a")
        await sampler.close()
        return [completion.policy_version for completion in before + after]

    assert asyncio.run(run()) == [0, 7, 7]
