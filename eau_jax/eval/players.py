"""Who plays in an evaluation: a script, a chat model with a way of prompting it, or (from `trained.py`) a checkpoint.

A player turns one task into one scored episode. ReAct (Yao et al. 2023, arXiv:2210.03629) is a prompt: think, then one
act, at temperature 0. Reflexion (Shinn et al. 2023, arXiv:2303.11366) is in `reflexion.py`.
"""

from typing import Any, Awaitable, Callable, Mapping, NamedTuple

import numpy as np

from eau_jax.core.types import Episode, Said, Task
from eau_jax.eval import chat_text
from eau_jax.rollout.agent import Agent, demonstrator
from eau_jax.rollout.episode import Budgets, Pinned, run_episode
from eau_jax.rollout.simulator import Simulator
from eau_jax.rollout.template import Chat
from eau_jax.samplers.types import Completion, TokenRequest
from eau_jax.users.llm import Client, checked

REACT = ("Work in steps. First write your thoughts between <think> and </think>: what you know, what is missing, what to do "
         "next. Then write exactly one act in the form described above, and nothing after it.")
# An API model's tokens are characters here, so its budgets are in characters; its client has deadlines of its own.
CHARACTERS = Budgets(max_tokens=4_000_000, max_new_tokens=100_000, agent_seconds=3600.0, user_seconds=3600.0)
ENDED = {"length": "length", "content_filter": "filtered"}   # a chat server's finish reasons, as a sampler says it
SCRIPTS = ("expert", "novice", "silence", "spam", "echo", "finish")


class Played(NamedTuple):
    """One scored episode and how it came about."""

    episode: Episode
    trials: int = 1
    notes: tuple[str, ...] = ()   # reflections written between trials


class Player(NamedTuple):
    name: str
    identity: Mapping[str, Any]               # what the record says of it, JSON values
    play: Callable[..., Awaitable[Played]]    # (world, pinned, *, index, seed, group, session)


def single(name: str, identity: Mapping[str, Any], agent: Callable[[Simulator], Agent], chat: Chat,
           budgets: Budgets) -> Player:
    """A player with one trial per task; `agent` makes who speaks in a world."""
    async def play(world: Simulator, pinned: Pinned, **episode: Any) -> Played:
        return Played(await run_episode(world, agent(world), chat, pinned, budgets, **episode))

    return Player(name, identity, play)


def scripted(kind: str) -> Player:
    """An environment's own expert or novice, or one of the agents that do not try.

    Raises:
      ValueError: for an unknown kind.
    """
    if kind not in SCRIPTS:
        raise ValueError(f"script {kind!r}; allowed: {', '.join(SCRIPTS)}")
    chat = chat_text.chat()

    def agent(world: Simulator) -> Agent:
        return demonstrator({"expert": world.env.expert, "novice": world.env.novice}.get(kind, _null(kind)), chat)

    return single(kind, {"kind": "script", "script": kind}, agent, chat, CHARACTERS)


def chat_model(client: Client, *, react: bool = False) -> Player:
    """A model behind an OpenAI-compatible server (an SGLang server is one), asked turn by turn; `react` adds REACT.

    Raises:
      ValueError: when `client` is none.
    """
    name, identity = described(client, "react" if react else "plain")
    return single(f"{name}{' + ReAct' if react else ''}", identity, lambda world: speaker(client, (REACT,) if react else ()),
                  chat_text.chat(), CHARACTERS)


def described(client: Client, prompting: str) -> tuple[str, dict[str, Any]]:
    """The name and the identity of a player who speaks through `client`."""
    checked(client)
    return str(client.identity["model"]), {"kind": "chat"} | dict(client.identity) | {"prompting": prompting}


def speaker(client: Client, instructions: tuple[str, ...]) -> Agent:
    """An agent whose words come from `client`; the instructions are added to the system message.

    What its server cut off or filtered is still what the agent said; how it ended is recorded. A full context cuts the
    episode: it is a limit of the agent's own.
    """
    async def speak(request: TokenRequest, task: Task, state: Any) -> Completion:
        sent = chat_text.messages(request.tokens)
        if instructions:
            sent[0] = {"role": "system", "content": "\n\n".join([sent[0]["content"], *instructions])}
        text = await client.complete(sent)
        tokens = chat_text.chat().write(text[:request.max_new_tokens - 1])
        ended = ENDED.get(text.finish, "end_of_turn") if isinstance(text, Said) else "end_of_turn"
        return Completion(tokens, np.zeros(len(tokens), np.float32), "length" if len(tokens) <= len(text) else ended, 0)

    async def release(session: str) -> None:
        """Nothing is kept per session."""

    return Agent(speak, release)


def _null(kind: str) -> Callable[[Task, Any, np.random.Generator], str]:
    """Agents that do not try: the score of each is what an environment gives away."""
    def say(task: Task, state: Any, rng: np.random.Generator) -> str:
        return {"silence": "", "spam": "[answer] yes yes yes 1 2 3", "echo": f"[action] {task.data.get('task', 'Hello')}",
                "finish": "[finish]"}[kind]

    return say
