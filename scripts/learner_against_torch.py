"""Tokens per second of annotate + update against PyTorch and `transformers`, on this machine's CPU, in one run:
`bench_learner.py` without --device.

One step is what PPO does with a batch once: old log-probabilities and values by a forward pass of both towers, then one
critic step and one policy step (clipped losses, entropy bonus, AdamW, gradients clipped by their global norm). Policy
and critic are two towers of the same Qwen3-shaped model, float32.

(a) The identical padded batch: 32 rows of 256 tokens, one episode each, a third of them action tokens in four turns.
(b) Ragged conversations: 128 scripted episodes of the intention environment. Theirs as usually run: micro-batches of 32
    episodes, each padded to its longest. Ours as `train` runs them: episodes packed into rows.

In both, theirs makes the logits of every position and ours those of action tokens; both are shown once more with
theirs on action tokens too. Theirs is eager, SDPA attention, all cores, without an attention mask: padding stands on
the right, so a causal pass never sees it. Left out on their side, in their favour: estimating advantages,
packing or padding, and metrics; ours does all of that within its time.

Before anything is timed, both start from the same weights and take two steps on the same targets, with old
log-probabilities and values moved away from the present ones so that clips act. Log-probabilities, values, losses,
entropy and gradient norms must agree to 1e-4 relative, or the script fails. The sides alternate; medians are compared.
Compilation happens in the check and is reported; a new trace while timing fails the script.

The floor is arithmetic: 2 N operations per token of a forward pass, 4 N more where it is trained (N without embedding),
attention's products over each token's own past, and the head where it runs; divided by the rate of a large matrix
product of JAX in this process. Ours counts real tokens only, theirs its padding too.
"""

import argparse
import ctypes
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

try:
    import torch
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    raise SystemExit(f"{error}: this benchmark compares with PyTorch; install it with: "
                     f"pip install -e '.[test]'") from None

from eau_jax import assemble, config as configs, start
from eau_jax.algorithms.gae import gae
from eau_jax.core.batching import pack, to_trajectory
from eau_jax.core.sharding import make_mesh
from eau_jax.core.types import Trajectory
from eau_jax.envs.gyms import intention_tasks
from eau_jax.envs.gyms.intention import intention
from eau_jax.learner.annotate import annotate
from eau_jax.learner.critic import own_tower
from eau_jax.learner.parts import Annotation, Learner, LearnerState
from eau_jax.learner.state import default_knobs, init
from eau_jax.learner.update import update
from eau_jax.models import transformer
from eau_jax.models.config import ModelConfig
from eau_jax.rollout import template, tokenizer

MICRO = 32                # rows of theirs in one pass
REQUIRED = 1.0            # of (b)
TOLERANCE = 1e-4


class Work(NamedTuple):
    """One batch, [P, 1] episodes, and the learner that takes it."""

    name: str
    learner: Learner
    trajectory: Trajectory


# --- the batches ------------------------------------------------------------------------------------------------------


def padded(model: ModelConfig, rows: int, width: int) -> Work:
    """(a): one episode fills each row; four turns of two thirds observation, one third action. Tokens are random."""
    rng = np.random.default_rng(0)
    turns, turn = 4, width // 4
    ids = np.where(np.arange(turn)[None] < turn - turn // 3, -1, np.arange(turns)[:, None]).reshape(width)
    discounts = np.ones((rows, 1, turns), np.float32)
    discounts[..., -1] = 0
    trajectory = Trajectory(
        tokens=rng.integers(0, model.vocab_size, (rows, 1, width), np.int32),
        length=np.full((rows, 1), width, np.int32),
        action_ids=np.broadcast_to(ids, (rows, 1, width)).astype(np.int32),
        sampler_logprobs=np.zeros((rows, 1, width), np.float32), discounts=discounts,
        rewards=rng.random((rows, 1, turns), np.float32), policy_version=np.zeros((rows, 1, turns), np.int32))
    learner = Learner(model=model, advantage=gae, critic=own_tower, mesh=make_mesh(), tasks=rows, group=1, tokens=width,
                      actions=turns, row_width=width, micro_rows=rows)
    return Work("(a) padded", learner, likely(model, trajectory, rng))


def ragged(settings: configs.Config, folder: Path, model: ModelConfig) -> Work:
    """(b): conversations of the environment's scripted agents, tokenised as the model's folder says."""
    learner, rng = assemble.learner(settings, model), np.random.default_rng(0)
    chat = template.bind(template.TINY, tokenizer.from_folder(folder))
    played = start.demonstrations(settings, assemble.tasks(settings, "train"), chat, max_tokens=learner.tokens,
                                  max_new_tokens=settings.rollout.max_new_tokens)
    order = rng.permutation(len(played))   # the expert's come first otherwise
    trajectory = to_trajectory([[played[i]] for i in order], learner.tokens, learner.actions)
    return Work("(b) ragged", learner, likely(model, trajectory, rng))


def likely(model: ModelConfig, trajectory: Trajectory, rng: np.random.Generator) -> Trajectory:
    """With sampler log-probabilities near the untrained model's, so that the correction's weights are about 1."""
    guess = rng.normal(-np.log(model.vocab_size), 0.3, trajectory.tokens.shape).astype(np.float32)
    return trajectory.replace(sampler_logprobs=np.where(trajectory.action_ids >= 0, guess, np.float32(0)))


# --- ours -------------------------------------------------------------------------------------------------------------


def start_state(learner: Learner, params: Any) -> LearnerState:
    """The state before the first step, with a value head that is not zero."""
    state = init(learner, params, jax.random.key(0))
    kernel = state.critic.params["head"]["kernel"]
    drawn = jax.device_put(0.1 * jax.random.normal(jax.random.key(1), kernel.shape, kernel.dtype), kernel.sharding)
    critic = state.critic.params | {"head": state.critic.params["head"] | {"kernel": drawn}}
    return state.replace(critic=state.critic.replace(params=critic))


def chosen_knobs(learner: Learner) -> dict:
    knobs = default_knobs(learner)
    for name in ("policy_optimizer", "critic_optimizer"):
        knobs[name] = knobs[name].replace(learning_rate=np.float32(1e-4), weight_decay=np.float32(0.01))
    return knobs | {"entropy": knobs["entropy"].replace(coef=np.float32(0.01))}


def our_step(work: Work, state: LearnerState, knobs: dict) -> LearnerState:
    annotation, _ = annotate(work.learner, state, work.trajectory, knobs)
    state, _ = update(work.learner, state, work.trajectory, annotation, knobs, 0)
    return jax.block_until_ready(state)


# --- theirs -----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A micro-batch: tokens and action mask [r, S], targets of its N action tokens [N] in row-major order."""

    tokens: torch.Tensor
    mask: torch.Tensor
    old_logprobs: torch.Tensor
    old_values: torch.Tensor
    advantages: torch.Tensor
    value_targets: torch.Tensor
    correction: torch.Tensor


class Towers:
    """Policy and critic from a model folder, and their optimizers."""

    def __init__(self, folder: Path, critic_head: dict, knobs: dict):
        load = dict(dtype=torch.float32, attn_implementation="sdpa")
        self.policy = AutoModelForCausalLM.from_pretrained(folder, **load)
        self.critic = AutoModel.from_pretrained(folder, **load)
        self.value = torch.nn.Linear(self.critic.config.hidden_size, 1)
        with torch.no_grad():
            self.value.weight.copy_(torch.tensor(np.asarray(critic_head["kernel"]))[None])
            self.value.bias.copy_(torch.tensor(np.asarray(critic_head["bias"]))[None])
        self.policy_optimizer = _adamw(list(self.policy.parameters()), [], knobs["policy_optimizer"])
        self.critic_optimizer = _adamw(list(self.critic.parameters()), list(self.value.parameters()),
                                       knobs["critic_optimizer"])


def _adamw(trunk: list, head: list, knobs: Any) -> torch.optim.AdamW:
    """Matrices of the trunk are decayed, norms and value head are not."""
    groups = [{"params": [p for p in trunk if p.ndim > 1], "weight_decay": float(knobs.weight_decay)},
              {"params": [p for p in trunk if p.ndim == 1] + head, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=float(knobs.learning_rate), betas=(float(knobs.beta1), float(knobs.beta2)),
                             eps=float(knobs.eps))


def parts_of(trajectory: Trajectory, annotation: Annotation) -> list[Part]:
    """Micro-batches of `MICRO` episodes, each padded to its longest."""
    targets, length = annotation.targets, trajectory.length[:, 0]
    parts = []
    for begin in range(0, len(length), MICRO):
        rows, width = slice(begin, begin + MICRO), length[begin:begin + MICRO].max()
        cut = lambda x: torch.tensor(np.asarray(x)[rows, 0, :width])
        mask = cut(trajectory.action_ids) >= 0
        parts.append(Part(cut(trajectory.tokens).long(), mask, *(cut(x)[mask] for x in (
            targets.old_logprobs, targets.old_values, targets.advantages, targets.value_targets,
            annotation.correction))))
    return parts


def everywhere(policy: Any, part: Part) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Log-softmax at every position, the tokens there, and which of them are actions."""
    logits = policy(input_ids=part.tokens, use_cache=False).logits[:, :-1]
    return torch.log_softmax(logits.float(), dim=-1), part.tokens[:, 1:], part.mask[:, 1:]


def on_actions(policy: Any, part: Part) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """As `everywhere`, of action tokens only."""
    hidden = policy.model(input_ids=part.tokens, use_cache=False).last_hidden_state[:, :-1][part.mask[:, 1:]]
    return torch.log_softmax(policy.lm_head(hidden).float(), dim=-1), part.tokens[:, 1:][part.mask[:, 1:]], slice(None)


def logprobs_of(logp: torch.Tensor, tokens: torch.Tensor, kept: Any) -> torch.Tensor:
    return logp.gather(-1, tokens[..., None])[..., 0][kept]


def values_of(towers: Towers, part: Part) -> torch.Tensor:
    """Values after each token [r, S]; that of token t stands in column t - 1."""
    return towers.value(towers.critic(input_ids=part.tokens, use_cache=False).last_hidden_state)[..., 0]


def their_step(towers: Towers, parts: list[Part], distribution: Callable, knobs: dict) -> dict[str, Any]:
    """Annotate and update; returns what the check compares."""
    with torch.no_grad():
        logprobs = [logprobs_of(*distribution(towers.policy, part)) for part in parts]
        values = [values_of(towers, part) for part in parts]
    count = sum(len(part.old_logprobs) for part in parts)
    found = {"entropy": 0.0}

    def value_loss(part: Part) -> torch.Tensor:
        moved, limit = values_of(towers, part)[:, :-1][part.mask[:, 1:]], float(knobs["value_loss"].clip)
        clipped = moved.clamp(part.old_values - limit, part.old_values + limit)
        return 0.5 * torch.maximum((moved - part.value_targets) ** 2, (clipped - part.value_targets) ** 2).sum() / count

    def policy_loss(part: Part) -> torch.Tensor:
        logp, tokens, kept = distribution(towers.policy, part)
        entropy = -(logp.exp() * logp).sum(-1)[kept].sum() / count
        ratio = (logprobs_of(logp, tokens, kept) - part.old_logprobs).clamp(-20, 20).exp()
        clip, gain = knobs["policy_loss"], part.advantages
        single = torch.maximum(-gain * ratio, -gain * ratio.clamp(1 - float(clip.clip_low), 1 + float(clip.clip_high)))
        token = torch.where(gain < 0, torch.minimum(single, -gain * float(clip.dual_clip)), single)
        found["entropy"] += entropy.item()
        return (part.correction * token).sum() / count - float(knobs["entropy"].coef) * entropy

    for name, loss, optimizer in (("critic", value_loss, towers.critic_optimizer),
                                  ("policy", policy_loss, towers.policy_optimizer)):
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            term = loss(part)
            term.backward()
            total += term.item()
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(trained, float(knobs[f"{name}_optimizer"].max_grad_norm))
        optimizer.step()
        found |= {f"{name}_loss": total, f"{name}_grad_norm": norm.item()}
    return found | {"logprobs": torch.cat(logprobs).numpy(),
                    "values": np.concatenate([v[:, :-1][part.mask[:, 1:]].numpy() for v, part in zip(values, parts)])}


# --- the check --------------------------------------------------------------------------------------------------------


def agree(work: Work, state: LearnerState, towers: Towers, knobs: dict) -> tuple[LearnerState, list[Part], float]:
    """Two steps of both on the same targets. Returns ours after them, their micro-batches and the largest difference.

    Raises:
      SystemExit: when anything differs by more than `TOLERANCE`, relative to its size.
    """
    annotation, _ = annotate(work.learner, state, work.trajectory, knobs)
    rng, targets = np.random.default_rng(2), annotation.targets
    noise = lambda x, scale: (x + rng.normal(0, scale, x.shape)).astype(np.float32)
    moved = annotation.replace(targets=targets.replace(old_logprobs=noise(targets.old_logprobs, 0.3),
                                                       old_values=noise(targets.old_values, 0.5)))
    parts, worst = parts_of(work.trajectory, moved), 0.0
    for step in (1, 2):
        annotation, _ = annotate(work.learner, state, work.trajectory, knobs)
        state, metrics = update(work.learner, state, work.trajectory, moved, knobs, 0)
        mask = work.trajectory.action_ids >= 0
        ours = {name: metrics[name].result() for name in ("policy_loss", "critic_loss", "entropy", "policy_grad_norm",
                                                          "critic_grad_norm")}
        ours |= {"logprobs": annotation.targets.old_logprobs[mask], "values": annotation.targets.old_values[mask]}
        theirs = their_step(towers, parts, everywhere, knobs)
        for name, value in ours.items():
            gap = float(np.abs(value - theirs[name]).max() / np.abs(value).max())
            worst = max(worst, gap)
            if not gap <= TOLERANCE:
                raise SystemExit(f"{work.name}, step {step}: {name} differs by {gap:.1e} relative, more than "
                                 f"{TOLERANCE:g}: ours {value}, theirs {theirs[name]}; the two sides do not do the "
                                 f"same, nothing was timed")
    return state, parts, worst


# --- measuring --------------------------------------------------------------------------------------------------------


def operations(model: ModelConfig, lengths: np.ndarray, logits: int) -> float:
    """Floating-point operations of one step over sequences of these lengths, the head run at `logits` positions."""
    tokens = float(lengths.sum())
    trunk = transformer.parameter_count(model) - model.vocab_size * model.d_model * (1 if model.tie_embeddings else 2)
    seen = float((lengths * (lengths + 1) / 2).sum())                      # tokens that each token attends to, summed
    tower = 2 * trunk * tokens + 4 * model.num_layers * model.num_heads * model.head_dim * seen
    forward = 2 * tower + 2 * model.d_model * (model.vocab_size * logits + tokens)
    return 4 * forward                                                     # annotate once, forward and backward thrice


def peak_rate(size: int, clock: Callable[[], float]) -> float:
    """Operations per second of a large matrix product."""
    matrix, multiply = jnp.ones((size, size), jnp.float32), jax.jit(lambda x: x @ x)
    seconds = [timed(lambda: multiply(matrix).block_until_ready(), clock) for _ in range(8)]
    return 2 * size ** 3 / min(seconds[1:])


def timed(run: Callable[[], Any], clock: Callable[[], float]) -> float:
    begin = clock()
    run()
    return clock() - begin


def peak_memory(run: Callable[[], Any]) -> float:
    """Bytes by which the process grows at most while `run` runs; nan where the kernel does not tell."""
    def status(field: str) -> float:
        [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":")]
        return 1024.0 * int(line.split()[1])

    try:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)               # what earlier runs freed would hide what this one needs
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = status("VmRSS")
        run()
        return status("VmHWM") - before
    except (OSError, AttributeError, ValueError):
        return float("nan")


def measure(work: Work, params: Any, folder: Path, repeats: int, peak: float,
            clock: Callable[[], float]) -> float:
    """Checks, times and prints one batch; returns the ratio of ours to theirs."""
    model, knobs = work.learner.model, chosen_knobs(work.learner)
    state = start_state(work.learner, params)
    towers = Towers(folder, state.critic.params["head"], knobs)
    begin = time.perf_counter()
    state, parts, worst = agree(work, state, towers, knobs)
    box = [our_step(work, state, knobs)]
    traces = sum(work.learner.traces.values())
    lengths = work.trajectory.length.reshape(-1)
    actions, real = int((work.trajectory.action_ids >= 0).sum()), int(lengths.sum())
    rows = pack(lengths, work.learner.row_width, work.learner.micro_rows).rows
    filled = np.concatenate([np.full(len(part.tokens), part.tokens.shape[1]) for part in parts])
    print(f"\n{work.name}: {len(lengths)} episodes, {real} tokens, {actions / real:.0%} of them actions; "
          f"ours {rows} rows of {work.learner.row_width}, {real / rows / work.learner.row_width:.0%} used; "
          f"theirs {real / filled.sum():.0%} used")
    print(f"  both sides agree to {worst:.0e}; check and {traces} traces took {time.perf_counter() - begin:.0f} s")

    def ours():
        box[0] = our_step(work, box[0], knobs)

    sides = {"ours": (ours, operations(model, lengths, actions)),
             "theirs": (lambda: their_step(towers, parts, everywhere, knobs), operations(model, filled, filled.sum())),
             "theirs, head on actions": (lambda: their_step(towers, parts, on_actions, knobs),
                                         operations(model, filled, actions))}
    seconds = {name: [] for name in sides}
    for repeat in range(repeats + 1):
        for name, (run, _) in sides.items():
            elapsed = timed(run, clock)
            if repeat:  # the first warms up
                seconds[name].append(elapsed)
    for name, (run, floor) in sides.items():
        middle = statistics.median(seconds[name])
        print(f"  {name:24s}{real / middle:8.0f} tokens/s "
              f"({real / max(seconds[name]):.0f} to {real / min(seconds[name]):.0f}); "
              f"floor {floor / 1e9:6.1f} GFLOP = {floor / peak:.2f} s of {middle:.2f} s, "
              f"{floor / peak / middle:.0%} reached; "
              f"memory +{peak_memory(run) / 1e6:.0f} MB")
    if sum(work.learner.traces.values()) != traces:
        raise SystemExit(f"{work.name}: ours was traced again while it was timed: {dict(work.learner.traces)}")
    ratios = {name: statistics.median(seconds[name]) / statistics.median(seconds["ours"]) for name in sides}
    print(f"  ratio ours / theirs {ratios['theirs']:.2f}; "
          f"with their head on actions {ratios['theirs, head on actions']:.2f}")
    return ratios["theirs"]


def main(arguments: argparse.Namespace) -> None:
    """`repeats`: timed steps of each side; `quick`: a quarter of the work; `one_core`: one core, CPU seconds."""
    share, repeats = (4, 1) if arguments.quick else (1, arguments.repeats)

    disable_progress_bar()
    clock = time.perf_counter
    if arguments.one_core:  # before JAX starts its threads
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        clock = time.process_time
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    settings = configs.Config(
        name="bench", env=intention, template=template.TINY,
        tasks=configs.Tasks(generate=intention_tasks.generate, train=128 // share),
        model=configs.Model(make=start.new_model, vocab_size=512, d_model=128, num_layers=4, num_heads=4,
                            num_kv_heads=2, d_ff=384),
        rollout=configs.Rollout(tasks=128 // share, group=1, max_tokens=320, max_new_tokens=24),
        learn=configs.Learn(minibatches=1), knobs={"env.max_turns": 8})
    with tempfile.TemporaryDirectory() as scratch:
        folder = start.whole(Path(scratch) / "model", lambda target: start.new_model(settings, target))
        model, params = start.load(settings, folder)
        peak = peak_rate(2048 // share, clock)
        print(f"{torch.get_num_threads()} cores, jax {jax.__version__}, torch {torch.__version__}; two towers of "
              f"{transformer.parameter_count(model) / 1e6:.2f} M parameters, vocabulary {model.vocab_size}; "
              f"matrix product {peak / 1e9:.0f} GFLOP/s")
        same = measure(padded(model, 32 // share, 256), params, folder, repeats, peak, clock)
        real = measure(ragged(settings, folder, model), params, folder, repeats, peak, clock)
    print(f"\nratio (a) {same:.2f}, (b) {real:.2f}; required of (b): {REQUIRED:g}")
    if real < REQUIRED and not arguments.quick:
        raise SystemExit(f"(b) is below the required {REQUIRED:g}")
