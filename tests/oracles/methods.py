"""Published methods for one group in plain Python, from their formulas. An episode is a list of actions,
(reward, number of steps); results are lists of one number per step.
"""

import math


def standardise(scores) -> list[float]:
    """(S - mean) / (std + 1e-6) with the unbiased std; S itself when alone; 0 on ties."""
    if len(scores) == 1:
        return list(scores)
    mean = sum(scores) / len(scores)
    std = math.sqrt(sum((s - mean) ** 2 for s in scores) / (len(scores) - 1))
    return [0.0 if max(scores) == min(scores) else (s - mean) / (std + 1e-6) for s in scores]


def credits(kind, rewards, gamma) -> list[float]:
    """UserRL's turn credits."""
    return {
        "equalized": lambda: [1.0 for _ in rewards],
        "naive": lambda: list(rewards),
        "r2g": lambda: [sum(gamma ** (j - u) * rewards[j] for j in range(u, len(rewards))) for u in range(len(rewards))],
        "em": lambda: [0.5 + 0.5 * (1 - math.exp(-2 * r)) / (1 - math.exp(-2)) for r in rewards],
    }[kind]()


def score(kind, rewards, gamma) -> float:
    """UserRL's trajectory scores; "mean" is what the released code calls Sum."""
    return {"total": lambda: sum(rewards), "mean": lambda: sum(rewards) / len(rewards),
            "r2g": lambda: sum(gamma ** u * r for u, r in enumerate(rewards))}[kind]()


def userrl(group, credit, scoring, paper=False, gamma=0.8) -> list[list[float]]:
    """Advantages of every step of every episode."""
    out = []
    sizes = standardise([score(scoring, [r for r, _ in episode], gamma) for episode in group])
    for episode, size in zip(group, sizes, strict=True):
        per_action = credits(credit, [r for r, _ in episode], gamma)
        row = [c for c, (_, length) in zip(per_action, episode, strict=True) for _ in range(length)]
        if paper:
            out.append([size * c for c in row])
        elif sum(row) == 0:
            out.append([0.0 for _ in row])
        else:
            out.append([c * size * sum(c != 0 for c in row) / sum(row) for c in row])
    return out


def bilevel(episode, values, final, action_gamma, action_lambda, token_gamma, token_lambda) -> list[float]:
    """Bi-level GAE of one episode: explicit sums over actions, then inside each action."""
    ends, position = [], 0
    for _, length in episode:
        position += length
        ends.append(position - 1)
    at_ends = [values[e] for e in ends]
    after = [*at_ends[1:], final]
    deltas = [r + action_gamma * n - v for (r, _), n, v in zip(episode, after, at_ends, strict=True)]
    high = [sum((action_gamma * action_lambda) ** (j - u) * deltas[j] for j in range(u, len(deltas)))
            for u in range(len(deltas))]
    out, start = [], 0
    for u, end in enumerate(ends):
        inner = [token_gamma * values[k + 1] - values[k] for k in range(start, end)] + [high[u]]
        out += [sum((token_gamma * token_lambda) ** (j - k) * inner[j] for j in range(k, len(inner)))
                for k in range(len(inner))]
        start = end + 1
    return out
