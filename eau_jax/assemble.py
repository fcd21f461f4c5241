"""Parts from a config: tasks, simulators, model, learner, sampler. They meet here and in `train.py` only."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Callable, Collection, Mapping, NamedTuple, Sequence

import numpy as np

from eau_jax import start
from eau_jax.algorithms import infopo
from eau_jax.config import Config, ConfigError, Learn, Swap, knob_tree
from eau_jax.core import knobs as knob
from eau_jax.core.sharding import make_mesh
from eau_jax.core.types import HeldOutTask, Task
from eau_jax.journal import Generation
from eau_jax.learner.parts import Feedback, Learner
from eau_jax.meta import proposal, thresholds
from eau_jax.meta.gate import MIX_FLOOR
from eau_jax.models.config import ModelConfig
from eau_jax.rollout import template, tokenizer
from eau_jax.rollout.episode import Budgets
from eau_jax.rollout.simulator import Simulator, simulator
from eau_jax.samplers import decode
from eau_jax.samplers.types import Engine
from eau_jax.users.rules import compile_rules


class Parts(NamedTuple):
    """Everything of a run but its weights."""

    config: Config
    folder: Path              # the starting model's
    model: ModelConfig
    chat: template.Chat
    learner: Learner
    engine: Engine
    train: Simulator
    test: Simulator
    budgets: Budgets
    first: Generation         # the knobs and rules that a run begins with
    buckets: Mapping[str, tuple[int, ...]]   # {bucket: rows of its training tasks}; {} where tasks have no buckets


def assemble(config: Config, folder: Path, model: ModelConfig) -> Parts:
    """Builds every part for the model in `folder`.

    Raises:
      ConfigError, ValueError: for a setting, task file, rule file or tokenizer that does not fit.
    """
    chat = template.bind(config.template, tokenizer.from_folder(folder))
    budgets = Budgets(max_tokens=config.rollout.max_tokens, max_new_tokens=config.rollout.max_new_tokens,
                      agent_seconds=config.rollout.deadline_s, user_seconds=config.rollout.deadline_s)
    engine = config.rollout.sampler(model, slots=config.rollout.slots, length=config.rollout.max_tokens,
                                    top_p=config.rollout.top_p, top_k=config.rollout.top_k)
    made = learner(config, model)
    if made.advantage.needs_gain:
        made = dataclasses.replace(made, feedback=feedback(chat))
    train = simulator(config.env, config.user, tasks(config, "train"), config.judge)
    return Parts(config, folder, model, chat, made, engine, train,
                 simulator(config.env, config.eval.user or config.user, tasks(config, "test"), config.judge), budgets,
                 first_generation(config), buckets(config, train.tasks))


def feedback(chat: template.Chat) -> Feedback:
    """What an answer looks like in this chat format, from users and tools, after an action that ended itself or was cut."""
    actions = np.array(chat.stop_ids[:1], np.int32), np.zeros(0, np.int32)
    glue = [tuple(chat.reply("", role, action).tolist()) for role in ("user", "tool") for action in actions]
    return Feedback(tuple(glue), tuple(chat.write(infopo.PLACEHOLDER)[:-1].tolist()))


def learner(config: Config, model: ModelConfig, devices: Sequence[Any] | None = None) -> Learner:
    """The learner's static choices, on these devices or on all that there are. Rows are as wide as the longest episode."""
    _fitting(config, model)
    if not model.num_experts and config.learn.balance != Learn.balance:
        raise ConfigError(f"learn.balance = {config.learn.balance} would do nothing, because the model has no experts; set it "
                          f"back to {Learn.balance}")
    part, turns = config.algorithm, knob.specs({"env": config.env.knobs})["env.max_turns"].high
    return Learner(
        model=model, advantage=part.advantage, critic=part.critic, view=part.view, normalise=part.normalise,
        reduction=part.reduction, policy_loss=part.policy_loss, correction=part.correction, shaping=part.shaping,
        kl=part.kl,
        mesh=make_mesh(**vars(config.mesh), devices=devices),
        tasks=config.rollout.tasks, group=config.rollout.group, tokens=config.rollout.max_tokens, actions=int(turns),
        row_width=config.rollout.max_tokens, micro_rows=config.learn.rows, epochs=config.learn.epochs,
        minibatches=config.learn.minibatches, critic_updates=config.learn.critic_updates,
        critic_warmup=config.learn.critic_warmup, top_p=config.rollout.top_p, top_k=config.rollout.top_k,
        chunk=config.learn.chunk, balance=config.learn.balance, mean_dtype=config.learn.mean_dtype)


def tasks(config: Config, split: str) -> tuple[Task, ...]:
    """The tasks of "train" or "test", from the file that the config names or from its generator."""
    file = config.tasks.train_file if split == "train" else config.tasks.test_file
    if file:
        if config.tasks.load is None:
            raise ConfigError(f"tasks.{split}_file = {file!r}, but the config has no tasks.load that could read it; give "
                              f"Tasks(load=...) in the config, such as eau_jax.envs.gyms.intention_tasks.load")
        found = config.tasks.load(file)
    elif config.tasks.generate is None:
        raise ConfigError(f"the config has neither tasks.generate nor tasks.{split}_file; give one of them")
    else:
        found = config.tasks.generate(split, config.tasks.train if split == "train" else config.tasks.test, config.seed)
    if split == "train" and len(found) < config.rollout.tasks:
        raise ConfigError(f"rollout.tasks = {config.rollout.tasks}, but there are only {len(found)} training tasks")
    if split == "train" and config.rollout.refill and len(found) == config.rollout.tasks:
        raise ConfigError(f"rollout.refill = {config.rollout.refill} would do nothing: every update uses all {len(found)} "
                          f"training tasks; give more tasks, or set it back to 0")
    return tuple(HeldOutTask(task.id, task.env, task.data) for task in found) if split == "test" else found


def buckets(config: Config, found: Sequence[Task]) -> dict[str, tuple[int, ...]]:
    """{bucket: rows of its tasks}, in the order of names; {} where the config has no `tasks.bucket`.

    Raises:
      ConfigError: for fewer than two buckets, or one that is too small for a share of its own.
    """
    if config.tasks.bucket is None:
        return {}
    rows: dict[str, list[int]] = {}
    for row, task in enumerate(found):
        rows.setdefault(str(config.tasks.bucket(task)), []).append(row)
    small = [name for name in sorted(rows) if len(rows[name]) < MIX_FLOOR * len(found)]
    if small or len(rows) < 2:
        said = f"only {len(rows[small[0]])} of {len(found)} training tasks in {small[0]!r}" if small else "them all in one"
        raise ConfigError(f"tasks.bucket puts {said}; give two or more buckets, each with {MIX_FLOOR:.0%} of the tasks or "
                          f"more")
    return {name: tuple(rows[name]) for name in sorted(rows)}


def shares(parts: Parts, generation: Generation) -> dict[str, float]:
    """{bucket: share of the tasks that are drawn}; {} where tasks have no buckets."""
    return {name: generation.task_mix.get(name, len(rows) / len(parts.train.tasks)) for name, rows in parts.buckets.items()}


def first_generation(config: Config) -> Generation:
    """Knobs and rules at the start. A broken rule file is named."""
    rules = config.env.rules
    if config.rules:
        path = Path(config.rules)
        if not path.is_file():
            raise ConfigError(f"rules = {config.rules!r} is not there; give a TOML file with the user's decision list")
        rules = path.read_text(encoding="utf-8")
        try:
            compile_rules(rules, config.env.features)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
    return Generation(0, 0, knob_tree(config), rules, {}, False)


def check(config: Config) -> None:
    """Raises what is wrong with the tasks, the rules, the knobs or the model folder, before anything is written."""
    found = tasks(config, "train")
    names = buckets(config, found)
    tasks(config, "test")
    generation = first_generation(config)
    for swap in sorted(config.swaps, key=lambda swap: swap.step):
        try:
            before, generation = generation, generation.swapped(swap.step, swap.knobs, swap.rules, config.env, swap.task_mix,
                                                                swap.weights, swap.set_aside)
            _reachable(config, swap, {task.id for task in found}, generation)
            _effective(config, swap, before, generation)
            if swap.task_mix and (swap.task_mix.keys() != names.keys() or abs(sum(swap.task_mix.values()) - 1) > 1e-6
                                  or min(swap.task_mix.values()) < 0):
                known = ", ".join(names) or "no buckets"
                raise ValueError(f"task_mix is {dict(swap.task_mix)}; it must give each of {known} a share, and they must sum "
                                 f"to 1")
        except ValueError as error:
            raise ConfigError(f"swap before update {swap.step}: {error}") from None
    _known(config)
    if config.meta.limits:
        thresholds.load(Path(config.meta.limits), config.env.name)
    if config.model.lora_rank and config.model.make is start.new_model and not config.sft.steps:
        raise ConfigError(f"model.lora_rank = {config.model.lora_rank} would adapt random weights, whose frozen embedding "
                          f"lets nothing be learned; give a cold start with --sft.steps, or a trained model in model.folder")
    if config.model.make is None and not Path(config.model.folder, "config.json").is_file():
        raise ConfigError(f"model.folder = {config.model.folder!r} is not there; give a Hugging Face model folder "
                          f"(config.json, *.safetensors, tokenizer.json) with --model.folder")
    if config.model.make in (None, start.new_model):
        learner(config, start.architecture(config))
    else:   # the shapes of another one are known when it is made
        make_mesh(**vars(config.mesh))


def _effective(config: Config, swap: Swap, before: Generation, after: Generation) -> None:
    """Raises ValueError for a scheduled change that never comes or that changes nothing."""
    if not 1 <= swap.step <= config.learn.steps:
        raise ValueError(f"there is none in a run of learn.steps = {config.learn.steps}; allowed: 1 to that")
    if not (after.changes or after.rules_changed or swap.weights or after.task_mix != before.task_mix
            or after.set_aside != before.set_aside):
        raise ValueError("it would change nothing; give knobs, rules, task_mix, set_aside or weights other than those that "
                         "hold then, or leave it out")


def _fitting(config: Config, model: ModelConfig) -> None:
    """Raises for settings that the model is too small for."""
    if config.rollout.top_k >= model.vocab_size:
        raise ConfigError(f"rollout.top_k = {config.rollout.top_k} would do nothing: the vocabulary has {model.vocab_size} "
                          f"tokens; set it to 0, or below that")


def _reachable(config: Config, swap: Swap, ids: Collection[str], generation: Generation) -> None:
    """Raises ValueError for weights or tasks of a scheduled change that the run does not have."""
    if swap.weights and not 0 < swap.weights < swap.step:
        raise ValueError(f"weights = {swap.weights}; give an update before this one, or 0")
    if unknown := sorted(set(swap.set_aside) - set(ids)):
        raise ValueError(f"set_aside names {unknown[0]!r}, which is none of the training tasks")
    if len(ids) - len(generation.set_aside) < config.rollout.tasks:
        raise ValueError(f"set_aside leaves {len(ids) - len(generation.set_aside)} training tasks, fewer than rollout.tasks "
                         f"= {config.rollout.tasks}")


def _known(config: Config) -> None:
    """Raises for what `meta.fixed` names and the run does not have."""
    paths = knob.specs(knob_tree(config))
    names = {*knob.OWNERS, *paths, *proposal.LANES}
    for name in config.meta.fixed:
        if name not in names:
            raise ConfigError(f"meta.fixed names {name!r}, which this run does not have{knob.nearest(name, names)}")


def drawer(parts: Parts, generation: Generation, step: int) -> Callable[[int, int, Sequence[int]], list[int]]:
    """(round, count, rows used so far) -> rows of the training tasks that this round of update `step` collects, none of them
    set aside."""
    out = set_aside(parts, generation)
    rows = [row for row in range(len(parts.train.tasks)) if row not in out]
    if generation.task_mix:
        held = {name: [row for row in found if row not in out] for name, found in parts.buckets.items()}
        return functools.partial(draw_mixed, parts.config.seed, held, generation.task_mix, step)
    return functools.partial(draw, parts.config, rows, step)


def set_aside(parts: Parts, generation: Generation) -> frozenset[int]:
    """Rows of the training tasks that are not drawn any more."""
    return frozenset(row for row, task in enumerate(parts.train.tasks) if task.id in generation.set_aside)


def draw_mixed(seed: int, rows: Mapping[str, Sequence[int]], mix: Mapping[str, float], step: int, number: int, count: int,
               used: Sequence[int]) -> list[int]:
    """`count` rows, or as many as are unused: of each bucket its share of them, rounded up or down so that the shares are
    exact in the mean over updates. What a bucket is too small for is drawn from all others. A function of its arguments."""
    random = np.random.default_rng([seed, 4, step, number])
    free = {name: [row for row in random.permutation(rows[name]).tolist() if row not in set(used)] for name in rows}
    borders = np.cumsum([mix[name] for name in rows]) * count
    borders[-1] = count
    quotas = np.diff(np.floor(borders + random.random()).astype(int), prepend=0)
    chosen = [row for name, quota in zip(rows, quotas.tolist(), strict=True) for row in free[name][:quota]]
    others = [row for name, quota in zip(rows, quotas.tolist(), strict=True) for row in free[name][quota:]]
    chosen += random.permutation(others).tolist()[:count - len(chosen)]
    return random.permutation(chosen).tolist()


def draw(config: Config, rows: Sequence[int], step: int, number: int, count: int, used: Sequence[int]) -> list[int]:
    """Those of the `rows` of training tasks that round `number` of update `step` (from 1) collects.

    Round 0 is the batch: shuffled epochs over all tasks, cut in order; an epoch's last tasks are left out where they do
    not fill a batch. A later round replaces groups that were dropped: `count` tasks, or as many as there are, that
    this update has not `used`, in an order drawn by (seed, step, round).
    """
    if number == 0:
        epoch, place = divmod(step - 1, len(rows) // config.rollout.tasks)
        order = np.random.default_rng([config.seed, 1, epoch]).permutation(rows)
        return order[place * config.rollout.tasks:(place + 1) * config.rollout.tasks].tolist()
    order = np.random.default_rng([config.seed, 3, step, number]).permutation(rows)
    return [row for row in order.tolist() if row not in set(used)][:count]


def traces(parts: Parts) -> int:
    """How often a function of the run was traced so far; it stands still after the first updates."""
    counters = (parts.learner.traces, parts.train.traces, parts.test.traces, decode.TRACES)
    return sum(sum(counter.values()) for counter in counters)
