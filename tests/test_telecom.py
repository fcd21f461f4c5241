"""Telecom: upstream's gold calls, a plain-Python oracle, the user's dialogue machine, the lexicon, leaks, null agents."""

import copy
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.telecom import Handset
from play import WORLDS, built_in, play, script, turn

from eau_jax.core.part import Act, Reply
from eau_jax.core.types import StopReason, Task
from eau_jax.envs.telecom import tasks as telecom_tasks
from eau_jax.envs.ending import stop_reason
from eau_jax.envs.file import TaskFileError
from eau_jax.envs.telecom.telecom import telecom, telecom_solo
from eau_jax.envs.telecom.agents import called, tool_call, words
from eau_jax.envs.telecom.goal import faults, met
from eau_jax.envs.telecom.parse import FACTS, LOCATION, NAME, PHONE, REFUEL, SEVERAL, parse
from eau_jax.envs.telecom.records import Call, encode
from eau_jax.envs.telecom.schema import AGENT_TOOLS, PHONE_TOOLS
from eau_jax.envs.telecom.start import apply, arrays, gold, padded
from eau_jax.envs.telecom.codes import Do
from eau_jax.envs.telecom.tools import (
    BILL_STATUS, CONNECTIONS, LINE_STATUS, MODES, SIGNALS, TECHS, TOGGLE, agent_tool, nibble, phone_tool, sends_mms,
    speed)
from eau_jax.users.rules import compile_rules
from eau_jax.users.voice import leaks

HELLO = tool_call("get_bills_for_customer", customer_id="C11")


def knobs(**changes):
    return telecom.knobs.replace(**{k: np.asarray(v, getattr(telecom.knobs, k).dtype) for k, v in changes.items()})


def problem(intent, *names, persona="None"):
    """A task about Ann Lee, 555-0001, with these faults of the generator."""
    rng = np.random.default_rng(0)
    starts = [("user", "set_user_info", {"name": "Ann Lee", "phone_number": "555-0001"})]
    ids = {"{c}": "C11", "{l}": "L11", "{b}": "B112"}
    fill = lambda action: {k: ids.get(v, v) if isinstance(v, str) else v for k, v in action.items()}
    mends = []
    for name in names:
        starts += telecom_tasks.FAULTS[name][0]
        mends += telecom_tasks.FAULTS[name][1]
    hopeless = bool({"lock", "contract"} & set(names))
    mends = [("assistant", "transfer_to_human_agents", {"summary": "x"})] if hopeless else mends
    data = {"id": f"t[PERSONA:{persona}]", "ticket": "Mend it.", "initial_state": {
                "initialization_actions": [dict(env_type=s, func_name=n, arguments=fill(a)) for s, n, a in starts]},
            "evaluation_criteria": {
                "actions": [dict(requestor=s, name=n, arguments=fill(a), compare_args=[] if hopeless else None)
                            for s, n, a in mends],
                "env_assertions": telecom_tasks._assertions(intent, list(names), hopeless, ids),
                "reward_basis": ["ENV_ASSERTION", "ACTION"] if hopeless else ["ENV_ASSERTION"]},
            "db": telecom_tasks._company(11, "Ann Lee", "555-0001", rng), "user_db": telecom_tasks.USER_DB}
    return Task(id="t", env="telecom", data=data)


def rewards(lines):
    return [line.reward for line in lines]


def replay(tasks, lists):
    """(whether all assertions hold, faults left) after the calls, one compiled batch."""
    fixed, world, goal = arrays([task.data for task in tasks])

    def one(fixed, world, goal, calls):
        last, _ = jax.lax.scan(lambda w, call: (apply(jnp, fixed, w, *call), None), world, calls)
        transferred = (calls[0] == Do.TRANSFER_TO_HUMAN_AGENTS).any()
        return met(jnp, fixed, last, goal, transferred), faults(jnp, fixed, last, goal.intent)
    return jax.device_get(jax.jit(jax.vmap(one))(fixed, world, goal, padded(lists)))


@pytest.fixture(scope="module")
def upstream(shared_data):
    return telecom_tasks.load(shared_data / "tau2/telecom")


def test_all_gold_lists_meet_their_assertions(upstream):
    lists = [gold(task.data) for task in upstream]
    good, left = replay(upstream, lists)
    assert len(upstream) == 2285 and good.all()
    hopeless = np.array(["ACTION" in task.data["evaluation_criteria"]["reward_basis"] for task in upstream])
    assert hopeless.sum() == 32 and (left[~hopeless] == 0).all()
    nothing, _ = replay(upstream, [calls[:0] for calls in lists])
    assert not nothing.any(), "a task is solved by doing nothing"


@pytest.mark.slow
def test_every_upstream_task_is_solved_in_conversation(upstream):
    """The gold calls as the user machine sees them: one batch of whole conversations, switches asked for by wanted state."""
    lists = [[*gold(task.data), Call(Do.ASK_SOLVED), Call(Do.ANNOUNCE)] for task in upstream]
    code, a, b, c, amount = padded(lists)
    acts = Act(kind=np.zeros_like(code), code=code, mask=np.zeros_like(code), flags=np.zeros_like(code),
               values=np.stack([a, b, c, amount], -1).astype(np.float32))
    table, rules = telecom.table(upstream), compile_rules(telecom.rules, telecom.features)
    state = jax.vmap(lambda k: telecom.reset(table, telecom.knobs, k, None))(jnp.arange(len(upstream)))
    total, step = np.zeros(len(upstream)), jax.jit(jax.vmap(turn(telecom), (None, None, None, 0, 0, None)))
    for t in range(code.shape[1]):
        act = jax.tree.map(lambda x: x[:, t], acts)
        state, time_step, *_ = step(table, telecom.knobs, rules, state, act, jax.random.key(0))
        total += time_step.reward
    assert (total == 1).all() and np.asarray(state.solved).all()


def test_each_gold_call_is_needed(upstream):
    """One call left out, drawn for each task; of two reboots the first is not needed."""
    rng = np.random.default_rng(0)
    lists = [gold(task.data) for task in upstream]
    places = [int(rng.integers(len(calls))) for calls in lists]
    short = [calls[:k] + calls[k + 1:] for calls, k in zip(lists, places)]
    reboots = [[call.code == Do.REBOOT_DEVICE for call in calls] for calls in lists]
    spare = [row[k] and sum(row) == 2 for row, k in zip(reboots, places)]
    good, _ = replay(upstream, short)
    assert not good[~np.array(spare)].any()


def _snapshot(handset):
    """The oracle's state under the array simulator's names."""
    switch, company = handset.switch, handset.company
    lines = [company.find("lines", "line_id", line) for line in company.customer["line_ids"]]
    return dict(
        sim_missing=switch["sim_card_missing"], airplane=switch["airplane_mode"], data=switch["data_enabled"],
        roaming=switch["roaming_enabled"], wifi=switch["wifi_enabled"], wifi_connected=switch["wifi_connected"],
        wifi_calling=switch["wifi_calling_enabled"], wifi_mms=switch["wifi_calling_mms_over_wifi"],
        saver=switch["data_saver_mode"], vpn=switch["vpn_connected"], signal=SIGNALS.index(handset.signal),
        tech=TECHS.index(handset.technology), connection=CONNECTIONS.index(handset.status), mode=MODES.index(handset.mode),
        apn_broken=handset.apn["name"] == "broken", apn_reset=handset.apn["reset"], mmsc=handset.apn["mmsc"] is not None,
        apps=sum(int(on) << k for k, on in enumerate([*handset.apps["messaging"].values(),
                                                      *handset.apps["browser"].values()])),
        lines=[LINE_STATUS.index(line["status"]) for line in lines], refuel=[line["data_refueling_gb"] for line in lines],
        line_roaming=sum(int(line["roaming_enabled"]) << k for k, line in enumerate(lines)),
        bills=sorted(BILL_STATUS.index(bill["status"]) for bill in company.own_bills()),
        mbps=-1.0 if handset.megabits() is None else handset.megabits(), mms=handset.can_mms())


def _draw_call(task, rng):
    """A random tool call by name: right and wrong ids, every tool."""
    names = [*AGENT_TOOLS, *PHONE_TOOLS]
    name = names[int(rng.integers(len(names)))]
    do = (AGENT_TOOLS | PHONE_TOOLS)[name]
    a = int(rng.choice([0, 0, 0, 1, 2, 5, -1]))
    text = called(task, do, a, int(rng.integers(4)), int(rng.integers(2)), float(rng.choice([1.0, 2.0, 2.0, 0.0, -1.0])))
    call = json.loads(text[len("<tool_call>"):-len("</tool_call>")])
    return call["name"], call["arguments"]


def _walk(tasks, steps, seed, phone=phone_tool):
    rng = np.random.default_rng(seed)
    calls = [[_draw_call(task, rng) for _ in range(steps)] for task in tasks]
    encoded = [[encode(task.data, name, arguments, AGENT_TOOLS | PHONE_TOOLS) for name, arguments in row]
               for task, row in zip(tasks, calls)]
    assert all(call is not None for row in encoded for call in row)
    fixed, start, _ = arrays([task.data for task in tasks])

    def one(fixed, world, calls):
        def step(world, call):
            world, failed = agent_tool(jnp, fixed, world, call[0], call[1], call[4])
            world, _ = phone(jnp, fixed, world, *call[:4])
            return world, (world, failed, speed(jnp, fixed, world), sends_mms(jnp, fixed, world))
        return jax.lax.scan(step, world, calls)[1]
    worlds, failed, mbps, mms = jax.device_get(jax.jit(jax.vmap(one))(fixed, start, padded(encoded)))
    for n, task in enumerate(tasks):
        handset = Handset(task.data)
        for t, (name, arguments) in enumerate(calls[n]):
            refused = handset.call(name, arguments)
            expected, world = _snapshot(handset), jax.tree.map(lambda x: x[n, t], worlds)
            where = f"{task.id}, call {t}: {name}({arguments})"
            assert bool(failed[n, t]) == refused, where
            assert bool(mms[n, t]) == expected.pop("mms"), where
            np.testing.assert_allclose(mbps[n, t], expected.pop("mbps"), rtol=1e-5, err_msg=where)
            refuel = expected.pop("refuel")
            np.testing.assert_allclose(world.refuel[:len(refuel)], refuel, rtol=1e-6, err_msg=where)
            assert [int(nibble(world.lines, k)) for k in range(3)][:len(expected["lines"])] == expected.pop("lines"), where
            bills = sorted(int(nibble(world.bills, k)) for k in range(6))
            assert bills[-len(expected["bills"]):] == expected.pop("bills"), where
            for field, value in expected.items():
                assert getattr(world, field) == value, f"{where}: {field} is {getattr(world, field)}, not {value}"


def test_random_walks_agree_with_the_oracle():
    _walk(built_in("telecom", 150)[1], 30, 0)


def test_random_walks_on_upstream_tasks_agree_with_the_oracle(upstream):
    _walk(upstream[::20], 30, 1)


def _mutant(changed):
    """The phone's tools with one mistake: `changed(before, after, code)` are the fields that come out wrong."""
    def phone(xp, fixed, world, code, *arguments):
        after, acted = phone_tool(xp, fixed, world, code, *arguments)
        return after.replace(**changed(world, after, code)), acted
    return phone


MUTANTS = {
    "a poor VPN stays poor": lambda before, after, code: {"vpn_poor": before.vpn_poor},
    "a restart does not reset the APN": lambda before, after, code: {"apn_reset": before.apn_reset | after.apn_reset},
    "data is switched without a search": lambda before, after, code: {
        "connection": jnp.where(code == Do.TOGGLE_DATA, before.connection, after.connection)},
    "airplane mode keeps the VPN": lambda before, after, code: {
        "vpn": jnp.where(code == Do.TOGGLE_AIRPLANE_MODE, before.vpn, after.vpn)},
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_finds_mistakes(name):
    tasks = [problem("d", "vpn"), problem("s", "apn"), problem("s", "bill")] * 50
    with pytest.raises(AssertionError, match="call"):
        _walk(tasks, 30, 0, _mutant(MUTANTS[name]))


@pytest.mark.slow
def test_long_random_walks_on_every_upstream_task_agree_with_the_oracle(upstream):
    _walk(upstream, 25, 2)


def test_a_refuel_is_charged_to_the_draft():
    task = problem("m", "quota")
    fixed, world, _ = arrays([task.data])
    for amount in (2.0, 1.0):
        world, _ = agent_tool(np, fixed, world, *np.array([[Do.REFUEL_DATA], [0]]), np.array([amount]))
    np.testing.assert_allclose(world.charged, [[6.0, 0.0]])
    world = world.replace(bills=np.array([4]))  # the draft was paid: a new bill is opened
    world, _ = agent_tool(np, fixed, world, *np.array([[Do.REFUEL_DATA], [0]]), np.array([1.0]))
    np.testing.assert_allclose(world.charged, [[6.0, 2.0]])
    assert int(nibble(world.bills[0], 5)) == 1


def test_an_episode_by_hand():
    task = problem("m", "airplane", "line")
    lines = play(telecom, task, script(
        "What is your phone number?", tool_call("get_customer_by_phone", phone_number="555-0001"),
        "Please check the network status.", "Please turn airplane mode off.", "Are you abroad right now?",
        tool_call("enable_roaming", customer_id="C11", line_id="L11"), "Can you send a picture message now?"))
    assert rewards(lines) == [0, 0, 0, 0, 0, 0, 1] and lines[-1].success
    assert stop_reason(lines[-1].stop) is StopReason.COMPLETED and "###STOP###" in lines[-1].reply
    assert lines[0].reply == "My number is 555-0001." and lines[0].disclosed == PHONE
    assert json.loads(lines[1].reply)["full_name"] == "Ann Lee"
    assert lines[2].reply.startswith('It says: "Airplane mode on, SIM active, no_service, signal none')
    assert lines[3].reply == ('It says: "Airplane mode is now off. Status bar: signal excellent, 5G, data on." '
                              "This is annoying.")
    assert lines[4].reply == "I am abroad." and lines[5].reply == "Roaming is on for line L11."


def test_a_bill_is_paid_and_the_phone_restarted():
    task = problem("s", "bill")
    ids = dict(customer_id="C11")
    messages = (tool_call("send_payment_request", bill_id="B112", **ids), "Please check the payment request.",
                "Please pay the bill.", tool_call("resume_line", line_id="L11", **ids), "Please check the status bar.",
                "Please restart the phone.")
    lines = play(telecom, task, script(*messages))
    assert [line.reply for line in lines[:3]] == ["Payment request sent.", 'It says: "Payment request: bill B112."',
                                                  'It says: "The bill is paid." This is annoying.']
    assert "signal none" in lines[4].reply, "a resumed line needs a restart"
    assert lines[-1].success and len(lines) == 6
    unpaid = play(telecom, task, script(messages[3], messages[5]))
    assert "###STOP###" in unpaid[-1].reply and rewards(unpaid) == [0, 0], "service is back, but the bill is not paid"
    refused = play(telecom, task, script(*messages), knobs(pay_ok=0))
    assert refused[2].reply in ("I do not want that.", "No, I would rather not.") and not refused[-1].success


@pytest.mark.parametrize("fault", ["lock", "contract"])
def test_what_cannot_be_mended_is_transferred(fault):
    task, say = problem("s", fault), "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
    good = play(telecom, task, script(tool_call("transfer_to_human_agents", summary="x"), say))
    assert rewards(good) == [0, 1] and good[-1].reply == "Okay. ###TRANSFER###"
    silent = play(telecom, task, script(say))
    assert rewards(silent) == [0] and stop_reason(silent[0].stop) is StopReason.COMPLETED
    if fault == "contract":  # resuming the line against the policy gives service: the assertion fails
        resumed = play(telecom, task, script(tool_call("transfer_to_human_agents", summary="x"),
                                             tool_call("resume_line", customer_id="C11", line_id="L11"),
                                             "Please restart the phone."))
        assert rewards(resumed) == [0, 0, 0] and "###STOP###" in resumed[-1].reply


def test_a_poor_vpn_stays_in_its_own_episode():
    broken, whole = problem("d", "vpn"), problem("d", "saver")
    lines = play(telecom, broken, script("Please run a speed test.", "Please disconnect the VPN."))
    assert lines[0].reply == 'It says: "27.50 Mbps, good."' and lines[-1].success
    after = play(telecom, whole, script("Please connect the VPN.", "Please turn the data saver off."))
    assert after[-1].success, "another episode's VPN is as good as ever"
    again = play(telecom, broken, script("Please disconnect the VPN.", "Please connect the VPN."), knobs(self_check=0))
    assert again[1].reply.startswith('It says: "The VPN is connected.')
    assert play(telecom, broken, script("Disconnect the VPN.", "Please connect the VPN.", "Does it work now?"),
                knobs(self_check=0))[-1].success


@pytest.mark.parametrize("level, messages, ends", [
    (2, ["Please turn mobile data on."], True),
    (1, ["Please turn mobile data on."], False), (1, ["Please turn mobile data on.", "Please try to send an MMS."], True),
    (0, ["Please turn mobile data on.", "Please try to send an MMS."], False),
    (0, ["Please turn mobile data on.", "Does it work now?"], True)])
def test_when_the_user_tests_for_success(level, messages, ends):
    lines = play(telecom, problem("m", "data"), script(*messages, *[HELLO] * 40), knobs(self_check=level))
    assert lines[-1].success == ends and (len(lines) == len(messages)) == ends


def test_the_user_machine():
    task = problem("m", "data", "sms", persona="Hard")
    two = "Please turn mobile data on and check the status bar."
    several = play(telecom, task, script(two, "Please turn mobile data on."))
    assert several[0].reply in ("I can only do one thing at a time. What first?", "Please, one step at a time.")
    assert several[1].reply.startswith('It says: "Mobile data is now on.')
    assert play(telecom, task, script(two), knobs(one_action=0))[0].reply.startswith('It says: "Mobile data is now on.')
    already = play(telecom, task, script("Please turn Wi-Fi off."))
    assert already[0].reply.startswith('It says: "Wi-Fi was already off.')
    calm = play(telecom, task, script("Please turn mobile data on.", "Please restart the phone."),
                knobs(frustration_after=2))
    assert "annoying" not in calm[0].reply and "annoying" in calm[1].reply
    facts = play(telecom, task, script("What is your name and your phone number?", "Do you want to refuel data?"))
    assert facts[0].disclosed == NAME | PHONE and facts[0].reply == "My name is Ann Lee. My number is 555-0001."
    assert facts[1].reply == "Yes, add 2 GB please."
    volunteer = play(telecom, task, script("What is your name?"), knobs(volunteer_location=1))
    assert volunteer[0].disclosed == NAME | LOCATION
    stingy = play(telecom, task, script("Do you want to refuel data?"), knobs(refuel_ok=0))
    assert stingy[0].disclosed == 0 and stingy[0].reply in ("I do not want that.", "No, I would rather not.")
    puzzled = play(telecom, task, script("Please restart the phone.", "Please restart the phone."), knobs(hard_clarifies=1))
    assert puzzled[0].reply in ("How do I do that?", "I am not good with phones. What does that mean?")
    assert puzzled[1].reply.startswith('It says: "The phone has restarted.')
    assert play(telecom, task, script("Does it work?"))[0].reply in ("No, it still does not work.", "It is not solved yet.")


def test_limits():
    task = problem("m", "data")
    ending = lambda lines: stop_reason(lines[-1].stop)
    errors = play(telecom, task, script(*['<tool_call>{"name": "toggle_data"}</tool_call>'] * 40))
    assert ending(errors) is StopReason.TOOL_ERROR and len(errors) == 10
    broken = play(telecom, task, script(*["<tool_call>"] * 40))
    assert ending(broken) is StopReason.PARSE_ERROR and len(broken) == 3
    endless = play(telecom, task, script(*[HELLO] * 64))
    assert ending(endless) is StopReason.MAX_TURNS and len(endless) == 40
    impatient = play(telecom, task, script(*["Hm."] * 9), knobs(patience=2))
    assert ending(impatient) is StopReason.USER_LEFT and len(impatient) == 2
    tired = play(telecom, task, script(*["Please restart the phone."] * 9), knobs(max_tries=2))
    assert ending(tired) is StopReason.USER_LEFT and len(tired) == 3 and sum(rewards(tired)) == 0


def test_partial_credit_is_the_share_of_mended_faults():
    task, halfway = problem("m", "data", "sms"), ("Please turn mobile data on.", "You are being transferred.")
    np.testing.assert_allclose(rewards(play(telecom, task, script(*halfway), knobs(partial_credit=0.4))), [0, 0.2])
    assert sum(rewards(play(telecom, task, script(*halfway)))) == 0
    lines = play(telecom, task, script("<tool_call>", "Hm."), knobs(step_penalty=0.01, invalid_penalty=0.1))
    np.testing.assert_allclose(rewards(lines)[:2], [-0.11, -0.01], rtol=1e-5)


ON, OFF = 1, 0


@pytest.mark.parametrize("text, code, values", [
    ("Could you please switch off Airplane Mode?", Do.TOGGLE_AIRPLANE_MODE, (OFF,)),
    ("Make sure that airplane mode is off.", Do.TOGGLE_AIRPLANE_MODE, (OFF,)),
    ("Is airplane mode on?", Do.CHECK_NETWORK_STATUS, ()),
    ("Please enable mobile data on your phone.", Do.TOGGLE_DATA, (ON,)),
    ("Can you turn on data roaming?", Do.TOGGLE_ROAMING, (ON,)),
    ("Please disable Data Saver mode.", Do.TOGGLE_DATA_SAVER_MODE, (OFF,)),
    ("Now turn Wi-Fi Calling off, please.", Do.TOGGLE_WIFI_CALLING, (OFF,)),
    ("Please toggle your Wi-Fi.", Do.TOGGLE_WIFI, (TOGGLE,)),
    ("Please check whether the VPN is connected.", Do.CHECK_VPN_STATUS, ()),
    ("Please turn off your VPN.", Do.DISCONNECT_VPN, ()),
    ("Please remove and re-insert your SIM card.", Do.RESEAT_SIM_CARD, ()),
    ("What does the SIM card status say?", Do.CHECK_SIM_STATUS, ()),
    ("Please change your network mode preference to 4G/5G preferred.", Do.SET_NETWORK_MODE_PREFERENCE, (0,)),
    ("Set the preferred network to 4g_only.", Do.SET_NETWORK_MODE_PREFERENCE, (1,)),
    ("Which network mode is selected?", Do.CHECK_NETWORK_MODE_PREFERENCE, ()),
    ("Please reset your APN settings to the defaults.", Do.RESET_APN_SETTINGS, ()),
    ("Check the APN settings: is the MMSC URL set?", Do.CHECK_APN_SETTINGS, ()),
    ("Grant the messaging app the SMS permission.", Do.GRANT_APP_PERMISSION, (0, 0)),
    ("Which permissions does the browser app have?", Do.CHECK_APP_PERMISSIONS, (1,)),
    ("Please reboot your device.", Do.REBOOT_DEVICE, ()),
    ("Please run a speed test and tell me the result.", Do.RUN_SPEED_TEST, ()),
    ("What do you see in the status bar?", Do.CHECK_STATUS_BAR, ()),
    ("Please accept the payment request.", Do.MAKE_PAYMENT, ()),
    ("Do you see a payment request?", Do.CHECK_PAYMENT_REQUEST, ()),
    ("Can you try sending an MMS?", Do.CAN_SEND_MMS, ()),
    ("Is the problem solved?", Do.ASK_SOLVED, ()), ("Is there anything else I can do?", Do.ASK_SOLVED, ()),
    ("I have enabled roaming on your line.", Do.CHAT, ()), ("Thank you for waiting.", Do.CHAT, ()),
])
def test_the_lexicon(text, code, values):
    found = parse(problem("m", "data"), text, None)
    assert (Do(int(found.code)), int(found.flags)) == (code, 0)
    np.testing.assert_array_equal(found.values[:len(values)], values)


@pytest.mark.parametrize("text, mask", [
    ("May I have your phone number?", PHONE), ("Could you tell me your full name, please?", NAME),
    ("Are you currently abroad or at home?", LOCATION), ("How much data would you like to add?", REFUEL),
    ("What is your name? And where are you?", NAME | LOCATION)])
def test_questions_about_facts(text, mask):
    found = parse(problem("m", "data"), text, None)
    assert int(found.code) == Do.ASK and int(found.mask) == mask


def test_several_requests_are_marked():
    for text in ("Turn airplane mode off and restart the phone.", "Please check Wi-Fi. Then run a speed test.",
                 "Please turn mobile data on. What is your name?"):
        assert int(parse(problem("m", "data"), text, None).flags) == SEVERAL


def test_solo_mode():
    task = problem("s", "airplane", "bill")
    solo = lambda *messages: play_solo(task, script(*messages))
    lines = solo("Hello", tool_call("check_status_bar"), tool_call("toggle_airplane_mode"), tool_call("done"))
    assert lines[0][1] == "There is nobody to talk to. Call one tool." and lines[1][1] == "Status bar: airplane mode."
    assert lines[-1][2] == 0 and lines[-1][3] is StopReason.COMPLETED
    with pytest.raises(ValueError, match="^task 't', field ticket: expected a non-empty string, found nothing; it has no"):
        telecom_solo.table((Task(id="t", env="telecom", data={**task.data, "ticket": None}),))
    for built in built_in("telecom", 6)[1]:
        assert play_solo(built, telecom_solo.expert)[-1][2] == 1, built.id
    assert all(line[4] for line in lines[1:3]), "what the phone says is a tool's output"


_SOLO = jax.jit(turn(telecom_solo))


def play_solo(task, agent):
    """[(message, reply, reward, stop, tool)] of an episode in solo mode."""
    table, rules, lines = telecom_solo.table((task,)), compile_rules(telecom_solo.rules, telecom.features), []
    state, rng = jax.device_get(telecom_solo.reset(table, telecom_solo.knobs, 0, None)), np.random.default_rng(0)
    while not state.done:
        text = agent(task, state, rng)
        said = telecom_solo.parse(task, text, state)
        plain = said.replace(call="")
        state, step, *_ = jax.device_get(_SOLO(table, telecom_solo.knobs, rules, state, plain, jax.random.key(0)))
        reply = telecom_solo.render(task, said, step, state, len(lines))
        lines.append((text, reply, float(step.reward), stop_reason(step.stop) if step.stop else None, bool(step.tool)))
    return lines


def test_agents_on_built_in_tasks():
    env, tasks = built_in("telecom", 40)
    score = lambda agent: np.mean([play(env, task, agent, seed=i)[-1].reward for i, task in enumerate(tasks)])
    assert score(env.expert) == 1.0
    assert 0.25 <= score(env.novice) <= 0.65


def test_the_expert_solves_upstream_tasks(upstream):
    for index, task in enumerate(upstream[::190]):
        lines = play(telecom, task, telecom.expert, seed=index)
        assert lines[-1].success, task.id


@pytest.mark.slow
def test_the_expert_solves_the_base_split(shared_data):
    tasks = telecom_tasks.load(shared_data / "tau2/telecom", "base")
    assert len(tasks) == 114 and all(play(telecom, task, telecom.expert)[-1].success for task in tasks)


def _null_agents():
    everything = [words(Do.ASK, mask=FACTS), *(words(Do(code)) for code in range(Do.CHECK_STATUS_BAR, Do.BAD_CALL)
                                               if Do(code).name.startswith("CHECK"))]
    return {
        "silence": script(*["Okay."] * 64), "spam": script(*["<tool_call>" * 5] * 64),
        "transfer": script(TRANSFER, words(Do.ANNOUNCE)),
        "ask everything": script(*everything, *["Does it work now?"] * 64),
        "echo": lambda task, state, rng: telecom.prompt(task)[1], "stop": script(*["###STOP###"] * 64)}


TRANSFER = tool_call("transfer_to_human_agents", summary="x")


def test_a_transfer_at_once_earns_no_more_than_the_floor(shared_data):
    """It solves what cannot be mended and nothing else: upstream's test split has the largest share of that."""
    hopeless = lambda task: "ACTION" in task.data["evaluation_criteria"]["reward_basis"]
    every = {task.id: task for task in telecom_tasks.load(shared_data / "tau2/telecom")}
    splits = json.loads((shared_data / "tau2/telecom/split_tasks.json").read_text(encoding="utf-8"))
    shares = {name: np.mean([hopeless(every[task]) for task in ids]) for name, ids in splits.items()}
    assert shares == pytest.approx({"small": 0.1, "train": 8 / 74, "test": 12 / 40, "full": 32 / 2285, "base": 20 / 114})
    assert max(shares.values()) <= telecom.floor.idle <= 12 / 40
    for task in map(every.get, splits["test"]):
        assert play(telecom, task, script(TRANSFER, words(Do.ANNOUNCE)))[-1].success == hopeless(task), task.id


def test_a_transfer_at_once_earns_no_more_than_the_floor_alone_and_on_generated_tasks(shared_data):
    upstream = telecom_tasks.load(shared_data / "tau2/telecom", "test")
    won = [play_solo(task, script(TRANSFER, tool_call("done")))[-1][2] for task in upstream]
    assert np.mean(won) == pytest.approx(12 / 40) and telecom_solo.floor == telecom.floor
    for split in ("train", "test"):
        tasks = telecom_tasks.generate(split, 300, 0)
        assert np.mean([gold(task.data)[0].code == Do.TRANSFER_TO_HUMAN_AGENTS for task in tasks]) < telecom.floor.idle


@pytest.mark.slow
def test_agents_that_do_not_try_stay_below_the_floor():
    env, tasks = built_in("telecom", 25)
    for name, agent in _null_agents().items():
        score = np.mean([play(env, task, agent, knobs(max_turns=24))[-1].success for task in tasks])
        assert score <= max(env.floor), (name, score)


_BATCH = jax.jit(jax.vmap(turn(telecom), (None, None, None, 0, 0, None)))


def _random_episodes(tasks, count, turns, seed):
    """Acts [turns, count] and each turn's (state, time step), numpy."""
    table, rules = telecom.table(tasks), compile_rules(telecom.rules, telecom.features)
    acts = WORLDS["telecom"].random_acts(tasks, (turns, count), np.random.default_rng(seed))
    state = jax.vmap(lambda k: telecom.reset(table, telecom.knobs, k, None))(jnp.arange(count) % len(tasks))
    out = []
    for t in range(turns):
        before = state
        state, step, *_ = _BATCH(table, telecom.knobs, rules, state, jax.tree.map(lambda x: x[t], acts), jax.random.key(0))
        out.append(jax.device_get((before, state, step)))
    return acts, out


@pytest.mark.slow
def test_text_and_arrays_give_the_same_rewards_and_endings():
    """Acts put into words and read back, one at a time, against the batch."""
    env, tasks = built_in("telecom", 16)
    world, rng, count, turns = WORLDS["telecom"], np.random.default_rng(3), 32, 12
    rows = [[] for _ in range(count)]
    for row in range(count):
        while len(rows[row]) < turns:
            rows[row] += list(world.sayable_acts(tasks[row % 16], rng))
        rng.shuffle(rows[row])
        rows[row] = [a for a in rows[row] if int(a.code) != Do.ANNOUNCE or rng.random() < 0.3][:turns]
    turns = min(map(len, rows))
    table, rules = env.table(tasks), compile_rules(env.rules, env.features)
    state = jax.vmap(lambda k: env.reset(table, env.knobs, k, None))(jnp.arange(count) % 16)
    rewards_, stops = np.zeros((turns, count)), np.zeros((turns, count), int)
    for t in range(turns):
        batch = jax.tree.map(lambda *leaves: np.stack(leaves), *(row[t] for row in rows))
        state, step, *_ = _BATCH(table, env.knobs, rules, state, batch, jax.random.key(0))
        rewards_[t], stops[t] = step.reward, step.stop
    for row in range(count):
        texts = [world.agent_text(tasks[row % 16], a) for a in rows[row]]
        lines = play(env, tasks[row % 16], script(*texts, *["Okay."] * 64))[:turns]
        np.testing.assert_array_equal([line.reward for line in lines], rewards_[:len(lines), row])
        np.testing.assert_array_equal([line.stop for line in lines], stops[:len(lines), row])


def _check_leaks(count, seed):
    env, tasks = built_in("telecom", 64)
    acts, out = _random_episodes(tasks, count, 20, seed)
    for b in range(count):
        task = tasks[b % 64]
        hidden = {mask: env.secrets(task, mask, 0) for mask in range(16)}
        for t, (before, state, step) in enumerate(out):
            if before.done[b] or step.tool[b]:
                continue
            pick = lambda tree: jax.tree.map(lambda x: x[b], tree)
            text = env.render(task, jax.tree.map(lambda x: x[t, b], acts), pick(step), pick(state), b)
            assert leaks(text, hidden[int(state.told[b])]) == (), (task.id, text)
            assert all(value in text for value in env.disclosed(task, int(step.disclosed[b]), 0))


@pytest.mark.slow
def test_replies_name_disclosed_facts_only():
    _check_leaks(32, 0)


@pytest.mark.slow
def test_replies_name_disclosed_facts_only_in_ten_thousand_episodes():
    _check_leaks(10_000, 1)


def test_prompts_do_not_name_facts_and_carry_the_policy(upstream):
    task = upstream[0]
    system, opening = telecom.prompt(task)
    assert "Telecom Agent Policy" in system and '"name": "refuel_data"' in system and len(system) > 20_000
    assert leaks(system, telecom.secrets(task, REFUEL | LOCATION, 0)) == () == leaks(opening, telecom.secrets(task, 0, 0))
    _, tasks = built_in("telecom", 20)
    for built in tasks:
        assert len(telecom.prompt(built)[0]) < 1500
        assert leaks(telecom.prompt(built)[1], telecom.secrets(built, 0, 0)) == ()


def test_splits_of_the_upstream_folder(shared_data):
    folder = shared_data / "tau2/telecom"
    splits = {name: {task.id for task in telecom_tasks.load(folder, name)} for name in ("train", "test", "base")}
    assert {name: len(ids) for name, ids in splits.items()} == {"train": 74, "test": 40, "base": 114}
    assert splits["train"] | splits["test"] == splits["base"] and not splits["train"] & splits["test"]
    assert len(telecom_tasks.load(folder / "tasks_small.json")) == 20
    with pytest.raises(ValueError, match="split 'dev'; allowed: base, full"):
        telecom_tasks.load(folder, "dev")


def test_a_folder_without_the_company_is_refused(shared_data, tmp_path):
    shutil.copy(shared_data / "tau2/telecom/tasks_small.json", tmp_path / "tasks.json")
    with pytest.raises(ValueError, match="db.toml: no such file"):
        telecom_tasks.load(tmp_path)


@pytest.mark.parametrize("field, broken, said", [
    ("db", None, "db: expected an object, found nothing"),
    ("initial_state", {"initialization_actions": []}, "expected an action set_user_info, found none"),
    ("evaluation_criteria", {"actions": [], "env_assertions": [], "reward_basis": ["DB"]}, "reward_basis: expected"),
])
def test_a_broken_task_is_refused_by_the_table(field, broken, said):
    task = problem("m", "data")
    with pytest.raises(ValueError, match="task 'bad', field .*" + said):
        telecom.table((Task(id="bad", env="telecom", data=dict(task.data) | {field: broken}),))


ACTION, START = "evaluation_criteria.actions.0.", "initial_state.initialization_actions.1."
ASSERTION = "evaluation_criteria.env_assertions."


@pytest.mark.parametrize("place, value, said", [
    (ACTION + "name", "toggle_dada", r"actions\[0\].name: expected a tool of the user, found 'toggle_dada'; did you mean "
                                     "'toggle_data'"),
    (ACTION + "requestor", "assistant", "expected a tool of the assistant, found 'toggle_data', which is a tool of the u"),
    (ACTION + "requestor", "agent", "requestor: expected assistant or user, found 'agent'"),
    (ACTION + "arguments", {"x": 1}, "of toggle_data: unexpected argument 'x'"),
    (ASSERTION + "0.func_name", "assert_moon", "expected an assertion of the user, found 'assert_moon'; "),
    (ASSERTION + "0.arguments", {}, "of assert_can_send_mms: missing argument 'expected_status'"),
    (ASSERTION + "0.arguments.expected_status", "yes", "expected_status: expected a boolean, found 'yes'"),
    (ASSERTION + "0.assert_value", False, "expected assert_value true, found it false"),
    (ASSERTION + "1.arguments.line_id", "L9", "assert_data_refueling_amount: line_id: expected one of L11, found 'L9'"),
    (START + "func_name", "turn_moon_off", "expected a function or tool of the user, found 'turn_moon_off'"),
    (START + "env_type", "assistant", "expected a function or tool of the assistant, found 'turn_data_off'"),
    ("initial_state.initialization_actions.0.arguments.phone_number", "1", "phone_number: expected that of a customer's l"),
    ("initial_state.initialization_data", {"agent_data": {"x": 1}}, "agent_data: expected nothing"),
    ("initial_state.message_history", [{"role": "user", "content": "x"}], "message_history: expected nothing"),
    ("evaluation_criteria.reward_basis", ["ENV_ASERTION"], "reward_basis: expected a list of one or more of DB, ENV_"),
    ("evaluation_criteria.communicate_info", 3, "communicate_info: expected a list, found 3"),
    ("db.lines", {}, "db.lines: expected a list of records"),
    ("db.lines.0.status", "On", r"db.lines\[0\].status: expected one of Active, .*, found 'On'"),
    ("db.lines.0.plan_id", "P9", "db.lines.L11.plan_id: expected the id of a plan, found 'P9'"),
    ("db.customers.0.line_ids", ["L9"], "db.customers.C11.line_ids: expected ids of lines, found 'L9'"),
    ("db.customers.0.full_name", ..., r"db.customers\[0\].full_name: expected a non-empty string"),
    ("db.plans.0.data_limit_gb", float("nan"), r"db.plans\[0\].data_limit_gb: expected a number, found nan"),
    ("db.plans.0.data_limit_gb", "10", r"db.plans\[0\].data_limit_gb: expected a number, found '10'"),
    ("user_db.device", ..., "user_db.device: expected an object, found nothing"),
    ("user_db.device.network_signal_strength", "great", "network_signal_strength: expected one of none, .*, found 'great'"),
    ("user_db.surroundings", {"signal_strength": {"5G": "great"}}, "signal_strength.5G: expected one of none, .*, found"),
])
def test_a_slip_in_a_task_is_said(place, value, said):
    data = changed(problem("m", "data", "quota").data, place, value)
    with pytest.raises(ValueError, match="^task 't', field .*" + said):
        telecom.table((Task(id="t", env="telecom", data=data),))


def test_the_summary_of_a_transfer_cannot_be_compared():
    data = changed(problem("s", "lock").data, ACTION + "compare_args", None)
    with pytest.raises(ValueError, match=r"compare_args: expected \[\] under ACTION \(a summary cannot be compared\)"):
        telecom.table((Task(id="t", env="telecom", data=data),))


def test_a_slip_in_upstreams_folder_names_file_line_and_task(shared_data, tmp_path):
    folder = shutil.copytree(shared_data / "tau2/telecom", tmp_path / "tau2/telecom",
                             ignore=shutil.ignore_patterns("tasks.json", "tech_support_workflow*"))
    (folder / "tasks_small.json").rename(folder / "tasks.json")
    tasks = json.loads((folder / "tasks.json").read_text())
    broken = changed(tasks[1], ACTION + "name", "x")
    (folder / "tasks.json").write_text(f"[{json.dumps(tasks[0])},\n{json.dumps(broken)}]")
    with pytest.raises(TaskFileError) as error:
        telecom_tasks.load(folder)
    assert "tasks.json, line 2, field evaluation_criteria.actions[0].name: expected a tool of the " in str(error.value)
    assert "(task '[" in str(error.value)
    (folder / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(TaskFileError, match="split_tasks.json, split 'train': expected ids of tasks in the task file"):
        telecom_tasks.load(folder, "train")
    for name in ("main_policy_solo.md", "tech_support_manual.md", "main_policy.md"):
        text = (folder / name).read_text()
        (folder / name).unlink()
        with pytest.raises(TaskFileError, match=f"{name}: no such file; it is one of upstream's: `eau-jax data "):
            telecom_tasks.load(folder)
        (folder / name).write_text(text)
    assert len(telecom_tasks.load(folder)) == 20


def changed(data, place, value):
    """A copy of a record with the value at a dotted place replaced; `...` removes it."""
    data = copy.deepcopy(dict(data))
    *path, last = [int(each) if each.isdigit() else each for each in place.split(".")]
    holder = data
    for each in path:
        holder = holder[each]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return data


@pytest.mark.parametrize("call, said", [
    ('{"name": "toggle_data"}', "there is no tool 'toggle_data'; allowed: get_customer_by_phone, "),
    ('{"name": "resume_line", "arguments": {"customer_id": "C11"}}', "missing argument 'line_id'"),
    ('{"name": "resume_line", "arguments": {"customer_id": "C11", "line": "L11", "line_id": "L11"}}',
     "unexpected argument 'line'; allowed: customer_id, line_id"),
    ('{"name": "get_customer_by_id", "arguments": {"customer_id": 11}}', "customer_id: expected a string, found 11"),
    ('{"name": "refuel_data", "arguments": {"customer_id": "C11", "line_id": "L11", "gb_amount": 1e9}}',
     "gb_amount: expected a number from -1000000 to 1000000"),
    ('{"name": "get_bills_for_customer", "arguments": {"customer_id": "C11", "limit": 1.5}}',
     "limit: expected a whole number, found 1.5"),
    ('{"name": "' + "x" * 9000 + '"}', "there is no tool 'xxx")])
def test_a_bad_call_says_what_is_wrong(call, said):
    reply = play(telecom, problem("m", "data"), script(f"<tool_call>{call}</tool_call>"))[0].reply
    assert reply.startswith(f"Error: {said}") and len(reply) < 600


def test_a_bad_call_of_the_phone_says_what_is_wrong():
    task = problem("m", "data")
    for settings, said in (({"apn": "x"}, "unexpected argument 'apn_settings.apn'; allowed: apn_name, "),
                           ({"apn_name": "x"}, "apn_settings.apn_name: expected one of internet, broken, found 'x'")):
        assert play_solo(task, script(tool_call("set_apn_settings", apn_settings=settings), tool_call("done")))[0][1] == (
            f"Error: {said}" + ("reset_at_reboot, mms_apn, mmsc_url, mms_proxy, mms_port" if "apn'" in said else ""))


def test_a_declined_call_says_why():
    ids = dict(customer_id="C11", line_id="L11")
    replies = [line.reply for line in play(telecom, problem("s", "bill"), script(
        tool_call("suspend_line", reason="x", **ids), tool_call("resume_line", **ids | {"line_id": "L9"}),
        tool_call("resume_line", **ids | {"customer_id": "C9"}), tool_call("refuel_data", gb_amount=0, **ids),
        tool_call("send_payment_request", customer_id="C11", bill_id="B9"),
        tool_call("send_payment_request", customer_id="C11", bill_id="B112"),
        tool_call("send_payment_request", customer_id="C11", bill_id="B112"), tool_call("resume_line", **ids),
        tool_call("resume_line", **ids)))]
    assert replies[:9] == [
        "Error: the line is Suspended; it must be Active.", "Error: the customer has no such line.",
        "Error: this is not the customer's id.", "Error: gb_amount must be positive.",
        "Error: the customer has no such bill.", "Payment request sent.", "Error: a bill is awaiting payment already; one request at a time.", "Line L11 is active.",
        "Error: the line is Active; it must be Suspended or Pending Activation."]


@pytest.mark.slow
@pytest.mark.parametrize("env", [telecom, telecom_solo], ids=lambda env: env.name)
def test_a_plain_reply_is_as_good_as_an_array(env):
    task = problem("m", "data")
    table = env.table((task,))
    state = env.reset(table, env.knobs, 0, None)
    said = env.parse(task, tool_call("toggle_data") if env is telecom_solo else "Please turn mobile data on.", state)
    for reply in Reply:
        ends = [jax.device_get(env.step(table, env.knobs, state, said, each, None))
                for each in (reply, int(reply), np.int32(reply), jnp.int32(reply))]
        for end in ends[1:]:
            jax.tree.map(np.testing.assert_array_equal, ends[0], end)
        assert bool(ends[0][0].world.data) == (reply is Reply.ANSWER or env is telecom_solo)


def test_a_gold_list_that_does_not_mend_is_refused():
    data = dict(problem("m", "data", "sms").data)
    data["evaluation_criteria"] = data["evaluation_criteria"] | {"actions": data["evaluation_criteria"]["actions"][:1]}
    with pytest.raises(ValueError, match="gold calls that meet the assertions"):
        telecom_tasks.verify([data])
