"""Realise: texts for a task, out of templates. The symbols stay the truth; what a template says is checked by the gates."""

import random
from typing import Mapping, Sequence

from eau_jax.synth.domain import Atom, Domain, Wish
from eau_jax.synth.record import Instance, Scenario, digest
from eau_jax.synth.user import PARTS


def realise(domain: Domain, instance: Instance) -> Scenario:
    """The task with its texts and its id."""
    return scenario(domain, instance, texts(domain, instance))


def texts(domain: Domain, instance: Instance) -> list[dict[str, str]]:
    """The texts of each wish, as of `texts_of`."""
    rng = random.Random(instance.skeleton.seed ^ 1)
    frames = domain.personas[instance.skeleton.cell["persona"]].frames
    return [texts_of(domain.atom(each["atom"]), Wish(**each), frames, rng) for each in instance.wishes]


def scenario(domain: Domain, instance: Instance, said: Sequence[Mapping[str, str]]) -> Scenario:
    """The task with these texts, and its id."""
    record = domain.finish(instance, said, domain.personas[instance.skeleton.cell["persona"]])
    return Scenario({"id": f"{domain.name}_{digest(record)}", **record})


def texts_of(atom: Atom, wish: Wish, frames: Sequence[str], rng: random.Random) -> dict[str, str]:
    """opening, number, details and payment of a wish, "" where the user has nothing to tell."""
    values: Mapping[str, str] = {**wish.words, **{name: value for _, name, value in wish.slots}}
    texts = {"opening": rng.choice(frames).format(_filled(atom, rng.choice(atom.openings), values))}
    there = {part for part, _, _ in wish.slots}
    for part in PARTS:
        forms = {"number": atom.number, "details": atom.details, "payment": atom.payment}[part]
        says = forms and (part in there or part == "details")
        texts[part] = _filled(atom, rng.choice(forms), values) if says else ""
    return texts


def _filled(atom: Atom, template: str, values: Mapping[str, str]) -> str:
    """Raises ValueError for a template that cannot be filled."""
    try:
        return template.format(**values)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{atom.id}, template {template!r}: expected fields among {', '.join(values) or 'none'}, found "
                         f"{error!s:.60}") from None
