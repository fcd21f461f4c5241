"""Advantages of one episode in plain Python, from the published formulas: slow and obvious.

An episode is action_ids [T], rewards [A], ended (the task ended) and values [T+1]. The advantage of step k is the
explicit sum

    A_k = sum over l >= k of (gamma lambda)^(l-k) delta_l    with    delta_l = r_l + gamma V_{l+1} - V_l,

the value after the last step being 0 if the task ended and the value after the last token if it was cut.
"""

import numpy as np


def actions(action_ids) -> list[list[int]]:
    """Token positions of each action, in order."""
    numbers = sorted({int(i) for i in action_ids if i >= 0})
    return [[t for t, i in enumerate(action_ids) if i == number] for number in numbers]


def action_rewards(action_ids, rewards) -> list[float]:
    """Reward of each action with tokens; a slot without tokens pays into the action before it, else the first."""
    numbers = sorted({int(i) for i in action_ids if i >= 0})
    paid = [0.0 for _ in numbers]
    for slot, reward in enumerate(rewards):
        earlier = [k for k, number in enumerate(numbers) if number <= slot]
        if numbers:
            paid[earlier[-1] if earlier else 0] += float(reward)
    return paid


def gae(rewards, values, final_value, gamma, lam) -> np.ndarray:
    """Advantages of steps with the given rewards and values; `final_value` follows the last step."""
    after = [*values[1:], final_value]
    deltas = [r + gamma * v_next - v for r, v_next, v in zip(rewards, after, values, strict=True)]
    return np.array([sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, len(deltas)))
                     for k in range(len(deltas))])


def episode(unit, action_ids, rewards, ended, values, length, gamma, policy_lambda, critic_lambda):
    """(advantages, targets, target mask), each [T], with unit "by_token", "by_action" or "by_action_end"."""
    advantages, targets = np.zeros(len(action_ids)), np.array(values[:-1], float)
    mask = np.zeros(len(action_ids), bool)
    spans, paid = actions(action_ids), action_rewards(action_ids, rewards)
    if not spans:
        return advantages, targets, mask
    if unit == "by_token":  # every action token is a step; the reward falls on the last one of its action
        steps = [[t] for span in spans for t in span]
        step_rewards = [reward if t == span[-1] else 0.0 for span, reward in zip(spans, paid) for t in span]
    else:
        steps, step_rewards = spans, paid
    where = {"by_token": 0, "by_action": 0, "by_action_end": -1}[unit]
    step_values = [float(values[step[where]]) for step in steps]
    final_value = 0.0 if ended else float(values[length])
    policy = gae(step_rewards, step_values, final_value, gamma, policy_lambda)
    critic = gae(step_rewards, step_values, final_value, gamma, critic_lambda) + step_values
    for k, step in enumerate(steps):
        for t in step:
            advantages[t] = policy[k]
            if unit != "by_action_end" or t == step[-1]:
                targets[t], mask[t] = critic[k], True
    return advantages, targets, mask


def group(kind, scores) -> list[float]:
    """Advantage of each member of a group with these scores: "grpo", "dr_grpo" or "rloo"."""
    if len(scores) == 1:
        return list(scores)
    if max(scores) == min(scores):
        return [0.0 for _ in scores]
    mean = sum(scores) / len(scores)
    std = (sum((s - mean) ** 2 for s in scores) / (len(scores) - 1)) ** 0.5
    if kind == "grpo":
        return [(s - mean) / (std + 1e-6) for s in scores]
    if kind == "dr_grpo":
        return [s - mean for s in scores]
    return [s - (sum(scores) - s) / (len(scores) - 1) for s in scores]


def whiten(values, counted) -> np.ndarray:
    """(x - mean) / sqrt(var + 1e-8) with the unbiased moments of the counted entries."""
    picked = [v for v, c in zip(values, counted, strict=True) if c]
    mean = sum(picked) / len(picked)
    var = sum((v - mean) ** 2 for v in picked) / (len(picked) - 1)
    return np.array([(v - mean) / (var + 1e-8) ** 0.5 for v in values])
