"""A language model of a few rules, for the scripted chat server: it does in every role of a synthesis what is asked for."""

import json
import re

from chat_server import MARK


def role(body):
    """Which role a request is for."""
    system = body["messages"][0]["content"]
    for name, words in (("composer", "You plan test tasks"), ("paraphraser", "You reword"), ("validator", "You read"),
                        ("planner", "You improve a plan"), ("user", "You play a person")):
        if system.startswith(words):
            return name
    return "teacher"


def speaks(body):
    """The words to a request."""
    wanted = body["messages"][1]["content"]
    return {"composer": composes, "paraphraser": rewords, "validator": judges, "user": words, "teacher": phones}[role(body)](
        body) if wanted else ""


def words(body):
    return "Well: " + body["messages"][-1]["content"].rsplit(MARK, 1)[-1]


def composes(body):
    """The sub-task that is asked for, and the first others that go with it, in the middle of some talk."""
    listing, wanted = body["messages"][0]["content"], body["messages"][1]["content"]
    known = {name: (group, grants, needs) for name, group, grants, needs in re.findall(
        r"^- (\S+): family \w+, group (\S+); (something is changed|something is told|has to be refused)(?:; needs (\w+))?",
        listing, re.MULTILINE)}
    first, size = re.search(r"One of them is (\S+)\.", wanted)[1], int(re.search(r": (\d) different", wanted)[1])
    chosen = [known[first][2], first] if known[first][2] else [first]
    mixed = "some of what" in wanted
    for name, (group, grants, needs) in reversed(known.items()):
        refused = grants == "has to be refused"
        fits = refused == (mixed and known[first][1] != "has to be refused" and not any(
            known[each][1] == "has to be refused" for each in chosen)) if mixed else refused == ("all that" in wanted)
        if len(chosen) < size and fits and not needs and group not in {known[each][0] for each in chosen}:
            chosen.append(name)
    return f"<think>hm</think>Here it is:\n```json\n{json.dumps({'atoms': chosen, 'why': 'a day like any other'})}\n```"


def rewords(body):
    """Every text with a word before it; openings lose what a persona adds."""
    drafts = json.loads(re.search(r"\{.*?\n\}", body["messages"][1]["content"], re.DOTALL)[0])
    lower = lambda text: text if text.startswith(("I ", "I'")) else text[0].lower() + text[1:]
    return json.dumps({name: f"Hello, {lower(text)}" for name, text in drafts.items()})


def judges(body):
    return json.dumps({"verdict": "sound" if "sound" in body["messages"][1]["content"].rsplit("verdict", 1)[1] else "agent",
                       "why": "It reads well."})


def phones(body):
    """An agent who can change a phone number in the workshop, and nothing else."""
    call = lambda name, **arguments: f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    heard = [each["content"] for each in body["messages"][1:] if each["role"] == "user"]
    text, number = "\n".join(heard), len(heard)
    phone, user = re.search(r"555-\d{4}", text), re.search(r"\b[a-z]+_[a-z]+_\d+\b", text)
    email, name, code = (re.search(each, text) for each in (r"\S+@\S+\.com", r"name is (\w+) (\w+)", r"zip code is (\d+)"))
    if "Done" in heard[-1] or '"phone": "555' in heard[-1] and user and number > 5:
        return "It is done. Is there anything else?"
    if number == 1:
        return "Could you tell me your name and your zip code or your e-mail address, please?"
    if not user and email:
        return call("find_user_id_by_email", email=email[0])
    if not user and name and code:
        return call("find_user_id_by_name_zip", first_name=name[1], last_name=name[2], zip=code[1])
    if not phone:
        return "What exactly are the details, please?"
    if "onfirm" not in "".join(each["content"] for each in body["messages"] if each["role"] == "assistant"):
        wanted = json.dumps({"user_id": user[0], "phone": phone[0]})
        return f"I would do this: change_phone {wanted}. Do you confirm (yes/no)?"
    return call("change_phone", user_id=user[0], phone=phone[0]) if number < 6 else "It is done. Is there anything else?"
