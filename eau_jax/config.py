"""What decides shapes, paths and which parts run. Changing any of it means a restart; numbers that may change while
training runs are knobs (`core/knobs.py`).

A config file is Python: `config() -> Config`. Parts are chosen by importing them. The command line overrides every
plain field; `eau-jax train CONFIG --help` lists them with their defaults.
"""

import dataclasses
from typing import Annotated, Any, Literal, Mapping

import tyro

from eau_jax.algorithms import correction, gae, loss, reduction, view, whiten
from eau_jax.config_fit import ConfigError, refuse_misfits
from eau_jax.core import batching, knobs as knob, time_limit
from eau_jax.learner.critic import own_tower
from eau_jax.learner.state import default_knobs
from eau_jax.models.config import ATTENTION, LORA_TARGETS, REMAT, Lora
from eau_jax.samplers.jax_engine import JaxEngine
from eau_jax.samplers.sglang import SGLang, refuse_filters
from eau_jax.users.symbolic import symbolic

Part = Annotated[Any, tyro.conf.Fixed]  # a function or part, chosen by importing it in the config file


SECTIONS = {"Tasks": "tasks.", "Model": "model.", "Rollout": "rollout.", "Learn": "learn.", "Sft": "sft.",
            "Evaluation": "eval.", "Checkpoint": "checkpoint.", "MeshSize": "mesh.", "Meta": "meta."}


def at_least(owner: Any, low: float, *names: str) -> None:
    """Raises ConfigError for the first of the fields that lies below `low`."""
    for name in names:
        value = getattr(owner, name)
        if not value >= low:
            section = SECTIONS.get(type(owner).__name__, "")
            raise ConfigError(f"{section}{name} = {value} is out of range; allowed: {low} or more")


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Where the tasks come from."""

    generate: Part = None
    """(split "train" or "test", count, seed) -> tasks; the splits share no content"""
    train: int = 2000
    """number of different training tasks"""
    test: int = 128
    """number of held-out tasks"""
    train_file: str = ""
    """a file of training tasks in the upstream schema, in place of generated ones"""
    test_file: str = ""
    """a file of held-out tasks, in place of generated ones"""
    load: Part = None
    """path -> tasks, reads the two files above"""
    bucket: Part = None
    """task -> name of its bucket, easier ones first in the order of names; a change may then shift shares between them"""

    def __post_init__(self):
        at_least(self, 1, "train", "test")


@dataclasses.dataclass(frozen=True)
class Model:
    """The policy's starting weights."""

    make: Part = None
    """(config, folder) -> None: writes a Hugging Face folder with config, weights and tokenizer; None: use `folder`"""
    folder: str = ""
    """a Hugging Face folder to start from, when nothing is made"""
    architecture: Part = None
    """the ModelConfig that the weights have; a plan then needs no folder. Where one is given, its config.json counts"""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of parameters; bfloat16 rounds away steps below about 1/250 of a weight, so small learning rates do nothing.
    With model.lora_rank it is the frozen weights' alone, and bfloat16 costs nothing"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of activations; head and softmax are float32 always"""
    remat: Literal["cheap", "products", "all"] = "cheap"
    """what the backward pass computes again instead of storing it: norms and the gate's product (cheap), also the matrix
    products before attention and in the feed-forward layer (products), or all of each layer: least memory, about a third
    more work"""
    attention: Literal["auto", "xla", "cudnn", "splash"] = "auto"
    """program of the learner's attention: auto takes cuDNN's on a GPU in bfloat16, splash on a TPU, else XLA's"""
    lora_rank: int = 0
    """train low-rank adapters of this rank (float32) to frozen weights, of policy and critic each; 0: train all weights"""
    lora_alpha: float = 32.0
    """what an adapter adds is multiplied by lora_alpha / lora_rank"""
    lora_targets: tuple[Literal["q", "k", "v", "o", "gate", "up", "down"], ...] = LORA_TARGETS
    """matrices of every layer that get an adapter"""
    vocab_size: int = 512
    """of a made model: entries of its byte-level BPE tokenizer"""
    d_model: int = 128
    """of a made model: width"""
    num_layers: int = 3
    """of a made model: layers"""
    num_heads: int = 4
    """of a made model: query heads"""
    num_kv_heads: int = 2
    """of a made model: key and value heads"""
    d_ff: int = 384
    """of a made model: width of the feed-forward layer"""

    def __post_init__(self):
        at_least(self, 1, "d_model", "num_layers", "num_heads", "num_kv_heads", "d_ff")
        at_least(self, 260, "vocab_size")
        for name in ("param_dtype", "compute_dtype"):
            if getattr(self, name) not in ("float32", "bfloat16"):
                raise ConfigError(f"model.{name} = {getattr(self, name)!r}; allowed: float32, bfloat16")
        for name, allowed in (("remat", REMAT), ("attention", ATTENTION)):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"model.{name} = {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        at_least(self, 0, "lora_rank")
        try:
            self.lora
        except ValueError as error:
            raise ConfigError(f"model.lora_{error}") from None

    @property
    def lora(self) -> Lora | None:
        return Lora(self.lora_rank, self.lora_alpha, tuple(self.lora_targets)) if self.lora_rank else None


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Which estimator, view, loss and correction; each a part or plain function."""

    advantage: Part = gae.gae
    """advantage estimator"""
    view: Part = view.by_action
    """what one decision step is: by_action, by_token or by_action_end"""
    normalise: Part = whiten.over_actions
    """advantage normalisation over the global batch"""
    reduction: Part = reduction.token_mean
    """weight of each action token in the loss"""
    policy_loss: Part = loss.token_ratio
    """what the policy descends: token_ratio (PPO's), turn_ratio, sequence_ratio, sapo or dis"""
    kl: Part = None
    """KL estimator in the loss against the frozen starting policy; None: no reference policy is kept"""
    correction: Part = correction.truncated
    """sampler-trainer correction"""
    critic: Part = own_tower
    """where values come from: own_tower, shared_trunk or no_critic"""
    keep_groups: Part = batching.every
    """groups that are learned from: every, informative (dynamic filtering), or one of eau_jax.algorithms.keep"""
    shaping: Part = None
    """what the learner adds to rewards: overlong or scaled of eau_jax.algorithms.shaping; None: nothing"""


@dataclasses.dataclass(frozen=True)
class Rollout:
    """How conversations are collected."""

    tasks: int = 16
    """P: tasks per update"""
    group: int = 4
    """G: episodes per task"""
    max_tokens: int = 512
    """token budget of an episode, prompt included; it decides array widths and memory"""
    max_new_tokens: int = 64
    """token budget of one assistant turn"""
    slots: int = 32
    """episodes that generate at the same time in the embedded sampler, or on all SGLang servers together"""
    top_p: float = 1.0
    """nucleus of the sampled distribution; 1 turns it off"""
    top_k: int = 0
    """size of the sampled set; 0 turns it off"""
    deadline_s: float = 120.0
    """seconds that one call to the sampler or the user may take; then the episode is dropped and counted"""
    infra_retries: int = 1
    """further tries of an episode that failed for reasons outside the agent's control"""
    record_tokens: bool = False
    """keep token ids and log-probabilities in episodes/*.jsonl too; the files become about three times as large"""
    sampler: Part = JaxEngine
    """what draws tokens: JaxEngine in this process, or SGLang(servers) of eau_jax.samplers.sglang"""
    refill: int = 0
    """further rounds in which groups that algorithm.keep_groups dropped are replaced by groups of other tasks"""
    max_staleness: int = 0
    """updates by which collection runs ahead: the weights that learn from a token are at most so many versions newer than
    those that drew it; 0: collection and learning take turns"""
    straggler_s: float = 0.0
    """where collection runs ahead, seconds after which a group that is not whole is dropped; until then it is carried over
    to later updates, and the last that may have it waits. 0: it waits however long it takes"""

    def __post_init__(self):
        at_least(self, 1, "tasks", "group", "max_new_tokens", "slots")
        at_least(self, 0, "top_k", "infra_retries", "refill", "max_staleness")
        at_least(self, self.max_new_tokens + 1, "max_tokens")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"rollout.top_p = {self.top_p} is out of range; allowed: above 0, up to 1")
        if isinstance(self.sampler, SGLang):
            refuse_filters(self.top_p, self.top_k)
        if not time_limit.fits(self.deadline_s):
            raise ConfigError(f"rollout.deadline_s = {self.deadline_s} is out of range; allowed: {time_limit.ALLOWED}")
        if self.straggler_s != 0 and not time_limit.fits(self.straggler_s):
            raise ConfigError(f"rollout.straggler_s = {self.straggler_s} is out of range; allowed: {time_limit.ALLOWED}, or "
                              "0 for no limit")


@dataclasses.dataclass(frozen=True)
class Learn:
    """How many updates and how they are cut."""

    steps: int = 50
    """updates: one batch of conversations each"""
    episodes: int = 0
    """the run ends, after fewer updates, where a further batch would be beyond this many episodes; those beside the batches
    (canaries, anchor tasks, causal tests) count too; 0: no limit"""
    epochs: int = 1
    """passes over a batch"""
    minibatches: int = 2
    """optimizer steps in one pass; tasks per update must divide by it"""
    rows: int = 8
    """packed rows (of rollout.max_tokens tokens) in one forward and backward pass; decides memory, not results"""
    chunk: int = 256
    """action tokens whose logits exist at the same time"""
    mean_dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the optimizer's running mean of gradients; bfloat16 saves memory"""
    balance: float = 0.001
    """of a mixture of experts: weight of the loss that evens their load; 0: none"""
    critic_updates: int = 1
    """critic passes over a batch for each policy pass"""
    critic_warmup: int = 0
    """first updates in which only the critic learns"""
    critic_refit: int = 2
    """updates in which only the critic learns, from a new value head, after a swap that changes what rewards mean"""

    def __post_init__(self):
        at_least(self, 1, "steps", "epochs", "minibatches", "rows", "chunk", "critic_updates")
        at_least(self, 0, "episodes", "balance", "critic_warmup", "critic_refit")


@dataclasses.dataclass(frozen=True)
class Sft:
    """Supervised fine-tuning: the agent's cold start before reinforcement learning, or a model of the user."""

    steps: int = 0
    """optimizer steps; 0: no fine-tuning"""
    source: Literal["scripted", "rollouts", "dialogues"] = "scripted"
    """what is learned from: episodes of the environment's scripts, recorded episodes of runs, or files of conversations"""
    role: Literal["agent", "user"] = "agent"
    """whose turns are learned; a model of the user is made by `eau-jax sft` alone"""
    files: tuple[str, ...] = ()
    """run folders (rollouts), or .json, .jsonl and .parquet files in the ShareGPT or OpenAI form (dialogues)"""
    min_score: float = 0.0
    """lowest score of an episode or conversation that is learned from; 0: all"""
    success_only: bool = False
    """only episodes or conversations that succeeded"""
    per_task: int = 0
    """of recorded episodes, the most that are kept of one task, the best first; 0: all"""
    recent: int = 0
    """of each conversation only so many exchanges are kept, the last; 0: all. For a model of the user that is asked with as
    many: see `users.role_play`"""
    episodes: int = 512
    """scripted episodes to imitate, one of a task at most"""
    batch: int = 32
    """episodes or conversations per optimizer step"""
    learning_rate: float = 1e-3
    """step size of the fine-tuning"""
    expert_share: float = 0.0
    """share of the scripted episodes played by the environment's expert; its novice plays the rest"""
    persona_mix: float = 0.0
    """share of the tasks whose user words his replies in a manner of his own in the scripted episodes (`users.symbolic`)"""

    def __post_init__(self):
        at_least(self, 0, "steps", "learning_rate", "min_score", "per_task", "recent")
        at_least(self, 1, "episodes", "batch")
        for name in ("expert_share", "persona_mix"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"sft.{name} = {getattr(self, name)} is out of range; allowed: 0 to 1")
        for name, allowed in (("source", ("scripted", "rollouts", "dialogues")), ("role", ("agent", "user"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"sft.{name} = {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        if self.steps and self.source != "scripted" and not self.files:
            raise ConfigError(f"sft.source = {self.source} needs sft.files; give "
                              f"{'run folders' if self.source == 'rollouts' else 'files of conversations'} with --sft.files")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Held-out evaluation: at the start, every so many updates, and at the end."""

    every: int = 0
    """updates between two evaluations in a run; 0: only before and after"""
    samples: int = 1
    """episodes per held-out task"""
    temperature: float = 1.0
    """sampling temperature; 0 is greedy"""
    user: Part = None
    """who talks with the agent then, with its own knobs; None: the user of training"""

    def __post_init__(self):
        at_least(self, 0, "every", "temperature")
        at_least(self, 1, "samples")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What is kept to resume from."""

    every: int = 5
    """updates between two checkpoints"""
    keep: int = 2
    """newest checkpoints kept, the best one besides"""
    best_by: Literal["rollout/score_mean", "rollout/return_mean", "rollout/success_rate"] = "rollout/score_mean"
    """training statistic whose running mean chooses the best checkpoint"""

    def __post_init__(self):
        at_least(self, 1, "every", "keep")


@dataclasses.dataclass(frozen=True)
class MeshSize:
    """How many devices each mesh axis has."""

    data: int = -1
    """rows of a batch; -1: all devices that the other axes leave"""
    fsdp: int = 1
    """rows, and parameters cut along their width: each layer's are collected when it runs"""
    tensor: int = 1
    """heads, feed-forward width and vocabulary"""
    expert: int = 1
    """rows, and the experts of a mixture-of-experts model"""

    def __post_init__(self):
        at_least(self, 1, "fsdp", "tensor", "expert")
        if self.data != -1:
            at_least(self, 1, "data")


@dataclasses.dataclass(frozen=True)
class Meta:
    """Changes that are proposed, tried, adopted and taken back while training runs."""

    proposer: Part = None
    """who proposes: `rules` of eau_jax.meta.rule_proposer, or one of eau_jax.meta.drivers; None: nothing is changed"""
    every: int = 10
    """updates between two rounds of proposing"""
    burn_in: int = 10
    """updates before the first round"""
    swaps: int = 20
    """changes that one run may adopt"""
    between_runs: bool = False
    """what passes the gate waits for the next run of a campaign; within a run nothing is changed"""
    fixed: tuple[str, ...] = ()
    """what no change may touch: knobs, "rules", "task_mix" or all of an owner ("user", "env", "rl"). The proposer sees
    neither these knobs nor the faults of such an owner"""
    cooldown: int = 5
    """updates for which a knob, the rules or the task mix stay as they are after a change of them"""
    ttl_least: int = 5
    """updates after which a change is judged, at least"""
    ttl_most: int = 20
    """and at most, whatever its proposer asks for"""
    blast: float = 0.3
    """share of recorded turns that one change may make different"""
    canary_tasks: int = 16
    """tasks of an update that are also played under a change before it is adopted, rollout.group episodes each"""
    anchor_tasks: int = 16
    """fixed training tasks that are played under the first settings, one episode each; 0: none"""
    anchor_every: int = 5
    """updates between two times that they are played; the first update counts too"""
    python_rules: bool = False
    """take rules of the user in Python too: a function of a few features, which a process of its own turns into a list"""
    causal_tests: bool = True
    """play what tells one cause from another before a diagnosis is made"""
    scripted_episodes: int = 64
    """of each causal test in which scripts play and no model: does the environment's own solve its tasks, does one that does
    nothing fail, does the same happen twice"""
    limits: str = ""
    """file of the detectors' limits, as written by eau_jax.meta.thresholds.save; empty: the defaults"""
    pool: str = ""
    """folder of an experience pool that the proposer may read, such as `eau-jax campaign` makes; empty: none"""
    seconds: float = 600.0
    """of one round, for a proposer that training does not wait for"""
    tokens: int = 400_000
    """of its language model in one round"""
    cost: float = 5.0
    """US dollars that it may spend in one round, as far as it knows its prices"""

    def __post_init__(self):
        at_least(self, 1, "every", "burn_in", "swaps", "ttl_least", "canary_tasks", "anchor_every", "tokens")
        at_least(self, 4, "scripted_episodes")
        at_least(self, 0, "cooldown", "anchor_tasks")
        at_least(self, self.ttl_least, "ttl_most")
        if set(knob.OWNERS) <= set(self.fixed):
            raise ConfigError(f"meta.fixed = {self.fixed} leaves nothing to change; set meta.proposer to None for that")
        if not time_limit.fits(self.seconds):
            raise ConfigError(f"meta.seconds = {self.seconds} is out of range; allowed: {time_limit.ALLOWED}")
        for name, high in (("blast", 1.0), ("cost", float("inf"))):
            if not 0 < getattr(self, name) <= high:
                raise ConfigError(f"meta.{name} = {getattr(self, name)} is out of range; allowed: above 0"
                                  + (f", up to {high:g}" if high < float("inf") else ""))


@dataclasses.dataclass(frozen=True)
class Track:
    """Trackers that are given the numbers of every update, beside the run folder."""

    to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """which of them; each is a package of its own, or all are the extra [track]"""
    project: str = "eau_jax"
    """project that the run belongs to in Weights & Biases and in trackio"""

    def __post_init__(self):
        known = ("tensorboard", "wandb", "trackio")
        if not set(self.to) <= set(known) or len(set(self.to)) < len(self.to):
            raise ConfigError(f"track.to = {', '.join(self.to)}; allowed: {', '.join(known)}, none of them twice")
        if not self.project.strip():
            raise ConfigError(f"track.project = {self.project!r} names no project; give one such as eau_jax")


@dataclasses.dataclass(frozen=True)
class Swap:
    """A change of knobs, rules or task mix that takes effect before update `step`: a journal of these replays a run."""

    step: int
    knobs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rules: str = ""
    """TOML text of a new decision list; empty: unchanged"""
    task_mix: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """{bucket: share} of the tasks; empty: unchanged"""
    set_aside: tuple[str, ...] = ()
    """ids of training tasks that are not drawn any more"""
    weights: int = 0
    """update after which the weights and optimizers were that come back with it; 0: they go on"""


@dataclasses.dataclass(frozen=True)
class Config:
    """One run."""

    env: Part
    template: Part
    user: Part = symbolic
    name: str = "run"
    """folder of the run below `root`"""
    root: str = "runs"
    """folder of all runs"""
    seed: int = 0
    """decides everything that is random"""
    rules: str = ""
    """file of the user's decision list; empty: the environment's own"""
    tasks: Tasks = Tasks()
    model: Model = Model()
    algorithm: Algorithm = Algorithm()
    rollout: Rollout = Rollout()
    learn: Learn = Learn()
    sft: Sft = Sft()
    eval: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    mesh: MeshSize = MeshSize()
    track: Track = Track()
    knobs: Part = dataclasses.field(default_factory=dict)
    """starting values of knobs by path, where they differ from the parts' defaults"""
    swaps: Part = ()
    """scheduled changes of knobs, rules and task mix"""
    meta: Meta = Meta()
    judge: Part = None
    """a chat client that reads the agent's messages where words alone do not decide; None: words decide"""

    def __post_init__(self):
        if self.name != self.name.strip() or not self.name or "/" in self.name or self.name in (".", "..", "sealed"):
            raise ConfigError(f"name = {self.name!r} cannot be a folder of a run; allowed: any other plain folder name")
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed = {self.seed} is out of range; allowed: 0 to {2**31 - 1}")
        if not self.root.strip():
            raise ConfigError(f"root = {self.root!r} names no folder; give one such as runs")
        refuse_misfits(self)


def knob_tree(config: Config) -> dict[str, Any]:
    """Every knob of the chosen parts with this config's starting values. A knob of a part that does not run is unknown."""
    tree = {"env": config.env.knobs, "user": config.user.knobs, "rl": default_knobs(config.algorithm)}
    return knob.patch(tree, config.knobs)
