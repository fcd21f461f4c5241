"""Losses of one token and reductions of a minibatch in plain Python, from the published formulas."""

import math


def policy(ratio, advantage, low=0.2, high=0.28, dual=3.0) -> float:
    clipped = min(max(ratio, 1 - low), 1 + high)
    loss = max(-advantage * ratio, -advantage * clipped)
    return min(loss, -advantage * dual) if advantage < 0 else loss


def value(value, old, target, clip) -> float:
    clipped = min(max(value, old - clip), old + clip)
    return 0.5 * max((value - target) ** 2, (clipped - target) ** 2)


def kl(kind, delta) -> float:
    return {"k1": delta, "k2": delta ** 2 / 2, "k3": math.exp(-delta) + delta - 1}[kind]


def reduce(mode, losses, action_ids, constant=1.0) -> float:
    """One number from nested lists [P][G][T] of losses, over tokens whose id is not -1."""
    groups = [[[(loss, i) for loss, i in zip(*episode, strict=True) if i >= 0] for episode in zip(*group, strict=True)]
              for group in zip(losses, action_ids, strict=True)]
    episodes = [[loss for loss, _ in episode] for group in groups for episode in group if episode]
    tokens = [loss for episode in episodes for loss in episode]
    turns = [[loss for loss, i in episode if i == number]
             for group in groups for episode in group for number in sorted({i for _, i in episode})]
    prompts = [[loss for episode in group for loss, _ in episode] for group in groups if any(group)]

    def mean(numbers):
        return sum(numbers) / len(numbers) if numbers else 0.0

    return {
        "token_mean": lambda: mean(tokens),
        "sequence_mean_token_sum": lambda: mean([sum(e) for e in episodes]),
        "sequence_mean_token_mean": lambda: mean([mean(e) for e in episodes]),
        "sequence_mean_token_sum_norm": lambda: sum(tokens) / constant,
        "prompt_mean": lambda: mean([mean(p) for p in prompts]),
        "action_mean_token_mean": lambda: mean([mean(u) for u in turns]),
        "action_mean_token_sum": lambda: mean([sum(u) for u in turns]),
    }[mode]()
