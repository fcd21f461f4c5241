"""A chat client without a server: a model folder that speaks in this process, for LLM users and judges."""

import asyncio
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from eau_jax.core.types import ContextFull, Said
from eau_jax.models import hf
from eau_jax.rollout import dialogue, tokenizer
from eau_jax.rollout.template import Chat, Template, bind
from eau_jax.samplers.jax_engine import JaxEngine
from eau_jax.samplers.types import TokenRequest


class LocalChat:
    """What `users.llm` and `users.role_play` need of a client, over the embedded sampler.

    Weights are read with the first call and stay beside those of the run. A conversation is fed anew in every call. What is
    said depends on the conversation and the seed alone.

    Args:
      folder: a Hugging Face folder, such as runs/<name>/cold_start of a user's model.
      template: the chat template that the model was trained with.
      slots: calls that generate at the same time.
      max_tokens: of a conversation and the reply; max_new_tokens: of the reply.
      temperature: 0 is greedy.
    """

    def __init__(self, folder: str, template: Template, *, slots: int = 16, max_tokens: int = 2048,
                 max_new_tokens: int = 128, temperature: float = 0.7, seed: int = 0, param_dtype: str = "float32"):
        self.model, self.template, self.temperature, self.seed = folder, template, temperature, seed
        self.slots, self.max_tokens, self.max_new_tokens, self.param_dtype = slots, max_tokens, max_new_tokens, param_dtype
        self._engine: JaxEngine | None = None
        self._chat: Chat | None = None
        self._loading, self._calls = asyncio.Lock(), 0

    @property
    def identity(self) -> dict[str, Any]:
        """For records: what the words depend on."""
        return {"model": self.model, "template": self.template.name, "temperature": self.temperature, "seed": self.seed,
                "max_tokens": self.max_new_tokens}

    async def complete(self, messages: list[dict[str, str]]) -> Said:
        """The model's reply to `messages` ({"role", "content"} each; roles system, user, assistant, tool).

        Raises:
          ContextFull: for a conversation that leaves no room for a reply.
          ValueError: for messages in an order that no template can write.
        """
        async with self._loading:
            if self._engine is None:
                await self._load()
        tokens = prompt(self._chat, messages)
        room = min(self.max_new_tokens, self.max_tokens - len(tokens))
        if room < 1:
            raise ContextFull(f"{self.model}: a conversation of {len(tokens)} tokens leaves no room for a reply in "
                              f"max_tokens = {self.max_tokens}; raise it where LocalChat is made")
        self._calls += 1
        session = str(self._calls)
        request = TokenRequest(session, tokens, room, zlib.crc32(tokens.tobytes(), self.seed), self._chat.stop_ids)
        try:
            completion = (await self._engine.generate([request]))[0]
        finally:
            await self._engine.release(session)
        return Said(self._chat.read(completion.tokens), "length" if completion.stop == "length" else "stop",
                    (len(tokens), len(completion.tokens)))

    async def _load(self) -> None:
        model, params = hf.load(Path(self.model), param_dtype=self.param_dtype)
        self._chat = bind(self.template, tokenizer.from_folder(self.model))
        engine = JaxEngine(model, slots=self.slots, length=self.max_tokens)
        await engine.push(jax.device_put(params, jax.devices()[0]), 0, self.temperature)
        self._engine = engine


def prompt(chat: Chat, messages: list[dict[str, str]]) -> np.ndarray:
    """i32[h]: the tokens before the reply, as fine-tuning writes them."""
    system = "\n\n".join(message["content"] for message in messages if message["role"] == "system")
    side = dialogue.Side()
    for number, message in enumerate(message for message in messages if message["role"] != "system"):
        if message["role"] == "assistant":
            side.say(message["content"], False)
        else:
            side.hear(message["content"], message["role"], number)
    said = [part for turn in dialogue.pieces(chat, system, side.exchanges) for part in turn[:2]]
    heard = "\n\n".join(side.heard)
    last = chat.reply(heard, side.role, said[-1]) if said else chat.opening(system, heard)
    return np.concatenate([*said, last]).astype(np.int32)
