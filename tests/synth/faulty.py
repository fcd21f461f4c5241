"""Domains with faults put into them on purpose, and small plans for them."""

from eau_jax.synth.database import Checker, DatabaseCase
from eau_jax.synth.domains.retail import TAU2 as RETAIL, retail
from eau_jax.synth.domains.workshop import TAU2, workshop
from eau_jax.synth.plan import SynthPlan
from eau_jax.synth.record import Evolved

KEPT = ("book", "move", "cancel", "fetch", "phone", "ask_price", "ask_day", "cancel_late", "fetch_claimed")


def only(*names, personas=("plain", "insistent"), domain=workshop):
    """The domain with these sub-tasks, and few personas, since every task is played with each."""
    return domain._replace(atoms=tuple(atom for atom in domain.atoms if atom.id in names),
                           personas={name: domain.personas[name] for name in personas})


small = only(*KEPT)


def remade(domain, change, *names):
    """The domain with other wishes of some sub-tasks, where there is room for them: change(world, wish) -> wish."""
    def again(atom):
        return atom._replace(make=lambda world, rng: (wish := atom.make(world, rng)) and change(world, wish))
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


# Every fault at once, each with what may be in quarantine for it: a weak checker is found as such where a task of a round has
# it, and by a trial as a fault of the sub-task


def unheeded(domain, tool):
    """An effect that happens and is not declared."""
    return domain._replace(actions={**domain.actions, tool: domain.actions[tool]._replace(effects=lambda look: {})})


def overlooking(domain, tau2, *place):
    """Checkers that do not look at a field."""
    class Overlooking(DatabaseCase):
        @property
        def checker(self):
            return Checker(super().checker.final, [list(place)], super().checker.communicate)

    return domain._replace(case=lambda record: Overlooking(tau2, record))


def described_by(table, more):
    """What makes a wish ambiguous: its record is described by its owner alone, and there is another one."""
    def vague(world, wish):
        more(world)
        return wish._replace(refers=[[table, wish.refers[0][1], {"user_id": world.user["user_id"]}]])
    return vague


def never(world, wish):
    """What makes a wish unreachable."""
    return wish._replace(goal=[[place, "done"] for place, _ in wish.goal])


def flawed_retail():
    made = only("cancel", "return", "exchange", "modify_address", "modify_payment", "home", "total", personas=("plain",),
                domain=overlooking(unheeded(retail, "modify_pending_order_address"), RETAIL, "orders", "cancel_reason"))
    vague = described_by("orders", lambda world: world.order("delivered"))
    return remade(remade(made, never, "home"), vague, "return", "exchange"), {
        ("atom/home",), ("effect/modify_pending_order_address",), ("family/delivered",),
        ("checker/cancel_pending_order with another reason", "atom/cancel")}
