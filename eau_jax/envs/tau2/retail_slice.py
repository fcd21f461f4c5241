"""tau2-bench retail on the array path: the seven tools that write to the orders of one customer, over integers.

What the slice holds is in `retail_records`.
"""

from typing import NamedTuple

import jax.numpy as jnp

from eau_jax.core.part import Act, Env
from eau_jax.core.types import Array
from eau_jax.envs.tau2.arrays import WRITE
from eau_jax.envs.tau2.database import View
from eau_jax.envs.tau2.domain import Domain
from eau_jax.envs.tau2.episode import Knobs
from eau_jax.envs.tau2.retail_records import (
    ITEMS, METHODS, NONE, ORDERS, PAIR, UNUSED, VARIANTS, Fixed, Records, Shared, Status, Write, arrays, catalogue, output,
    packed, records, shared)
from eau_jax.envs.tau2.retail_tools import REASONS
from eau_jax.envs.tau2.slice import Slice, sliced


class _Pairs(NamedTuple):
    rows: Array         # [ITEMS] i32: rows of the order
    new: Array          # [ITEMS] i32: item ids
    used: Array         # [ITEMS] bool
    mask: Array         # [] i32: of rows
    cents: Array        # [] i32: new prices less old ones
    sound: Array        # [] bool: there are such items, and each row occurs once
    offered: Array      # [] bool: there are such variants, and they are available
    differ: Array       # [] bool: each new item is another one


def retail_slice(domain: Domain, system: str | None = None) -> Env:
    """The array environment of the retail domain. `system` is as of `tau2.world.world`.

    Raises:
      ValueError: for a database beyond the sizes of `retail_records`.
    """
    goods = catalogue(domain)
    return sliced(domain, Slice(
        shared(domain, goods), lambda here: arrays(domain, here, goods), write,
        lambda here, at, name, args, outside: packed(domain, here, goods, name, args),
        lambda here, at, outside: records(View(domain.base, outside), here, at, goods), lambda *call: output(domain, *call)),
        system)


def write(table: Shared, fixed: Fixed, at: Records, knobs: Knobs, act: Act) -> tuple[Records, Array]:
    """(the records after a tool call, failed bool[]); an act that is no write of retail's changes nothing."""
    code, value = act.code, act.values.astype(jnp.int32)
    row, method = value[0], value[1]
    order = jnp.clip(row, 0, ORDERS - 1)
    item, payer, amount = (jnp.asarray(x)[order].astype(jnp.int32) for x in (fixed.item, fixed.payer, fixed.amount))
    status, paid = (x[order].astype(jnp.int32) for x in (at.status, at.paid))
    gift, balance = (jnp.asarray(x)[jnp.clip(method, 0, METHODS - 1)] for x in (fixed.gift, at.balance))
    pending, delivered = status == Status.PENDING, status == Status.DELIVERED
    pairs = _read(table, item, value)
    swaps = pairs.sound & pairs.offered & (~gift | (balance >= pairs.cents))
    may = {
        Write.CANCEL: pending, Write.EXCHANGE: delivered & swaps,
        Write.ITEMS: pending & swaps & pairs.differ, Write.RETURN: delivered & pairs.sound & (gift | (method == payer)),
        Write.PAYMENT: pending & (paid == NONE) & (method != payer) & (~gift | (balance >= amount)),
        Write.ADDRESS: pending | (status == Status.MODIFIED), Write.HOME: True}
    owned = (method >= 0) & (method < jnp.where(code == Write.CANCEL, len(REASONS), fixed.methods))
    there = (item[0] != NONE) & (row >= 0) & (row < ORDERS) & owned | (code == Write.HOME)
    does = {each: (code == each) & there & can for each, can in may.items()}
    failed = (code >= WRITE) & ~jnp.stack(list(does.values())).any()
    cancels, exchanges, changes, returns, pays = (does[each] for each in list(Write)[:5])

    here = jnp.arange(ORDERS) == row
    put = lambda old, *cases: _where(here, old, cases)
    held, touched = _swapped(item, pairs)
    rank = jnp.cumsum(pairs.used) - 1
    new = jnp.where(pairs.used[None] & (rank[None] == jnp.arange(ITEMS)[:, None]), pairs.new[None] + 1, 0).sum(1) - 1
    last = jnp.max(jnp.where(pairs.used & (rank == pairs.used.sum() - 1), pairs.new, NONE))
    chosen = jnp.where(changes, held, new)
    methods = jnp.arange(METHODS)
    once, twice = (methods == payer).astype(jnp.int32), (methods == paid).astype(jnp.int32)
    back = jnp.where(paid == NONE, once, 2 * once + twice)    # a refund in the history is refunded again, as upstream
    change = (jnp.where(cancels, amount * back, 0) - jnp.where(changes, pairs.cents * (methods == method), 0)
              + jnp.where(pays, amount * (once - (methods == method)), 0))
    return at.replace(
        status=put(at.status, (cancels, Status.UNNEEDED + method), (exchanges, Status.EXCHANGE), (changes, Status.MODIFIED),
                   (returns, Status.RETURN)),
        address=put(at.address, (does[Write.ADDRESS], act.mask)), paid=put(at.paid, (pays, method)),
        method=put(at.method, (exchanges | changes | returns, method)),
        cents=put(at.cents, (exchanges | changes, pairs.cents)),
        rows=put(at.rows, (exchanges | returns, pairs.mask), (changes, touched)),
        chosen=jnp.where(here[:, None] & (exchanges | changes), chosen[None].astype(jnp.int16), at.chosen),
        look=put(at.look, (changes & (knobs.last_item_wins != 0), last)),
        balance=at.balance + jnp.where(jnp.asarray(fixed.gift), change, 0),
        home=jnp.where(does[Write.HOME], act.mask, at.home)), failed


def _read(table: Shared, item: Array, value: Array) -> _Pairs:
    parts = jnp.concatenate([value[place] >> PAIR * jnp.arange(3) & (1 << PAIR) - 1 for place in (2, 3)])[:ITEMS]
    rows, variant = parts & 7, parts >> 3
    used = rows != UNUSED
    old = jnp.where(rows < ITEMS, item[jnp.clip(rows, 0, ITEMS - 1)], NONE)
    new = jnp.where(used & (old != NONE), old // VARIANTS * VARIANTS + jnp.minimum(variant, VARIANTS - 1), 0)
    price, mask = jnp.asarray(table.price), jnp.where(used, 1 << rows, 0)
    total = jnp.bitwise_or.reduce(mask)
    cents = jnp.where(used, price[new] - price[jnp.maximum(old, 0)], 0).sum()
    return _Pairs(
        rows=rows, new=new, used=used, mask=total, cents=cents, sound=jnp.all(~used | (old != NONE)) & (total == mask.sum()),
        offered=jnp.all(~used | jnp.asarray(table.available)[new] & (variant < VARIANTS)),
        differ=jnp.all(~used | (new != old)))


def _swapped(item: Array, pairs: _Pairs) -> tuple[Array, Array]:
    """(the items after one pair after the other was changed, mask of rows): each pair takes the first item with its id."""
    held, touched = item, jnp.zeros(ITEMS, bool)
    for k in range(ITEMS):
        hit = (held == item[jnp.clip(pairs.rows[k], 0, ITEMS - 1)]) & pairs.used[k]
        hit = hit & (jnp.cumsum(hit) == 1)
        held, touched = jnp.where(hit, pairs.new[k], held), touched | hit
    return held, jnp.sum(jnp.where(touched, 1 << jnp.arange(ITEMS), 0))


def _where(here: Array, old: Array, cases: tuple[tuple[Array, Array | int], ...]) -> Array:
    for condition, new in cases:
        old = jnp.where(here & condition, jnp.asarray(new, old.dtype), old)
    return old
