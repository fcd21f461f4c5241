"""Whether the settings of a config fit together: what forbids, and what makes idle, what another setting says."""

import dataclasses
import functools
from typing import Any

from eau_jax.algorithms import correction, keep, view
from eau_jax.core import batching, knobs as knob
from eau_jax.envs.tau2.message import ALONE
from eau_jax.learner.state import default_knobs
from eau_jax.meta import rule_proposer
from eau_jax.meta.proposal import is_fixed
from eau_jax.users.llm import checked

COMPARING = (batching.informative, keep.uncertain, keep.signal)   # filters that drop every group of one episode


class ConfigError(ValueError):
    """A config that cannot be run as it stands."""


def refuse_misfits(config: Any) -> None:
    """Raises ConfigError for the first settings of a `Config` that do not fit together."""
    if config.algorithm.advantage.needs_critic != bool(config.algorithm.critic.alone.towers):
        needs, fix = (("needs a critic", "own_tower or shared_trunk") if config.algorithm.advantage.needs_critic else
                      ("has no use for a critic", "no_critic"))
        raise ConfigError(f"algorithm.advantage = {config.algorithm.advantage.name} {needs}, but algorithm.critic = "
                          f"{config.algorithm.critic.name}; import {fix} from eau_jax.learner.critic and give it as critic")
    if config.rollout.tasks % config.learn.minibatches:
        raise ConfigError(f"rollout.tasks = {config.rollout.tasks} does not divide by learn.minibatches = "
                          f"{config.learn.minibatches}; choose a divisor")
    if config.rollout.refill and keep.compares(config.algorithm.keep_groups):
        raise ConfigError(f"rollout.refill = {config.rollout.refill}, but algorithm.keep_groups ranks the groups of a "
                          f"batch against each other and cannot judge one that comes later; set refill to 0, or choose "
                          f"informative of eau_jax.core.batching or unsolved of eau_jax.algorithms.keep")
    if config.judge is not None:
        checked(config.judge, "judge")
    if config.judge is not None and config.env.question is None and config.env.verdict is None:
        raise ConfigError(f"judge would do nothing: {config.env.name} has no question for one; leave it out")
    if config.rollout.group == 1 and _bare(config.algorithm.keep_groups) in COMPARING:
        raise ConfigError("rollout.group = 1, but algorithm.keep_groups drops groups whose episodes score alike, as one "
                          "alone does: every update would be without a group; give rollout.group 2 or more")
    if 0 < config.learn.episodes < config.rollout.tasks * config.rollout.group:
        raise ConfigError(f"learn.episodes = {config.learn.episodes} is less than one batch of rollout.tasks * "
                          f"rollout.group = {config.rollout.tasks * config.rollout.group}; give more, or 0 for no limit")
    if config.meta.proposer is not None and not config.meta.between_runs and config.meta.canary_tasks > config.rollout.tasks:
        raise ConfigError(f"meta.canary_tasks = {config.meta.canary_tasks}, but an update has rollout.tasks = "
                          f"{config.rollout.tasks}; a canary is compared with episodes of its update, so give no more")
    if config.meta.python_rules and config.env.rules == ALONE:
        raise ConfigError(f"meta.python_rules = True would do nothing: {config.env.name} has no user who follows rules; "
                          f"leave it out")
    _refuse_ahead(config)
    _refuse_a_still_policy(config)
    _refuse_idle(config)
    _refuse_idle_knobs(config)


def _refuse_ahead(config: Any) -> None:
    """What does not go with a collection that runs ahead of the learner."""
    if not config.rollout.max_staleness:
        return
    wrong = [
        (config.algorithm.correction.weigh is correction.weigh_none,
         "algorithm.correction is none, and a loss without importance weights takes what older weights drew for its own; "
         "choose truncated of eau_jax.algorithms.correction, or one of eau_jax.algorithms.mismatch"),
        (config.rollout.refill > 0,
         "rollout.refill would hold the learner up for further rounds; set it to 0: a batch is then smaller by the groups "
         "that are dropped"),
        (config.meta.proposer is not None,
         "a proposed change is tried on episodes of the same weights and draws as the batch that it is compared with; set "
         "meta.proposer to None"),
        (any(swap.weights for swap in config.swaps),
         "a swap brings old weights back, and what runs ahead was drawn by those that it takes away; leave `weights` out of "
         "the swap"),
    ]
    for holds, why in wrong:
        if holds:
            raise ConfigError(f"rollout.max_staleness = {config.rollout.max_staleness}, but {why}; or set it to 0")


def most_updates(config: Any) -> int:
    """Updates that a run makes at most: all that it may, or as many as its episodes suffice for."""
    batch = config.rollout.tasks * config.rollout.group
    return min(config.learn.steps, config.learn.episodes // batch) if config.learn.episodes else config.learn.steps


def _refuse_a_still_policy(config: Any) -> None:
    """A run in which only the critic learns is no training."""
    learn, most = config.learn, most_updates(config)
    alone = set(range(1, learn.critic_warmup + 1))
    for swap in config.swaps if config.algorithm.advantage.needs_critic else ():
        if _changes_rewards(config, swap):
            alone |= set(range(swap.step, swap.step + learn.critic_refit))
    if alone >= set(range(1, most + 1)):
        refit = f" and learn.critic_refit = {learn.critic_refit} after a swap" if max(alone) > learn.critic_warmup else ""
        raise ConfigError(f"the policy would never learn: in the first learn.critic_warmup = {learn.critic_warmup} updates"
                          f"{refit} only the critic does, and the run has {most}; give {max(alone) + 1} or more by "
                          f"learn.steps, learn.episodes or a study's --updates, or a shorter learn.critic_warmup")


def _refuse_idle(config: Any) -> None:
    """A setting that would do nothing in this run is refused, not ignored."""
    made = ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff")
    critic = ("critic_updates", "critic_warmup", "critic_refit")
    has_critic, source = config.algorithm.advantage.needs_critic, config.sft.source
    meta = config.meta
    idle = [
        (config.model.make is not None, config.model, "model", ("folder",), "the model is made by model.make"),
        (config.model.make is None, config.model, "model", made, "the model is read from model.folder"),
        (config.model.lora_rank == 0, config.model, "model", ("lora_alpha", "lora_targets"), "model.lora_rank is 0"),
        (not has_critic, config.learn, "learn", critic, f"{config.algorithm.advantage.name} has no critic"),
        (has_critic and not _swaps_rewards(config), config.learn, "learn", ("critic_refit",),
         "no swap changes a knob of rewards"),
        (config.eval.every >= config.learn.steps, config.eval, "eval", ("every",),
         f"a run of learn.steps = {config.learn.steps} ends before, and is evaluated then anyway"),
        (config.algorithm.keep_groups is batching.every, config.rollout, "rollout", ("refill",),
         "algorithm.keep_groups drops no group"),
        (config.rollout.max_staleness == 0, config.rollout, "rollout", ("straggler_s",),
         "rollout.max_staleness is 0, so that every update waits for its whole batch"),
        (config.sft.steps == 0, config.sft, "sft", tuple(vars(config.sft)), "sft.steps is 0"),
        (source != "scripted", config.sft, "sft", ("episodes", "expert_share", "persona_mix"), f"sft.source is {source}"),
        (source == "scripted", config.sft, "sft", ("files", "min_score", "success_only"), f"sft.source is {source}"),
        (source != "rollouts", config.sft, "sft", ("per_task",), f"sft.source is {source}"),
        (source != "dialogues" and config.sft.role == "agent", config.sft, "sft", ("recent",),
         f"sft.source is {source} and sft.role is agent, whose episodes are learned whole"),
        (bool(config.tasks.train_file), config.tasks, "tasks", ("train",), "tasks.train_file is given"),
        (bool(config.tasks.test_file), config.tasks, "tasks", ("test",), "tasks.test_file is given"),
        (meta.proposer is None and not any(swap.task_mix for swap in config.swaps), config.tasks, "tasks", ("bucket",),
         "nothing changes the task mix"),
        (meta.proposer is None, meta, "meta", tuple(vars(meta)), "meta.proposer is None"),
        (meta.between_runs, meta, "meta", ("swaps", "cooldown", "ttl_least", "ttl_most", "canary_tasks"),
         "meta.between_runs makes no change within a run"),
        (meta.proposer is not None and meta.proposer.at_once, meta, "meta", ("seconds", "tokens", "cost"),
         "this proposer answers at once"),
        (meta.proposer == rule_proposer.rules, meta, "meta", ("python_rules",), "this proposer writes no Python"),
        (is_fixed("rules", meta.fixed), meta, "meta", ("python_rules",), "meta.fixed keeps the rules as they are"),
        (not meta.causal_tests, meta, "meta", ("scripted_episodes",), "meta.causal_tests is False"),
        (meta.anchor_tasks == 0, meta, "meta", ("anchor_every",), "meta.anchor_tasks is 0"),
        (not {"wandb", "trackio"} & set(config.track.to), config.track, "track", ("project",),
         "track.to has neither wandb nor trackio"),
    ]
    for holds, part, where, names, why in idle:
        for field in dataclasses.fields(part):
            if holds and field.name in names and getattr(part, field.name) != field.default:
                raise ConfigError(f"{where}.{field.name} = {getattr(part, field.name)!r} would do nothing, because {why}; "
                                  f"set it back to {field.default!r}")


def _swaps_rewards(config: Any) -> bool:
    """Whether a scheduled swap changes what rewards mean, or a proposed one may."""
    return config.meta.proposer is not None or any(_changes_rewards(config, swap) for swap in config.swaps)


def _changes_rewards(config: Any, swap: Any) -> bool:
    known = knob.specs({"env": config.env.knobs, "rl": default_knobs(config.algorithm)})
    return any(path in known and known[path].reward for path in swap.knobs)


def _refuse_idle_knobs(config: Any) -> None:
    """The same for knobs, as far as one decides what another does."""
    given, swapped = config.knobs, {path for swap in config.swaps for path in swap.knobs}
    zero = lambda path, default: given.get(path, default) == 0 and config.meta.proposer is None and path not in swapped
    single, name = config.algorithm.view in (view.by_action, view.by_action_end), config.algorithm.view.name
    idle = {"rl.kl_control.target": (zero("rl.kl.coef", 1), "rl.kl.coef is 0, and what is steered is a factor of it"),
            "rl.kl_control.horizon": (zero("rl.kl_control.target", 0), "rl.kl_control.target is 0"),
            "rl.advantage.token_gamma": (single, f"an action is one step of {name}"),
            "rl.advantage.token_lambda": (single, f"an action is one step of {name}")}
    known = knob.specs({"rl": default_knobs(config.algorithm)}) if idle.keys() & {*given, *swapped} else {}
    for path, spec in known.items():
        if path in idle and idle[path][0] and (path in swapped or given.get(path, spec.default) != spec.default):
            raise ConfigError(f"the knob {path} would do nothing, because {idle[path][1]}; leave it at {spec.default:g}")


def _bare(function: Any) -> Any:
    return function.func if isinstance(function, functools.partial) else function
