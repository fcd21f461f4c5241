"""The workshop with faults put into it on purpose, and small plans for it."""

from eau_jax.synth.database import Checker, DatabaseCase
from eau_jax.synth.domains.workshop import TAU2, workshop
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.record import Evolved

KEPT = ("book", "move", "cancel", "fetch", "phone", "ask_price", "ask_day", "cancel_late", "fetch_claimed")


def only(*names, personas=("plain", "insistent")):
    """The workshop with these sub-tasks, and few personas, since every task is played with each."""
    return workshop._replace(atoms=tuple(atom for atom in workshop.atoms if atom.id in names),
                             personas={name: workshop.personas[name] for name in personas})


small = only(*KEPT)


def remade(domain, change, *names):
    """The domain with other wishes of some sub-tasks: change(world, wish) -> wish."""
    def again(atom):
        return atom._replace(make=lambda world, rng: change(world, atom.make(world, rng)))
    return domain._replace(atoms=tuple(again(atom) if atom.id in names else atom for atom in domain.atoms))


def evolving(root, domain, **settings):
    """A plan of two rounds; null agents are drawn ten times instead of a hundred times, since they take most of the time."""
    return SynthPlan(**{"domain": domain, "root": str(root), "count": 16, "shard": 4, "rounds": 2, "probes": 6, "novices": 0,
                        "sizes": {1: 0.4, 2: 0.6}, "evolved": Evolved(gates={"tries": 10}), **settings})


# One fault each


def unreachable(domain=small):
    """A bad sub-task: what the user wants is not what the gold step does."""
    return remade(domain, lambda world, wish: wish._replace(goal=[[place, "done"] for place, _ in wish.goal]), "fetch")


def ambiguous(domain=small):
    """A family of sub-tasks in which the user does not say which repair is meant."""
    def vague(world, wish):
        world.order("collected")
        return wish._replace(refers=[["orders", wish.refers[0][1], {"user_id": world.user["user_id"]}]])
    return remade(domain, vague, "ask_price", "ask_day")


def misdeclared(domain=small):
    """An effect that is declared and does not happen: handing out a bike gives no place back."""
    action = domain.actions["move_repair"]
    declared = lambda look: {("orders", look.step.arguments["order_id"], "day"): look.step.arguments["day"]}
    return domain._replace(actions={**domain.actions, "move_repair": action._replace(effects=declared)})


class Blind(DatabaseCase):
    """Its checker does not look at how a bike was paid for."""

    @property
    def checker(self):
        return Checker(super().checker.final, [["orders", "paid_with"]], super().checker.communicate)


def unchecked(domain=small):
    """Checkers that are too weak."""
    return domain._replace(case=lambda record: Blind(TAU2, record))


def leaking(domain=only("phone", "cancel", "move")):
    """A template that tells what has to be asked for."""
    told = "My number is {phone}, change that."
    return domain._replace(atoms=tuple(atom._replace(openings=(atom.openings[0], told)) if atom.id == "phone" else atom
                                       for atom in domain.atoms))
