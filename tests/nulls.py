"""Agents that do not try: they understand nothing of what they are shown, and score no more than `Env.floor` says.

An agent is a function (seen, n) of what it was shown so far, [system text, opening, reply, reply, ...], and of the number
of its message, from 0. A module of `worlds` adds some that know the words of its generator: NULLS {kind: {name: agent}}.
"""

import re

from eau_jax.core.part import Floor

KINDS = Floor._fields
COMMON = ("budget date time place size color style level length language format food music hotel transport guests purpose "
          "audience theme duration location genre").split()
TOPICS = ("budget range", "time frame", "areas of interest", "theme", "preferred format", "dietary restrictions",
          "experience level", "location", "type", "style preferences", "size", "purpose", "data source", "number of people",
          "method", "length")   # chosen on Intention's train split
REASON = "It costs too much money, takes far too long and nobody really needs it."
SAID = {   # kind -> what is said; it is tried behind every tag
    "idle": {
        "greeting": lambda seen, n: "Hello there, how are you?", "yes": lambda seen, n: "yes", "no": lambda seen, n: "No.",
        "spam": lambda seen, n: "yes yes yes 1 2 3", "more": lambda seen, n: "Tell me more. What else do you want?",
        "words": lambda seen, n: "what which how when where who?",
        "transfer": lambda seen, n: "I transfer you to a human agent.",
        "give up": lambda seen, n: "I give up. What is it?", "anything": lambda seen, n: "anything"},
    "echo": {
        "last": lambda seen, n: seen[-1], "opening": lambda seen, n: seen[1],
        "all": lambda seen, n: " ".join(seen[1:])[-3000:],
        "sentence": lambda seen, n: pick(sentences(seen[1]), n), "but": lambda seen, n: f"But {pick(sentences(seen[1]), n)}",
        "but opening": lambda seen, n: f"But {seen[1]}", "but last": lambda seen, n: f"But no, I doubt it: {seen[-1]}",
        "not true": lambda seen, n: f"I disagree. It is not true: {pick(sentences(seen[1]), n)} Studies show otherwise.",
        "one reason": lambda seen, n: f"But {pick(sentences(seen[1]), n)} {REASON}",
        "one reason, opening": lambda seen, n: f"But no. {seen[1]} {REASON}",
        "is it so": lambda seen, n: f"Is it so: {pick(sentences(seen[1]), n)}?",
        "more about": lambda seen, n: f"Please tell me more about this: {seen[1]} Which details?",
        "keywords": lambda seen, n: " ".join(keywords(seen[1])), "what about": lambda seen, n: ask(keywords(seen[1])),
        "one keyword": lambda seen, n: ask([pick(keywords(seen[1]), n)]),
        "few keywords": lambda seen, n: f"Which {', '.join(keywords(seen[1])[n % 3::3])} do you want?",
        "last words": lambda seen, n: ask(keywords(seen[-1])[-6:])},
    "everything": {
        "list": lambda seen, n: " ".join(COMMON), "one question": lambda seen, n: ask(COMMON),
        "four questions": lambda seen, n: " ".join(ask(COMMON[k::4]) for k in range(4)),
        "many questions": lambda seen, n: " ".join(ask([word]) for word in COMMON),
        "and the opening": lambda seen, n: f"{seen[1]} {ask(COMMON)}"},
    "guesses": {
        "count": lambda seen, n: str(n), "one": lambda seen, n: "1", "first id": lambda seen, n: f"{'FHRAC'[n % 5]}1",
        "id shown": lambda seen, n: next(iter(_ID.findall(" ".join(seen[2:]))), "H1"),
        "questionnaire": lambda seen, n: f"What {pick(COMMON, n)} do you want?",
        "two at a time": lambda seen, n: ask([pick(COMMON, 2 * n), pick(COMMON, 2 * n + 1)]),
        "two topics": lambda seen, n: f"What about {pick(TOPICS, 2 * n)} and {pick(TOPICS, 2 * n + 1)}?"},
}
BARE = {   # whole messages
    "idle": {"silence": lambda seen, n: "", "chatter": lambda seen, n: "Hello there, how are you?",
             "finish": lambda seen, n: "[finish]", "tags": lambda seen, n: "[answer][answer][answer]"},
    "echo": {"bare": lambda seen, n: seen[-1]}, "everything": {},
    "guesses": {
        "look, then count": lambda seen, n: ("[search] test", f"[answer] {n}")[n > 0],
        "look, names and numbers": lambda seen, n: _looked(seen, n, list(dict.fromkeys(_NAME.findall(seen[min(2, n + 1)])))),
        "look, last words": lambda seen, n: _looked(seen, n, [words[-1] for line in seen[min(2, n + 1)].splitlines()
                                                              if (words := _WORD.findall(line))]),
        "look, answer": lambda seen, n: (f"[search] {seen[1]}", f"[answer] {SAID['guesses']['id shown'](seen, n)}")[n % 2]},
}
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"[A-Za-z0-9]+")
_ID = re.compile(r"\b[A-Z]\d+\b")
_NAME = re.compile(r"[A-Z][\w'-]*(?: [A-Z][\w'-]*)*|\d[\d,.]*")
_SMALL = frozenset("a an the i you we to of in on for and or is are it my with at need want please from".split())


def pick(items, number):
    """The `number`-th item, counted round and round."""
    return items[number % len(items)] if items else ""


def _looked(seen, number, found):
    """A search for the opening, then one of `found` after the other as the answer."""
    return f"[answer] {pick(found, number - 1)}" if number else f"[search] {seen[1]}"


def sentences(text):
    return [part for part in _SENTENCE.split(text) if part.strip()]


def keywords(text):
    return list(dict.fromkeys(word for word in _WORD.findall(text) if word.lower() not in _SMALL))


def ask(words):
    return f"What about {', '.join(words)}?"


def agents(kind, tags=("action", "answer", "search")):
    """{name: agent} of the common list."""
    return {f"[{tag}] {name}": (lambda seen, n, tag=tag, say=say: f"[{tag}] {say(seen, n)}")
            for tag in tags for name, say in SAID[kind].items()} | BARE[kind]
