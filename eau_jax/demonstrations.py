"""Where the examples of supervised fine-tuning come from: scripts, recorded episodes, or files of conversations."""

from pathlib import Path
from typing import Iterator

import numpy as np

from eau_jax import start
from eau_jax.assemble import Parts
from eau_jax.config import Config, ConfigError
from eau_jax.core.batching import Example
from eau_jax.core.types import Episode
from eau_jax.envs.file import TaskFileError
from eau_jax.progress import Watch
from eau_jax.rollout import dialogue_file, recorded
from eau_jax.rollout.collect import to_record
from eau_jax.rollout.dialogue import Dialogue, agent_view, encode, join, user_view
from eau_jax.rollout.template import closes_thinking

Data = tuple[list[Example], dict[str, int]]   # what is learned, and counts of what was read, left out and cut


def check(config: Config) -> None:
    """Raises what is wrong with the names of the files, before anything is written."""
    for name in config.sft.files if config.sft.steps else ():
        if not Path(name).exists():
            raise ConfigError(f"sft.files: {name!r} is not there; give run folders (sft.source = rollouts) or .json, .jsonl "
                              f"or .parquet files (dialogues)")
        if config.sft.source == "rollouts":
            recorded.files(Path(name))


def gather(parts: Parts, watch: Watch) -> Data:
    """What the config names.

    Raises:
      ConfigError: when nothing is left; TaskFileError, RunFolderError: for a broken line.
    """
    sources = {"scripted": scripted, "rollouts": rollouts, "dialogues": dialogues}
    examples, counts = sources[parts.config.sft.source](parts, watch)
    counts |= {"kept": len(examples), "tokens": sum(len(example.tokens) for example in examples),
               "learned tokens": sum(int(example.learned.sum()) for example in examples)}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    watch.say(f"fine-tuning data ({parts.config.sft.source}, {parts.config.sft.role}): {told}")
    if not examples:
        raise ConfigError(f"no example is left to learn from: {told}")
    return examples, counts


def scripted(parts: Parts, watch: Watch) -> Data:
    """Episodes that the environment's expert and novice play now."""
    config = parts.config.sft
    tasks = parts.train.tasks[:min(config.episodes, len(parts.train.tasks))]
    episodes = start.demonstrations(parts.config, tasks, parts.chat, max_tokens=parts.budgets.max_tokens,
                                    max_new_tokens=parts.budgets.max_new_tokens)
    usable = [episode for episode in episodes if episode.stop.usable]
    watch.say(f"scripted score {np.mean([episode.score for episode in usable]):.3f}")
    ends = [turn.ended for episode in usable for turn in episode.turns]
    if "length" in ends:
        watch.say(f"{ends.count('length')} of {len(ends)} scripted messages were cut at the token budget: raise "
                  f"rollout.max_new_tokens ({parts.budgets.max_new_tokens}) or rollout.max_tokens ({parts.budgets.max_tokens})")
    counts = {"read": len(episodes), "unusable": len(episodes) - len(usable)}
    if config.role == "agent":
        return [_example(episode) for episode in usable], counts
    prompt = parts.config.env.prompt
    records = [dict(zip(("system", "opening"), prompt(episode.task))) | to_record(episode) for episode in usable]
    return _encoded(parts, _users(records), counts)


def rollouts(parts: Parts, watch: Watch) -> Data:
    """Episodes of other runs that pass the filter."""
    config = parts.config.sft
    records, counts = recorded.keep([Path(name) for name in config.files],
                                    recorded.Filter(config.min_score, config.success_only, config.per_task))
    if config.role == "user":
        return _encoded(parts, _users(records), counts)
    examples, texts = [], 0
    counts |= {"cut to rollout.max_tokens": 0, "with nothing left to learn": 0}
    for record in records:
        turns, exact = recorded.agent_pieces(parts.chat, record)
        texts += not exact
        _add(examples, counts, *join(turns, parts.learner.tokens))
    if texts:
        watch.say(f"{texts} of {len(records)} episodes have no token ids of this tokenizer and were tokenised from their text; "
                  f"a run with --rollout.record-tokens keeps the ids")
    return examples, counts


def _users(records: list[recorded.Record]) -> Iterator[tuple[str, Dialogue]]:
    return (("", dialogue) for record in records for dialogue in recorded.user_dialogues(record))


def dialogues(parts: Parts, watch: Watch) -> Data:
    """Conversations in files."""
    config, counts = parts.config.sft, {"read": 0, "below the threshold": 0}

    def kept() -> Iterator[dialogue_file.Row]:
        for row in (row for name in config.files for row in dialogue_file.read(Path(name))):
            counts["read"] += 1
            for wanted, value, setting in ((config.min_score, row.score, "min_score"),
                                           (config.success_only, row.success, "success_only")):
                if wanted and value is None:
                    raise ConfigError(f"{row.place}: the row does not say how it went, but sft.{setting} is given; it needs "
                                      f"{'score or reward' if setting == 'min_score' else 'success or correct'}")
            if (config.min_score and row.score < config.min_score) or (config.success_only and not row.success):
                counts["below the threshold"] += 1
            else:
                yield row

    rows = kept() if config.role == "agent" else _longest(kept(), counts)
    return _encoded(parts, ((row.place, row.dialogue) for row in rows), counts)


def _longest(rows: Iterator[dialogue_file.Row], counts: dict[str, int]) -> Iterator[dialogue_file.Row]:
    """Of the rows that are prefixes of one conversation the longest, all of whose turns count."""
    whole: dict[tuple[str, str], dialogue_file.Row] = {}
    counts["prefixes of another row"] = 0
    for number, row in enumerate(rows):
        key = (row.place.rpartition(", ")[0], row.group) if row.group else ("", str(number))
        counts["prefixes of another row"] += key in whole
        if key not in whole or len(row.dialogue.messages) > len(whole[key].dialogue.messages):
            whole[key] = row
    yield from whole.values()


def _encoded(parts: Parts, found: Iterator[tuple[str, Dialogue]], counts: dict[str, int]) -> Data:
    """The examples of one side, at most rollout.max_tokens long; `found` are conversations and where they stand."""
    examples: list[Example] = []
    counts |= {"cut to rollout.max_tokens": 0, "with nothing left to learn": 0}
    thoughts = not closes_thinking(parts.config.template)
    for place, dialogue in found:
        try:
            view = user_view(dialogue) if parts.config.sft.role == "user" else agent_view(dialogue, thoughts=thoughts)
            view = view._replace(exchanges=view.exchanges[-parts.config.sft.recent:])
        except ValueError as error:
            raise TaskFileError(f"{place}, {error}") from None
        _add(examples, counts, *encode(parts.chat, view, parts.learner.tokens))
    return examples, counts


def _add(examples: list[Example], counts: dict[str, int], example: Example | None, cut: bool) -> None:
    counts["cut to rollout.max_tokens"] += cut
    counts["with nothing left to learn"] += example is None
    if example is not None:
        examples.append(example)


def _example(episode: Episode) -> Example:
    """An episode in its own tokens; those that the agent said are learned."""
    spans = [span for turn in episode.turns for span in ((turn.observation, False), (turn.action, True))]
    spans.append((episode.final, False))
    return Example(episode.tokens, np.concatenate([np.full(len(part), learned) for part, learned in spans]))
