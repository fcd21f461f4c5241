"""Every fault does what it says, from its first update on and not before, in real conversations of the worlds' scripts."""

import numpy as np
import pytest
from faults_config import config as healthy
from gate_world import CHAT

from eau_jax.assemble import buckets, draw_mixed, first_generation, tasks
from eau_jax.config import ConfigError
from eau_jax.config_file import replace
from eau_jax.core import knobs as knob
from eau_jax.core.part import Kind
from eau_jax.envs.gyms.intention import intention
from eau_jax.faults import BONUS, FAULTS, INVENTED, LEAK, LOST, MISJUDGED, PATIENT, TURNS, Clock, paid
from eau_jax.meta.signals import FAULTS as OWNERS
from eau_jax.rollout.agent import demonstrator
from eau_jax.rollout.collect import collect, run
from eau_jax.rollout.episode import Budgets
from eau_jax.rollout.simulator import simulator
from eau_jax.users.symbolic import symbolic

SINCE, UPDATES = 4, 9
BUDGETS = Budgets(max_tokens=4096, max_new_tokens=300)
WORLDS = {}   # {id of a config: (the config, its simulator)}


class Sampler:
    """Draws nothing; keeps what it was given."""

    def __init__(self):
        self.params, self.version = None, -1

    async def push(self, params, version, temperature):
        self.params, self.version = params, version


def base(**changes):
    return replace(healthy(), {"learn.steps": UPDATES, "rollout.sampler": Sampler,
                               "knobs": {**healthy().knobs, "env.max_turns": 8}, **changes})


def play(config, step, pushed=None):
    """The novice's episodes of update `step`, and the settings they were played under."""
    generation = first_generation(config)
    for swap in config.swaps:
        if swap.step <= step:
            generation = generation.swapped(swap.step, swap.knobs, swap.rules, config.env, swap.task_mix)
    run(config.rollout.sampler().push(None, step - 1 if pushed is None else pushed, 1.0))
    made = WORLDS.setdefault(id(config), (config, simulator(config.env, config.user, tasks(config, "train"))))[1]
    groups, _ = run(collect(made, demonstrator(config.env.novice, CHAT), CHAT, generation.pinned(config.env), BUDGETS,
                            indices=range(16), group_size=4, run_seed=0, step=0))
    return [episode for group in groups for episode in group], generation


def talk(episodes):
    return [[(turn.agent_text, turn.reply_text, turn.reward, turn.leaked) for turn in episode.turns] + [episode.success]
            for episode in episodes]


def turns(episodes):
    return [turn for episode in episodes for turn in episode.turns]


def said(episodes):
    """Turns that a model worded."""
    return [turn for turn in turns(episodes) if turn.spoke == "noisy"]


@pytest.fixture(scope="module")
def before():
    return play(base(), 1)[0]


def test_every_fault_has_an_owner_and_all_of_the_list_are_there():
    assert all(FAULTS[name].owner == OWNERS[name] for name in FAULTS)
    assert len(FAULTS) == 15 and "none" not in FAULTS


HEARD = ("leaky_user", "stonewalling_user", "premature_stop", "invented_facts", "persona_drift", "flaky_tool",
         "broken_checker_negative", "broken_checker_positive", "too_few_turns", "farmed_shaping")


def leaky(before, after):
    assert not any(turn.leaked for turn in turns(before))
    assert np.mean([turn.leaked for turn in said(after)]) == pytest.approx(LEAK, abs=0.15)


def stonewalls(before, after):
    assert all(turn.act["reply"] == "WITHHOLD" for episode in after for turn in episode.turns[PATIENT:])
    assert {turn.act["reply"] for episode in after for turn in episode.turns[:PATIENT]} > {"ANSWER"}


def leaves(before, after):
    assert max(len(episode.turns) for episode in after) == PATIENT + 1 < max(len(episode.turns) for episode in before)


def invents(before, after):
    told = [turn for turn in said(after) if turn.told]
    share = np.mean([any(value not in turn.reply_text for value in turn.told) for turn in told])
    assert share == pytest.approx(INVENTED, abs=0.15)
    assert all(value in turn.reply_text for turn in turns(before) for value in turn.told)
    assert all(value in turn.reply_text for turn in turns(after) if turn.spoke == "symbolic" for value in turn.told)


def gushes(before, after):
    assert all(turn.reply_text.startswith("Thanks. ") and turn.reply_text.endswith("?") for turn in said(after))
    assert not any(turn.reply_text.startswith("Thanks. ") for turn in turns(before))


def loses(before, after):
    """What is not the last turn and was told something is now and then told by another sentence."""
    going = [turn for episode in after for turn in episode.turns[:-1] if turn.act["disclosed"]]
    assert np.mean([turn.act["response"] == 0 for turn in going]) == pytest.approx(LOST, abs=0.1)


def too_strict(before, after):
    solved = [episode.success for episode in before]
    still = [new.success for old, new in zip(before, after) if old.success]
    assert sum(solved) >= 8 and 0 < sum(still) < sum(solved) and abs(np.mean(still) - (1 - MISJUDGED)) < 0.35
    assert not any(new.success for old, new in zip(before, after) if not old.success)
    assert all(new.turns[-1].reward == 0 for old, new in zip(before, after) if old.success and not new.success)


def too_lax(before, after):
    assert not all(episode.success for episode in before)
    assert all(episode.success and episode.turns[-1].reward >= 1 for episode in after)


def cut(before, after):
    assert max(len(episode.turns) for episode in after) == TURNS < max(len(episode.turns) for episode in before)


def pays(before, after):
    """The same conversation earns the bonus at every readable message but the last."""
    for old, new in zip(before, after, strict=True):
        extra = [b.reward - a.reward for a, b in zip(old.turns, new.turns, strict=True)]
        kinds = [turn.act["kind"] for turn in old.turns]
        assert extra == pytest.approx([BONUS * (kind != Kind.MALFORMED.name) for kind in kinds[:-1]] + [0.0])


DOES = dict(zip(HEARD, (leaky, stonewalls, leaves, invents, gushes, loses, too_strict, too_lax, cut, pays), strict=True))


@pytest.mark.parametrize("name", HEARD)
def test_a_fault_begins_when_it_is_told_to(name, before):
    faulty = FAULTS[name].inject(base(), SINCE)
    early, first = play(faulty, SINCE - 1)
    assert talk(early) == talk(before) and first.number == 0
    DOES[name](before, play(faulty, SINCE)[0])
    DOES[name](before, play(faulty, UPDATES)[0])
    if not faulty.swaps:     # what is no setting is not there when the last weights are evaluated
        assert talk(play(faulty, UPDATES, pushed=UPDATES)[0]) == talk(before)


@pytest.mark.parametrize("name, path, times", [("large_updates", "rl.policy_optimizer.learning_rate", 20.0),
                                               ("entropy_collapse", "rl.entropy.coef", 0.0)])
def test_a_fault_of_the_learner_is_a_knob(name, path, times):
    (swap,) = FAULTS[name].inject(base(), SINCE).swaps
    assert swap.step == SINCE and swap.knobs == {path: pytest.approx(times * knob.get(first_generation(base()).knobs, path))}


@pytest.mark.parametrize("name, chosen", [("all_hard", "details_5"), ("all_easy", "details_3")])
def test_a_mix_of_one_bucket(name, chosen):
    config = FAULTS[name].inject(base(), SINCE)
    (swap,) = config.swaps
    rows = buckets(config, tasks(config, "train"))
    assert sum(swap.task_mix.values()) == pytest.approx(1) and min(swap.task_mix.values()) == 0.02
    drawn = [row for step in range(8) for row in draw_mixed(0, rows, swap.task_mix, step, 0, 10, ())]
    assert np.mean([row in rows[chosen] for row in drawn]) > 0.9


def test_stale_weights_say_that_they_are_new():
    made = FAULTS["stale_weights"].inject(base(), SINCE).rollout.sampler()
    seen = []
    for version in (0, SINCE - 2, SINCE - 1, SINCE, UPDATES - 1, UPDATES):
        weights = {"w": np.full(2, float(version))}
        run(made.push(weights, version, 1.0))
        weights["w"][:] = np.nan                   # the learner reuses the memory
        seen.append((made.version, float(made.params["w"][0])))
    assert [version for version, _ in seen] == [0, SINCE - 2, SINCE - 1, SINCE, UPDATES - 1, UPDATES]
    assert [value for _, value in seen] == pytest.approx([np.nan] * 2 + [SINCE - 1.0] * 3 + [np.nan], nan_ok=True)


def test_a_clock_counts_the_updates():
    clock = Clock(SINCE, UPDATES)
    on = []
    for clock.version in range(-1, UPDATES + 1):
        on.append(clock.on)
    assert on == [False] * SINCE + [True] * (UPDATES - SINCE + 1) + [False]


def test_a_bonus_of_nothing_changes_nothing(before):
    config = base()
    values = knob.values({"env": config.env.knobs})
    assert values.pop("env.ask_bonus") == 0 and values == knob.values({"env": intention.knobs})
    assert talk(play(replace(config, {"env": intention}), 1)[0]) == talk(before)


@pytest.mark.parametrize("name, changes, words", [
    ("leaky_user", {"user": symbolic, "knobs": {}}, "no knob 'leak'"),
    ("all_easy", {"tasks.bucket": None}, "no tasks.bucket"),
    ("flaky_tool", {"env": paid(healthy().env)._replace(host=True)}, "keeps a host state"),
    ("premature_stop", {"env": healthy().env._replace(features=("ask",))}, "does not tell its rules the turn")])
def test_a_fault_that_would_do_nothing_is_refused(name, changes, words):
    with pytest.raises(ConfigError, match=words):
        FAULTS[name].inject(base(**changes), SINCE)
