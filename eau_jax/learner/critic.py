"""Losses over packed rows, and the choices of critic: its own tower, a head on the policy's trunk, or none.

Each loss is a sum of per-token terms times weights that were computed over the whole minibatch, so the gradients of
micro-batches add up to the minibatch's.

A value head starts at zero, so the first advantages are returns, and a critic that is not yet fitted adds noise to them.
`Learner.critic_warmup` is 0 and `critic_updates` 1 all the same, as in verl, whose recipes most papers keep; SAO (10 and 2,
arXiv:2607.07508) and VAPO (50) say otherwise, and a method's config says so.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct

from eau_jax.algorithms.correction import NoKnobs
from eau_jax.algorithms.loss import Units, entropy_loss, kl_loss, value_loss
from eau_jax.core.knobs import knob
from eau_jax.core.types import Array, Mean
from eau_jax.learner.parts import Critic, Learner, Phase, Rows
from eau_jax.models import heads, lora, transformer
from eau_jax.models.config import ModelConfig


@struct.dataclass
class SharedKnobs:
    coef: float = knob(0.5, 0.0, 10.0, "weight of the value loss beside the policy loss", trust=0.5)


def weights_of(params: dict, name: str) -> Any:
    """All weights of the model of "policy", "critic" or "reference": the frozen ones and its own."""
    return lora.join(params["frozen"], params[name]["model"] if name == "critic" else params[name])


def encode(params: Any, learner: Learner, rows: Rows) -> Array:
    """Hidden states [R, S, D] under the weights of one model."""
    return transformer.forward(params, learner.model, rows.tokens, rows.positions, rows.segment_ids, learner.mesh)


def encode_policy(params: Any, learner: Learner, rows: Rows) -> tuple[Array, list[tuple[Array, dict[str, Mean]]]]:
    """`encode` of what is trained as a policy, and loss terms that its layers add: the balance of a mixture's experts."""
    if not learner.model.num_experts:
        return encode(params, learner, rows), []
    hidden, load = transformer.forward_with_load(params, learner.model, rows.tokens, rows.positions, rows.segment_ids,
                                                 learner.mesh, rows.weights, rows.mask)
    loss = learner.balance / learner.model.num_layers * load.loss
    return hidden, [(loss, {"expert_balance": load.balance, "expert_peak": load.peak})]


def logprobs(params: Any, learner: Learner, hidden: Array, rows: Rows, temperature: Array) -> tuple[Array, Array]:
    """Log-probabilities and entropies of the action tokens under the sampler's distribution, f32[R, S]."""
    return heads.token_logprobs(params, learner.model, hidden, rows.tokens, rows.mask, temperature, top_p=learner.top_p,
                                top_k=learner.top_k, chunk=learner.chunk, mesh=learner.mesh)


def policy_terms(params: Any, learner: Learner, rows: Rows, hidden: Array, knobs: dict,
                 more_terms: list[tuple[Array, dict[str, Mean]]]) -> tuple[Array, dict[str, Mean]]:
    """Policy loss, entropy bonus, with a reference policy the KL to it, and what `encode_policy` adds."""
    logp, entropy = logprobs(params, learner, hidden, rows, knobs["sampler"].temperature)
    loss, metrics = learner.policy_loss.loss(logp, rows.old_logprobs, rows.advantages, rows.correction, rows.weights,
                                             rows.mask, Units(rows.segment_ids, rows.action_ids), knobs["policy_loss"])
    terms = [entropy_loss(entropy, rows.weights, rows.mask, knobs["entropy"])]
    if learner.kl is not None:
        terms.append(kl_loss(logp, rows.ref_logprobs, rows.weights, rows.mask, learner.kl, knobs["kl"]))
    for term, more in terms + more_terms:
        loss, metrics = loss + term, metrics | more
    return loss, metrics


def value_terms(critic: Any, learner: Learner, rows: Rows, hidden: Array, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    values = heads.values(critic["head"], hidden, learner.mesh)[:, :-1]
    return value_loss(values, rows.old_values, rows.value_targets, rows.value_weights, rows.value_mask,
                      knobs["value_loss"])


def _policy_loss(params: dict, learner: Learner, rows: Rows, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    policy = weights_of(params, "policy")
    hidden, terms = encode_policy(policy, learner, rows)
    return policy_terms(policy, learner, rows, hidden, knobs, terms)


def _tower_loss(params: dict, learner: Learner, rows: Rows, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    return value_terms(params["critic"], learner, rows, encode(weights_of(params, "critic"), learner, rows), knobs)


def _head_loss(params: dict, learner: Learner, rows: Rows, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    """The value loss on the policy's trunk; differentiated in the head alone."""
    return value_terms(params["critic"], learner, rows, encode(weights_of(params, "policy"), learner, rows), knobs)


def _joint_loss(params: dict, learner: Learner, rows: Rows, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    """Policy loss + coef * value loss, one forward pass."""
    policy = weights_of(params, "policy")
    trunk, terms = encode_policy(policy, learner, rows)
    loss, metrics = policy_terms(policy, learner, rows, trunk, knobs, terms)
    term, more = value_terms(params["critic"], learner, rows, trunk, knobs)
    return loss + knobs["critic"].coef * term, metrics | more


def _init_tower(config: ModelConfig, model: Any, key: Array) -> Any:
    """The model's trunk without its output head, or adapters to it, and a value head of zeros: V is 0 at the start."""
    return {"model": _without_head(lora.split(config, model, key)[1]), "head": heads.init_value_head(config, key)}


def _tower_axes(config: ModelConfig) -> Any:
    return {"model": _without_head(lora.split_axes(config)[1]), "head": _HEAD_AXES}


def _without_head(model: dict) -> dict:
    return {name: leaf for name, leaf in model.items() if name != "head"}


def _tower_values(params: dict, learner: Learner, rows: Rows, policy_hidden: Array) -> Array:
    return heads.values(params["critic"]["head"], encode(weights_of(params, "critic"), learner, rows), learner.mesh)


def _init_head(config: ModelConfig, model: Any, key: Array) -> Any:
    return {"head": heads.init_value_head(config, key)}


def _head_values(params: dict, learner: Learner, rows: Rows, policy_hidden: Array) -> Array:
    return heads.values(params["critic"]["head"], policy_hidden, learner.mesh)


def _no_values(params: dict, learner: Learner, rows: Rows, policy_hidden: Array) -> Array:
    return jnp.zeros((rows.tokens.shape[0], rows.tokens.shape[1] + 1), jnp.float32)


def _no_loss(params: dict, learner: Learner, rows: Rows, knobs: dict) -> tuple[Array, dict[str, Mean]]:
    return jnp.float32(0.0), {}


_HEAD_AXES = {"kernel": ("embed",), "bias": ()}
_POLICY = Phase("policy", ("policy",), _policy_loss)

own_tower = Critic("own_tower", NoKnobs(), _init_tower, _tower_axes, _tower_values,
                   alone=Phase("critic", ("critic",), _tower_loss), together=_POLICY)
shared_trunk = Critic("shared_trunk", SharedKnobs(), _init_head, lambda config: {"head": _HEAD_AXES}, _head_values,
                      alone=Phase("critic", ("critic",), _head_loss),
                      together=Phase("joint", ("policy", "critic"), _joint_loss))
no_critic = Critic("no_critic", NoKnobs(), lambda config, model, key: {}, lambda config: {}, _no_values,
                   alone=Phase("critic", (), _no_loss), together=_POLICY)
