"""Many conversations at once over one sampler, their statistics and their record."""

import asyncio
import collections
from typing import Any, Callable, Coroutine, Iterable, Sequence, TypeVar

import numpy as np

from eau_jax.core.types import Episode, HeldOutTask, StopReason
from eau_jax.rollout.agent import Agent
from eau_jax.rollout.episode import Budgets, Pinned, run_episode
from eau_jax.rollout.seeds import episode_seed, group_seed
from eau_jax.rollout.simulator import Simulator
from eau_jax.rollout.template import Chat

Groups = list[list[Episode]]
T = TypeVar("T")


def _silent(done: int, total: int) -> None:
    """No progress is shown."""


async def collect(simulator: Simulator, agent: Agent, chat: Chat, pinned: Pinned, budgets: Budgets, *,
                  indices: Sequence[int], group_size: int, run_seed: int, step: int, retries: int = 1,
                  concurrency: int = 4096, held_out: bool = False,
                  progress: Callable[[int, int], None] = _silent) -> tuple[Groups, dict[str, float]]:
    """P x G episodes of the tasks `indices`, concurrently.

    An episode that fails outside the agent's control is played again with the same seeds, up to `retries` times, so
    that a passing failure leaves no trace in the data; then it stays in its place as INFRA_ERROR.

    Args:
      indices: [P] rows of the simulator's task table; a row may occur once.
      concurrency: the most episodes that are open at a time.
      held_out: the episodes are an evaluation's; others refuse its tasks.
      progress: called with (episodes done, episodes in all) after each.

    Returns:
      [P][G] episodes, and `statistics` of them with "rollout/infra_retries", the episodes played again.
    """
    if len(set(indices)) != len(indices):
        raise ValueError(f"a task occurs twice in one batch: {sorted(indices)}; its two groups would be the same")
    if not held_out and any(isinstance(simulator.tasks[index], HeldOutTask) for index in indices):
        raise ValueError("a rollout for training was given tasks of an evaluation; give it training tasks")
    places, retried, done = asyncio.Semaphore(concurrency), 0, 0
    total = len(indices) * group_size

    async def one(index: int, g: int) -> Episode:
        nonlocal retried, done
        async with places:
            episode, again = await play_one(simulator, agent, chat, pinned, budgets, index=index, g=g, run_seed=run_seed,
                                            step=step, retries=retries)
        retried, done = retried + again, done + 1
        progress(done, total)
        return episode

    flat = await _all([one(index, g) for index in indices for g in range(group_size)])
    groups = [flat[p * group_size:(p + 1) * group_size] for p in range(len(indices))]
    return groups, {**statistics(groups), "rollout/infra_retries": float(retried)}


async def play_one(simulator: Simulator, agent: Agent, chat: Chat, pinned: Pinned, budgets: Budgets, *, index: int, g: int,
                   run_seed: int, step: int, retries: int) -> tuple[Episode, int]:
    """Episode `g` of task `index` in the batch drawn for update `step`, and how often it was played again."""
    for attempt in range(retries + 1):
        episode = await run_episode(
            simulator, agent, chat, pinned, budgets, index=index, seed=episode_seed(run_seed, step, index, g),
            group=group_seed(run_seed, step, index), session=f"{step}/{index}/{g}/{attempt}")
        if episode.stop.usable:
            break
    return episode, attempt


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from code that is not asynchronous.

    `asyncio.run` formats its task's result as text on the way out (Python 3.11), which takes longer than an episode
    when the result is a batch of them; so the task it sees returns nothing.
    """
    results: list[T] = []

    async def main() -> None:
        results.append(await coroutine)

    asyncio.run(main())
    return results[0]


async def _all(coroutines: Iterable[Any]) -> list[Any]:
    """Their results in order. The first error is raised, and the others are cancelled and awaited."""
    running = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def statistics(groups: Groups) -> dict[str, float]:
    """What happened in a batch, over usable episodes; nan where nothing was counted. Rates are shares in [0, 1].

    Each name begins with "rollout/":
      episodes                 usable ones, a count
      return_mean, return_std  undiscounted
      score_mean               the environment's own, normalised
      metric_mean              the benchmark's own
      success_rate, turns_mean, tokens_mean, truncated_rate   per episode
      action_tokens_mean, parse_error_rate, cut_rate          per turn; cut: at the limit of new tokens
      judged_rate, unreadable_rate                            per turn: a judge decided; its answer could not be read
      infra_rate, stop_<reason>                               per episode, unusable ones included
      zero_spread_rate         groups of at least two whose scores are all the same
      leak_rate, spoke_<who>   per reply that somebody worded
      reward_turn_<u>          mean reward of turn u, over the episodes that have one
    """
    everything = [episode for group in groups for episode in group]
    usable = [episode for episode in everything if episode.stop.usable]
    turns = [turn for episode in usable for turn in episode.turns]
    worded = [turn for turn in turns if turn.spoke != "none"]
    returns = [episode.score_return for episode in usable]
    out = {
        "episodes": float(len(usable)),
        "return_mean": _mean(returns),
        "return_std": float(np.std(returns)) if returns else float("nan"),
        "score_mean": _mean(episode.score for episode in usable),
        "metric_mean": _mean(episode.metric for episode in usable),
        "success_rate": _mean(episode.success for episode in usable),
        "turns_mean": _mean(len(episode.turns) for episode in usable),
        "action_tokens_mean": _mean(len(turn.action) for turn in turns),
        "tokens_mean": _mean(len(episode.tokens) for episode in usable),
        "truncated_rate": _mean(episode.stop.truncated for episode in usable),
        "infra_rate": _mean(not episode.stop.usable for episode in everything),
        "parse_error_rate": _mean(turn.parse_failed for turn in turns),
        "zero_spread_rate": _mean(_spread(group) < 1e-6 for group in groups if _counted(group) > 1),
        "leak_rate": _mean(turn.leaked for turn in worded),
        "cut_rate": _mean(turn.ended == "length" for turn in turns),
        "judged_rate": _mean(turn.judged for turn in turns),
        "unreadable_rate": _mean(turn.unreadable for turn in turns),
    }
    spoke = collections.Counter(turn.spoke for turn in worded)
    out |= {f"spoke_{who}": count / len(worded) for who, count in sorted(spoke.items())}
    out |= {f"stop_{reason.value}": _mean(episode.stop is reason for episode in everything) for reason in StopReason}
    longest = max((len(episode.turns) for episode in usable), default=0)
    out |= {f"reward_turn_{u}": _mean(episode.turns[u].reward for episode in usable if u < len(episode.turns))
            for u in range(longest)}
    return {f"rollout/{name}": value for name, value in out.items()}


def staleness(groups: Groups, step: int) -> dict[str, float]:
    """By how many versions the weights that drew a token are behind those that update `step` learns with. An action that new
    weights came into counts with its oldest.

    Returns:
      "rollout/staleness_mean", "rollout/staleness_max" over action tokens, "rollout/staleness_turn_<u>" the mean over the
      actions of turn u. Usable episodes count.
    """
    turns = [(u, len(turn.action), step - 1 - turn.policy_version) for group in groups for episode in group
             if episode.stop.usable for u, turn in enumerate(episode.turns)]
    if not turns:
        return {"rollout/staleness_mean": float("nan"), "rollout/staleness_max": float("nan")}
    number, tokens, stale = np.array(turns).T
    by_turn = {f"rollout/staleness_turn_{u}": float(stale[number == u].mean()) for u in range(number.max() + 1)}
    return {"rollout/staleness_mean": float(np.average(stale, weights=tokens)),
            "rollout/staleness_max": float(stale.max())} | by_turn


def to_record(episode: Episode, tokens: bool = False) -> dict[str, Any]:
    """One readable line of episodes/<step>.jsonl; with `tokens`, everything that was fed and sampled as well."""
    record = {
        "task": episode.task.id, "env": episode.task.env, "user": episode.user, "seed": episode.seed,
        "generation": episode.generation, "stop": episode.stop.value, "score": episode.score,
        "metric": episode.metric, "return": episode.score_return, "success": episode.success, "error": episode.error,
        "tokens": len(episode.tokens),
        "turns": [{
            "agent": turn.agent_text, "reply": turn.reply_text, "spoke": turn.spoke, "reward": turn.reward,
            "act": dict(turn.act), "told": list(turn.told), "parse_failed": turn.parse_failed, "leaked": turn.leaked,
            "judged": turn.judged, "unreadable": turn.unreadable, "ended": turn.ended,
            "observation_tokens": len(turn.observation), "action_tokens": len(turn.action),
            "policy_version": turn.policy_version,
        } for turn in episode.turns]}
    if tokens:
        record["final_ids"] = episode.final.tolist()
        for line, turn in zip(record["turns"], episode.turns, strict=True):
            line |= {"observation_ids": turn.observation.tolist(), "action_ids": turn.action.tolist(),
                     "logprobs": turn.logprobs.tolist()}
    return record


def _mean(values: Iterable[float]) -> float:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else float("nan")


def _counted(group: Sequence[Episode]) -> int:
    return sum(episode.stop.usable for episode in group)


def _spread(group: Sequence[Episode]) -> float:
    scores = [episode.score for episode in group if episode.stop.usable]
    return max(scores) - min(scores)
