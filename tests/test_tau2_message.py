"""tau2-bench messages: a tool call or words, and nothing that raises."""

import numpy as np
import pytest

from eau_jax.envs.tau2.message import Broken, Call, Words, read

CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'


@pytest.mark.parametrize("text, said", [
    (CALL, Call("f", {"x": 1})),
    ("<think>I call f</think>\n" + CALL + "<|im_end|>", Call("f", {"x": 1})),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}', Call("f", {"x": 1})),
    ('<tool_call>{"name": "f"}</tool_call>', Call("f", {})),
    ("Hello there.", Words("Hello there.")),
    ("Yes.<|im_start|>user\n###STOP###", Words("Yes.")),
    ("<think>only thoughts", Broken),
    ("", Broken), ("Calling now. " + CALL, Broken), (CALL + " Done.", Broken), (CALL + CALL, Broken),
    ("<tool_call>f(x=1)</tool_call>", Broken), ('<tool_call>["f"]</tool_call>', Broken),
    ('<tool_call>{"name": 3}</tool_call>', Broken), ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', Broken),
    ("<tool_call>" + "[" * 30_000, Broken), ("<tool_call>" + "[" * 9_000 + "</tool_call>", Broken),
])
def test_messages(text, said):
    found = read(text)
    assert isinstance(found, said) if said is Broken else found == said


def test_random_messages_raise_nothing():
    rng = np.random.default_rng(0)
    parts = [CALL, "<tool_call>", "</tool_call>", "{", "}", '"', "name", "arguments", ":", "<think>", "</think>", "\x00", "é", "<|x|>", " "]
    for _ in range(20_000):
        assert isinstance(read("".join(rng.choice(parts, rng.integers(0, 9)))), (Call, Words, Broken))
