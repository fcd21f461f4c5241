"""tau2-bench airline on the array path: the six tools that write to the reservations of one customer, over integers.

What the slice holds is in `airline_records`. Seats are taken by bookings alone; what is left of them follows from the
bookings made.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from eau_jax.core.part import Act, Env
from eau_jax.core.types import Array
from eau_jax.envs.tau2 import airline_records
from eau_jax.envs.tau2.airline_records import (
    BOOKINGS, CABINS, CERTIFICATE, CERTIFICATES, CREDIT, GIFT, LEG_BITS, METHODS, NEW, NONE, OLD, PAYMENTS, Booking, Fixed,
    Records, Shared, Write, arrays, gold_bookings, output, packed, shared)
from eau_jax.envs.tau2.airline_tools import BAG_FEE, Args
from eau_jax.envs.tau2.arrays import WRITE
from eau_jax.envs.tau2.database import Changed
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.slice import Memory, Slice, sliced
from eau_jax.envs.tau2.episode import Knobs, Row


class _Legs(NamedTuple):
    legs: Array         # [LEGS] i32
    price: Array        # [LEGS] i32
    sound: Array        # [] bool: they can be had
    cost: Array         # [] i32: what changing to them costs


def airline_slice(domain: Domain, system: str | None = None) -> Env:
    """The array environment of the airline domain. `system` is as of `tau2.world.world`.

    Raises:
      ValueError: for a database beyond the sizes above.
    """
    base = domain.base
    days = sorted({date for flight in base["flights"].values() for date in flight["dates"]})
    flights = list(base["flights"])
    if len(days) * len(flights) > 2**LEG_BITS - 2:
        raise ValueError(f"{len(flights)} flights on {len(days)} days are more than {2**LEG_BITS - 2}")
    legs = {(number, day): len(days) * place + days.index(day) for place, number in enumerate(flights)
            for day in base["flights"][number]["dates"]}
    names = {leg: name for name, leg in legs.items()}
    people = Memory(*[record["passengers"] for record in base["reservations"].values()])

    def pack(here: Row, at: Records, name: str, args: Args, outside: Changed) -> tuple[int, int, tuple[float, ...]] | None:
        return packed(domain, here, at, name, args, outside, legs, people)

    def records(here: Row, at: Records, outside: Changed) -> Changed:
        return airline_records.records(domain, here, at, outside, names, people, gold_bookings(domain, here, legs))

    return sliced(domain, Slice(
        shared(base, legs, len(days) * len(flights)), lambda here: arrays(domain, here, legs), write, pack, records,
        lambda *call: output(domain, *call)), system)


def write(table: Shared, fixed: Fixed, at: Records, knobs: Knobs, act: Act) -> tuple[Records, Array]:
    """(the records after a tool call, failed bool[]); an act that is no write of airline's changes nothing."""
    code, value = act.code, act.values.astype(jnp.int32)
    books = code == Write.BOOK
    slot, which = jnp.sum(at.booked != NONE), jnp.clip(value[0], 0, BOOKINGS - 1)
    booking = Booking(**{name: jnp.asarray(each)[which] for name, each in vars(fixed.booking).items()})
    row = jnp.where(books, OLD + slot, value[0] & 15)
    method, count = value[1], jnp.where(books, booking.count, at.count[row])
    there = jnp.where(row < OLD, row < fixed.reservations, at.booked[jnp.clip(row - OLD, 0, NEW - 1)] != NONE)
    legs = _read(table, fixed, at, act, row, booking, count)

    price = jnp.where(code == Write.FLIGHTS, legs.cost, BAG_FEE * jnp.maximum(0, value[3] - at.paid_bags[row]))
    kind, ways = jnp.asarray(fixed.kind), jnp.arange(METHODS + CERTIFICATES)
    way = jnp.clip(method, 0, METHODS + CERTIFICATES - 1)
    funds = ((method == way) & at.held[way] & (kind[way] != CERTIFICATE) & ((kind[way] != GIFT) | (at.worth[way] >= price)))
    length = jnp.sum(at.method[row] != NONE)
    spent = jnp.maximum(booking.method, 0)
    covered = (booking.method == NONE) | at.held[spent] & ((kind[spent] == CREDIT) | (at.worth[spent] >= booking.dollars))
    free = ~at.held & (ways >= METHODS)
    may = {
        Write.BOOK: (slot < NEW) & (value[0] >= 0) & (value[0] < fixed.bookings) & legs.sound & covered.all(),
        Write.CANCEL: there & (2 * length <= PAYMENTS), Write.CERTIFY: free.any(),
        Write.BAGS: there & funds & (length < PAYMENTS), Write.FLIGHTS: there & legs.sound & funds & (length < PAYMENTS),
        Write.PEOPLE: there & (value[1] == at.count[row])}
    does = {each: (code == each) & can for each, can in may.items()}
    failed = (code >= WRITE) & ~jnp.stack(list(does.values())).any()
    books, cancels, certifies, bags, flies, renames = does.values()

    here = jnp.arange(OLD + NEW) == row
    put = lambda old, when, new: jnp.where((here & when).reshape(-1, *[1] * (old.ndim - 1)), new, old)
    charged = (bags | flies) & (price != 0)
    methods, dollars = _paid(at.method[row], at.dollars[row], cancels, charged, method, price)
    uses = booking.method[None] == ways[:, None]
    sent = free & certifies & (ways == jnp.argmax(free))
    worth = at.worth - jnp.where(kind == GIFT, jnp.where(books, (uses * booking.dollars[None]).sum(1), 0)
                                 + jnp.where(charged & (ways == method), price, 0), 0)
    after = at.replace(
        cabin=put(at.cabin, books | flies, jnp.where(books, booking.cabin, value[0] >> 4)),
        legs=put(at.legs, books | flies, legs.legs[None]), price=put(at.price, books | flies, legs.price[None]),
        people=put(at.people, books | renames, act.mask), count=put(at.count, books, count),
        bags=put(at.bags, books | bags, jnp.where(books, value[1], value[2])),
        paid_bags=put(at.paid_bags, books | bags, jnp.where(books, booking.paid_bags, value[3])),
        cancelled=put(at.cancelled, cancels, True),
        method=put(at.method, books | cancels | charged, jnp.where(books, booking.method, methods)[None]),
        dollars=put(at.dollars, books | cancels | charged, jnp.where(books, booking.dollars, dollars)[None]),
        held=at.held & ~(books & (kind == CERTIFICATE) & uses.any(1)) | sent, worth=jnp.where(sent, act.mask, worth),
        booked=jnp.where(books & (jnp.arange(NEW) == slot), which, at.booked))
    return jax.tree.map(lambda old, new: new.astype(old.dtype), at, after), failed


def _read(table: Shared, fixed: Fixed, at: Records, act: Act, row: Array, booking: Booking, count: Array) -> _Legs:
    """The legs of a booking or of a change of flights: those that stay keep their price, the others need seats."""
    value, books = act.values.astype(jnp.int32), act.code == Write.BOOK
    low = (1 << LEG_BITS) - 1
    named = jnp.stack([act.mask & low, act.mask >> LEG_BITS & low, value[2], value[3]]) - 1
    legs = jnp.where(books, booking.legs, named)
    cabin = jnp.where(books, booking.cabin, value[0] >> 4)
    used, leg = legs != NONE, jnp.clip(legs, 0, table.open.shape[0] - 1)
    cabin = jnp.clip(cabin, 0, len(CABINS) - 1)
    old, paid = at.legs[row], at.price[row].astype(jnp.int32)
    alike = (legs[:, None] == old[None]) & used[:, None] & ~books & (at.cabin[row] == cabin)
    kept = alike.any(1)
    made = jnp.maximum(at.booked, 0)
    theirs, counts = jnp.asarray(fixed.booking.legs)[made], jnp.asarray(fixed.booking.count)[made]
    counts = jnp.where((at.booked != NONE) & (jnp.asarray(fixed.booking.cabin)[made] == cabin), counts, 0)
    taken = (jnp.sum(theirs[None] == legs[:, None, None], -1) * counts[None]).sum(1)
    seated = jnp.asarray(table.open)[leg] & (jnp.asarray(table.seats)[leg, cabin] - taken >= count) & (legs == leg)
    price = jnp.where(kept, jnp.take(paid, jnp.argmax(alike, 1)), jnp.asarray(table.price)[leg, cabin])
    price = jnp.where(used, price, 0)
    return _Legs(legs, price, jnp.all(~used | kept | seated), count * (price.sum() - paid.sum()))


def _paid(method: Array, dollars: Array, cancels: Array, charged: Array, by: Array, price: Array) -> tuple[Array, Array]:
    """(methods, dollars) of a payment history after a refund of all of it or one more payment."""
    place, length = jnp.arange(PAYMENTS), jnp.sum(method != NONE)
    source, again = jnp.clip(place - length, 0, PAYMENTS - 1), cancels & (place >= length) & (place < 2 * length)
    one = charged & (place == length)
    return (jnp.where(again, method[source], jnp.where(one, by, method)),
            jnp.where(again, -dollars[source], jnp.where(one, price, dollars)))
