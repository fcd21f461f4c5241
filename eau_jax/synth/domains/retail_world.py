"""A shop for the retail tools: products made on the spot, and customers with orders for one task.

Names, products and numbers are our own. Ids have upstream's form, so that the same tools, checks and words apply.
"""

import functools
import itertools
import random
from typing import Any, Mapping

from eau_jax.envs.tau2.database import Base

_OPTIONS = {
    "Desk Lamp": {"colour": ("white", "black", "brass"), "bulb": ("warm", "cold"), "base": ("clamp", "stand")},
    "Backpack": {"size": ("small", "medium", "large"), "colour": ("grey", "navy", "olive")},
    "Kettle": {"capacity": ("1 l", "1.5 l", "2 l"), "finish": ("steel", "enamel", "glass")},
    "Rain Jacket": {"size": ("S", "M", "L", "XL"), "colour": ("yellow", "green")},
    "Notebook": {"paper": ("lined", "dotted", "blank"), "cover": ("soft", "hard"), "size": ("A5", "A6")},
    "Headlamp": {"brightness": ("200 lm", "400 lm"), "battery": ("rechargeable", "AAA"), "colour": ("red", "black")},
    "Chess Set": {"wood": ("maple", "walnut", "cherry"), "board": ("folding", "flat")},
    "Wall Clock": {"diameter": ("20 cm", "30 cm"), "frame": ("oak", "pine", "metal")},
    "Thermos": {"capacity": ("0.5 l", "0.75 l", "1 l"), "colour": ("silver", "blue", "red")},
    "Camping Chair": {"armrest": ("with", "without"), "colour": ("sand", "forest", "charcoal")},
    "Phone Stand": {"material": ("bamboo", "aluminium"), "angle": ("fixed", "adjustable")},
    "Yoga Mat": {"thickness": ("4 mm", "6 mm", "8 mm"), "colour": ("plum", "teal")}}
_FIRST = ("Alma", "Bruno", "Celia", "Dario", "Edda", "Fritz", "Gitta", "Henk", "Inga", "Jorge", "Karla", "Lars", "Maud",
          "Nils",
          "Olga", "Pablo", "Rita", "Stefan", "Thea", "Udo", "Vilma", "Wanda")
_LAST = ("Aster", "Birch", "Clover", "Dogwood", "Elder", "Fennel", "Gorse", "Hazel", "Iris", "Juniper", "Kelp", "Laurel",
         "Mallow", "Nettle", "Olive", "Poplar", "Rowan", "Sorrel", "Thistle", "Willow")
_STREETS = ("Canal Road", "Mill Lane", "Harbour Street", "Orchard Way", "Station Road", "Castle Hill", "Market Square")
_PLACES = (("Austin", "TX", "78701"), ("Denver", "CO", "80202"), ("Boston", "MA", "02108"), ("Seattle", "WA", "98101"),
           ("Chicago", "IL", "60601"), ("Phoenix", "AZ", "85004"))


@functools.cache
def base() -> Base:
    """Products with a variant for every combination of options, one in seven of them sold out; no users and no orders."""
    rng, products = random.Random(20250601), {}
    for place, (name, options) in enumerate(_OPTIONS.items()):
        key, variants = f"{1100000000 + 7919 * place}", {}
        price = rng.randrange(1500, 20000)
        for number, values in enumerate(itertools.product(*options.values())):
            item = f"{2100000000 + 104729 * place + 31 * number}"
            variants[item] = {"item_id": item, "options": dict(zip(options, values)), "available": rng.random() > 1 / 7,
                              "price": round((price + rng.randrange(2000)) / 100, 2)}
        products[key] = {"name": name, "product_id": key, "variants": variants}
    return {"products": products, "users": {}, "orders": {}}


class World:
    """A shop's records around one customer, being built."""

    def __init__(self, rng: random.Random, cell: Mapping[str, Any]):
        self.rng, self.cell = rng, cell
        self.rows: dict[str, dict[str, Any]] = {"users": {}, "orders": {}}
        self._numbers = rng.sample(range(1000000, 9999999), 96)
        self._products = rng.sample(sorted(base()["products"]), len(base()["products"]))
        first, last = rng.choice(_FIRST), rng.choice(_LAST[cell["split"] == "test"::2])
        self.user = self.person(first, last)
        facts = rng.choice(({"email": self.user["email"]}, {"zip": self.user["address"]["zip"]}))
        self.facts: dict[str, str] = {"name": f"{first} {last}", **facts}
        self.order("processed")
        somebody = self.person(rng.choice([each for each in _FIRST if each != first]), last)
        self.order("pending", somebody)         # so that blind changes hit the wrong one as well
        for _ in range(cell["distractors"]):
            self.order("pending", self.person(first, last))
            self.order(rng.choice(("delivered", "processed")))

    def person(self, first: str, last: str) -> dict[str, Any]:
        """A customer with two to four ways to pay, without orders."""
        number = self._numbers.pop() % 10000
        key = f"{first.lower()}_{last.lower()}_{number:04d}"
        user = {"user_id": key, "name": {"first_name": first, "last_name": last}, "address": self.address(),
                "email": f"{first.lower()}.{last.lower()}{number:04d}@example.com", "payment_methods": {}, "orders": []}
        for source in self.rng.sample(("credit_card", "credit_card", "paypal", "gift_card"), self.rng.choice((2, 3, 4))):
            self.method(source, user)
        self.rows["users"][key] = user
        return user

    def method(self, source: str, owner: dict[str, Any] | None = None) -> str:
        """A further way to pay; its id."""
        key = f"{source}_{self._numbers.pop()}"
        (self.user if owner is None else owner)["payment_methods"][key] = {"source": source, "id": key, **{
            "credit_card": {"brand": "visa", "last_four": f"{self._numbers.pop() % 10000:04d}"}, "paypal": {},
            "gift_card": {"balance": float(self.rng.randrange(400, 900))}}[source]}
        return key

    def address(self, country: str = "USA") -> dict[str, str]:
        """A new address."""
        city, state, code = self.rng.choice(_PLACES)
        return {"address1": f"{self.rng.randrange(100, 999)} {self.rng.choice(_STREETS)}",
                "address2": f"Suite {self.rng.randrange(100, 999)}", "city": city, "state": state, "country": country,
                "zip": f"{code[:3]}{self.rng.randrange(10, 99)}"}

    def order(self, status: str, owner: dict[str, Any] | None = None, items: int = 0, card: bool = False) -> dict[str, Any]:
        """An order of one to three products that the customer has not ordered otherwise.

        Args:
          card: it was paid by what is no gift card.
        """
        owner = self.user if owner is None else owner
        key, chosen = f"#W{self._numbers.pop()}", []
        for _ in range(items or self.rng.choice((1, 2))):
            product = base()["products"][self._products.pop() if owner is self.user and self._products else
                                         self.rng.choice(sorted(base()["products"]))]
            item = self.rng.choice(sorted(product["variants"]))
            variant = product["variants"][item]
            chosen.append({"name": product["name"], "product_id": product["product_id"], "item_id": item,
                           "price": variant["price"], "options": dict(variant["options"])})
        methods = [name for name, method in owner["payment_methods"].items() if not card or method["source"] != "gift_card"]
        order = {"order_id": key, "user_id": owner["user_id"], "address": dict(owner["address"]), "items": chosen,
                 "status": status, "fulfillments": [], "payment_history": [
                     {"transaction_type": "payment", "amount": round(sum(item["price"] for item in chosen), 2),
                      "payment_method_id": self.rng.choice(methods)}]}
        self.rows["orders"][key] = order
        owner["orders"].append(key)
        return order

    def others(self, item: Mapping[str, Any]) -> list[str]:
        """Available variants of an item's product that are another one; of each product some are in stock."""
        variants = base()["products"][item["product_id"]]["variants"]
        return [key for key in sorted(variants) if variants[key]["available"] and key != item["item_id"]]

    def finished(self) -> dict[str, dict[str, Any]]:
        """The rows that the task adds to the base."""
        return self.rows
