"""The loop, read from top to bottom.

    tasks --collect--> episodes --batch--> trajectory --annotate--> targets --update--> weights --push--> sampler

Everything random is a function of the seed and the update's number, so a run that was stopped at any moment and resumed
ends with the same bits as one that was not. Times are kept apart from metrics for that reason.
"""

import dataclasses
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from eau_jax import demonstrations, processes, start, track
from eau_jax.assemble import Parts, assemble, check, traces
from eau_jax.coevolve import Coevolution
from eau_jax.collector import Collector, collector, dropped
from eau_jax.config import Config, ConfigError
from eau_jax.config_fit import most_updates
from eau_jax.core import batching
from eau_jax.core.records import RunFolder, plain, read_lines
from eau_jax.core.types import Episode
from eau_jax.eval import looks
from eau_jax.eval.held_out import evaluate, sealed_file
from eau_jax.folder import begin, pin_base, rewind
from eau_jax.imitate import imitate
from eau_jax.journal import Generation, following
from eau_jax.learner.checkpoint import CheckpointError
from eau_jax.learner.parts import LearnerState, NonFiniteError
from eau_jax.learner.state import abstract_state, place, policy_weights
from eau_jax.meta.harvest import played
from eau_jax.progress import Watch
from eau_jax.rollout.agent import policy
from eau_jax.rollout.collect import Groups, run, to_record
from eau_jax.timing import Clock, check_profile, profiled, speed
from eau_jax.together import Checkpoints, LeadersSampler, annotate, init, restart_critic, update

STOPPED = 143                # exit status of a run that was asked to stop and saved: start it again with --resume
EVALUATION_SEED = 1_000_003  # evaluations draw from seeds of their own, the same for every policy
RECENT = 5                   # updates in the running mean that chooses the best checkpoint
_stop = threading.Event()


def ask_to_stop(number: int = signal.SIGTERM, *_: Any) -> None:
    """Signal handler: the run saves after the update in progress and ends. A second Ctrl-C ends it at once; a second
    SIGTERM, which a machine sends that goes down after it was announced, does not."""
    if _stop.is_set():
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        return
    _stop.set()
    print("stopping after this update; Ctrl-C stops at once", file=sys.stderr)


def stopping() -> bool:
    """Whether any process of the run was asked to stop: then all stop after the same update. All must call it."""
    if jax.process_count() == 1:
        return _stop.is_set()
    processes.tell("stopping")
    return bool(multihost_utils.process_allgather(np.bool_(_stop.is_set())).any())


def train(config: Config, source: str, *, resume: bool, profile: Sequence[int] = ()) -> None:
    """Runs a config in its run folder, from the beginning or from its last whole checkpoint.

    Args:
      source: Python text that gives this config again; it is kept in the run folder.
      profile: updates of which a profile is written.

    Raises:
      ValueError: for what cannot be run; RunFolderError: for a folder in use, or one that already holds a run.
    """
    if config.sft.role == "user":
        raise ConfigError("sft.role = user makes a model of the user, which is no agent to train on; make it with "
                          "`eau-jax sft`, in a run of its own")
    check(config)
    track.check(config)
    check_profile(profile, 1, most_updates(config))
    _check_data(config)
    with (RunFolder(Path(config.root) / config.name) as folder, Watch() as watch,
          track.Trackers(config, folder, watch.say) as trackers):
        begin(folder, config, source, resume)
        trackers.open()
        parts, weights = prepare(config, folder, watch)
        collecting = collector(parts, folder, watch)
        store = Checkpoints(folder.path / "checkpoints", keep=config.checkpoint.keep)
        try:
            state, generation, kept = restore(parts, weights, store, folder, watch)
            trackers.catch_up()
            check_profile(profile, int(state.step) + 1, most_updates(config))
            recent = [float("nan") if value is None else value for value in kept.get("recent", [])]
            coevolution = Coevolution(parts, folder, watch, kept.get("meta", {}))
            run(parts.engine.push(policy_weights(state), 0, 1.0))
            parts.engine.warm_up()  # compiling must not eat into the deadline of an episode's first call
            collecting.begin(int(state.step), generation, kept.get("ahead", {}))
            while True:
                step, over = int(state.step) + 1, ended(config, folder, int(state.step))
                hold_out(parts, collecting, state, over, watch)
                if over:
                    break
                generation = coevolution.before(step, state, swapped(config, generation, folder, step))
                state = taken_back(parts, store, state, generation, watch)
                with profiled(folder.path, step, profile):
                    try:
                        state, metrics, times = one_update(parts, collecting, state, generation, folder, watch)
                    except NonFiniteError as error:  # a change that is watched is taken back, and the update made again
                        generation = coevolution.broken(step, generation, error)
                        state = taken_back(parts, store, state.replace(**error.towers), generation, watch)
                        state, metrics, times = one_update(parts, collecting, state, generation, folder, watch)
                metrics |= coevolution.after(step, state, generation)
                recent = [*recent, metrics[config.checkpoint.best_by]][-RECENT:]
                report(parts, folder, trackers, generation, metrics, times, watch, step)
                stop = stopping()
                over = ended(config, folder, step)
                needed = coevolution.needed(step) | scheduled(config, step)
                if step % config.checkpoint.every == 0 or over or stop or step in needed:
                    host = generation.host() | {"recent": recent} | coevolution.host() | collecting.host()
                    store.save(step, state, plain(host), _mean(recent), needed)
                    collecting.saved()
                if stop and not over:
                    store.wait()
                    watch.say(f"stopped after update {step}; continue with --resume")
                    sys.exit(STOPPED)
        finally:
            collecting.close()
            store.close()


def cold_start_only(config: Config, source: str) -> None:
    """Makes the model and fine-tunes it in the run folder; after the agent's cold start, `train` goes on from there.

    Raises:
      ConfigError: when the config has no fine-tuning.
    """
    if not config.sft.steps:
        raise ConfigError("sft.steps is 0, so there is no cold start; give a number of steps with --sft.steps")
    check(config)
    _check_data(config)
    with RunFolder(Path(config.root) / config.name) as folder, Watch() as watch:
        begin(folder, config, source, resume=False)
        prepare(config, folder, watch)
        made = folder.path / "cold_start"
        watch.say(f"the user's model is in {made}; name it as the user with users.role_play" if config.sft.role == "user"
                  else f"the cold start is in {made}; go on with eau-jax train {folder.path}")


def _check_data(config: Config) -> None:
    """Raises what is wrong with the files that a cold start still has to read."""
    if not (Path(config.root) / config.name / "cold_start").exists():
        demonstrations.check(config)


def prepare(config: Config, folder: RunFolder, watch: Watch) -> tuple[Parts, Any]:
    """The parts, and the weights that reinforcement learning starts from, or adapts: the model's own or the cold start's."""
    several = jax.process_count() > 1
    if not several:   # processes must compile side by side: on a CPU they wait 30 s for each other and no longer
        # Its real path is part of what programs are found by.
        cache = (folder.path.resolve().parent / ".jax_cache").resolve()
        jax.config.update("jax_compilation_cache_dir", str(cache))
    watch.say(f"run {folder.path}: {jax.device_count()} {jax.devices()[0].platform} device(s)"
              + (f" of {jax.process_count()} processes" if several else ""))
    model_folder = start.folder_of(config, folder.path)
    model, weights = start.load(config, model_folder)
    parts = assemble(config, model_folder, model)
    processes.tell("model")
    processes.agree()
    if several:
        parts = parts._replace(engine=LeadersSampler(parts.engine, parts.learner))
    if config.sft.steps:
        cold = start.whole(folder.path / "cold_start", lambda path: imitate(parts, weights, folder, path, watch))
        _, weights = start.load(config, cold)
        processes.tell("cold_start")
        processes.agree()
    if model.lora is not None:
        pin_base(folder, weights)
    return parts, weights


def restore(parts: Parts, weights: Any, store: Checkpoints, folder: RunFolder,
            watch: Watch) -> tuple[LearnerState, Generation, dict[str, Any]]:
    """The state to go on from, and what the checkpoint kept beside it. Records of updates beyond it are dropped: they will
    be written again."""
    if not store.steps():
        rewind(folder, -1)  # an earlier run of this name may have left its held-out results
        parts.first.write(folder)
        return init(parts.learner, weights, jax.random.key(parts.config.seed)), parts.first, {}
    state, host, step = store.restore_latest(abstract_state(parts.learner))
    if parts.model.lora is not None:
        state = state.replace(frozen=place(parts.learner, weights))
    rewind(folder, step)
    watch.say(f"resumed after update {step}")
    generation = Generation.from_host(parts.first.knobs, host)
    generation.write(folder)
    return state, generation, host


def swapped(config: Config, generation: Generation, folder: RunFolder, step: int) -> Generation:
    """The generation that holds in update `step`, after the changes that are scheduled for it."""
    for generation in following(generation, config, step):
        generation.write(folder)
    return generation


def scheduled(config: Config, step: int) -> set[int]:
    """Updates up to `step` whose checkpoints a later change needs by schedule."""
    return {swap.weights for swap in config.swaps if 0 < swap.weights <= step < swap.step}


def taken_back(parts: Parts, store: Checkpoints, state: LearnerState, generation: Generation, watch: Watch) -> LearnerState:
    """The state with the weights, optimizers and KL factor of an earlier update, where the generation begins with them. The
    number of updates goes on. Where that checkpoint is lost, the state stays."""
    if not generation.weights or generation.step != int(state.step) + 1:
        return state
    try:
        earlier = store.restore(generation.weights, abstract_state(parts.learner))
    except CheckpointError as error:
        watch.say(f"update {generation.step}: the weights of update {generation.weights} should be back, but stay: {error}")
        return state
    watch.say(f"update {generation.step}: weights and optimizers are those of update {generation.weights} again")
    return state.replace(policy=earlier.policy, critic=earlier.critic, kl_scale=earlier.kl_scale)


def one_update(parts: Parts, collecting: Collector, state: LearnerState, generation: Generation, folder: RunFolder,
               watch: Watch) -> tuple[LearnerState, dict[str, float], dict[str, float]]:
    """Takes one batch, learns from it, and records its episodes.

    Returns:
      The new state, metrics by name, and seconds by phase with the rates of `timing.speed`.
    """
    config, knobs, step = parts.config, generation.knobs, int(state.step) + 1
    refit = config.algorithm.advantage.needs_critic and generation.refits(step, config.learn.critic_refit)
    if refit and step == generation.reward_step:
        state = restart_critic(parts.learner, state)
        watch.say(f"update {step}: rewards mean something else from here on, so the critic is fitted anew for "
                  f"{config.learn.critic_refit} updates, in which the policy stays as it is")
    clock = Clock()
    with clock.phase("rollout"):
        batch = collecting.batch(step, state, generation)
    dropped(batch.collected, watch)
    if not any(batch.kept):
        watch.say(f"update {step}: none of {len(batch.collected)} groups passed algorithm.keep_groups, so there is nothing "
                  f"to learn from and the policy stays as it was")
    with clock.phase("annotate"):
        trajectory = batching.to_trajectory(batch.kept, parts.learner.tokens, parts.learner.actions)
        annotation, known = annotate(parts.learner, state, trajectory, knobs["rl"])
    with clock.phase("update"):
        state, learned = update(parts.learner, state, trajectory, annotation, knobs["rl"], config.seed, critic_only=refit)
    folder.write(f"episodes/{step}.jsonl", "".join(
        json.dumps(plain(_readable(config, episode))) + "\n" for group in batch.collected for episode in group))
    metrics = batch.metrics | {f"learn/{name}": mean.result() for name, mean in sorted((known | learned).items())}
    if config.algorithm.advantage.needs_critic and generation.reward_step:
        metrics["learn/critic_refit"] = float(refit)
    steps = learned["policy_steps"].result()
    rates = speed(parts.learner, batch.collected, trajectory, steps, clock.seconds, config.rollout.max_staleness > 0)
    return state, metrics, clock.seconds | rates | collecting.times()


def _readable(config: Config, episode: Episode) -> dict[str, Any]:
    """The record of an episode with what the agent was told first."""
    system, opening = config.env.prompt(episode.task)
    return {"system": system, "opening": opening} | to_record(episode, config.rollout.record_tokens)


def report(parts: Parts, folder: RunFolder, trackers: track.Trackers, generation: Generation, metrics: dict[str, float],
           times: dict[str, float], watch: Watch, step: int) -> None:
    """One line of metrics, one of times, both to the trackers, one for whoever watches."""
    metrics = {"step": step, "generation": generation.number} | metrics
    folder.append("metrics.jsonl", metrics)
    folder.append("timings.jsonl", times := {"step": step} | times | {"traces": traces(parts)})
    trackers.update(step, metrics, times)
    watch.at("updates", step, parts.config.learn.steps)
    entropy = metrics.get("learn/entropy", float("nan"))    # not known while only the critic learns
    watch.say(f"update {step}/{parts.config.learn.steps}  score {metrics['rollout/score_mean']:.3f}  "
              f"success {metrics['rollout/success_rate']:.2f}  turns {metrics['rollout/turns_mean']:.1f}  "
              f"entropy {f'{entropy:.2f}' if np.isfinite(entropy) else '-'}  "
              f"{sum(times[name] for name in ('rollout_s', 'annotate_s', 'update_s')):.1f} s")


def ended(config: Config, folder: RunFolder, step: int) -> bool:
    """Whether a run is over after update `step`: that was its last one, or no further batch is within its episodes."""
    if step >= config.learn.steps:
        return True
    if not config.learn.episodes or not step:
        return False
    used = sum(sum(played(row)) for row in read_lines(folder.path / "metrics.jsonl"))
    return used + config.rollout.tasks * config.rollout.group > config.learn.episodes


def hold_out(parts: Parts, collecting: Collector, state: LearnerState, over: bool, watch: Watch) -> None:
    """Evaluates on the held-out tasks where it is due at this state and not yet recorded: before the first update, at the
    end, and in between as often as the config says. The user may be another one than in training."""
    config, step = parts.config, int(state.step)
    due = step == 0 or over or (config.eval.every and step % config.eval.every == 0)
    file = sealed_file(Path(config.root) / config.name)
    if not due or (file.exists() and any(line["step"] == step for line in read_lines(file))):
        return

    first = parts.first
    if config.eval.user is not None:
        first = dataclasses.replace(first, knobs={**first.knobs, "user": config.eval.user.knobs})

    async def play() -> tuple[dict[str, Any], Groups]:
        await parts.engine.push(policy_weights(state), step, config.eval.temperature)
        return await evaluate(parts.test, policy(parts.engine), parts.chat, first.pinned(config.env), parts.budgets,
                              samples=config.eval.samples, seed=config.seed + EVALUATION_SEED,
                              retries=config.rollout.infra_retries,
                              progress=lambda done, total: watch.at("held-out episodes", done, total))

    result, groups = collecting.alone(play())
    dropped(groups, watch)
    looks.trained(file.parents[1], config.name, step, looks.Test(config.env.name, parts.test.tasks))
    phase = "start" if step == 0 else "final" if over else "train"
    with RunFolder(file.parent) as sealed:
        sealed.append(file.name, {"step": step, "phase": "cold_start" if step == 0 and config.sft.steps else phase} | result)
    watch.say(f"held out after update {step}: score {result['score']:.3f} ({result['score_low']:.3f} to "
              f"{result['score_high']:.3f}), success {result['success']:.2f}")


def _mean(values: list[float]) -> float:
    """Mean of the numbers among `values`; nan where there are none."""
    numbers = [value for value in values if np.isfinite(value)]
    return float(np.mean(numbers)) if numbers else float("nan")
