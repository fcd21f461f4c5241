"""What records say of a learning rate and of a task mix, by hand."""

import math

import pytest

from eau_jax.meta.trial import RATE, careful, shares, steps

OLD = {"easy": 0.5, "hard": 0.5}
BUCKET = {"e1": "easy", "e2": "easy", "h1": "hard", "h2": "hard"}


def group(task, *scores, step=1, stop="completed"):
    return [{"task": task, "step": step, "score": score, "stop": stop} for score in scores]


SEEN = group("e1", 1.0, 1.0) + group("e2", 1.0, 0.0) + group("h1", 0.0, 1.0) + group("h2", 0.2, 0.4)   # useful: 1/2 and 1


def test_a_mix_is_told_from_the_groups_of_its_buckets():
    stage = shares(OLD, {"easy": 0.6, "hard": 0.4}, BUCKET, SEEN)
    assert stage.numbers == pytest.approx({"before": 0.75, "after": 0.7, "error": 0.1 * math.sqrt(0.25 / 2),
                                           "useful_easy": 0.5, "useful_hard": 1.0})
    assert stage.passed                                       # 0.05 lower, and twice the error is 0.07
    many = [record | {"task": f"{record['task']}-{n}"} for n in range(20) for record in SEEN]
    bucket = {f"{task}-{n}": name for n in range(20) for task, name in BUCKET.items()}
    assert shares(OLD, {"easy": 0.6, "hard": 0.4}, bucket, many).passed is False
    assert shares(OLD, {"easy": 0.4, "hard": 0.6}, bucket, many).passed


def test_what_cannot_be_told_of_a_mix():
    one = group("e1", 1.0, 0.0) + group("h1", 1.0, 0.0) + group("h2", 1.0, 0.0)
    assert shares(OLD, {"easy": 0.6, "hard": 0.4}, BUCKET, one).passed is None
    assert shares(OLD, {"easy": 0.4, "hard": 0.6}, BUCKET, one).passed           # fewer of what is hardly seen
    lost = group("e1", 1.0, 0.0, stop="infra_error") + group("e2", 1.0) + group("h1", 1.0, 0.0)
    assert shares(OLD, {"easy": 0.6, "hard": 0.4}, BUCKET, lost).passed is None
    again = group("e1", 1.0, 1.0, step=1) + group("e1", 0.0, 0.0, step=2)     # two groups, each alike
    assert shares(OLD, {"easy": 0.6, "hard": 0.4}, BUCKET, again).numbers["useful_easy"] == 0.0


def test_a_learning_rate_is_told_from_the_last_updates():
    rows = [{"learn/update_kl": kl} for kl in (9.0, 0.008, 0.012, 0.01, 0.01, 0.01)]     # five count
    stage = steps({RATE: 2e-3}, {RATE: 1e-3}, rows)
    assert stage.passed is False and stage.numbers == pytest.approx({"kl": 0.01, "expected_kl": 0.04, "limit": 0.025})
    assert steps({RATE: 1.5e-3}, {RATE: 1e-3}, rows).passed                      # 0.0225
    assert steps({RATE: 5e-4}, {RATE: 1e-3}, [{"learn/update_kl": 0.5}]).passed   # smaller steps are never too large


def test_what_cannot_be_told_of_learning():
    assert steps({RATE: 2e-3}, {RATE: 1e-3}, [{"learn/update_kl": None}]).passed is None
    assert steps({RATE: 2e-3}, {RATE: 0.0}, [{"learn/update_kl": 0.1}]).passed is None
    assert steps({"rl.entropy.coef": 0.01}, {}, []).passed is None


@pytest.mark.parametrize("changes, answer", [
    ({RATE: 5e-4}, True), ({RATE: 2e-3}, False), ({RATE: 5e-4, "rl.policy_loss.clip_high": 0.23}, True),
    ({"rl.entropy.coef": 0.02, "rl.policy_loss.clip_high": 0.33}, True), ({"rl.entropy.coef": 0.005}, False),
    ({"rl.kl.coef": 0.0}, False), ({"rl.critic_optimizer.learning_rate": 1.0}, False),
    ({"rl.sampler.temperature": 0.9}, False)])
def test_which_changes_only_make_learning_more_careful(changes, answer):
    now = {RATE: 1e-3, "rl.policy_loss.clip_high": 0.28, "rl.entropy.coef": 0.01, "rl.kl.coef": 0.02,
           "rl.critic_optimizer.learning_rate": 1e-3, "rl.sampler.temperature": 1.0}
    assert careful(changes, now) is answer
