"""What a model's reply has to tell: the table, the drafts of every environment, and a server that always says "No."."""

import asyncio
import functools
import re

import numpy as np
import pytest
from chat_server import chat_server, completion
from play import ENVS, built_in
from test_worlds import episode, random_agent

from eau_jax.clients.chat import ChatClient
from eau_jax.core.part import Words
from eau_jax.rollout.episode import Pinned
from eau_jax.rollout.simulator import simulator
from eau_jax.users import noisy
from eau_jax.users.faithful import facts, invented, opening, unfaithful, verdict
from eau_jax.users.llm import llm
from eau_jax.users.role_play import numbered, role_play, scenario, spelled
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic
from eau_jax.users.voice import speak

CASE = "The test case is a=1, b=-3, c=7, d=4."
PHONE = 'It says: "Wi-Fi is on. Status bar: signal none, 5G." This is annoying.'
BREAKFAST = "I eat no meat or milk."


@pytest.mark.parametrize("draft, disclosed, reply", [
    (CASE, (), "Sure: a = 1, b = \u22123, c = 7 and d = 4."), ("The value is -19.2552.", (), "I get -19.2552 there"),
    ("Give exactly four numbers.", (), "I need 4 numbers."), ("It costs 1,200 dollars.", (), "1200 dollars it is."),
    ("Yes.", (), "Yeah, it is."), ("Yes.", (), "That's right!"), ("Yes.", (), "You're not wrong."),
    ("Yes.", (), "Well, yes"),
    ("No.", (), "It isn\u2019t."), ("No.", (), "I'm afraid not."), ("No.", (), "Hm, nope! Good question, though."),
    ("Maybe.", (), "It depends."), ("Maybe.", (), "I'm not sure."), ("Wrong guess.", (), "That is not it."),
    ("No. The count is 3.", ("3",), "No, it is three."), ("The count is 3.", ("3",), "Yes, 3."),
    (PHONE, (), "So my phone shows: Wi-Fi is on, status bar: signal none, 5G!"),
    (BREAKFAST, (BREAKFAST,), "I don't eat meat or milk."),
    ("Fair point. I partly agree.", (), "Good point, I partly agree with that."),
    ("I cannot say.", (), "I'd rather keep that to myself."),
    ("I cannot read that. Write [action] and one question.", (), "I can't read that, write [action] and a question."),
    ("Hello there!", (), "Good morning, nice to meet you."), ("What shall I do?", (), "Tell me what to press."),
    ("The size is large.", ("large", "not in the draft"), "Large, please."), ("All right.", (), "Fine.")])
def test_paraphrases_that_keep_the_facts_pass(draft, disclosed, reply):
    assert unfaithful(draft, disclosed, draft) == unfaithful(draft, disclosed, reply) == ""


@pytest.mark.parametrize("draft, disclosed, reply, why", [
    (CASE, (), "No.", "left out .*: a=1; b=-3; c=7; d=4"), (CASE, (), "a is 1, b=-3, c=7, d=4", ": a=1$"),
    (CASE, (), "a=1, b=3, c=7, d=4", ": b=-3$"), ("The value is 81.", (), "It is 81.5.", ": 81$"),
    ("The value is -1.", (), "The value is 1.", ": -1$"), ("The value is 81.", (), "The value is not 81.", "it denied"),
    ("Yes.", (), "No.", "must answer yes"), ("Yes.", (), "I like turtles.", "must answer yes"),
    ("Yes.", (), "Yes. No, wait.", "must answer yes"), ("Yes.", (), "That is not right.", "must answer yes"),
    ("No.", (), "Yes.", "must answer no"), ("No.", (), "Maybe.", "must answer no"),
    ("No.", (), "You're not wrong.", "must answer no"),
    ("Maybe.", (), "Yes.", "must answer maybe"), ("Wrong. Try again.", (), "Correct!", "must answer no"),
    ("That is not it.", (), "That is it!", "must answer no"), ("Yes, please.", (), "No, thank you.", "must answer yes"),
    ("I cannot say.", (), "No.", "answers nothing"), ("Please ask a yes-or-no question.", (), "Yes.", "answers nothing"),
    ("It is not solved yet.", (), "It is solved now.", "left out that something is not so"),
    ("I am not moved.", (), "I am moved.", "left out that something is not so"),
    (PHONE, (), "No.", "left out .*: Wi-Fi is on. Status bar"), (PHONE, (), PHONE.replace(" on", " off"), "left out"),
    (PHONE, (), PHONE.replace("none", "good"), "left out"),
    ('It says: "MMS can be sent."', (), 'It says: "MMS cannot be sent."', "left"),
    ("Fair point. I partly agree.", (), "Fair point. I agree.", ": partly$"),
    ("I agree.", (), "I strongly agree.", "not say: strongly"),
    ("I disagree.", (), "I agree.", ": disagree$"),
    ("That is the best option.", (), "That is not the best option.", "it denied"),
    (BREAKFAST, (BREAKFAST,), "I eat meat and milk.", "no longer denies"),
    ("I am abroad.", ("abroad",), "I'm not abroad.", "it denied"),
    ("Only [search] test is possible.", (), "Only a test search.", r": \[search\]$"),
    ("My id is mia_li_3668.", (), "Mia.", ": mia_li"),
    ("From JFK to LAX.", (), "From LAX.", ": JFK$"), ("Its title is 'Buy milk'.", (), "Buy it with milk.", ": Buy milk$"),
    ("I want to return the vacuum cleaner and the hiking boots.", (), "I want to talk to the manager.", "left out most")])
def test_what_drops_or_turns_a_fact_fails(draft, disclosed, reply, why):
    assert re.search(why, unfaithful(draft, disclosed, reply)) and unfaithful(draft, disclosed, draft) == ""


@pytest.mark.parametrize("draft, said, reply, made_up", [
    ("What shall I do?", (), "My zip code is 80488. What shall I do?", "80488"),
    ("What shall I do?", (), "It is order #W2378156, what now?", "W2378156"),
    ("Can you say that differently?", (), "I am mia_li_3668, say that again.", "mia_li_3668"),
    ("Can you say that differently?", (), "Write to mia@example.com.", "mia@example.com"),
    ("Okay. And now?", (), "I fly to JFK. And now?", "JFK"), ("Okay. And now?", (), "I have four bags. And now?", "four"),
    ("Okay. And now?", ("Is it 555-1234?",), "It is 555-4321. And now?", "555-4321"),
    ("Yes, add 2 GB please.", (), "Yes, add 2 GB please, and 3 GB later.", "3")])
def test_what_nobody_has_told_is_refused(draft, said, reply, made_up):
    assert unfaithful(draft, (), reply, said) == f"it must not say what nobody has told: {made_up}"
    assert unfaithful(draft, (), reply, (*said, f"Is it {made_up}?")) == ""


@pytest.mark.parametrize("reply", ["OK. And now? This is SO annoying, and NOT nice.", "Okay, one moment. And now?",
                                   "I'd wait. What now?"])
def test_what_states_no_value_makes_up_none(reply):
    assert invented(reply, ()) == [] and unfaithful("Okay. And now?", (), reply) == ""


def test_numbers_stand_for_what_has_to_be_said_word_for_word():
    class Client:
        identity = {"model": "m"}

        async def complete(self, messages):
            return self.text

    client, reading = Client(), "Wi-Fi is on. Status bar: signal none, 5G."
    user = role_play(client)
    assert numbered(PHONE, ()) == 'It says: "[1]" This is annoying.'
    assert f"Say [1]: {reading}" in scenario("", (), PHONE).splitlines()
    assert numbered("Great, it works. ###STOP###", ()) == "Great, it works. ###STOP###"
    assert numbered("Take 40 of 400, or 4.", ("4",)) == "Take [1] of [2], or 4."
    words = Words(draft=PHONE, disclosed=(), secrets=(), opening="", agent_text="And?", seed=0, group_seed=0)
    for client.text, spoken in (('So: "[1]"', (f'So: "{reading}"', "llm")), (PHONE, (PHONE, "llm")),
                                ('It says: "[2]"', (PHONE, "draft")), ("[0]", (PHONE, "draft"))):
        assert asyncio.run(speak(user, user.knobs, words))[:2] == spoken


def test_a_user_repeats_what_was_said_and_tells_nothing_else():
    """What an LLM user may repeat: its request, what it has told, and what either has said."""
    class Client:
        identity = {"model": "m"}

        async def complete(self, messages):
            return f"Sorry, {self.value}? And now?"

    client = Client()
    words = Words(draft="Okay. And now?", disclosed=(), secrets=(), opening="My line 7 is dead.", seed=0, group_seed=0,
                  agent_text="Is it 11 or 12?", known=("555-1234",),
                  history=(("user", "My line 7 is dead."), ("agent", "And 21?"), ("user", "Yes.")))
    for user in (llm(client), role_play(client)):
        for client.value, spoke in (("7", "llm"), ("12", "llm"), ("21", "llm"), ("555-1234", "llm"), ("13", "draft")):
            assert asyncio.run(speak(user, user.knobs, words)).spoke == spoke, client.value


@functools.cache
def drafts(name):
    """{a reply that a user words: the values it may tell}, in play with the expert, the novice and random acts."""
    env, tasks = built_in(name, 8)
    pinned = Pinned({"env": env.knobs, "user": symbolic.knobs, "rl": {}}, compile_rules(env.rules, env.features), 0)
    world, found = simulator(env, symbolic, tasks), {}
    for number in range(8):
        rng = np.random.default_rng(number)
        for agent in (lambda task, state, _: env.expert(task, state, rng), lambda task, state, _: env.novice(task,
    state, rng),
                      random_agent(name, rng)):
            for _, _, step, text in episode(world, pinned, number, number, agent):
                if not step.tool and not step.done:
                    found[text] = env.disclosed(tasks[number], int(step.disclosed), number)
    return found


@pytest.mark.parametrize("name", sorted(ENVS))
def test_drafts_of_every_environment(name):
    assert drafts(name)
    loud = noisy.Knobs().replace(paraphrase=1.0, leak=0.0)
    for draft, values in drafts(name).items():
        assert unfaithful(draft, values, draft) == "" and spelled(numbered(draft, values), draft, values) == draft
        for seed in range(6):
            words = Words(draft=draft, disclosed=values, secrets=(), opening="", agent_text="", seed=seed, group_seed=0)
            said, _ = asyncio.run(noisy.voice(loud, words))
            assert unfaithful(draft, values, said) == "", said
        for answer in ("no", "yes", "maybe"):
            same = verdict(opening(draft)) == answer and not any(facts(draft, values))
            assert same == (unfaithful(draft, values, f"{answer.capitalize()}.") == ""), draft
        for number in re.findall(r"\d+", draft):
            assert unfaithful(draft, values, re.sub(rf"\d*{number}\d*", "", draft)), (draft, number)


@pytest.mark.parametrize("name", sorted(ENVS))
def test_a_server_that_always_says_no_is_heard_only_where_the_draft_says_no(name):
    with chat_server() as server:
        server.script = [(200, completion("No."))]
        client = ChatClient(server.base_url, "m", max_retries=0)
        for user in (llm(client), role_play(client)):
            for draft, values in list(drafts(name).items())[:6]:
                words = Words(draft=draft, disclosed=values, secrets=(), opening="Hello.", agent_text="[action] Well?",
                              seed=0, group_seed=0)
                said = asyncio.run(speak(user, user.knobs, words))
                no = verdict(opening(draft)) == "no" and not any(facts(draft, values))
                assert (said.text, said.spoke) == (("No.", "llm") if no else (draft, "draft")), draft
