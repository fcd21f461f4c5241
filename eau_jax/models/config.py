"""What a decoder-only transformer is made of. Behaviour follows the explicit fields; `family` only names the format.

The supported architectures are Qwen2/2.5, Qwen3, Qwen3-MoE and Llama: RMSNorm before attention and before a SwiGLU
feed-forward block, or a mixture of them, rotary positions, grouped-query attention.
"""

import dataclasses
import math

FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama")
DTYPES = ("float32", "bfloat16")
ATTENTION = ("auto", "xla", "cudnn", "splash")   # see `attention.choose`
REMAT = ("cheap", "products", "all")   # see `transformer.KEPT`
ATTENTION_TARGETS = ("q", "k", "v", "o")
LORA_TARGETS = (*ATTENTION_TARGETS, "gate", "up", "down")   # of attention and of the feed-forward block


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Stretches the slow rotary frequencies of Llama 3.1 and later to a longer context (rope_type "llama3")."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def __post_init__(self):
        if self.factor < 1:
            raise ValueError(f"rope scaling factor is {self.factor}; it must be at least 1")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(f"rope scaling needs 0 < low_freq_factor < high_freq_factor, but they are "
                             f"{self.low_freq_factor} and {self.high_freq_factor}")
        if self.original_max_position < 1:
            raise ValueError(f"original_max_position is {self.original_max_position}; it must be at least 1")


@dataclasses.dataclass(frozen=True)
class Lora:
    """Low-rank adapters beside frozen matrices, see `lora`."""

    rank: int
    alpha: float = 32.0                      # what an adapter adds is multiplied by alpha / rank
    targets: tuple[str, ...] = LORA_TARGETS  # matrices of every layer that get one

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank is {self.rank}; it must be at least 1")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha is {self.alpha}; it must be positive and finite")
        if not self.targets or len(set(self.targets)) < len(self.targets) or not set(self.targets) <= set(LORA_TARGETS):
            raise ValueError(f"targets are {', '.join(self.targets) or 'none'}; give at least one of "
                             f"{', '.join(LORA_TARGETS)}, none of them twice")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shapes and numerics of one model. Hashable, so that it can be a static argument of a jitted function."""

    family: str                              # which Hugging Face architecture the weights are exchanged as
    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int                        # divides num_heads; equal to it without grouped-query attention
    head_dim: int                            # even
    d_ff: int                                # of the feed-forward block, or of each expert
    rope_theta: float = 10000.0
    rope_scaling: Llama3Scaling | None = None
    rms_eps: float = 1e-6
    tie_embeddings: bool = True              # the output head is the embedding
    qkv_bias: bool = False
    o_bias: bool = False                     # Llama and Qwen3 with attention_bias=true
    qk_norm: bool = False                    # RMSNorm of each query and key head, before the rotation
    param_dtype: str = "float32"
    compute_dtype: str = "float32"           # of the layers; rotary angles, norms, softmax and head are always float32
    remat: str = "cheap"                     # what the backward pass computes again, of REMAT
    attention: str = "auto"                  # program over packed rows, of ATTENTION
    num_experts: int = 0                     # of every layer; 0: one dense block
    experts_per_token: int = 0
    norm_topk: bool = False                  # the weights of a token's experts sum to 1
    max_position: int = 32768                # longest context the weights are meant for, tokens
    lora: Lora | None = None                 # adapters; None: the weights themselves are trained

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r} is unknown; supported: {', '.join(FAMILIES)}")
        for name in ("vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "head_dim", "d_ff",
                     "max_position"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary positions rotate pairs, so it must be even")
        for name in ("rope_theta", "rms_eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")
        for name, known in (("param_dtype", DTYPES), ("compute_dtype", DTYPES), ("remat", REMAT), ("attention", ATTENTION)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown; supported: {', '.join(known)}")
        if self.lora is not None and self.lora.rank > self.d_model:
            raise ValueError(f"lora rank is {self.lora.rank}; it must be at most d_model, here {self.d_model}")
        if self.lora is not None and self.num_experts and not set(self.lora.targets) <= set(ATTENTION_TARGETS):
            raise ValueError(f"lora targets are {', '.join(self.lora.targets)}; experts get no adapters, so give only "
                             f"some of {', '.join(ATTENTION_TARGETS)}")
        self._check_family()

    def _check_family(self):
        """Refuses what the family's Hugging Face architecture cannot express: its export would be another model."""
        if self.qk_norm != (self.family in ("qwen3", "qwen3_moe")):
            raise ValueError(f"qk_norm is {self.qk_norm}, but it is True for families 'qwen3' and 'qwen3_moe' and for no "
                             f"other; family is {self.family!r}")
        if (self.num_experts > 0) != (self.family == "qwen3_moe"):
            raise ValueError(f"num_experts is {self.num_experts}; family 'qwen3_moe' needs experts and no other has them; "
                             f"family is {self.family!r}")
        if not min(1, self.num_experts) <= self.experts_per_token <= self.num_experts:
            raise ValueError(f"experts_per_token is {self.experts_per_token}; it must lie in "
                             f"{min(1, self.num_experts)}..{self.num_experts}, num_experts")
        if self.family == "qwen2" and (not self.qkv_bias or self.o_bias):
            raise ValueError("family 'qwen2' needs qkv_bias=True and o_bias=False; "
                             "use 'llama' for a model without biases")
        if self.family != "qwen2" and self.qkv_bias != self.o_bias:
            raise ValueError(f"family {self.family!r} has one switch for both: qkv_bias {self.qkv_bias} "
                             f"and o_bias {self.o_bias} must be equal")
        if self.family == "qwen2" and self.head_dim * self.num_heads != self.d_model:
            raise ValueError(f"family 'qwen2' needs head_dim * num_heads = d_model, "
                             f"but {self.head_dim} * {self.num_heads} is not {self.d_model}")
