"""Telecom's phone and company as straightforward Python, for comparison with the array simulator.

Written from the description of the domain, over strings and dictionaries; it shares no code with `eau_jax.envs`.
"""

import copy

GENERATIONS = {"4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
MEGABITS = {"none": 0.0, "2G": 0.25, "3G": 3.0, "4G": 55.0, "5G": 275.0}
SHARE = {"none": 0.0, "poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
DEFAULT_AIR = {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"}


class Refused(Exception):
    """A tool raises."""


class Company:
    """The records, and the agent's tools on the account of one customer."""

    def __init__(self, db, customer_id):
        self.db = copy.deepcopy(db)
        self.customer = next(c for c in self.db["customers"] if c["customer_id"] == customer_id)
        for line in self.db["lines"]:
            line.setdefault("data_refueling_gb", 0.0)

    def find(self, kind, key, value):
        for record in self.db[kind]:
            if record[key] == value:
                return record
        raise Refused(f"no {value}")

    def own_line(self, customer_id, line_id):
        if customer_id != self.customer["customer_id"] or line_id not in self.customer["line_ids"]:
            raise Refused("not the caller's")
        return self.find("lines", "line_id", line_id)

    def own_bills(self):
        return [self.find("bills", "bill_id", bill) for bill in self.customer["bill_ids"]]

    def get_customer_by_phone(self, phone_number):
        for customer in self.db["customers"]:
            numbers = [self.find("lines", "line_id", line)["phone_number"] for line in customer["line_ids"]]
            if phone_number in [customer["phone_number"], *numbers]:
                return customer
        raise Refused("no such number")

    def get_customer_by_id(self, customer_id):
        return self.find("customers", "customer_id", customer_id)

    def get_customer_by_name(self, full_name, dob):
        return [c for c in self.db["customers"] if c["full_name"].lower() == full_name.lower() and c["date_of_birth"] == dob]

    def get_details_by_id(self, id):
        for kind, key in (("customers", "customer_id"), ("lines", "line_id"), ("bills", "bill_id"), ("plans", "plan_id"),
                          ("devices", "device_id")):
            for record in self.db[kind]:
                if record[key] == id:
                    return record
        raise Refused("no such id")

    def get_bills_for_customer(self, customer_id, limit=12):
        return self.get_customer_by_id(customer_id)["bill_ids"][:limit]

    def get_data_usage(self, customer_id, line_id):
        if line_id not in self.get_customer_by_id(customer_id)["line_ids"]:
            raise Refused("not his line")

    def suspend_line(self, customer_id, line_id, reason):
        line = self.own_line(customer_id, line_id)
        if line["status"] != "Active":
            raise Refused("not active")
        line["status"] = "Suspended"

    def resume_line(self, customer_id, line_id):
        line = self.own_line(customer_id, line_id)
        if line["status"] not in ("Suspended", "Pending Activation"):
            raise Refused("not suspended")
        line["status"] = "Active"

    def send_payment_request(self, customer_id, bill_id):
        if customer_id != self.customer["customer_id"]:
            raise Refused("not the caller")
        if any(bill["status"] == "Awaiting Payment" for bill in self.own_bills()):
            raise Refused("one at a time")
        if bill_id not in self.customer["bill_ids"]:
            raise Refused("no such bill")
        self.find("bills", "bill_id", bill_id)["status"] = "Awaiting Payment"

    def enable_roaming(self, customer_id, line_id):
        self.own_line(customer_id, line_id)["roaming_enabled"] = True

    def disable_roaming(self, customer_id, line_id):
        self.own_line(customer_id, line_id)["roaming_enabled"] = False

    def transfer_to_human_agents(self, summary):
        pass

    def refuel_data(self, customer_id, line_id, gb_amount):
        line = self.own_line(customer_id, line_id)
        if gb_amount <= 0:
            raise Refused("not positive")
        plan = self.find("plans", "plan_id", line["plan_id"])
        line["data_refueling_gb"] += gb_amount
        drafts = [bill for bill in self.own_bills() if bill["status"] == "Draft"]
        if not drafts:
            name = f"B{self.customer['customer_id'][1:]}99"
            if name in self.customer["bill_ids"]:   # the array simulator has room for one such bill
                self.find("bills", "bill_id", name)["status"] = "Draft"
            else:
                self.db["bills"].append({"bill_id": name, "total_due": 0.0, "status": "Draft"})
                self.customer["bill_ids"].append(name)
            drafts = [self.find("bills", "bill_id", name)]
        drafts[0]["total_due"] += gb_amount * plan["data_refueling_price_per_gb"]

    def set_data_usage(self, customer_id, line_id, data_used_gb):
        self.find("lines", "line_id", line_id)["data_used_gb"] = data_used_gb

    def suspend_line_for_overdue_bill(self, customer_id, line_id, new_bill_id, contract_ended):
        line = self.find("lines", "line_id", line_id)
        plan = self.find("plans", "plan_id", line["plan_id"])
        self.db["bills"].append({"bill_id": new_bill_id, "total_due": plan["price_per_month"], "status": "Overdue"})
        self.customer["bill_ids"].append(new_bill_id)
        line["status"] = "Suspended"


class Handset:
    """The phone and its surroundings; `call` runs a tool and then lets the phone see what the company changed."""

    def __init__(self, record):
        device, db = record["user_db"]["device"], record["db"]
        apn = device.get("active_apn_settings", {})
        self.switch = {name: device.get(name, False) for name in (
            "airplane_mode", "roaming_enabled", "wifi_enabled", "wifi_connected", "wifi_calling_enabled",
            "wifi_calling_mms_over_wifi", "data_saver_mode", "vpn_connected", "sim_card_missing")}
        self.switch["data_enabled"] = device.get("data_enabled", True)
        self.sim, self.mode = "active", device.get("network_mode_preference", "4g_5g_preferred")
        self.apn = {"name": apn.get("apn_name", "internet"), "mmsc": apn.get("mmsc_url", "set"), "reset": False}
        self.vpn_quality = "excellent"
        self.apps = {app: dict.fromkeys(("sms", "storage", "phone", "network"), False) | status["permissions"]
                     for app, status in device["app_statuses"].items()}
        self.status = device.get("network_connection_status", "connected")
        self.technology = device.get("network_technology_connected", "5G")
        self.signal = device.get("network_signal_strength", "good")
        self.abroad, self.air = False, DEFAULT_AIR
        starts = record["initial_state"]["initialization_actions"]
        self.number = starts[0]["arguments"]["phone_number"]
        lines = {line["phone_number"]: line["line_id"] for line in db["lines"]}
        owner = next(c["customer_id"] for c in db["customers"] if lines[self.number] in c["line_ids"])
        self.company = Company(db, owner)
        self.line = self.company.find("lines", "phone_number", self.number)
        self.sync()
        for action in starts:
            self.call(action["func_name"], action["arguments"])

    def call(self, name, arguments):
        """Whether the call was refused."""
        refused = False
        try:
            getattr(self if hasattr(self, name) else self.company, name)(**arguments)
        except Refused:
            refused = True
        self.sync()
        return refused

    def sync(self):
        plan = self.company.find("plans", "plan_id", self.line["plan_id"])
        self.line_active = self.line["status"] == "Active"
        self.roaming_allowed = self.line["roaming_enabled"]
        self.exceeded = self.line["data_used_gb"] >= plan["data_limit_gb"] + self.line["data_refueling_gb"]
        waiting = [bill for bill in self.company.own_bills() if bill["status"] == "Awaiting Payment"]
        self.request = waiting[0] if waiting else None

    def search(self):
        usable = self.sim == "active" and not self.switch["sim_card_missing"] and not self.switch["airplane_mode"]
        if not usable or self.apn["name"] == "broken" or not self.line_active:
            self.status, self.technology, self.signal = "no_service", "none", "none"
            return
        self.status = "connected"
        self.technology = GENERATIONS.get(self.mode) or ("5G" if self.air.get("5G", "none") != "none" else "4G")
        self.signal = self.air.get(self.technology, "none")

    def online(self):
        if self.switch["airplane_mode"] or self.signal == "none" or self.status == "no_service":
            return False
        if self.abroad and not (self.switch["roaming_enabled"] and self.roaming_allowed):
            return False
        return self.switch["data_enabled"] and not self.exceeded

    def megabits(self):
        if not self.online():
            return None
        factor = 0.1 if self.switch["vpn_connected"] and self.vpn_quality == "poor" else 1.0
        factor *= 0.2 if self.switch["data_saver_mode"] else 1.0
        return MEGABITS[self.technology] * SHARE[self.signal] * factor

    def can_mms(self):
        over_wifi = self.switch["wifi_calling_enabled"] and self.switch["wifi_calling_mms_over_wifi"]
        messaging = self.apps["messaging"]
        return (self.online() and self.technology != "2G" and not over_wifi and self.apn["mmsc"] is not None
                and messaging["sms"] and messaging["storage"])

    def _flip(self, name, search=False):
        self.switch[name] = not self.switch[name]
        if search:
            self.search()

    def toggle_airplane_mode(self):
        self._flip("airplane_mode")
        if self.switch["airplane_mode"]:
            self.switch["wifi_connected"] = self.switch["vpn_connected"] = False
        elif self.switch["wifi_enabled"]:
            self.switch["wifi_connected"] = False
        self.search()

    def toggle_data(self):
        self._flip("data_enabled", search=True)

    def toggle_roaming(self):
        self._flip("roaming_enabled", search=True)

    def toggle_data_saver_mode(self):
        self._flip("data_saver_mode")

    def toggle_wifi_calling(self):
        self._flip("wifi_calling_enabled")

    def toggle_wifi(self):
        if not self.switch["airplane_mode"]:
            self._flip("wifi_enabled")
            self.switch["wifi_connected"] = self.switch["wifi_connected"] and self.switch["wifi_enabled"]

    def reseat_sim_card(self):
        self.switch["sim_card_missing"] = False
        self.search()

    def set_network_mode_preference(self, mode):
        if mode in ("4g_5g_preferred", *GENERATIONS):
            self.mode = mode
            self.search()

    def set_apn_settings(self, apn_settings):
        self.apn = {"name": apn_settings.get("apn_name", "internet"), "mmsc": apn_settings.get("mmsc_url", "set"),
                    "reset": apn_settings.get("reset_at_reboot", False)}
        self.search()

    def reset_apn_settings(self):
        self.apn["reset"] = True
        self.search()

    def reboot_device(self):
        if self.apn["reset"]:
            self.apn = {"name": "internet", "mmsc": "set", "reset": False}
        self.search()

    def connect_vpn(self):
        if not self.switch["vpn_connected"]:
            self.switch["vpn_connected"], self.vpn_quality = True, "excellent"

    def disconnect_vpn(self):
        self.switch["vpn_connected"] = False

    def grant_app_permission(self, app_name, permission):
        if permission.lower() in self.apps.get(app_name, {}):
            self.apps[app_name][permission.lower()] = True

    def make_payment(self):
        if self.request is not None:
            self.request["status"] = "Paid"

    def _read(self, **arguments):
        """Actions that only look."""

    check_status_bar = check_network_status = check_network_mode_preference = run_speed_test = check_sim_status = _read
    check_data_restriction_status = check_apn_settings = check_wifi_status = check_wifi_calling_status = _read
    check_vpn_status = check_installed_apps = check_app_status = check_app_permissions = can_send_mms = _read
    check_payment_request = set_user_info = _read

    def set_user_location(self, abroad):
        self.abroad = abroad

    def simulate_network_search(self):
        self.search()

    def unseat_sim_card(self):
        self.switch["sim_card_missing"] = True
        self.search()

    def lock_sim_card(self, mode):
        self.sim = f"locked_{mode}"
        self.search()

    def break_apn_settings(self):
        self.apn["name"] = "broken"
        self.search()

    def break_apn_mms_setting(self):
        self.apn["mmsc"] = None

    def break_vpn(self):
        self.connect_vpn()
        self.vpn_quality = "poor"

    def set_wifi_calling(self, enabled, mms_over_wifi=None):
        self.switch["wifi_calling_enabled"] = enabled
        if mms_over_wifi is not None:
            self.switch["wifi_calling_mms_over_wifi"] = mms_over_wifi

    def remove_app_permission(self, app_name, permission):
        self.apps[app_name][permission] = False

    def _until(self, toggle, name, wanted):
        """Toggles once or twice, so that the phone searches even where the switch stands as wanted."""
        toggle()
        if self.switch[name] != wanted:
            toggle()

    def turn_airplane_mode_on(self):
        self._until(self.toggle_airplane_mode, "airplane_mode", True)

    def turn_data_off(self):
        self._until(self.toggle_data, "data_enabled", False)

    def turn_roaming_on(self):
        self._until(self.toggle_roaming, "roaming_enabled", True)

    def turn_roaming_off(self):
        self._until(self.toggle_roaming, "roaming_enabled", False)

    def turn_data_saver_mode_on(self):
        self.switch["data_saver_mode"] = True
