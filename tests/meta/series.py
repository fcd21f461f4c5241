"""Episode records and rows of metrics for tests of detectors: made by hand, or drawn as of a run without faults."""

import math

import numpy as np

from eau_jax.meta.measure import LENGTHS


def act(mask=0, reply="ANSWER", disclosed=0, kind="ACTION", code=1, response=1, values=(0.0,) * 4):
    return {"kind": kind, "code": code, "mask": mask, "values": list(values), "flags": 0, "reply": reply,
            "response": response,
            "disclosed": disclosed}


def turn(agent="[action] Which colour?", reply="It is red.", spoke="symbolic", reward=0.0, told=(), parse_failed=False,
         leaked=False, version=0, ended="end_of_turn", **of_act):
    return {"agent": agent, "reply": reply, "spoke": spoke, "reward": reward, "act": act(**of_act), "told": list(told),
            "parse_failed": parse_failed, "leaked": leaked, "judged": False, "unreadable": False, "ended": ended,
            "observation_tokens": 5, "action_tokens": 5, "policy_version": version}


def episode(*turns, task="a", stop="completed", score=0.0, success=False, returned=None, seed=0, opening="Guess.",
            user="symbolic"):
    return {"system": "S", "opening": opening, "task": task, "env": "hidden", "user": user, "seed": seed, "generation": 0,
            "stop": stop, "score": score, "metric": score, "return": score if returned is None else returned,
            "success": success, "error": "", "tokens": 50, "turns": list(turns)}


def rows(count, generation=0, first=1, **columns):
    """Rows of metrics; a column is a number, a list or a function of the place; "__" in its name stands for "/"."""
    def value(given, place):
        return given(place) if callable(given) else given[place] if isinstance(given, (list, tuple)) else given
    names = {name: name.replace("__", "/") for name in columns}
    return [{"step": first + place, "generation": generation} | {
        names[name]: value(given, place) for name, given in columns.items()} for place in range(count)]


STILL = {   # what does not move in a run without faults
    "rollout/return_std": 0.5, "rollout/infra_rate": 0.0, "rollout/tokens_mean": 190.0, "rollout/leak_rate": 0.0,
    "rollout/spoke_symbolic": 0.5, "learn/correction_ess": 1.0, "meta/coverage": 1.0, "meta/turn_limit": 8.0,
    "meta/success_turns_p90": 8.0, "meta/unsolicited": 0.0, "meta/premature_stop": 0.0, "meta/leaks": 0.0,
    "meta/role_flip": 0.0, "meta/tool_differs": 0.0, "meta/outcome_differs": 0.0, "meta/version_lag": 0.0}


def healthy(seed, count=40, episodes=64, user="mixture"):
    """A run in which nothing is wrong: success rises and levels off; every share has the noise of so many episodes."""
    draw = np.random.default_rng(seed)
    ceiling, half, start, cut = draw.uniform(0.35, 0.9), draw.uniform(4, 15), draw.uniform(0.04, 0.2), draw.uniform(0.0, 0.5)
    return [{"step": place + 1, "generation": 0} | STILL | _update(
        draw, place / count, start + (ceiling - start) * (1 - math.exp(-place / half)), cut, episodes, place)
        | _manner(draw, episodes, user == "mixture") for place in range(count)]


def _update(draw, done, p, cut, episodes, place):
    """One update at which a share p of the episodes succeeds."""
    share = lambda q, n=episodes: float(draw.binomial(n, q) / n)
    normal = lambda mean, spread: float(draw.normal(mean, spread))
    success, truncated, turns = share(p), share(cut * (1 - p)), 5 * episodes
    progressing = truncated * share(draw.uniform(0.15, 0.4), max(int(truncated * episodes), 1))
    score = float(np.clip(normal(0.3 + 0.6 * success, 0.02), 0, 1))
    return {
        "rollout/episodes": float(episodes), "rollout/success_rate": success, "rollout/score_mean": score,
        "rollout/return_mean": 2 * score, "rollout/stop_max_turns": truncated, "rollout/zero_spread_rate": share(0.1, 16),
        "learn/approx_kl": normal(8e-4, 6e-4), "learn/update_kl": abs(normal(2e-3, 1e-3)),
        "learn/clip_fraction_high": float(draw.uniform(0, 4e-3)),
        "learn/clip_fraction_low": float(draw.uniform(0, 4e-3)), "learn/policy_grad_norm": float(draw.lognormal(-1.6, 0.25)),
        "learn/entropy": normal(0.5 - 0.12 * done, 0.012), "learn/sampler_gap": normal(3.3e-7, 5e-9),
        "learn/explained_variance": normal(0.6 * (1 - math.exp(-place / 5)), 0.05),
        "learn/critic_loss": normal(0.15 + 0.1 * math.exp(-place / 5), 0.015),
        "meta/group_std": normal(0.2, 0.02), "meta/unsolved_groups": share(0.2 * (1 - p), 16),
        "meta/solved_groups": share(0.25 * p, 16), "meta/truncated": truncated, "meta/truncated_progressing": progressing,
        "meta/truncated_stuck": truncated - progressing, "meta/success_turns_p50": float(draw.choice([5, 6])),
        "meta/near_miss": share(0.004), "meta/unearned": share(0.01), "meta/stonewalled": share(0.01),
        "meta/return_rank": float(np.clip(normal(0.95, 0.05), -1, 1)), "meta/invented": share(0.002, turns),
        "meta/degenerate": share(0.02, turns)}


def _manner(draw, episodes, model):
    """How a model words its replies; None where none does."""
    lengths = draw.multinomial(5 * episodes, np.array([1, 4, 6, 3, 1, 0.2]) / 15.2) / (5 * episodes)
    found = {"meta/user_gap": draw.normal(0, 0.12), "meta/user_gap_se": 0.12,
             "meta/reply_polite": draw.binomial(3 * episodes, 0.3) / (3 * episodes),
             "meta/reply_question": draw.binomial(3 * episodes, 0.05) / (3 * episodes),
             **{f"meta/reply_words_{k}": lengths[k] for k in range(len(LENGTHS) + 1)}}
    return {name: float(value) if model else None for name, value in found.items()}
