"""Numbers counted over episode records, against counts made by hand."""

import math

import pytest
from series import episode, turn

from eau_jax.meta import measure as module
from eau_jax.meta.measure import bucket_shares, measure


def of(name, *records, step=1):
    return measure(records, step)[f"meta/{name}"]


def test_groups():
    scores = (("a", 0.2), ("a", 0.6), ("b", 0.1), ("b", 0.1), ("c", 0.9), ("c", 0.9), ("d", 0.5), ("e", 0.9), ("e", 0.9))
    records = [episode(turn(), task=task, score=score, success=task == "c") for task, score in scores]
    assert of("group_std", *records) == pytest.approx(0.2 / 4)                  # 0.2, 0, 0, 0; a group of one does not count
    assert of("unsolved_groups", *records) == pytest.approx(1 / 4) and of("solved_groups", *records) == pytest.approx(1 / 4)


def test_shares_of_the_easiest_and_the_hardest_bucket():
    buckets = {"a": "easy", "b": "easy", "c": "medium", "d": "hard"}
    played = [{"task": task, "stop": "finished"} for task in "aabcddd"] + [{"task": "d", "stop": "infra_error"}]
    assert bucket_shares(played, buckets) == {"meta/easiest_share": 3 / 7, "meta/hardest_share": 3 / 7}
    assert bucket_shares(played[:3], buckets) == {"meta/easiest_share": 1.0, "meta/hardest_share": 0.0}
    assert bucket_shares(played, {}) == bucket_shares([], buckets) == {}
    assert bucket_shares(played, {"a": "one", "d": "one"}) == {}, "one bucket has no ends"


def test_infrastructure_errors_are_left_out_of_everything_but_coverage():
    lost = episode(turn(parse_failed=True), stop="infra_error", score=None)
    good = [episode(turn(), score=1.0, success=True)] * 3
    assert of("coverage", *good, lost) == 0.75
    assert of("degenerate", good[0], lost) == 0.0
    nothing = measure([lost], 1)
    assert nothing["meta/coverage"] == 0.0 and all(math.isnan(nothing[f"meta/{name}"]) for name in (
        "group_std", "leaks", "unsolicited", "stonewalled", "premature_stop", "degenerate", "version_lag"))
    assert all(isinstance(value, float) for value in measure([], 1).values())


def test_cut_episodes():
    new, old = turn(mask=1, disclosed=1), turn(mask=1, disclosed=1, agent="again")
    won = episode(new, new, new, stop="completed", success=True, score=1.0)
    progressing = episode(old, old, old, turn(mask=2, disclosed=2), stop="max_turns")
    stuck = episode(new, old, old, old, old, stop="max_turns")
    long = episode(turn(mask=4, disclosed=4), stop="max_tokens")
    records = [won, progressing, stuck, long]
    assert of("truncated", *records) == 0.75 and of("truncated_progressing", *records) == 0.5
    assert of("truncated_stuck", *records) == 0.25 and of("turn_limit", *records) == 5
    assert of("success_turns_p50", *records) == of("success_turns_p90", *records) == 3


def test_progress_without_slots():
    ask = lambda text, decided="ANSWER": turn(agent=text) | {"act": turn()["act"] | {"reply": decided}}
    assert module.progressing(episode(ask("a"), ask("b"), ask("c"), ask("d"), stop="max_turns"))
    assert not module.progressing(episode(ask("a"), ask("a"), ask("a"), ask("a"), stop="max_turns"))
    assert not module.progressing(episode(ask("a"), *[ask(text, "WITHHOLD") for text in "bcd"], stop="max_turns"))


def test_what_messages_tell_of_the_task():
    said = lambda *texts: [episode(*[turn(agent=text) for text in texts[1:]], task=texts[0])]
    assert of("task_information", *said("a", "x"), *said("b", "y")) == pytest.approx(1.0)
    assert of("task_information", *said("a", "x"), *said("b", " x ")) == pytest.approx(0.0)
    half = [*said("a", "x"), *said("a", "x"), *said("b", "x"), *said("b", "y")]     # x: two thirds a; y: b
    left = 3 / 4 * (2 / 3 * math.log(3 / 2) + 1 / 3 * math.log(3))
    assert of("task_information", *half) == pytest.approx(1 - left / math.log(2))
    later = [*said("a", "x", "x"), *said("b", "x", "y")]                          # the same at first, another afterwards
    assert of("task_information", *later) == pytest.approx(0.5)
    assert math.isnan(of("task_information", *said("a", "x"), *said("a", "y")))


def test_variety_of_acts():
    acts = [turn(kind="ACTION", code=1)] * 3 + [turn(kind="ACTION", code=2)] + [turn(kind="FINISH", code=1)] * 4
    by_hand = 3 / 8 * math.log(8 / 3) + 1 / 8 * math.log(8) + 1 / 2 * math.log(2)
    assert of("act_entropy", episode(*acts)) == pytest.approx(by_hand)
    assert of("act_entropy", episode(*acts[:3])) == 0.0 and math.isnan(of("act_entropy", episode()))


def test_success_where_the_user_helped():
    given = episode(turn(mask=1, disclosed=3), score=1.0, success=True)
    alone = [episode(turn(mask=1, disclosed=1), success=number < 2) for number in range(8)]
    assert of("helped_gap", *[given] * 8, *alone) == pytest.approx(0.75)
    error = math.sqrt((0.25 / 8) / 8 + (0.25 * 0.75 + 0.25 / 8) / 8)
    assert of("helped_gap_se", *[given] * 8, *alone) == pytest.approx(error)
    assert math.isnan(of("helped_gap", *[given] * 7, *alone))


def test_checkers():
    near = [episode(turn(), score=0.97), episode(turn(), score=0.2), episode(turn(), score=1.0, success=True)]
    assert of("near_miss", *near) == 0.5
    unearned = [episode(turn(), success=True, score=0.01), episode(turn(kind="FINISH"), success=True, score=0.9),
                episode(turn(), success=True, score=0.9), episode(turn(), turn(kind="FINISH"), success=True, score=0.9)]
    assert of("unearned", *unearned) == 0.5


def test_rank_of_returns():
    wins = [episode(turn(), success=True, returned=value) for value in (3, 3, 3, 3, 1)]
    losses = [episode(turn(), returned=value) for value in (2, 2, 2, 2, 3)]
    assert of("return_rank", *wins, *losses) == pytest.approx((16 - 4 - 1) / 25)     # 16 pairs won, 4 + 1 lost, 4 equal
    assert math.isnan(of("return_rank", *wins[:2], *losses[:2]))
    rich = [episode(turn(), task="rich", returned=9), episode(turn(), task="rich", success=True, returned=10)] * 3
    poor = [episode(turn(), task="poor", returned=0), episode(turn(), task="poor", success=True, returned=1)] * 3
    assert of("return_rank", *rich, *poor) == 1.0, "tasks pay differently"


def unanswered(count, decided="WITHHOLD", mask=1):
    return [dict(turn(mask=mask), act=turn(mask=mask)["act"] | {"reply": decided}) for _ in range(count)]


ANSWERED = turn(mask=2, disclosed=2)


def test_stonewalling():
    assert of("stonewalled", episode(ANSWERED, *unanswered(3))) == 1.0
    assert of("stonewalled", episode(ANSWERED, *unanswered(2))) == 0.0
    assert of("stonewalled", episode(ANSWERED, *unanswered(2), turn(mask=4, disclosed=4), *unanswered(2))) == 0.0
    assert of("stonewalled", episode(ANSWERED, *unanswered(3, "CLARIFY", 0b11101))) == 0.0   # asks for four at once
    assert of("stonewalled", episode(ANSWERED, *unanswered(3, mask=2))) == 0.0               # asks for what it knows
    different = [turn(agent=text) | {"act": turn()["act"] | {"reply": "WITHHOLD"}} for text in "abc"]
    assert of("stonewalled", episode(*different)) == 1.0                                     # a world without slots
    assert of("stonewalled", episode(different[0], different[0], different[0])) == 0.0


def test_leaving():
    left = lambda *turns: episode(*turns, stop="user_left")
    vague = turn(mask=0, agent="Tell me more.")
    assert of("premature_stop", left(ANSWERED, vague, vague, vague, turn(mask=1))) == 1.0
    assert of("premature_stop", left(ANSWERED, vague, vague, vague, vague)) == 0.0
    assert of("premature_stop", left(ANSWERED, vague)) == 1.0                                # nobody loses patience so soon
    assert of("premature_stop", episode(ANSWERED, turn(mask=1), stop="max_turns")) == 0.0


def test_unsolicited():
    offered = turn(mask=0, disclosed=1)
    assert of("unsolicited", episode(offered, ANSWERED)) == 1.0
    assert of("unsolicited", episode(ANSWERED, ANSWERED, offered)) == 0.0                    # help after some turns is none
    assert of("unsolicited", episode(ANSWERED, ANSWERED, turn(mask=1, disclosed=0b1101))) == 2.0
    assert of("unsolicited", episode(turn(mask=0, disclosed=1, spoke="tool"), ANSWERED)) == 0.0
    assert of("unsolicited", episode(turn(mask=1, disclosed=3), turn(mask=1, disclosed=3))) == 1.0   # told once


def test_leaks_and_inventions():
    red = turn(reply="It is crimson.", told=["crimson"], mask=1, disclosed=1)
    garden = turn(reply="The garden.", told=["the garden"], mask=2, disclosed=2)
    other = episode(turn(reply="Thirty-one of them.", told=["thirty-one"], mask=1, disclosed=1), task="b")
    quiet = [episode(red, garden), episode(garden, red), other]
    assert of("leaks", *quiet) == of("invented", *quiet) == 0.0
    leaky = episode(turn(reply="The garden, and it is crimson.", told=["the garden"], mask=2, disclosed=2))
    assert of("leaks", *quiet, leaky) == pytest.approx(1 / 6) and of("invented", *quiet, leaky) == 0.0
    assert of("leaks", *quiet, episode(red, leaky["turns"][0])) == 0.0                       # told before
    asked = turn(agent="[action] Is it crimson?", reply="Crimson? No comment.", mask=2)
    assert of("leaks", *quiet, episode(asked)) == 0.0                                        # the agent said it
    assert of("leaks", episode(red), episode(turn(leaked=True))) == 0.5                      # the host saw it
    invents = episode(turn(reply="There are thirty-one.", mask=2))
    assert of("invented", *quiet, invents) == pytest.approx(1 / 6) and of("leaks", *quiet, invents) == 0.0
    other_value = episode(turn(reply="It is blue.", told=["crimson"], mask=1, disclosed=1))
    assert of("invented", *quiet, other_value) == pytest.approx(1 / 6)
    hinted = [episode(turn(reply="Like blood.", told=["crimson"])), episode(turn(reply="Like a rose.", told=["crimson"]))]
    assert of("invented", *hinted) == 0.0                                                    # a world that only hints


def test_numbers_that_are_not_the_worlds():
    said = lambda text, spoke, value=1.0: turn(reply=text, spoke=spoke, values=(value, 0, 0, 0))
    own, same, wrong = said("It is 7.5.", "symbolic"), said("Well, 7.5.", "llm"), said("Well, 8.", "llm")
    assert of("invented", episode(own), episode(same), episode(own)) == 0.0
    assert of("invented", episode(own), episode(same), episode(wrong), episode(own)) == 0.25
    later = lambda last: episode(said("So.", "symbolic", 5.0), last)
    assert of("invented", episode(own), episode(own), later(wrong)) == 0.25
    assert of("invented", episode(own), episode(said("It is 8.", "symbolic")), later(wrong)) == 0.0     # it varies
    assert of("invented", episode(own), later(wrong)) == 0.0                                            # told once
    assert of("invented", episode(own), episode(own), episode(said("It is 9.", "llm", 2.0))) == 0.0     # another question
    assert of("invented", episode(own), episode(own), episode(wrong, task="b")) == 0.0


def test_offers_in_a_world_without_slots():
    offer = lambda: turn() | {"act": turn()["act"] | {"reply": "VOLUNTEER"}}
    assert of("unsolicited", episode(offer(), offer(), offer())) == 2.0
    assert of("unsolicited", episode(turn(), turn(), offer())) == 0.0


def test_short_and_empty_values_are_none():
    talk = [episode(turn(reply="Yes, none.", told=["none"])), episode(turn(reply="Three or 3, none.", told=["3"]), task="b")]
    assert of("leaks", *talk) == of("invented", *talk) == 0.0


def test_roles():
    flipped = ("[action] What do you want?", "Fine <think>hm</think>", "<tool_call>{}")
    honest = turn(reply="Write [action] and a question.")
    assert of("role_flip", episode(*(turn(reply=text) for text in flipped), honest)) == 0.75


def test_repetitions():
    ask = lambda response=1, disclosed=1, **more: turn(mask=1, response=response, disclosed=disclosed, **more)
    same = [episode(ask(), ask()), episode(ask(), ask())]
    assert of("tool_differs", *same) == of("outcome_differs", *same) == 0.0
    assert of("tool_differs", episode(ask(), ask(), stop="max_turns"), episode(ask(), ask(2), stop="max_turns")) == 0.5
    assert of("outcome_differs", episode(ask(), ask()), episode(ask(), ask(), success=True)) == pytest.approx(1 / 3)
    assert of("outcome_differs", episode(ask(reward=0.0), ask()), episode(ask(reward=1.0), ask())) == pytest.approx(1 / 3)
    other = turn(mask=1, response=4, disclosed=0)
    decided = other | {"act": other["act"] | {"reply": "WITHHOLD"}}
    assert of("tool_differs", episode(ask(), ask()), episode(decided, decided)) != 1.0       # the user decided otherwise
    tool = lambda text: turn(agent="call", reply=text, spoke="tool", kind="SEARCH")
    assert of("tool_differs", episode(tool("x"), ask()), episode(tool("y"), ask())) == 1.0
    assert math.isnan(of("tool_differs", episode(ask(), ask()), episode(ask(), ask(), task="b")))


def test_degenerate_and_lag():
    turns = [turn(agent="a"), turn(agent="a"), turn(agent="b", ended="length"), turn(agent=" "),
             turn(agent="c", parse_failed=True),
             turn(agent="d")]
    assert of("degenerate", episode(*turns)) == pytest.approx(4 / 6)
    assert of("version_lag", episode(turn(version=7), turn(version=5)), step=8) == 2
    assert of("version_lag", episode(turn(version=7)), step=8) == 0


def test_sources_and_manner():
    say = lambda text, spoke="llm": turn(reply=text, spoke=spoke, mask=1, disclosed=1, told=["crimson"])
    model = [episode(say("It is crimson, thanks."), success=k < 6, task=f"{k}") for k in range(8)]
    own = [episode(say("It is crimson.", "symbolic"), success=k < 2, task=f"{k}") for k in range(8)]
    assert of("user_gap", *model, *own) == 0.5
    assert of("user_gap_se", *model, *own) == pytest.approx(math.sqrt(2 * (0.75 * 0.25 + 0.25 / 8) / 8))
    assert math.isnan(of("user_gap", *model))
    assert of("reply_polite", *model, *own) == 1.0 and of("reply_question", *model) == 0.0
    assert of("reply_words_0", *model) == 1.0 and of("reply_words_1", *model) == 0.0         # three words besides the value
    assert math.isnan(of("reply_polite", *own))


@pytest.mark.parametrize("name, wrong, test", [
    ("MODEST", 9, test_stonewalling), ("DECLINED", 2, test_stonewalling), ("EARLY", 0, test_leaving),
    ("AT_ONCE", 9, test_unsolicited),
    ("RECENT", 9, test_cut_episodes), ("SOLVED", 1.1, test_checkers), ("NOTHING", 0.0, test_checkers),
    ("MOST_WORDS", 0, test_leaks_and_inventions), ("_EMPTY", frozenset(), test_short_and_empty_values_are_none)])
def test_a_wrong_constant_is_seen(monkeypatch, name, wrong, test):
    monkeypatch.setattr(module, name, wrong)
    if name == "_EMPTY":
        monkeypatch.setattr(module, "_tells", lambda value: True)
    with pytest.raises(AssertionError):
        test()
