"""Every setting of seconds refuses what is no time limit, and says what is one."""

import inspect
import math
import re
from pathlib import Path

import pytest

import eau_jax
from eau_jax.clients.chat import ChatClient
from eau_jax.clients.executor import Limits
from eau_jax.clients.screenshot import screenshot
from eau_jax.clients.server import LocalServer
from eau_jax.config import Meta, Rollout
from eau_jax.live import show
from eau_jax.meta.drivers.claude import claude
from eau_jax.meta.drivers.codex import codex
from eau_jax.meta.drivers.human import human
from eau_jax.meta.drivers.mini import mini
from eau_jax.meta.proposer import Budget
from eau_jax.rollout.episode import Budgets
from eau_jax.samplers.sglang import SGLang
from eau_jax.synth.llm import Llm

CHAT = ("http://localhost/v1", "m")
SETTINGS = {
    "Rollout.deadline_s": lambda value: Rollout(deadline_s=value),
    "Rollout.straggler_s": lambda value: Rollout(straggler_s=value),
    "Meta.seconds": lambda value: Meta(seconds=value),
    "ChatClient.timeout_s": lambda value: ChatClient(*CHAT, timeout_s=value),
    "ChatClient.deadline_s": lambda value: ChatClient(*CHAT, deadline_s=value),
    "LocalServer.start_s": lambda value: LocalServer(start_s=value),
    "SGLang.timeout_s": lambda value: SGLang(("http://a:1",), timeout_s=value),
    "SGLang.push_s": lambda value: SGLang(("http://a:1",), push_s=value),
    "Llm.deadline_s": lambda value: Llm(user=ChatClient(*CHAT), deadline_s=value),
    "Budget.seconds": lambda value: Budget(seconds=value),
    "Budgets.agent_seconds": lambda value: Budgets(64, 8, agent_seconds=value),
    "Budgets.user_seconds": lambda value: Budgets(64, 8, user_seconds=value),
    "Limits.call_seconds": lambda value: Limits(call_seconds=value),
    "Limits.cpu_seconds": lambda value: Limits(cpu_seconds=value),
    "Limits.wall_seconds": lambda value: Limits(wall_seconds=value),
}
CALLS = {
    "human: poll_seconds": lambda value: human(value),
    "claude: idle_seconds": lambda value: claude(idle_seconds=value),
    "codex: idle_seconds": lambda value: codex(idle_seconds=value),
    "mini: idle_seconds": lambda value: mini("m", idle_seconds=value),
    "a time": lambda value: screenshot("<p>x", "no browser", seconds=value),
    "every": lambda value: show(Path("no run"), every=value),
}


@pytest.mark.parametrize("name", SETTINGS | CALLS)
def test_what_is_no_time_limit_is_refused_by_name(name):
    for wrong in (math.inf, math.nan, -1.0, 1e8, *([] if name == "Rollout.straggler_s" else [0.0])):
        with pytest.raises(ValueError, match=rf"{name.split('.')[-1]}\b.* (up )?to 1e\+07"):
            (SETTINGS | CALLS)[name](wrong)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_one_is_taken(name):
    assert SETTINGS[name](100)


def test_no_setting_of_seconds_is_forgotten():
    source = Path(inspect.getfile(eau_jax)).parent
    found = set()
    for file in source.rglob("*.py"):
        for of, fields in re.findall(r"^class (\w+).*:\n((?:(?:    .*)?\n)*)", file.read_text(), re.MULTILINE):
            found |= {f"{of}.{name}" for name in re.findall(r"^    (\w+_s|\w*seconds): \w+ = ", fields, re.MULTILINE)}
    assert found == set(SETTINGS)
