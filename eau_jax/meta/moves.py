"""What can be done about each fault: pure functions from what a proposer sees to bounded changes, the best first.

A fault without a row has no change that would mend it: lost episodes, a broken checker and a flaky tool are for a person,
the policy's own faults for training.
"""

import math
from typing import Callable, Iterator, Mapping

import numpy as np

from eau_jax.meta.scene import Move, Scene, find, plus, predicted, times, to
from eau_jax.meta.signals import column, number, slope
from eau_jax.users.rules import compile_rules, dump

EPSILON_MOST = 0.8     # share of symbolic replies that a fault of the user may raise it to
EPSILON_HALF = 0.5     # and to which it goes back when both kinds of reply are worth the same
TURNS_MOST = 32        # agent messages
CLIP_LEAST, CLIP_MOST = 0.1, 0.4
ENTROPY_SEED, ENTROPY_MOST = 1e-3, 0.02
MIX_SHIFT, MIX_FLOOR = 0.075, 0.02    # share of the tasks that one change moves, and that stays in a bucket
FLAT_UPDATES = 40      # without a rise on the anchor tasks before something is tried
SOLVED = 0.9           # success on them from which nothing is
BONUSES = ("info_bonus", "ask_bonus", "done_bonus", "partial_credit", "r_search", "r_pref", "half_credit", "gain")
"""Names of knobs that pay for more than the outcome."""
RATE, CRITIC_RATE = "rl.policy_optimizer.learning_rate", "rl.critic_optimizer.learning_rate"
ENTROPY = "rl.entropy.coef"


def table(scene: Scene) -> Iterator[Move]:
    """The moves of the diagnosed fault's row, the best first; those that this run cannot make change nothing."""
    row = ROWS.get(scene.diagnosis.fault or "none")
    yield from row(scene) if row is not None else ()


def _own_rules(scene: Scene, metric: str, why: str) -> Iterator[Move]:
    """The environment's own rules, where others are in force."""
    own, now = (dump(compile_rules(text, scene.features), scene.features) for text in (scene.own_rules, scene.rules))
    if own != now:
        yield predicted(scene, "down", (metric,), f"{why}; he goes back to the environment's own rules", share=0.3,
                        rules=scene.own_rules)


def _more_symbolic(scene: Scene, *metrics: str, why: str) -> Move:
    return predicted(scene, "down", metrics, f"{why}; the symbolic user words more of the replies",
                     plus(scene, find(scene, "user", "epsilon"), 0.15, high=EPSILON_MOST))


def _none_of(scene: Scene, owner: str, name: str, *metrics: str, why: str) -> Move:
    """A knob of the user's or the world's own misbehaviour goes towards 0."""
    return predicted(scene, "down", metrics, f"{why}; {name} is lowered", to(scene, find(scene, owner, name), 0))


def _leaky(scene: Scene) -> Iterator[Move]:
    """First what the fault is about: more symbolic replies would be less varied ones too."""
    metrics, why = ("meta/leaks", "rollout/leak_rate"), "the user tells values that were not disclosed"
    yield _none_of(scene, "user", "leak", *metrics, why=why)
    yield _more_symbolic(scene, *metrics, why=why)


def _early(scene: Scene) -> Iterator[Move]:
    metric, why = "meta/unsolicited", "the user tells what nobody asked for"
    yield from _own_rules(scene, metric, why)
    yield _none_of(scene, "user", "drift", metric, why=why)
    for name in ("volunteer_location", "volunteer_id", "reveal_goals"):
        yield _none_of(scene, "env", name, metric, why=why)
    for name in ("volunteer_after", "hint_after"):
        yield predicted(scene, "down", (metric,), f"{why}; he waits longer", times(scene, find(scene, "env", name), 2.0))
    yield predicted(scene, "down", (metric,), f"{why}; one reply tells less",
                    plus(scene, find(scene, "env", "disclose_cap"), -1, low=1))
    yield _more_symbolic(scene, metric, why=why)


def _premature(scene: Scene) -> Iterator[Move]:
    metrics, why = ("meta/premature_stop", "rollout/stop_user_left"), "the user leaves while he is asked something new"
    yield from _own_rules(scene, metrics[0], why)
    yield _none_of(scene, "user", "leave", *metrics, why=why)
    yield predicted(scene, "down", metrics, f"{why}; he gets more patience", plus(scene, find(scene, "env", "patience"), 2),
                    share=0.3)


def _stonewalling(scene: Scene) -> Iterator[Move]:
    metric, why = "meta/stonewalled", "the user does not answer fair questions"
    yield from _own_rules(scene, metric, why)
    yield _none_of(scene, "user", "drift", metric, why=why)
    yield _more_symbolic(scene, metric, why=why)


def _invented(scene: Scene) -> Iterator[Move]:
    metric, why = "meta/invented", "the user says what is not in the task"
    yield _more_symbolic(scene, metric, why=why)
    yield predicted(scene, "down", (metric,), f"{why}; its words are drawn less freely",
                    plus(scene, find(scene, "user", "temperature"), -0.2))


def _persona(scene: Scene) -> Iterator[Move]:
    yield _more_symbolic(scene, "rollout/spoke_llm", "rollout/spoke_noisy", "meta/role_flip",
                         why="the user's manner has changed")


def _few_turns(scene: Scene) -> Iterator[Move]:
    path = find(scene, "env", "max_turns")
    now = scene.values.get(path, math.nan)
    factor = 1.5 if "more_turns" in scene.confirmed else 1.25
    yield predicted(scene, "down", ("rollout/stop_max_turns",), "episodes are cut while they make progress; more turns",
                    to(scene, path, min(max(now * factor, now + 2), max(TURNS_MOST, now))), effect=0.05)


def _many_turns(scene: Scene) -> Iterator[Move]:
    needed = number(scene.rows[-1], "meta/success_turns_p90") if scene.rows else math.nan
    low = needed + 1 if math.isfinite(needed) else 1
    yield predicted(scene, "down", ("rollout/tokens_mean", "rollout/turns_mean"), "episodes are cut without progress, and "
                    "good ones need half of the turns; fewer turns",
                    times(scene, find(scene, "env", "max_turns"), 0.8, low=low), share=0.02)


def _stale(scene: Scene) -> Iterator[Move]:
    yield predicted(scene, "down", ("learn/sampler_gap",), "sampler and learner hold different policies; smaller steps keep "
                    "them nearer until the sampler is mended", times(scene, RATE, 0.5), share=0.2)


def _large(scene: Scene) -> Iterator[Move]:
    yield predicted(scene, "down", ("learn/update_kl", "learn/approx_kl"),
                    "updates move the policy too far; the learning rate is halved",
                    times(scene, RATE, 0.5) | plus(scene, find(scene, "rl", "clip_high"), -0.05, low=CLIP_LEAST),
                    share=0.2, within=3)


def _spikes(scene: Scene) -> Iterator[Move]:
    yield predicted(scene, "down", ("learn/policy_grad_norm",), "gradients are far above their median; the learning rate is "
                    "lowered", times(scene, RATE, 0.7))


def _entropy_low(scene: Scene) -> Iterator[Move]:
    coef = scene.values.get(ENTROPY, math.nan)
    yield predicted(scene, "up", ("learn/entropy",), "entropy is used up and success does not rise; the bonus is raised",
                    to(scene, ENTROPY, min(max(2 * coef, ENTROPY_SEED), max(ENTROPY_MOST, coef)))
                    | plus(scene, find(scene, "rl", "clip_high"), 0.05, high=CLIP_MOST), share=0.05, within=10)


def _entropy_high(scene: Scene) -> Iterator[Move]:
    for changes, said in ((times(scene, ENTROPY, 0.5), "the bonus is halved"), (times(scene, RATE, 0.7), "smaller steps")):
        yield predicted(scene, "down", ("learn/entropy",), f"entropy rises and success falls; {said}", changes, share=0.05,
                        within=10)


def _critic(scene: Scene) -> Iterator[Move]:
    losses = column(scene.rows[-10:], "learn/critic_loss")
    steps = np.diff(losses[np.isfinite(losses)])
    back = (steps[1:] * steps[:-1] < 0).mean() if len(steps) >= 4 else 0.0
    swings = back >= 0.75 and np.abs(steps).mean() > 0.25 * np.nanmean(np.abs(losses))
    factor, said = (0.5, "its loss swings; smaller steps") if swings else (1.5, "its loss falls slowly; larger steps")
    yield predicted(scene, "up", ("learn/explained_variance",), f"the critic explains nothing; {said}",
                    times(scene, CRITIC_RATE, factor), effect=0.1, within=10)


def _hard(scene: Scene) -> Iterator[Move]:
    yield predicted(scene, "down", ("meta/unsolved_groups", "rollout/zero_spread_rate"), "hardly any task is solved, so "
                    "groups teach nothing; easier ones become more frequent", task_mix=_mix(scene.mix, harder=False),
                    effect=0.02)
    for name in BONUSES:
        yield predicted(scene, "up", ("meta/group_std", "rollout/return_std"), "hardly any task is solved; steps on the way "
                        "are paid for", plus(scene, find(scene, "env", name), 0.05), effect=0.01, within=10)


def _easy(scene: Scene) -> Iterator[Move]:
    yield predicted(scene, "down", ("meta/solved_groups", "rollout/zero_spread_rate"), "nearly all groups are solved, so "
                    "they teach nothing; harder tasks become more frequent", task_mix=_mix(scene.mix, harder=True),
                    effect=0.02)


def _mix(mix: Mapping[str, float], harder: bool) -> dict[str, float]:
    """Some of the share of one end goes to the other; {} where there is nothing to move."""
    order = list(mix) if harder else list(mix)[::-1]
    for giver in order[:-1]:
        amount = min(MIX_SHIFT, mix[giver] - MIX_FLOOR)
        if amount > 1e-3:
            return {**mix, giver: round(mix[giver] - amount, 9), order[-1]: round(mix[order[-1]] + amount, 9)}
    return {}


def _farmed(scene: Scene) -> Iterator[Move]:
    """What pays more than at first, or than by default where that is not known; then what pays for more than the outcome."""
    metrics, why = ("rollout/return_mean",), "returns tell nothing of success"
    was = {path: scene.first.get(path, spec.default) for path, spec in scene.specs.items() if spec.reward}
    over = {path: abs(scene.values[path] - old) for path, old in was.items() if (
        scene.values[path] < old if path.endswith(("penalty", "cost")) else scene.values[path] > old)}
    for path in sorted(over, key=over.__getitem__, reverse=True):
        yield predicted(scene, "down", metrics, f"{why}; {path} goes back towards {was[path]:g}", to(scene, path, was[path]),
                        share=0.05)
    for name in BONUSES:
        path = find(scene, "env", name)
        if scene.values.get(path, 0.0) > 0:
            often = scene.tried.get(f"{path} down", 0) >= 2
            yield predicted(scene, "down", metrics, f"{why}; less is paid on the way", to(scene, path, 0.0) if often else
                            plus(scene, path, -0.05, low=0.0), share=0.05)


def _healthy(scene: Scene) -> Iterator[Move]:
    """Nothing is wrong: the mixture of users goes back to half, and where nothing has moved for long one thing is tried."""
    gaps = [abs(number(row, "meta/user_gap")) for row in scene.rows[-3:]]
    path = find(scene, "user", "epsilon")
    if len(gaps) == 3 and all(gap < 0.05 for gap in gaps) and scene.values.get(path, 0.0) > EPSILON_HALF:
        yield predicted(scene, "down", ("rollout/spoke_symbolic",), "both kinds of reply lead to the same success; a model "
                        "words more of them again", plus(scene, path, -0.1, low=EPSILON_HALF), effect=0.05)
    anchor = next((name for name in (scene.rows[-1] if scene.rows else {}) if name.startswith("anchor/success")), "")
    values = column(scene.rows[-FLAT_UPDATES:], anchor)
    known = values[values == values]
    if len(values) < FLAT_UPDATES or len(known) < 5 or abs(slope(values)) > 2.0 or known[-5:].mean() >= SOLVED:
        return
    coef = scene.values.get(ENTROPY, math.nan)
    ideas = [times(scene, RATE, 1.25), to(scene, ENTROPY, max(1.5 * coef, ENTROPY_SEED)),
             plus(scene, find(scene, "rl", "clip_high"), 0.05, high=CLIP_MOST), times(scene, RATE, 0.8)]
    for idea in sorted(filter(None, ideas), key=lambda idea: _times_tried(scene, idea)):
        yield predicted(scene, "up", (anchor,), f"anchor success has not moved for {FLAT_UPDATES} updates; what was "
                        "tried least is tried", idea, effect=0.03, within=10)


def _times_tried(scene: Scene, changes: Mapping[str, float]) -> int:
    return sum(scene.tried.get(f"{path} {'up' if new > scene.values[path] else 'down'}", 0) for path, new in changes.items())


ROWS: Mapping[str, Callable[[Scene], Iterator[Move]]] = {
    "leaky_user": _leaky, "early_disclosure": _early, "premature_stop": _premature, "stonewalling_user": _stonewalling,
    "invented_facts": _invented, "persona_drift": _persona, "too_few_turns": _few_turns, "too_many_turns": _many_turns,
    "stale_weights": _stale, "large_updates": _large, "gradient_spikes": _spikes, "entropy_collapse": _entropy_low,
    "entropy_rise": _entropy_high, "weak_critic": _critic, "all_hard": _hard, "all_easy": _easy, "farmed_shaping": _farmed,
    "none": _healthy}
