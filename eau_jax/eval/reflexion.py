"""Reflexion (Shinn et al. 2023, arXiv:2303.11366): try, look back, try again with what was learned.

After a trial the model reads its own conversation, says whether it succeeded, and writes down what to do better; the last
MEMORY notes stand in the system message of the next trial of the same task. The paper lets the evaluator see the task's
success signal at test time, which no other method may. Here the model judges itself unless `oracle` is asked for, and
the record says which.
"""

import dataclasses
from typing import Any

from eau_jax.core.types import ContextFull, Episode, InfraError, StopReason
from eau_jax.eval import chat_text
from eau_jax.eval.players import CHARACTERS, REACT, Played, Player, described, speaker
from eau_jax.rollout.episode import Pinned, run_episode
from eau_jax.rollout.simulator import Simulator
from eau_jax.rollout.template import visible
from eau_jax.users.llm import Client

MEMORY = 3
_JUDGE = ("You look back at a conversation in which you were the assistant. Answer with one line, SUCCESS or FAILURE: was the "
          "task solved as well as it could be? Then, on the next lines, say in at most three sentences what to do "
          "differently next time.")


def reflexion(client: Client, *, trials: int = 3, oracle: bool = False) -> Player:
    """A chat model with ReAct prompting and up to `trials` trials per task; the last one counts.

    Args:
      oracle: the environment's verdict ends the trials, as in the paper; else the model's own does.

    Raises:
      ValueError: for fewer than one trial, or a client that is none.
    """
    if trials < 1:
        raise ValueError(f"trials is {trials}; allowed: 1 or more")

    async def play(world: Simulator, pinned: Pinned, *, session: str, **episode: Any) -> Played:
        notes: list[str] = []
        for trial in range(trials):
            memory = tuple(f"Note from an earlier try: {note}" for note in notes[-MEMORY:])
            played = await run_episode(world, speaker(client, (REACT, *memory)), chat_text.chat(), pinned, CHARACTERS,
                                       session=f"{session}/{trial}", **episode)
            if not played.stop.usable or trial == trials - 1:
                break
            try:
                solved, note = _verdict(visible(await client.complete(_look_back(world, played))))
            except ContextFull:
                break    # it cannot read its own trial, so there is nothing to learn from it
            except InfraError as error:
                played = dataclasses.replace(played, stop=StopReason.INFRA_ERROR, error=f"reflection {trial + 1}: {error}")
                break
            if (played.success if oracle else solved):
                break
            notes += [note] if note else []
        return Played(played, trial + 1, tuple(notes))

    name, identity = described(client, "reflexion")
    identity |= {"trials": trials, "memory": MEMORY, "signal": "oracle" if oracle else "self"}
    return Player(f"{name} + Reflexion{' with an oracle' if oracle else ''}", identity, play)


def _look_back(world: Simulator, episode: Episode) -> list[dict[str, str]]:
    """What the model is asked after a trial: what it saw and said, and nothing else of the episode."""
    system, opening = world.env.prompt(episode.task)
    lines = [f"task: {system}", f"user: {opening}"]
    for turn in episode.turns:
        lines += [f"assistant: {turn.agent_text}", f"reply: {turn.reply_text}"]
    return [{"role": "system", "content": _JUDGE}, {"role": "user", "content": "\n".join(lines)}]


def _verdict(answer: str) -> tuple[bool, str]:
    """(solved, note). An answer that names no verdict counts as a failure and is the note as a whole."""
    first, _, rest = answer.strip().partition("\n")
    word = first.strip().strip(".:*# ").upper()
    if word in ("SUCCESS", "FAILURE"):
        return word == "SUCCESS", rest.strip()
    return False, answer.strip()
