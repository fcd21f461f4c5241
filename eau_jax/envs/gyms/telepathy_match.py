"""What is true of an entity, and is a guess right? Decided by words alone: the same text always means the same.

An attribute is true of an entity where one of its cues stands in the entity's category, title or gloss. It is false
where another attribute of its group is true, or where the entity's kind rules it out; otherwise nobody knows (maybe).
A question about none of the attributes is true where the gloss holds its words, and false where they name another kind.
"""

import functools
import re
import unicodedata
from typing import NamedTuple

from eau_jax.core.types import Task
from eau_jax.envs.gyms.intention_match import stems
from eau_jax.envs.gyms.telepathy_tasks import OPTIONS, THINGS

NO, YES, MAYBE = 0, 1, 2


class Attribute(NamedTuple):
    name: str
    group: str              # at most one attribute of a group is true, unless the entity's own words say otherwise
    hint: str               # what the user says of it
    words: frozenset[str]   # stems that a question about it uses
    cues: frozenset[str]    # stems in an entity's words that make it true


# kind -> (hint, words of a question, words for what is finer, further words of a category).
# The first kind that a category names is the entity's.
_KINDS = {
    "character": ("a character in a story", "character story", "superhero vampire god monster wizard",
                  "mythical mythology legendary hero robot"),
    "person": ("a person", "person human man woman people someone", "artist author composer painter actor singer scientist "
               "philosopher athlete leader inventor politician king queen", "figure figures mathematician celebrity "
               "entertainer entrepreneur humanitarian icon personality band"),
    "company": ("a company", "company brand business", "", "platform media"),
    "event": ("an event", "event", "holiday festival award war", "festivals period"),
    "game": ("a game", "game sport", "puzzle", "sports activity motorsport"),
    "place": ("a place", "place location", "city country mountain river island forest park museum building monument "
              "desert ocean lake", "cities landmark structure structures site waterfall wonder geography geographical "
              "geographic geological water feature"),
    "work": ("a work of art", "artwork art work", "book movie film song painting novel ballet dance",
             "literature franchise play show television series performance performing music genre"),
    "food": ("a food", "food", "fruit vegetable dessert beverage dish", "drink cuisine sweet"),
    "plant": ("a plant", "plant", "flower tree", ""),
    "animal": ("an animal", "animal creature", "mammal bird fish reptile insect dinosaur dog cat",
               "animals breed marine marsupial"),
    "sky": ("something in the sky", "celestial sky space", "planet star galaxy moon", "astronomy astronomical"),
    "nature": ("a thing of nature", "nature natural", "phenomenon weather substance season element storm",
               "process molecule compound gemstone"),
    "object": ("an object", "object item", "device machine instrument utensil aircraft computer software phone",
               "technology gadget console appliance invention transport transportation ship ride programming structure "
               "tool toy vehicle vessel furniture ornament"),
}
# trait -> (hint, words of a question, further cues, kinds it is true of, kinds it is false of)
_NOT_MADE = "character person plant animal sky nature"
_TRAITS = {
    "living": ("alive", "alive living lives", "", "plant animal", "company event game place work sky nature object food"),
    "fictional": ("fictional", "fictional imaginary mythical fiction", "fantasy", "character",
                  "person company plant animal sky nature food"),
    "made": ("artificial", "manmade artificial built invented", "designed",
             "company game work object", _NOT_MADE),
    "edible": ("edible", "edible eat eaten drink tasty", "dish flavor", "food",
               "character person company event game place work sky"),
    "electronic": ("electronic", "electronic electric electricity battery", "digital computer smartphone wireless",
                   "", "character person plant animal food place sky"),
    "male": ("male", "male man boy", "he him his king prince father actor", "", "company event game place food object"),
    "female": ("female", "female woman girl", "she her queen princess mother actress", "",
               "company event game place food object"),
    "old": ("very old", "ancient old antique", "century medieval egyptian roman", "", ""),
    "modern": ("modern", "modern recent contemporary today", "", "", ""),
    "america": ("from America", "america american usa states", "united york california washington", "", "sky"),
    "europe": ("from Europe", "europe european", "italian french german english british greek italy france germany england "
               "spain spanish london paris rome", "", "sky"),
    "asia": ("from Asia", "asia asian", "china chinese japan japanese india indian", "", "sky"),
    "africa": ("from Africa", "africa african", "egypt egyptian savanna", "", "sky"),
    "music": ("about music", "music musical song", "composer orchestra singer band", "", ""),
    "science": ("about science", "science scientific scientist physics", "physicist theory mathematician chemical", "", ""),
    "water": ("about water", "water sea ocean river lake swim", "marine aquatic", "", ""),
    "flying": ("able to fly", "fly flies flying wings", "wing feathers aircraft", "", "plant place food"),
    "sweet": ("sweet", "sweet sugar sugary", "dessert chocolate", "", "person place company event"),
    "faith": ("about religion", "religion religious faith god holy", "sacred church temple buddhist christian", "", ""),
}
_COLOURS = {colour: colour for colour in (*OPTIONS["colour"], "black", "yellow", "brown")}
_SIZES = {"big": "big large huge giant tall massive", "small": "small little tiny miniature"}
_MATERIALS = {"wood": "wood wooden", "metal": "metal metallic iron steel", "glass": "glass", "stone": "stone rock marble"}


def _bag(words: str) -> frozenset[str]:
    return frozenset(stems(words))


def _ontology() -> tuple[Attribute, ...]:
    """Every attribute. What a generated thing may be comes first, as the user's hints follow this order."""
    article = lambda word: f"It is {'an' if word[0] in 'aeiou' else 'a'} {word}."
    found = [Attribute(name, group, f"It is {name}.", _bag(words), _bag(words))
             for group, named in (("size", _SIZES), ("colour", _COLOURS), ("material", _MATERIALS))
             for name, words in named.items()]
    things = [("thing", thing) for sort in THINGS for thing in THINGS[sort]] + [("sort", sort) for sort in THINGS]
    found += [Attribute(name, group, article(name), _bag(name), _bag(name)) for group, name in things]
    found += [Attribute(name, name, f"It is {hint}.", _bag(words), _bag(f"{words} {cues}"))
              for name, (hint, words, cues, _, _) in _TRAITS.items()]
    found += [Attribute(name, "kind", f"It is {hint}.", _bag(words), frozenset())
              for name, (hint, words, *_) in _KINDS.items()]
    return tuple(found)


ATTRIBUTES = _ontology()
INDEX = {attribute.name: index for index, attribute in enumerate(ATTRIBUTES)}
_FINER = {name: _bag(finer) for name, (_, _, finer, _) in _KINDS.items()}
# Words that questions are framed with; they tell nothing of an entity.
_FRAME = _bag("thing kind type sort made make color colour called known famous considered found used use usually often "
              "typically generally related associated entity correct true right really part form able he she him her one")
_ARTICLES = frozenset("the a an it is its my guess final i think answer you are thinking of am".split())
_LETTER = re.compile(r"\b(?:start|begin)s?\b.*?\bwith\b(?:\s+(?:a|an|the))?(?:\s+letter)?\W+([a-z])\b", re.IGNORECASE)
_MAN_MADE = re.compile(r"\b(?:man|hand)[ -]made\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")


class Entity(NamedTuple):
    """What is known of a task's entity."""

    truth: tuple[int, ...]       # of each attribute: NO, YES or MAYBE
    hintable: tuple[bool, ...]   # of each attribute: true by the entity's own words, and not told by the description
    words: frozenset[str]        # stems of all that describes it
    names: tuple[str, ...]       # the title and what else it is called


def entity(task: Task) -> Entity:
    """The task's entity."""
    data = task.data
    return _entity(data["title"], data["description"], data["target_entity"], data["category"])


def asked(question: str) -> tuple[tuple[int, ...], frozenset[str]]:
    """(the attributes that a question names, the words of it that belong to none of them)."""
    words = frozenset(stems(_MAN_MADE.sub("manmade", question))) - _FRAME
    named = tuple(index for index, attribute in enumerate(ATTRIBUTES) if words & attribute.words)
    return named, words - frozenset().union(*(ATTRIBUTES[index].words for index in named))


def attribute(question: str) -> int | None:
    """The attribute that a question is about; None unless there is exactly one and nothing else in it."""
    named, others = asked(question)
    plain = len(named) == 1 and not others and "than" not in question.casefold().split() and not _LETTER.search(question)
    return named[0] if plain else None


def truth(task: Task, question: str) -> int | None:
    """NO, YES or MAYBE to a question; None where it has no words to judge.

    Everything that it names has to be true; with "or" in it, one of them. A comparison is never decided.
    """
    letter = _LETTER.search(question)
    if letter:
        return YES if _letters(task.data["title"])[:1] == letter.group(1).lower() else NO
    known, (named, others) = entity(task), asked(question)
    parts = [known.truth[index] for index in named] + [_fact(known, word) for word in others]
    plain = question.casefold().split()
    if not parts:
        return None
    if "than" in plain:
        return MAYBE
    deciding, other = (YES, NO) if "or" in plain else (NO, YES)
    return deciding if deciding in parts else other if set(parts) == {other} else MAYBE


def _fact(known: Entity, word: str) -> int:
    """Whether a word that belongs to no attribute fits. A bird is no mountain, and neither is what is called a river."""
    if word in known.words:
        return YES
    kinds = [name for name, finer in _FINER.items() if word in finer]
    ruled_out = [known.truth[INDEX[name]] == NO or bool(_FINER[name] & known.words) for name in kinds]
    return NO if kinds and all(ruled_out) else MAYBE


def is_right(task: Task, guess: str) -> bool:
    """Whether the guess is one of the entity's names, whatever the case, accents, articles and order of words."""
    return _name(guess) in {_name(name) for name in entity(task).names}


def spaced(text: str) -> str:
    """" word word ": plain words between single spaces, so that `in` respects word borders."""
    return f" {' '.join(_plain(text))} "


@functools.lru_cache(maxsize=8192)
def _entity(title: str, description: str, gloss: str, category: str) -> Entity:
    own = _bag(f"{title} {gloss} {category.replace('_', ' ')}")
    sorts = _bag(category.replace("_", " ")), _bag(description)
    kind = next((name for words in sorts for name, (_, asked, finer, cues) in _KINDS.items()
                 if words & _bag(f"{asked} {finer} {cues}")), None)
    yes = {attribute.name for attribute in ATTRIBUTES if own & attribute.cues} | ({kind} - {None})
    stated = yes - {name for name in _KINDS if name != kind}
    yes |= {name for name, (_, _, _, kinds, _) in _TRAITS.items() if kind in kinds.split()}
    settled = {attribute.group for attribute in ATTRIBUTES if attribute.name in yes and attribute.name not in _TRAITS}
    no = {attribute.name for attribute in ATTRIBUTES if attribute.group in settled or
          (attribute.group in ("sort", "thing") and kind not in (None, "object"))}
    no |= {name for name, (_, _, _, _, kinds) in _TRAITS.items() if kind in kinds.split()}
    truth = tuple(YES if attribute.name in yes else NO if attribute.name in no else MAYBE for attribute in ATTRIBUTES)
    names, told = _names(title, gloss, kind), _bag(description)
    hintable = tuple(attribute.name in stated and not attribute.words & told and
                     not any(spaced(name) in spaced(attribute.hint) for name in names) for attribute in ATTRIBUTES)
    return Entity(truth=truth, hintable=hintable, words=own | told, names=names)


def _names(title: str, gloss: str, kind: str | None) -> tuple[str, ...]:
    names = [title, re.sub(r"\s*\(.*?\)", "", title), gloss.partition(" - ")[0], re.sub(r"^.*['’]s\s+", "", title)]
    words = title.split()
    if kind == "person" and len(words) > 1 and not {"the", "of"} & {word.lower() for word in words} and words[-1].isalpha():
        names.append(words[-1])
    return tuple(dict.fromkeys(name.strip(" '\"") for name in names if _letters(name)))


def _name(text: str) -> tuple[str, ...]:
    words = _plain(text)
    return tuple(sorted(word for word in words if word not in _ARTICLES) or sorted(words))


def _letters(text: str) -> str:
    """The title's letters, from the first that counts on."""
    words = _plain(text)
    return "".join(words[1:] if len(words) > 1 and words[0] in ("the", "a", "an") else words)


def _plain(text: str) -> list[str]:
    """The text's words in lower case and without accents."""
    text = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(char for char in text if not unicodedata.combining(char)))
