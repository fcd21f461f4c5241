"""Symbolic, noisy and mixed users: what they decide, what they say, and at which rates."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from play import ENVS, built_in

from eau_jax.core import knobs as knob_tree
from eau_jax.core.part import Reply, Words
from eau_jax.users.mixture import draw, mixture
from eau_jax.users.noisy import noisy
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import PERSONAS, symbolic
from eau_jax.users.voice import leaks, speak

FEATURES = ("asked",)
MANY = 4000
RULES = compile_rules('default = "ANSWER"\n[[rule]]\nwhen = { asked = 9 }\nreply = "LEAVE"', FEATURES)


def words(seed=0, group_seed=0, secrets=("jazz",)):
    return Words(draft="The date is May.", disclosed=("May",), secrets=secrets, opening="Plan a trip.",
                 agent_text="[action] Which date?", seed=seed, group_seed=group_seed)


def noisy_knobs(**changes):
    silent = dict(drift=0.0, leave=0.0, paraphrase=0.0, leak=0.0)
    return noisy.knobs.replace(**{name: np.float32(value) for name, value in (silent | changes).items()})


RESPOND = jax.jit(jax.vmap(noisy.respond, (None, None, None, 0)))


def decisions(knobs, asked=0):
    keys = jax.random.split(jax.random.key(0), MANY)
    return np.asarray(RESPOND(RULES, knobs, jnp.array([asked], jnp.int32), keys))


def said(user, knobs, **changes):
    return asyncio.run(user.voice(knobs, words(**changes)))


def close(share, rate):
    return abs(share - rate) < 4 * np.sqrt(max(rate * (1 - rate), 1e-9) / MANY) + 1e-9


def test_symbolic_follows_the_rules_and_speaks_the_draft():
    reply = symbolic.respond(RULES, symbolic.knobs, jnp.array([9], jnp.int32), jax.random.key(0))
    assert int(reply) == Reply.LEAVE and reply.dtype == jnp.int32
    assert said(symbolic, symbolic.knobs) == ("The date is May.", "symbolic")


def personas(share, openings, seed=0):
    """For each opening the persona whose manner the reply has; None for the draft."""
    knobs, found = symbolic.knobs.replace(persona_mix=np.float32(share)), []
    for opening in openings:
        text, spoke = asyncio.run(symbolic.voice(knobs, words(seed=seed)._replace(opening=opening)))
        before, draft, after = text.partition("The date is May.")
        assert draft and spoke == "symbolic"
        found.append(next((name for name, (first, last) in PERSONAS.items() if text != draft and before in first
                           and after in last), None))
        assert found[-1] or text == draft
    return found


def test_a_share_of_the_tasks_has_a_persona_and_keeps_it():
    openings = [f"Plan trip {number}." for number in range(MANY)]
    some, more = personas(0.3, openings), personas(0.6, openings)
    assert close(np.mean([who is not None for who in some]), 0.3) and close(np.mean([who is not None for who in more]), 0.6)
    assert all(one in (None, other) for one, other in zip(some, more, strict=True))
    assert all(close(np.mean([who == name for who in more]), 0.6 / len(PERSONAS)) for name in PERSONAS)
    few = openings[:50]
    always = symbolic.knobs.replace(persona_mix=1.0)
    manners = [{said(symbolic, always, seed=seed) for seed in range(40)}, {said(symbolic, always, seed=1) for _ in range(4)}]
    assert len(manners[0]) > 1 == len(manners[1])    # he does not say the same around every draft, but to the same seed
    for seed in range(1, 8):
        again = personas(1.0, few, seed)
        assert all(one == other for one, other in zip(again, personas(1.0, few), strict=True))


def test_a_persona_tells_nothing():
    """No phrase of a persona holds a value of any world's tasks, nor a digit."""
    phrases = " | ".join(phrase for sides in PERSONAS.values() for side in sides for phrase in side)
    assert not any(letter.isdigit() for letter in phrases)
    for name in ENVS:
        env, tasks = built_in(name, 300)
        assert not {value for task in tasks for value in leaks(phrases, env.secrets(task, 0, 1))}, name


@pytest.mark.parametrize("drift, leave", [(0.0, 0.0), (0.3, 0.0), (0.0, 0.25), (0.4, 0.5), (1.0, 0.0), (0.0, 1.0)])
def test_noisy_decides_at_the_given_rates(drift, leave):
    replies = decisions(noisy_knobs(drift=drift, leave=leave))
    assert close((replies == Reply.LEAVE).mean(), leave)
    assert close((replies == Reply.ANSWER).mean(), (1 - drift) * (1 - leave))
    for other in (Reply.WITHHOLD, Reply.CLARIFY, Reply.VOLUNTEER):
        assert close((replies == other).mean(), drift * (1 - leave) / 3)


def test_noisy_does_not_drift_away_from_leaving():
    assert (decisions(noisy_knobs(drift=1.0), asked=9) == Reply.LEAVE).all()


@pytest.mark.parametrize("paraphrase, leak", [(0.0, 0.0), (0.5, 0.1), (1.0, 1.0)])
def test_noisy_words_at_the_given_rates(paraphrase, leak):
    async def all_of_them():
        return [await noisy.voice(noisy_knobs(paraphrase=paraphrase, leak=leak), words(seed)) for seed in range(MANY)]
    texts = asyncio.run(all_of_them())
    assert all(who == "noisy" and "date is May." in text for text, who in texts)
    assert close(np.mean(["jazz" in text for text, _ in texts]), leak)
    assert close(np.mean([not text.startswith("The date is May.") for text, _ in texts]), paraphrase)


def test_noisy_words_follow_from_the_seed_and_need_a_secret_to_leak():
    knobs = noisy_knobs(paraphrase=0.5, leak=0.5)
    assert [said(noisy, knobs, seed=s) for s in range(50)] == [said(noisy, knobs, seed=s) for s in range(50)]
    assert len({said(noisy, knobs, seed=s)[0] for s in range(50)}) > 5
    assert said(noisy, noisy_knobs(leak=1.0), secrets=())[0] == "The date is May."


def test_a_leak_never_reaches_the_agent():
    spoken = asyncio.run(speak(noisy, noisy_knobs(leak=1.0), words()))
    assert spoken == ("The date is May.", "noisy", True)
    assert asyncio.run(speak(symbolic, symbolic.knobs, words())) == ("The date is May.", "symbolic", False)


@pytest.mark.parametrize("text, secrets, found", [
    ("I like Jazz.", ("jazz",), ("jazz",)), ("jazzy tunes", ("jazz",), ()), ("CAFÉ au lait", ("cafe",), ("cafe",)),
    ("by  the\nlake", ("by the lake", "the"), ("by the lake", "the")), ("it costs $5.00 (net)", ("$5.00",), ("$5.00",)),
    ("1,000", ("000",), ("000",)), ("plain", ("", "  "), ()), ("anything", (), ()), ("a+b", ("a+b", "b+c"), ("a+b",))])
def test_leaks_are_whole_words_whatever_their_case(text, secrets, found):
    assert leaks(text, secrets) == found


def mixed(epsilon):
    user = mixture(symbolic, noisy)
    return user, user.knobs.replace(epsilon=np.float32(epsilon))


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.5, 1.0])
def test_mixture_speaks_symbolic_with_probability_epsilon(epsilon):
    user, knobs = mixed(epsilon)

    async def all_of_them():
        return [(await user.voice(knobs, words(group_seed=seed)))[1] for seed in range(MANY)]
    spoke = asyncio.run(all_of_them())
    assert set(spoke) <= {"symbolic", "noisy"} and close(np.mean([who == "symbolic" for who in spoke]), epsilon)
    if epsilon in (0.0, 1.0):
        assert len(set(spoke)) == 1


def test_a_group_hears_the_same_source_at_the_same_turn():
    user, knobs = mixed(0.5)
    source = lambda turn, episode: said(user, knobs, seed=100 * turn + episode, group_seed=turn)[1]
    by_turn = [{source(turn, episode) for episode in range(8)} for turn in range(40)]
    assert all(len(sources) == 1 for sources in by_turn) and len(set().union(*by_turn)) == 2
    assert draw(5) == draw(5) and 0 <= draw(2**63) < 1


def test_the_state_of_a_mixture_advances_by_the_first_user():
    user = mixture(symbolic, noisy)
    knobs = user.knobs.replace(second=noisy_knobs(drift=1.0, leave=1.0))
    keys = jax.random.split(jax.random.key(0), 32)
    replies = jax.vmap(lambda key: user.respond(RULES, knobs, jnp.array([0], jnp.int32), key))(keys)
    assert (replies == Reply.ANSWER).all()


def test_knobs_have_paths_and_bounds():
    tree = {"user": mixture(symbolic, noisy).knobs}
    assert set(knob_tree.specs(tree)) == {"user.epsilon", "user.first.persona_mix", "user.second.drift", "user.second.leave",
                                          "user.second.paraphrase", "user.second.leak"}
    assert float(knob_tree.patch(tree, {"user.epsilon": 0.1})["user"].epsilon) == pytest.approx(0.1)
    with pytest.raises(knob_tree.KnobError, match="out of range"):
        knob_tree.patch(tree, {"user.second.leak": 1.5})
