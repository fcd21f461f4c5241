"""Random tool calls for tau2-bench's airline, retail and telecom: ids from the database, some of them wrong.

`wrong_type` breaks a call's arguments so that they no longer fit the tool's signature.
"""

import datetime

NOWHERE = {"user_id": "no_body_1", "order_id": "#W0", "item_id": "1", "product_id": "2", "payment_id": "credit_card_0",
           "reservation_id": "NOSUCH", "flight_number": "HAT999", "date": "2024-05-32"}
SUMS = ("2 + 2", "(3.5 - 1) * 4", "10 / 3", "7 // 2", "-3", "2 ** 5", ".5",
        "", "1 +", "1 / 0", "abc", "(1)(2)", "()", "...", "08")
CABINS = ("business", "economy", "basic_economy")
ADDRESS = {"address1": "1 Low Road", "address2": "", "city": "Austin", "state": "TX", "country": "USA", "zip": "78701"}
MODES = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only", "6g")


class _Draw:
    """What the calls of one episode are about: mostly one person, so that they meet each other's effects."""

    def __init__(self, base, rng):
        self.base, self.rng = base, rng
        self.me = rng.choice(list(base["users"]))

    def any(self, values):
        return self.rng.choice(list(values))

    def often(self, share=0.85):
        return self.rng.random() < share

    def user(self):
        return self.me if self.often() else self.any(self.base["users"]) if self.often() else NOWHERE["user_id"]

    def method(self, user):
        methods = self.base["users"].get(user, {}).get("payment_methods") or {NOWHERE["payment_id"]: 0}
        return self.any(methods) if self.often(0.93) else self.any((NOWHERE["payment_id"], "certificate_3221322"))

    def of(self, table, owned, wrong):
        """An id of a record, mostly the person's own."""
        own = self.base["users"][self.me][owned]
        return self.any(own) if own and self.often() else self.any(self.base[table]) if self.often() else wrong


class Airline(_Draw):
    def call(self):
        names = ("book_reservation", "cancel_reservation", "update_reservation_flights", "update_reservation_baggages",
                 "update_reservation_passengers", "send_certificate") * 2 + (
            "get_user_details", "get_reservation_details", "get_flight_status", "search_direct_flight",
            "search_onestop_flight", "list_all_airports", "calculate", "transfer_to_human_agents", "think")
        name = self.any(names)
        return name, getattr(self, name)()

    def flight(self, origin=None):
        number = self.any(key for key, flight in self.base["flights"].items() if origin in (None, flight["origin"]))
        number = number if self.often(0.95) else NOWHERE["flight_number"]
        return {"flight_number": number, "date": self.day()}

    def day(self):
        return (datetime.date(2024, 5, 10) + datetime.timedelta(days=self.rng.randrange(21))).isoformat()

    def open_day(self, number):
        days = [day for day, each in self.base["flights"].get(number, {"dates": {}})["dates"].items()
                if each["status"] == "available"]
        return self.any(days) if days and self.often() else self.day()

    def people(self, count):
        return [{"first_name": self.any(("Ann", "Bo")), "last_name": "Lee", "dob": "1990-01-01"} for _ in range(count)]

    def price(self, flight, cabin):
        day = self.base["flights"].get(flight["flight_number"], {"dates": {}})["dates"].get(flight["date"], {})
        return day.get("prices", {}).get(cabin, 100)

    def book_reservation(self):
        user, cabin, people = self.user(), self.any(CABINS), self.people(self.rng.randint(1, 3))
        flights = [self.flight() for _ in range(self.rng.randint(1, 2))]
        for flight in flights:
            flight["date"] = self.open_day(flight["flight_number"])
        bags, insurance = self.rng.randint(0, 3), self.any(("yes", "no"))
        total = len(people) * (sum(self.price(flight, cabin) for flight in flights) + 30 * (insurance == "yes")) + 50 * bags
        parts = [total] if self.often(0.6) else [self.rng.randint(1, 100), 0]
        parts[-1] += total - sum(parts) + (0 if self.often() else 7)
        payments = [{"payment_id": self.method(user), "amount": part} for part in parts]
        return dict(user_id=user, origin=self.airport(), destination=self.airport(), cabin=cabin, flights=flights,
                    flight_type=self.any(("one_way", "round_trip")), passengers=people, payment_methods=payments,
                    total_baggages=bags + self.rng.randint(0, 2), nonfree_baggages=bags, insurance=insurance)

    def airport(self):
        return self.any(self.base["flights"].values())["origin"] if self.often(0.95) else "XXX"

    def reservation(self):
        return self.any((self.of("reservations", "reservations", NOWHERE["reservation_id"]), "HATHAT"))

    def cancel_reservation(self):
        return {"reservation_id": self.reservation()}

    get_reservation_details = cancel_reservation

    def known(self, key):
        return self.base["reservations"].get(key) or self.any(self.base["reservations"].values())

    def update_reservation_flights(self):
        key = self.reservation()
        old = self.known(key)
        flights = [{"flight_number": each["flight_number"], "date": each["date"]} for each in old["flights"]]
        for place, flight in enumerate(flights):
            if self.often(0.4):
                flights[place] = flight | {"date": self.open_day(flight["flight_number"])}
        if self.often(0.2):
            flights = [self.flight()] if self.often() else []
        return dict(reservation_id=key, cabin=old["cabin"] if self.often(0.5) else self.any(CABINS), flights=flights,
                    payment_id=self.method(old["user_id"]))

    def update_reservation_baggages(self):
        key = self.reservation()
        bags = self.rng.randint(-1, 4)
        return dict(reservation_id=key, total_baggages=bags + 1, nonfree_baggages=bags,
                    payment_id=self.method(self.known(key)["user_id"]))

    def update_reservation_passengers(self):
        key = self.reservation()
        count = len(self.known(key)["passengers"]) if self.often() else self.rng.randint(0, 3)
        return dict(reservation_id=key, passengers=self.people(count))

    def send_certificate(self):
        return dict(user_id=self.user(), amount=self.rng.choice((50, 100, 0, -5)))

    def get_user_details(self):
        return {"user_id": self.user()}

    def get_flight_status(self):
        return self.flight()

    def search_direct_flight(self):
        return dict(origin=self.airport(), destination=self.airport(), date=self.day() if self.often() else "soon")

    search_onestop_flight = search_direct_flight

    def list_all_airports(self):
        return {}

    think = list_all_airports    # no such tool

    def calculate(self):
        return {"expression": self.any(SUMS)}

    def transfer_to_human_agents(self):
        return {"summary": "x"}


class Retail(_Draw):
    def call(self):
        names = ("cancel_pending_order", "exchange_delivered_order_items", "modify_pending_order_items",
                 "modify_pending_order_payment", "modify_pending_order_payment", "modify_pending_order_address",
                 "return_delivered_order_items", "modify_user_address") * 2 + (
            "find_user_id_by_email", "find_user_id_by_name_zip", "get_item_details", "get_order_details",
            "get_product_details", "get_user_details", "list_all_product_types", "calculate", "transfer_to_human_agents",
            "think")
        name = self.any(names)
        return name, getattr(self, name)()

    def order(self):
        return self.of("orders", "orders", NOWHERE["order_id"])

    def known(self, key):
        return self.base["orders"].get(key) or self.any(self.base["orders"].values())

    def cancel_pending_order(self):
        return dict(order_id=self.order(), reason=self.any(("no longer needed", "ordered by mistake", "bored")))

    def items(self, order):
        items = list(order["items"])
        chosen = self.rng.sample(items, self.rng.randint(1, len(items))) if self.often() else [self.any(items)] * 2
        return chosen if self.often(0.97) else []

    def exchange_delivered_order_items(self):
        key = self.order()
        order = self.known(key)
        chosen = self.items(order)
        new = [self.any(self.base["products"][item["product_id"]]["variants"]) for item in chosen]
        new = new if self.often(0.93) else self.any(([], new + new, [NOWHERE["item_id"]] * len(new)))
        old = [item["item_id"] for item in chosen]
        if not self.often(0.95):
            old = [self.any(self.any(self.base["products"].values())["variants"])] * len(new)
        return dict(order_id=key, item_ids=old, new_item_ids=new, payment_method_id=self.method(order["user_id"]))

    modify_pending_order_items = exchange_delivered_order_items

    def return_delivered_order_items(self):
        key = self.order()
        order = self.known(key)
        paid = order["payment_history"][0]["payment_method_id"]
        return dict(order_id=key, item_ids=[item["item_id"] for item in self.items(order)],
                    payment_method_id=paid if self.often(0.6) else self.method(order["user_id"]))

    def modify_pending_order_payment(self):
        key = self.order()
        return dict(order_id=key, payment_method_id=self.method(self.known(key)["user_id"]))

    def modify_pending_order_address(self):
        return dict(order_id=self.order()) | ADDRESS

    def modify_user_address(self):
        return dict(user_id=self.user()) | ADDRESS

    def find_user_id_by_email(self):
        return {"email": self.base["users"][self.me]["email"].upper() if self.often() else "x@example.com"}

    def find_user_id_by_name_zip(self):
        user = self.base["users"][self.me]
        return dict(first_name=user["name"]["first_name"].lower(), last_name=user["name"]["last_name"],
                    zip=user["address"]["zip"] if self.often() else "0")

    def get_item_details(self):
        variants = self.any(self.base["products"].values())["variants"]
        return {"item_id": self.any(variants) if self.often() else NOWHERE["item_id"]}

    def get_order_details(self):
        return {"order_id": self.order()}

    def get_product_details(self):
        return {"product_id": self.any(self.base["products"]) if self.often() else NOWHERE["product_id"]}

    def get_user_details(self):
        return {"user_id": self.user()}

    def list_all_product_types(self):
        return {}

    think = list_all_product_types    # no such tool

    def calculate(self):
        return {"expression": self.any(SUMS)}

    def transfer_to_human_agents(self):
        return {"summary": "x"}


class Telecom:
    """Calls about the account `customer_id` mostly; (who, name, arguments)."""

    def __init__(self, db, customer_id, tools, rng):
        self.db, self.rng, self.tools = db, rng, tools
        self.me = next(customer for customer in db["customers"] if customer["customer_id"] == customer_id)

    def call(self):
        who, names = self.rng.choice([*self.tools.items()] * 8 + [("assistant", ["think"])])
        name = self.rng.choice(sorted(names))
        return who, name, self.arguments(name)

    def arguments(self, name):
        any_of = self.rng.choice
        often = self.rng.random() < 0.8
        customer = self.me if often else any_of(self.db["customers"])
        owned = {"customer_id": customer["customer_id"] if self.rng.random() < 0.95 else "C9",
                 "line_id": any_of((customer["line_ids"] if often else self.me["line_ids"]) or ["L9"])}
        bill = {"bill_id": any_of(self.me["bill_ids"] + ["B1004", "B9"])}
        given = {
            "get_customer_by_phone": {"phone_number": any_of([line["phone_number"] for line in self.db["lines"]] + ["1"])},
            "get_customer_by_id": {"customer_id": owned["customer_id"]},
            "get_customer_by_name": {"full_name": customer["full_name"].upper(),
                                     "dob": any_of((customer["date_of_birth"], "1"))},
            "get_details_by_id": {"id": any_of([record[key] for table, key in (
                ("customers", "customer_id"), ("lines", "line_id"), ("bills", "bill_id"), ("plans", "plan_id"),
                ("devices", "device_id")) for record in self.db[table]] + ["X1", "B9", "L9"])},
            "get_bills_for_customer": {"customer_id": owned["customer_id"]} | any_of(
                ({}, {"limit": self.rng.randint(-1, 3)})),
            "send_payment_request": {"customer_id": owned["customer_id"]} | bill,
            "suspend_line": owned | {"reason": "x"}, "resume_line": owned, "get_data_usage": owned,
            "enable_roaming": owned, "disable_roaming": owned,
            "refuel_data": owned | {"gb_amount": any_of((2.0, 1, 0.5, 0, -1.0))},
            "transfer_to_human_agents": {"summary": "x"},
            "set_network_mode_preference": {"mode": any_of(MODES)},
            "set_apn_settings": {"apn_settings": any_of((
                {"apn_name": "internet"}, {"apn_name": "broken"}, {"mmsc_url": None}, {"reset_at_reboot": True},
                {"apn_name": "internet", "mmsc_url": "http://mms"}, {}))},
            "check_app_status": {"app_name": any_of(("messaging", "browser", "chess"))},
            "check_app_permissions": {"app_name": any_of(("messaging", "browser", "chess"))},
            "grant_app_permission": {"app_name": any_of(("messaging", "browser", "chess")),
                                     "permission": any_of(("sms", "storage", "PHONE", "network", "camera"))}}
        return given.get(name, {})


def wrong_type(rng, arguments):
    """The same with an argument too few, too many, or of another type. Whole floats stay: they are integers to JSON."""
    how = rng.choice(("missing", "more", "type", "type") if arguments else ("more",))
    if how == "more":
        return dict(arguments) | {"colour": "red"}
    field = rng.choice(sorted(set(arguments) - {"limit"}))
    if how == "missing":
        return {key: value for key, value in arguments.items() if key != field}
    other = {str: (None, 7, ["x"], {}, True), int: ("3", None, True, 2.5, []), float: ("3", None, True, []),
             list: ("x", None, {}, [3]), dict: ("x", None, [], 4)}[type(arguments[field])]
    if isinstance(arguments[field], list) and arguments[field] and isinstance(arguments[field][0], dict):
        other = (*other, [dict.fromkeys(arguments[field][0], None)], [{}])
    if field == "gb_amount":
        other = ("3", None, True, [])
    return dict(arguments) | {field: rng.choice(other)}
