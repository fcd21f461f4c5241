"""tau2-bench airline, retail and mock as worlds: gold replay, endings, the symbolic user, hostile agents, leaks.

Four gold writes of retail have no effect, as upstream too: tasks 22 and 110 set an address that already stands, 64 and
105 ask for an exchange that the tools decline. In task 105 it is the only one, so doing nothing solves it.
"""

import json
import random
import time

import numpy as np
import pytest
from nulls import KINDS, agents

from eau_jax.core.part import Floor, Kind, Reply
from eau_jax.core.types import StopReason
from eau_jax.envs.tau2 import data as tau2_data
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.tau2.agent import HANDOVER, REFUSAL, tool_call
from eau_jax.envs.tau2.call import call
from eau_jax.envs.tau2.database import View
from eau_jax.envs.tau2.evaluate import evaluate, gold, start
from eau_jax.envs.tau2.floor import floor
from eau_jax.envs.upstream_files import FILES, check, described
from eau_jax.envs.tau2.plan import plan
from eau_jax.envs.tau2.user import Do, Say, secrets, words
from eau_jax.envs.tau2.world import world
from eau_jax.rollout.simulator import simulator
from eau_jax.users.rules import compile_rules
from eau_jax.users.symbolic import symbolic
from eau_jax.users.voice import leaks

NAMES = ("airline", "retail", "mock")
IDLE = {("retail", "22"), ("retail", "64"), ("retail", "105"), ("retail", "110")}    # a gold write without effect


@pytest.fixture(scope="module")
def domains(shared_data):
    folder = shared_data / "tau2"
    if not folder.is_dir():
        pytest.skip("tau2-bench's files are not here")
    return {name: tau2_data.load(folder / name) for name in NAMES}


@pytest.fixture(scope="module")
def worlds_of(domains):
    return {name: world(domain) for name, domain in domains.items()}


def knobs(env, **changes):
    return env.knobs.replace(**{name: np.asarray(value, getattr(env.knobs, name).dtype) for name, value in changes.items()})


def play(env, task, agent, settings=None, reply=None, seed=0, heard=None):
    """[(agent's text, act, time step, reply)], last state; replies are added to `heard`.

    The user leaves when patience is gone, as the rules say.
    """
    settings = env.knobs if settings is None else settings
    table, rng, lines = env.table((task,)), np.random.default_rng(seed), []
    state = env.reset(table, settings, 0, seed)
    while not state.done:
        text = agent(task, state, rng)
        act = env.parse(task, text, state)
        features = dict(zip(env.features, env.observe(table, settings, state, act).tolist()))
        decided = Reply.LEAVE if features["patience"] <= 0 else Reply.ANSWER if reply is None else reply
        state, step = env.step(table, settings, state, act, np.int32(decided), None)
        lines.append((text, act, step, env.render(task, act, step, state, seed + len(lines))))
        assert len(lines) <= 200
        if heard is not None:
            heard.append(lines[-1][3])
    return lines, state


def saying(*messages):
    return lambda task, state, rng: messages[min(state.turn, len(messages) - 1)]


def find(domain, name):
    return next(task for task in domain.tasks if task.id == name)


def replay(domain, task, actions):
    begin = start(domain, task)
    changed, calls = begin.changed, list(begin.calls)
    for action in actions:
        changed = call(domain.tools, domain.base, changed, action["name"], action["arguments"]).changed
        calls.append((action["name"], action["arguments"]))
    said = [*begin.said, *(task.data["evaluation_criteria"].get("communicate_info") or ())]
    return evaluate(domain, task, gold(domain, task, begin), changed, calls, said)


@pytest.mark.parametrize("name, count", [("airline", 50), ("retail", 114)])
def test_gold_replay_is_worth_1_and_any_write_less_or_more_0(domains, name, count):
    domain, solved = domains[name], 0
    for task in domain.tasks:
        actions = task.data["evaluation_criteria"].get("actions") or []
        solved += replay(domain, task, actions).reward
        writes = [place for place, action in enumerate(actions) if domain.tools[action["name"]].kind == "write"]
        less = [replay(domain, task, actions[:place] + actions[place + 1:]).reward for place in writes]
        assert sum(less) == ((name, task.id) in IDLE), (task.id, less)
        assert replay(domain, task, actions + [_another(domain, plan(domain, task).user_id)]).reward == 0.0, task.id
    assert solved == count == len(domain.tasks)


def _another(domain, user_id):
    """A write that no task asks for."""
    if domain.name == "airline":
        return {"name": "send_certificate", "arguments": {"user_id": user_id, "amount": 1}}
    place = {"address1": "0 Nowhere", "address2": "", "city": "X", "state": "Y", "country": "Z", "zip": "00000"}
    return {"name": "modify_user_address", "arguments": {"user_id": user_id, **place}}


@pytest.mark.parametrize("name, agent, expected", [
    ("airline", "expert", 50), ("retail", "expert", 114), ("mock", "expert", 10),
    ("airline", REFUSAL, 23), ("retail", REFUSAL, 7), ("airline", "Is there anything else?", 23),
    ("airline", "hello", 0), ("retail", "hello", 0), ("airline", "", 0),
    ("airline", "You are being transferred to a human agent.", 23), ("retail", "Please hold on.", 7)])
def test_what_scripted_agents_score(domains, worlds_of, name, agent, expected):
    env = worlds_of[name]
    agent = env.expert if agent == "expert" else saying(agent)
    ends = [play(env, task, agent)[1] for task in domains[name].tasks]
    assert sum(env.score(None, state, 0.0) for state in ends) == expected


TRANSFER = tool_call("transfer_to_human_agents", {"summary": "x"})


@pytest.mark.parametrize("name, stated, reached", [("airline", 0.54, 16 / 30), ("retail", 0.07, 5 / 74), ("mock", 0.2, 0.2)])
def test_the_floor_is_what_agents_that_do_not_try_reach(domains, worlds_of, name, stated, reached):
    """On every split; upstream's train splits have the largest share of tasks that nothing has to be done for."""
    env, domain, best = worlds_of[name], domains[name], 0.0
    assert env.floor == Floor(idle=stated)
    for said in ((REFUSAL,), (TRANSFER, HANDOVER), ("Is there anything else?",), ("###STOP###",), ("",)):
        agent = saying(*said)
        won = {task.id: env.score(task, play(env, task, agent)[1], 0.0) for task in domain.tasks}
        means = [np.mean([won[task.id] for task in domain.split(split)]) for split in domain.splits]
        best = max(best, *means, np.mean(list(won.values())))
    assert best == pytest.approx(reached) and best <= stated
    for kind in KINDS:    # without their tags: here everything but a tool call is words
        for agent in agents(kind, tags=("action",)).values():
            found = []
            for task in domain.tasks[::9]:
                seen = list(env.prompt(task))
                said = lambda task, state, rng: agent(seen, state.turn).removeprefix("[action] ")
                found.append(env.score(task, play(env, task, said, heard=seen)[1], 0.0))
            assert np.mean(found) - 2 * np.std(found) / len(found) ** 0.5 <= getattr(env.floor, kind), (kind, np.mean(found))


def test_a_floor_follows_the_domains_tasks(domains):
    """One task less that nothing has to be done for, and the floor is lower; gold writes that do nothing count."""
    domain = domains["retail"]
    assert floor(domain, [task for task in domain.tasks if task.id == "105"]) == Floor(idle=1.0)
    assert floor(domain, [task for task in domain.tasks if task.id == "0"]) == Floor(idle=0.0) == floor(domain, [])


def test_the_novice_is_mediocre(domains, worlds_of):
    for name, low, high in (("airline", 0.5, 0.85), ("retail", 0.35, 0.75)):
        env, tasks = worlds_of[name], domains[name].tasks
        score = np.mean([env.score(task, play(env, task, env.novice, seed=n)[1], 0.0) for n, task in enumerate(tasks)])
        assert low < score < high, (name, score)


def test_114_retail_episodes_through_the_rollouts_simulator(domains, worlds_of):
    env, tasks = worlds_of["retail"], domains["retail"].tasks
    played = simulator(env, symbolic, tasks)
    settings, rules = {"env": env.knobs, "user": symbolic.knobs}, compile_rules(env.rules, env.features)
    begin, total, rng = time.monotonic(), 0.0, np.random.default_rng(0)
    for index, task in enumerate(tasks):
        state, turn = played.reset(settings, index, index), 0
        while not state.done:
            act = env.parse(task, env.expert(task, state, rng), state)
            state, step, _ = played.step(settings, rules, state, act, index, turn)
            assert env.render(task, act, step, state, turn)
            total, turn = total + float(step.reward), turn + 1
    assert total == 114 and played.traces["respond"] == 1
    assert time.monotonic() - begin < 10


def test_one_episode_word_by_word(domains, worlds_of):
    """Retail task 0: name and zip, look-up, proposal, call, goodbye."""
    env, task = worlds_of["retail"], find(domains["retail"], "0")
    swap = dict(order_id="#W2378156", item_ids=["1151293680", "4983901480"], new_item_ids=["7706410293", "7747408585"],
                payment_method_id="credit_card_9513926")
    wrong = "Shall I exchange 1151293680 for 7706410293 and pay with paypal_0000000? (yes/no)"
    lines, state = play(env, task, saying(
        "Hi! How can I help you?", "What is your name and zip code?", "And your e-mail?", "What is your order number?",
        tool_call("get_order_details", {"order_id": "#W0"}), wrong,
        f"I will exchange them, {json.dumps(swap)}. Do you confirm?", tool_call("exchange_delivered_order_items", swap),
        "It has been exchanged. Anything else?"))
    replies = [line[3] for line in lines]
    assert env.prompt(task)[1] == "Hello. I would like to exchange something I received."
    assert "Mechanical Keyboard" in replies[0] and "clicky" in replies[0] and "#W2378156" not in replies[0]
    assert replies[1] == "My name is Yusuf Rossi. My zip code is 19122."
    assert replies[2] == "I do not know the e-mail address."
    assert replies[3] == "It is #W2378156."
    assert replies[4] == "Error: Order not found" and bool(lines[4][2].tool)
    assert replies[5].startswith("No. I would like to exchange") and "credit card ending in 2478" in replies[5]
    assert replies[6].startswith("Yes") and '"exchange requested"' in replies[7]
    assert replies[8].endswith("###STOP###") and bool(lines[8][2].success) and len(lines) == 9
    assert state.outcome.record == {"reward": 1.0, "basis": ["DB", "COMMUNICATE"],
                                    "components": {"DB": 1.0, "COMMUNICATE": 1.0}}
    assert [float(line[2].reward) for line in lines] == [0] * 8 + [1]


@pytest.mark.parametrize("agent, settings, stop", [
    (saying(""), {}, StopReason.PARSE_ERROR), (saying(tool_call("x", {})), {}, StopReason.TOOL_ERROR),
    (saying("hello"), {}, StopReason.USER_LEFT),
    (saying(tool_call("calculate", {"expression": "1"})), {}, StopReason.MAX_TURNS),
    (saying(REFUSAL), dict(insist_n=8, max_turns=3), StopReason.MAX_TURNS), (saying(REFUSAL), {}, StopReason.COMPLETED)])
def test_only_a_stop_by_the_user_is_scored(domains, worlds_of, agent, settings, stop):
    env = worlds_of["airline"]
    task = find(domains["airline"], "0")    # doing nothing solves it
    lines, state = play(env, task, agent, knobs(env, **settings))
    assert stop_reason(state.stop) is stop
    solved = float(stop is StopReason.COMPLETED)
    assert env.score(task, state, 0.0) == float(lines[-1][2].reward) == solved
    assert ("###STOP###" in lines[-1][3]) == (stop is StopReason.COMPLETED)


def test_after_the_end_nothing_happens(domains, worlds_of):
    env = worlds_of["airline"]
    task = domains["airline"].tasks[0]
    _, state = play(env, task, saying(REFUSAL))
    again, step = env.step(env.table((task,)), env.knobs, state, env.parse(task, REFUSAL, state), np.int32(0), None)
    assert again is state and bool(step.done) and float(step.reward) == 0.0


def test_the_knobs_do_what_they_say(domains, worlds_of):
    env, domain = worlds_of["retail"], domains["retail"]
    task = find(domain, "0")
    first = lambda text, **changes: play(env, task, saying(text, REFUSAL), knobs(env, **changes))[0]
    assert first("Shall I proceed with paypal_0000000?", correct_on_mismatch=0)[0][3] == "No, that is not what I want."
    assert "Yusuf Rossi" in first("Which items?", volunteer_id=1)[0][3]
    assert "Yusuf Rossi" not in first("Which items?")[0][3]
    assert len(first(REFUSAL, insist_n=3)) == 4
    several = find(domain, "101")
    told = lambda **changes: play(env, several, saying("What do you want to change?", REFUSAL), knobs(env, **changes))[0][0]
    assert int(told()[2].disclosed).bit_count() == 1 and int(told(reveal_goals=1)[2].disclosed).bit_count() == 3
    lines, state = play(env, several, _only_first(env), knobs(env, partial_credit=0.6))
    assert float(lines[-1][2].reward) == pytest.approx(0.2) and env.score(several, state, 0.0) == 0.0
    table = env.table((task,))
    asked = lambda strict: dict(zip(env.features, env.observe(table, knobs(env, confirm_strict=strict), env.reset(
        table, env.knobs, 0, 0), env.parse(task, "Shall I proceed?", None)).tolist()))
    assert asked(1)["strict"] == asked(1)["propose"] == 1 and asked(1)["fit"] == asked(0)["strict"] == 0
    silent = find(domain, "67")    # a refusal where something has to be said
    assert play(env, silent, saying(REFUSAL))[1].outcome.reward == 0.0
    assert play(env, silent, saying(REFUSAL), knobs(env, basis_communicate=0))[1].outcome.reward == 1.0
    assert play(env, task, saying(REFUSAL), knobs(env, basis_db=0))[1].outcome.reward == 1.0


def _only_first(env):
    def agent(task, state, rng):
        return env.expert(task, state, rng) if state.status[0] < 3 else REFUSAL
    return agent


@pytest.mark.parametrize("text, code", [
    ("What is your zip code?", Do.ASK), ("Please tell me the order number.", Do.ASK), ("May I have your e-mail?", Do.ASK),
    ("Do you confirm (yes/no)?", Do.PROPOSE), ("Shall I go ahead?", Do.PROPOSE), ("I cannot do that.", Do.REFUSE),
    ("This is not allowed under our policy.", Do.REFUSE), ("Is there anything else I can do?", Do.NEXT),
    ("Would you like me to help with anything else?", Do.NEXT), ("Your order has been cancelled.", Do.NEXT),
    ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", Do.TRANSFER), ("Let me check.", Do.OTHER)])
def test_what_words_mean(domains, worlds_of, text, code):
    assert worlds_of["retail"].parse(domains["retail"].tasks[0], text, None).code == code


def test_the_decisions_of_the_user(domains, worlds_of):
    env, task = worlds_of["retail"], find(domains["retail"], "0")
    for reply, say in ((Reply.WITHHOLD, Say.WITHHELD), (Reply.CLARIFY, Say.UNCLEAR), (Reply.VOLUNTEER, Say.VOLUNTEER),
                       (Reply.LEAVE, Say.LEFT)):
        line = play(env, task, saying("What is your zip code?"), reply=reply)[0][0]
        assert int(line[2].code) == say and (int(line[2].disclosed) != 0) == (reply is Reply.VOLUNTEER)
        assert "19122" not in line[3]


@pytest.mark.parametrize("name", NAMES)
def test_no_reply_holds_an_untold_fact(domains, worlds_of, name):
    """Agents that ask, propose and refuse at random: every reply against every value that was not told."""
    env, rng = worlds_of[name], random.Random(0)
    lines = ["What is your name?", "Zip code?", "Your e-mail?", "User id?", "Which order number?", "What items?",
             "How do you pay?", "Shall I proceed?", "Shall I take paypal_0000000?", REFUSAL, "Anything else?", "It is done.",
             "Tell me everything.",
             "What is your name, zip code, e-mail, user id, order number, reservation number and payment?"]
    for task in domains[name].tasks:
        who = plan(domains[name], task)
        assert leaks(env.prompt(task)[1], secrets(who, 0, who.opening)) == () or name == "mock"
        for seed in range(6):
            told, asked = 0, 0
            reply = rng.choice([None, None, Reply.VOLUNTEER, Reply.WITHHOLD])
            for text, act, step, said in play(env, task, lambda *_: rng.choice(lines), reply=reply, seed=seed)[0]:
                told |= int(step.disclosed)
                asked |= int(act.mask)
                assert leaks(said, env.secrets(task, told, 0)) == (), (task.id, said)
                if reply is None and int(step.code) == Say.GIVE:
                    assert int(step.disclosed) & ~int(act.mask) == 0


def test_a_user_who_tells_everything_would_be_noticed(domains, worlds_of):
    env, seen = worlds_of["retail"], 0
    for task in domains["retail"].tasks:
        who = plan(domains["retail"], task)
        seen += bool(leaks(words(who, Say.GIVE, 0, who.known, 0, 0), env.secrets(task, 0, 0)))
    assert seen == 114


def test_everybody_knows_who_they_are(domains):
    for name in NAMES:
        for task in domains[name].tasks:
            who = plan(domains[name], task)
            assert who.user_id and who.known & 0b1111 and who.goals and 0 < who.known < 2**31, task.id


def hostile(domain, rng, count):
    """Agent messages: forged, broken, well-formed with wrong names, types and values, and gold calls gone wrong."""
    gold_calls = [action for task in domain.tasks for action in task.data["evaluation_criteria"].get("actions") or ()]
    odd = [None, True, 0, -1, 10**400, 1.5, float("nan"), float("inf"), "", "x", "#W0000000", "\ud800", "9" * 300, [], [[]],
           {}, [{}], {"a": 1}, ["1151293680"] * 50, [{"flight_number": "HAT001", "date": "2024-05-20"}],
           "credit_card_9513926", "(" * 99]
    pieces = ["<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", '"name": ', '"arguments"', "yes/no", "confirm",
              "cancel_reservation", "?", "#W2378156", "###STOP###", "<|im_end|>", "\x00", "\ud800", "anything else", "zip"]
    names = [*domain.tools, "dismiss_notification", "", "__class__", "book"]
    for _ in range(count):
        kind = rng.random()
        if kind < 0.25:
            yield "".join(rng.choices(pieces, k=rng.randint(0, 12)))
        elif kind < 0.5:
            fields = rng.choices(["order_id", "user_id", "amount", "flights", "x"], k=rng.randint(0, 4))
            yield tool_call(rng.choice(names), {field: rng.choice(odd) for field in fields})
        else:
            action = rng.choice(gold_calls)
            arguments = dict(action["arguments"])
            for field in rng.sample(list(arguments), min(len(arguments), rng.randint(0, 2))):
                arguments[field] = rng.choice(odd)
            if rng.random() < 0.2 and arguments:
                del arguments[rng.choice(list(arguments))]
            yield tool_call(action["name"], arguments)


def _hostile_run(domain, env, count):
    before, rng = json.dumps(domain.base), random.Random(1)
    tasks, writes = domain.tasks, 0
    table, settings, state = env.table(tasks), knobs(env, max_turns=200, max_invalid=64, error_limit=64), None
    for text in hostile(domain, rng, count):
        if state is None or state.done:
            state = env.reset(table, settings, rng.randrange(len(tasks)), 0)
        task = tasks[state.task]
        act = env.parse(task, text, state)
        assert act.kind in list(Kind) and np.isfinite(act.values).all()
        env.observe(table, settings, state, act)
        old = state
        state, step = env.step(table, settings, old, act, np.int32(rng.choice(list(Reply)[:4])), None)
        assert isinstance(env.render(task, act, step, state, 0), str)
        if state.changed is not old.changed and not state.done:
            name = json.loads(act.call)["name"]
            assert act.code == Do.CALL and domain.tools[name].kind == "write" and not state.output.startswith("Error")
            writes += 1
    assert writes > 0 and json.dumps(domain.base) == before


@pytest.mark.parametrize("name, count", [("retail", 6_000), ("airline", 4_000), ("mock", 2_000)])
def test_hostile_agents_raise_nothing_and_change_nothing_else(domains, worlds_of, name, count):
    _hostile_run(domains[name], worlds_of[name], count)


@pytest.mark.slow
@pytest.mark.parametrize("name, count", [("retail", 50_000), ("airline", 50_000)])
def test_100000_hostile_messages(domains, worlds_of, name, count):
    _hostile_run(domains[name], worlds_of[name], count)


def test_the_users_notification_and_history_in_mock(domains, worlds_of):
    env, domain = worlds_of["mock"], domains["mock"]
    task = find(domain, "update_task_with_user_tools")
    _, state = play(env, task, env.expert)
    assert View(domain.base, state.changed).get("notifications", "notif_1")["status"] == "read"
    assert state.outcome.basis == ("DB", "ACTION", "ENV_ASSERTION") and state.outcome.reward == 1.0
    assert play(env, task, saying(REFUSAL))[1].outcome.components == {"DB": 0.0, "ACTION": 0.0, "ENV_ASSERTION": 1.0}
    task = find(domain, "update_task_with_message_history")
    assert env.reset(env.table((task,)), env.knobs, 0, 0).changed["tasks", "task_2"]["title"] == "Project Review"
    assert "I need to create a task for the project review meeting." in env.prompt(task)[1]
    refusal = find(domain, "impossible_task_1")
    assert play(env, refusal, saying(REFUSAL))[1].outcome.components == {"DB": 1.0, "ACTION": 0.0}


def test_statements_are_judged_only_by_a_judge(domains, worlds_of):
    env, domain = worlds_of["retail"], domains["retail"]
    task = next(task for task in domain.tasks if task.data["evaluation_criteria"]["nl_assertions"])
    statements = task.data["evaluation_criteria"]["nl_assertions"]
    assert [env.basis(task, env.knobs, judged) for judged in (False, True)] == ["DB x COMMUNICATE", "DB x NL_ASSERTION"]
    assert env.basis(task, env.knobs.replace(basis_db=np.int32(0)), True) == "NL_ASSERTION"
    lines, state = play(env, task, env.expert)
    last = lines[-1][2]
    assert state.outcome.record["basis"] == ["DB", "COMMUNICATE"]
    table = env.table((task,))
    asked = env.verdict(table, env.knobs, state, last)
    for answer, met in (("true " * len(statements), 1.0), ("1. False " * len(statements), 0.0)):
        ruled, step = asked.read(answer)
        assert ruled.outcome.record["basis"] == ["DB", "NL_ASSERTION"] and ruled.outcome.reward == met
        assert float(step.reward) == met and bool(step.success) == bool(met) and bool(step.done)
    assert asked.read("true " * (len(statements) + 1)) is None and asked.read("true, I think") is None
    shown = asked.messages[-1]["content"]
    assert all(statement in shown for statement in statements) and '"role": "tool"' in shown
    assert env.verdict(table, env.knobs, env.reset(table, env.knobs, 0, 0), last) is None, "the user has not ended it"


def test_a_basis_of_statements_without_any_needs_no_answer(domains, worlds_of):
    env, domain = worlds_of["retail"], domains["retail"]
    task = next(task for task in domain.tasks if "NL_ASSERTION" in task.data["evaluation_criteria"]["reward_basis"]
                and not task.data["evaluation_criteria"]["nl_assertions"])
    lines, state = play(env, task, env.expert)
    last = lines[-1][2]
    asked = env.verdict(env.table((task,)), env.knobs, state, last)
    assert asked.messages == [] and asked.read("")[0].outcome.record["basis"] == ["DB", "NL_ASSERTION"]
    airline = domains["airline"]
    lines, state = play(worlds_of["airline"], airline.tasks[0], worlds_of["airline"].expert)
    assert worlds_of["airline"].verdict(worlds_of["airline"].table((airline.tasks[0],)), env.knobs, state, lines[-1][2]) is None


def test_the_system_text_holds_policy_and_schemas_and_no_task(domains, worlds_of):
    for name in NAMES:
        systems = {worlds_of[name].prompt(task)[0] for task in domains[name].tasks}
        assert len(systems) == 1
        text = systems.pop()
        assert domains[name].policy.strip() in text and all(json.dumps(tool.schema) in text
                                                            for tool in domains[name].tools.values())


def test_folders(domains, tmp_path, shared_data):
    assert [len(domains["airline"].split(name)) for name in ("train", "test", "base")] == [30, 20, 50]
    assert [len(domains["retail"].split(name)) for name in ("train", "test", "base")] == [74, 40, 114]
    assert tau2_data.load(shared_data / "tau2" / "retail") is domains["retail"], "parsed once"
    with pytest.raises(ValueError, match="split 'dev'; allowed: "):
        domains["retail"].split("dev")
    with pytest.raises(ValueError, match="expected a folder named airline, retail or mock"):
        tau2_data.load(tmp_path)
    folder = tmp_path / "retail"
    folder.mkdir()
    with pytest.raises(TaskFileError, match="db.json: no such file"):
        tau2_data.load(folder)
    (folder / "db.json").write_text('{"users": {},\n oops}')
    with pytest.raises(TaskFileError, match="db.json, line 2: not JSON"):
        tau2_data.load(folder)
    (folder / "db.json").write_text('{"users": {}, "orders": {}}')
    with pytest.raises(TaskFileError, match="db.json, field products: expected an object of records, found nothing"):
        tau2_data.load(folder)
    (folder / "db.json").write_text('{"users": {"ann_lee_1": {"user_id": "ann_lee_1"}}, "orders": {}, "products": {}}')
    with pytest.raises(TaskFileError, match="db.json, field users.ann_lee_1.name: expected an object, found nothing"):
        tau2_data.load(folder)
    (folder / "db.json").write_text('{"users": {}, "orders": {}, "products": {}}')
    (folder / "policy.md").write_text("Be kind.")
    (folder / "tasks.json").write_text('[{"id": "0", "user_scenario": {"instructions": "x"},\n "evaluation_criteria": 1}]')
    with pytest.raises(TaskFileError, match="tasks.json, line 1, field evaluation_criteria: expected an object, found 1"):
        tau2_data.load(folder)


def test_the_list_of_upstream_files(domains, shared_data, tmp_path):
    whole = check(shared_data, "tau2/")
    assert whole.complete and len(whole.good) == 27 and "all 27 files are upstream's" in described(whole, shared_data)
    assert domains["retail"].digests == {name.split("/")[-1]: digest for name, digest in FILES.items()
                                         if name.startswith("tau2/retail/")}
    (tmp_path / "tau2/mock").mkdir(parents=True)
    (tmp_path / "tau2/mock/db.json").write_text("{}")
    found = check(tmp_path, "tau2/mock/")
    assert found.different == ("tau2/mock/db.json",) and len(found.missing) == 5 and not found.complete
    text = described(found, tmp_path)
    assert "from https://github.com/sierra-research/tau2-bench at a2c0247" in text
    assert "different: tau2/mock/db.json    upstream: data/tau2/domains/mock/db.json" in text
    assert "(there is no such folder)" in described(check(tmp_path / "none"), tmp_path / "none")
    with pytest.raises(ValueError, match="part 'tau3/'; allowed: "):
        check(tmp_path, "tau3/")
