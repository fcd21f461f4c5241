"""Conversations as data for fine-tuning: literal masks on dialogues drawn by hand, for the agent and for its user."""

import json

import numpy as np
import pytest

from eau_jax.core.part import Words
from eau_jax.core.records import RunFolderError, plain
from eau_jax.envs.file import TaskFileError
from eau_jax.rollout import dialogue, dialogue_file, recorded
from eau_jax.rollout.collect import to_record
from eau_jax.rollout.dialogue import agent_view, encode, join, user_view
from eau_jax.rollout.template import QWEN3, QWEN3_THINKING, QWEN25, bind, closes_thinking
from eau_jax.rollout.tokenizer import train_bpe
from eau_jax.users import role_play
from rollout_world import CHAT, LETTERS, agent, ids
from test_rollout_collect import gather

NAMES = {number: f"<{name[2:-2]}>" for name, number in LETTERS.special.items()}
MANY = 10_000


def table(example):
    """[(text, learned)] of an example: control tokens on their own, letters of one mask together."""
    out = []
    for token, learned in zip(example.tokens.tolist(), example.learned.tolist(), strict=True):
        text = NAMES[token] if token in NAMES else chr(token)
        if out and token not in NAMES and not out[-1][0].startswith("<") and out[-1][1] == learned:
            out[-1] = (out[-1][0] + text, learned)
        else:
            out.append((text, int(learned)))
    return out


def row(record):
    return dialogue_file.to_row(record, "here").dialogue


def agents(record, thoughts=True, limit=MANY):
    return table(encode(CHAT, agent_view(row(record), thoughts=thoughts), limit)[0])


def users(record, limit=MANY):
    return table(encode(CHAT, user_view(row(record)), limit)[0])


CALL = '{"name": "look", "arguments": {"id": 7}}'
OPENAI = {"user_system": "U", "messages": [
    {"role": "system", "content": "S"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "My order?"},
    {"role": "assistant", "content": "Let me see.", "reasoning_content": "look up",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"id": 7}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "lost"},
    {"role": "assistant", "content": "<think>sad</think>\n\nIt is lost."},
    {"role": "user", "content": "Oh."},
    {"role": "assistant", "content": "Bye."}]}
SHAREGPT = {"user_system": "U", "system": "S", "conversations": [
    {"from": "gpt", "value": "Hi!"},
    {"from": "human", "value": "My order?"},
    {"from": "gpt", "value": "<think>look up</think>Let me see."},
    {"from": "function_call", "value": CALL},
    {"from": "observation", "value": "lost"},
    {"from": "gpt", "value": "<think>sad</think>\n\nIt is lost."},
    {"from": "human", "value": "Oh."},
    {"from": "gpt", "value": "Bye."}]}
AS_AGENT = [
    ("<system>", 0), ("S", 0), ("<user>", 0), ("My order?", 0), ("<agent>", 0),
    ("<think>\nlook up\n</think>\n\nLet me see.\n<tool_call>" + CALL + "</tool_call>", 1), ("<end>", 1),
    ("<tool>", 0), ("lost", 0), ("<agent>", 0),
    ("<think>\nsad\n</think>\n\nIt is lost.", 1), ("<end>", 1),
    ("<user>", 0), ("Oh.", 0), ("<agent>", 0), ("Bye.", 1), ("<end>", 1)]
AS_USER = [
    ("<system>", 0), ("U", 0), ("<user>", 0), ("Hi!", 0), ("<agent>", 0), ("My order?", 1), ("<end>", 1),
    ("<user>", 0), ("Let me see.\n\nIt is lost.", 0), ("<agent>", 0), ("Oh.", 1), ("<end>", 1),
    ("<user>", 0), ("Bye.", 0), ("<agent>", 0), ("###STOP###", 1), ("<end>", 1)]


def joined(rows):
    """Neighbouring letters of one mask as one entry, whatever brackets they hold."""
    out = []
    for text, learned in rows:
        control = text in NAMES.values()
        if out and not control and out[-1][0] not in NAMES.values() and out[-1][1] == learned:
            out[-1] = (out[-1][0] + text, learned)
        else:
            out.append((text, learned))
    return out


@pytest.mark.parametrize("record", [OPENAI, SHAREGPT], ids=["openai", "sharegpt"])
def test_the_agent_learns_its_words_reasoning_calls_and_end_of_turn(record):
    assert joined(agents(record)) == AS_AGENT


@pytest.mark.parametrize("record", [OPENAI, SHAREGPT], ids=["openai", "sharegpt"])
def test_the_user_learns_its_turns_and_to_stop_and_sees_no_tools_and_no_reasoning(record):
    assert joined(users(record)) == AS_USER


def with_observations(turns):
    """Wrong: what was heard is learned too."""
    for observation, action, learned in turns:
        yield np.zeros(0, np.int32), np.concatenate([observation, action]), learned


def with_tool_traffic(one):
    """Wrong: the agent's calls reach the user as words."""
    return one._replace(messages=tuple(
        message if message.role == "user" else
        message._replace(role="agent", text=message.text + " ".join(message.calls), calls=()) for message in one.messages))


def test_wrong_masks_are_seen():
    """Mutants: the two tests above must fail for each of these."""
    view = agent_view(row(OPENAI), thoughts=True)
    wrong = join(with_observations(dialogue.pieces(CHAT, view.system, view.exchanges)), MANY)[0]
    assert joined(table(wrong)) != AS_AGENT and wrong.tokens.tolist() == encode(CHAT, view, MANY)[0].tokens.tolist()
    assert joined(table(encode(CHAT, user_view(with_tool_traffic(row(OPENAI))), MANY)[0])) != AS_USER
    unended = row(OPENAI)._replace(ended=False)
    assert joined(table(encode(CHAT, user_view(unended), MANY)[0])) == AS_USER[:-5]


DUAL = {"user_scenario": {"persona": None, "instructions": {"reason_for_call": "No signal.", "known_info": "A phone."}},
        "messages": [
            {"role": "user", "content": "No signal."},
            {"role": "assistant", "content": "Check the phone."},
            {"role": "user", "content": None, "tool_calls": [{"name": "status", "arguments": {}}]},
            {"role": "tool", "requestor": "user", "content": "airplane"},
            {"role": "user", "content": "Airplane mode."},
            {"role": "assistant", "tool_calls": [{"name": "note", "arguments": {}}]},
            {"role": "tool", "requestor": "assistant", "content": "ok"},
            {"role": "assistant", "content": "Turn it off."},
            {"role": "user", "content": "Doing it.", "tool_calls": [{"name": "off", "arguments": {}}]},
            {"role": "tool", "content": "done"},
            {"role": "user", "content": "###STOP###"}]}


def test_the_users_own_tools_are_learned_and_their_results_seen_by_the_user_alone():
    scenario = role_play.system("reason for call: No signal.\nknown info: A phone.")
    call = lambda name: f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    assert joined(users(DUAL)) == [
        ("<system>", 0), (scenario, 0),
        ("<user>", 0), (role_play.GREETING, 0), ("<agent>", 0), ("No signal.", 1), ("<end>", 1),
        ("<user>", 0), ("Check the phone.", 0), ("<agent>", 0), (call("status"), 1), ("<end>", 1),
        ("<tool>", 0), ("airplane", 0), ("<agent>", 0), ("Airplane mode.", 1), ("<end>", 1),
        ("<user>", 0), ("Turn it off.", 0), ("<agent>", 0), (f"Doing it.\n{call('off')}", 0), ("<end>", 0),   # both at once
        ("<tool>", 0), ("done", 0), ("<agent>", 0), ("###STOP###", 1), ("<end>", 1)]
    assert joined(agents(DUAL)) == [
        ("<user>", 0), ("No signal.", 0), ("<agent>", 0), ("Check the phone.", 1), ("<end>", 1),
        ("<user>", 0), ("Airplane mode.", 0), ("<agent>", 0), (call("note"), 1), ("<end>", 1),
        ("<tool>", 0), ("ok", 0), ("<agent>", 0), ("Turn it off.", 1), ("<end>", 1)]


def test_of_an_areal_row_the_answer_alone_is_learned_and_the_user_learns_all_of_its_turns():
    record = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "A"},
                           {"role": "assistant", "content": "B", "reasoning": "r"}, {"role": "user", "content": "C"}],
              "answer": {"content": "", "thinking": "t", "tool_calls": [{"name": "look", "arguments": {"id": 7}}]},
              "metadata": {"source_dialog_id": 4, "turn_index": 1, "correct": 1, "reward": 0, "reason_for_call": "Why."}}
    assert joined(agents(record)) == [
        ("<system>", 0), ("S", 0), ("<user>", 0), ("A", 0), ("<agent>", 0), ("<think>\nr\n</think>\n\nB", 0), ("<end>", 0),
        ("<user>", 0), ("C", 0), ("<agent>", 0),
        ("<think>\nt\n</think>\n\n<tool_call>" + CALL + "</tool_call>", 1), ("<end>", 1)]
    learned = [text for text, mask in joined(users(record)) if mask]
    assert learned == ["A", "<end>", "C", "<end>"]     # the call has no words: nothing was heard after "C"
    found = dialogue_file.to_row(record, "here")
    assert (found.score, found.success, found.group) == (0.0, True, "4")


def test_a_longer_conversation_is_cut_after_a_whole_turn():
    view = agent_view(row(OPENAI), thoughts=False)
    whole, cut = encode(CHAT, view, MANY)
    assert not cut
    for limit in (len(whole.tokens) - 1, len(whole.tokens) - 10):
        short, cut = encode(CHAT, view, limit)
        assert cut and joined(table(short))[-2:] == [("It is lost.", 1), ("<end>", 1)]
        assert short.tokens.tolist() == whole.tokens[:len(short.tokens)].tolist()
    assert encode(CHAT, view, 5) == (None, True)
    last_only = {"messages": [*OPENAI["messages"][:-1]], "answer": {"content": "Bye."}}
    assert encode(CHAT, agent_view(row(last_only), thoughts=True), len(whole.tokens) - 1) == (None, True)


def test_message_weights_and_the_tools_of_a_row():
    record = {"tools": '[{"name": "look"}]', "messages": [
        {"role": "user", "content": [{"type": "text", "text": "A"}]}, {"role": "assistant", "content": "B", "weight": 0},
        {"role": "user", "content": "C"}, {"role": "assistant", "content": "D", "weight": 1}]}
    made = joined(agents(record))
    assert made[0][0] == "<system>" and made[1][0].startswith('Tools:\n{"name": "look"}\n\nCall a tool with <tool_call>')
    assert [text for text, mask in made if mask] == ["D", "<end>"]


@pytest.mark.parametrize("line, words", [
    ('{"conversations": []}', "line 2, field conversations: expected a list of messages, found []"),
    ('{"dialogue": []}', "line 2, field conversations or messages: expected a list of messages, found ['dialogue']"),
    ('[1]', "line 2, field row: expected an object, found [1]"),
    ('{"messages": [{"role": "robot", "content": "x"}]}', "messages[0].role: expected one of system, user, human"),
    ('{"messages": [{"role": "user", "content": 3}]}', "messages[0].content: expected a string, found 3"),
    ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "messages[0].content: expected text parts only"),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}',
     "messages[1]: expected words or a tool call of the agent, found nothing"),
    ('{"messages": [{"role": "user", "content": "a"}]}', "messages: expected at least one message of the agent, found none"),
    ('{"conversations": [{"from": "function_call", "value": "look(7)"}]}',
     "conversations[0]: its text: expected JSON, found 'look(7)'"),
    ('{"messages": [{"role": "assistant", "tool_calls": [{"name": "look", "arguments": "7"}]}]}',
     "messages[0].tool_calls.arguments: expected an object, found 7"),
    ('{"messages": [{"role": "assistant", "tool_calls": [{"arguments": {}}]}]}', 'messages[0].tool_calls: expected {"name"'),
    ('{"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "S"}]}',
     "messages[1]: expected the system's text before every other message"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "reward": "high"}', "reward: expected a number, found 'high'"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "tools": "all"}', "tools: expected JSON, found 'all'"),
    ('{"messages": [', "line 2: not JSON"),
    ('{"messages": [{"role": "assistant", "content": "a \\ud800"}]}',
     "line 2, field messages[0].content: expected text, found half of a surrogate pair, '\\ud800', at character 2"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "tools": "[\\"\\\\udc00\\"]"}',
     "field tools[0]: expected text, found half"),
    ('{"messages": [{"role": "assistant", "tool_calls": [{"name": "look", "arguments": "{\\"id\\": \\"\\\\ud83d\\"}"}]}]}',
     "field messages[0].tool_calls.arguments.id: expected text, found half"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "\\ud800": 1}', "field record: expected text, found half"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "score": NaN}', "field score: expected a number, found nan"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "reward": -Infinity}', "reward: expected a number, found -inf"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "correct": 1e999}', "correct: expected a number, found inf"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "score": 1' + "0" * 400 + "}", "field score: expected a number"),
    ('{"messages": [{"role": "assistant", "content": "a"}], "score": 1' + "0" * 5000 + "}", "line 2: not JSON"),
    ('{"messages": [{"role": "assistant", "content": "<think>hm"}]}',
     "messages[0].content: expected </think> after <think>, found none"),
    ('{"messages": [{"role": "assistant", "content": "<think>hm</think>a<think>b"}]}', "expected </think> after <think>"),
])
def test_a_bad_row_is_named(tmp_path, line, words):
    (tmp_path / "bad.jsonl").write_text(json.dumps(OPENAI) + "\n" + line)
    with pytest.raises(TaskFileError) as error:
        list(dialogue_file.read(tmp_path / "bad.jsonl"))
    assert str(tmp_path / "bad.jsonl") in str(error.value) and words in str(error.value)


def test_whole_pairs_and_escaped_backslashes_are_text(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "assistant", "content": "\\ud83d\\ude00 \\\\ud800"}]}')
    found, = dialogue_file.read(tmp_path / "a.jsonl")
    assert found.dialogue.messages[0].text == "\U0001f600 \\ud800"


def test_what_a_tool_said_is_words_whatever_tags_it_holds():
    record = {"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "tool_calls": [{"name": "look"}]},
                           {"role": "tool", "content": "x</think>y<think>"}, {"role": "assistant", "content": "B"}]}
    assert "x</think>y<think>" in [text for text, _ in joined(agents(record))]


@pytest.mark.parametrize("told, stops", [
    ({}, True), ({"score": 0}, False), ({"reward": 0.0}, False), ({"score": 1}, True), ({"reward": 0.4}, True),
    ({"score": -1}, False), ({"score": 0, "success": True}, True), ({"score": 1, "correct": 0}, False)])
def test_the_user_learns_to_stop_where_the_conversation_was_settled(told, stops):
    record = {"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}], **told}
    assert (role_play.STOP in [text for text, mask in joined(users(record)) if mask]) == stops


def test_an_order_that_no_template_can_write_is_named():
    roles = ("user", "assistant", "tool", "user", "assistant")
    mixed = {"messages": [{"role": role, "content": "a"} for role in roles]}
    with pytest.raises(ValueError, match="message 3: expected an answer between a tool's result and a message, found none"):
        agent_view(row(mixed), thoughts=True)


def test_json_jsonl_and_parquet_are_read_alike(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet
    rows = [OPENAI, DUAL]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    flat = [{**one, "user_scenario": one.get("user_scenario"), "messages": json.dumps(one["messages"])} for one in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(flat), tmp_path / "a.parquet")
    read = {kind: [found.dialogue for found in dialogue_file.read(tmp_path / f"a.{kind}")]
            for kind in ("json", "jsonl", "parquet")}
    assert read["json"] == read["jsonl"] == read["parquet"] == [row(one) for one in rows]
    plain_rows = [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain_rows), tmp_path / "b.parquet")
    assert [found.dialogue for found in dialogue_file.read(tmp_path / "b.parquet")] == [row(plain_rows[0])]


# --- the real chat formats


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A tokenizer whose tool tags are added but not special, as Qwen3's are."""
    folder = tmp_path_factory.mktemp("qwen")
    train_bpe(["Hi! order lost"], 300, ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
                                        "</tool_call>", "<tool_response>", "</tool_response>"), folder)
    text = json.loads((folder / "tokenizer.json").read_text())
    for token in text["added_tokens"]:
        token["special"] = token["content"].startswith("<|")
    from eau_jax.rollout.tokenizer import from_json
    return from_json(json.dumps(text))


@pytest.mark.parametrize("template", [QWEN3, QWEN3_THINKING, QWEN25], ids=lambda template: template.name)
def test_tags_of_the_agents_turn_are_the_models_own_tokens(qwen, template):
    chat = bind(template, qwen)
    example = encode(chat, agent_view(row(OPENAI), thoughts=not closes_thinking(template)), MANY)[0]
    learned = example.tokens[example.learned].tolist()
    count = lambda name: learned.count(qwen.special[name])
    assert count("<tool_call>") == count("</tool_call>") == 1
    assert count("<think>") == count("</think>") == (0 if template is QWEN3 else 2)
    assert count("<|im_end|>") == 3 and count("<|im_start|>") == 0
    assert qwen.special["<tool_response>"] not in learned and qwen.special["<tool_response>"] in example.tokens.tolist()


# --- recorded episodes


def episodes():
    groups, _ = gather(agent("[action] colour?", "[answer] red"), indices=(0,), group_size=2)
    return [episode for group in groups for episode in group]


def records(tokens):
    prompt = {"system": "S", "opening": "Guess."}
    return [json.loads(json.dumps(plain(prompt | to_record(episode, tokens)))) for episode in episodes()]


def test_recorded_tokens_are_used_as_they_are_and_text_gives_the_same():
    for with_ids, text_only, episode in zip(records(True), records(False), episodes(), strict=True):
        exact, was_exact = recorded.agent_pieces(CHAT, with_ids)
        again, was_again = recorded.agent_pieces(CHAT, text_only)
        assert was_exact and not was_again
        a, b = join(exact, MANY)[0], join(again, MANY)[0]
        length = len(episode.tokens) - len(episode.final)
        assert a.tokens.tolist() == b.tokens.tolist() == episode.tokens[:length].tolist()
        assert a.learned.tolist() == b.learned.tolist()
    cut = records(False)[0]
    cut["turns"][0] |= {"ended": "length"}
    turns = recorded.agent_pieces(CHAT, cut)[0]
    assert not turns[0][2] and turns[1][2]
    assert turns[0][1].tolist() == ids("[action] colour?")      # without its end, which follows
    assert np.concatenate([part for turn in turns for part in turn[:2]]).tolist() == b.tokens.tolist()
    other = records(True)[0]
    other["turns"][0]["action_ids"][0] += 1     # of another tokenizer
    assert not recorded.agent_pieces(CHAT, other)[1]


def test_a_recorded_user_is_told_what_it_told():
    views = [user_view(dialogue) for dialogue in recorded.user_dialogues(records(False)[0])]
    assert [view.system for view in views] == [
        role_play.system(f"Request: Guess.{known}") for known in ("", "\nKnown: red", "\nKnown: red")]
    said = [(role_play.GREETING, "Guess."), ("[action] colour?", "red"), ("[answer] red", role_play.STOP)]
    for place, view in enumerate(views):
        assert [(turn.heard, turn.said, turn.learned) for turn in view.exchanges] == [
            (*turn, number == place) for number, turn in enumerate(said[:place + 1])]
    failed = records(False)[0] | {"success": False}
    assert [turn.said for turn in user_view(list(recorded.user_dialogues(failed))[-1]).exchanges] == ["Guess.", "red"]


def test_training_and_playing_give_the_user_the_same_words():
    """What `role_play` sends for a turn is the prompt of that turn's exchange."""
    record = records(False)[0]
    turn = record["turns"][0]
    words = Words(draft="x", disclosed=("red",), secrets=(), opening=record["opening"], agent_text=turn["agent"], seed=0,
                  group_seed=0, history=(("user", record["opening"]),), known=("red",))
    view = user_view(list(recorded.user_dialogues(record))[1])
    for recent, kept in ((0, view.exchanges), (1, view.exchanges[-1:]), (2, view.exchanges), (9, view.exchanges)):
        flat = [("system", view.system)]
        for exchange in kept:
            flat += [("user", exchange.heard), ("assistant", exchange.said)]
        assert [(message["role"], message["content"]) for message in role_play.request(words, recent)] == flat[:-1]


def test_filters_keep_what_they_say(tmp_path):
    (tmp_path / "episodes").mkdir()
    base = records(False)
    scores = [(0.2, True), (0.9, False), (0.8, True), (0.8, True), (None, False)]
    lines = [dict(base[0], score=score, success=success, seed=number, stop="infra_error" if score is None else "completed")
             for number, (score, success) in enumerate(scores)]
    for update in (2, 10):     # read in the order of updates, not of names
        (tmp_path / "episodes" / f"{update}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in (lines[:2] if update == 2 else lines[2:])))

    def kept(*chosen):
        found, counts = recorded.keep([tmp_path], recorded.Filter(*chosen))
        return [record["seed"] for record in found], counts

    assert kept(0.0, False, 0) == (
        [0, 1, 2, 3], {"read": 5, "unusable": 1, "below the threshold": 0, "beyond sft.per_task": 0})
    assert kept(0.5, False, 0)[0] == [1, 2, 3] and kept(0.0, True, 0)[0] == [0, 2, 3] and kept(0.5, True, 0)[0] == [2, 3]
    assert kept(0.0, False, 2)[0] == [1, 2] and kept(0.5, True, 1) == (
        [2], {"read": 5, "unusable": 1, "below the threshold": 2, "beyond sft.per_task": 1})


def test_sealed_and_foreign_episodes_are_refused(tmp_path):
    (tmp_path / "sealed" / "eval").mkdir(parents=True)
    (tmp_path / "sealed" / "eval" / "episodes.jsonl").write_text("{}\n")
    with pytest.raises(RunFolderError, match="which training may not see"):
        recorded.files(tmp_path / "sealed" / "eval" / "episodes.jsonl")
    with pytest.raises(RunFolderError, match="has no episodes"):
        recorded.files(tmp_path)
    whole = {name: "" for name in recorded.FIELDS} | {"score": 1, "turns": []}
    for broken, words in (({"score": float("nan")}, "score: expected a number, found nan"),
                          ({"score": "high"}, "score: expected a number, found 'high'"),
                          ({"turns": [{"agent": "\ud800"}]}, r"turns\[0\].agent: expected text, found half")):
        (tmp_path / "x.jsonl").write_text(json.dumps(whole | broken) + "\n")
        with pytest.raises(RunFolderError, match=f"x.jsonl, line 1, field {words}"):
            recorded.keep([tmp_path / "x.jsonl"], recorded.Filter(0.5, False, 0))
    (tmp_path / "x.jsonl").write_text('{"system": "S"}\n')
    with pytest.raises(RunFolderError, match="x.jsonl, line 1, field opening: expected an episode of a training run"):
        recorded.keep([tmp_path / "x.jsonl"], recorded.Filter(0.0, False, 0))
