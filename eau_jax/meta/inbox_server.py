"""The one channel of a coding agent: an MCP server over standard input and output with the typed tool `submit_proposal`.

    python -m eau_jax.meta.inbox_server VIEW INBOX MOST          # serves
    python -m eau_jax.meta.inbox_server VIEW INBOX MOST FILE     # hands in one file, for agents that have a shell only

It tells the agent what is wrong with a proposal and keeps those that are right as INBOX/proposal-<n>.json; the host reads
them, believes nothing, and checks everything again. One JSON-RPC message a line (Model Context Protocol, stdio transport).
Only the standard library is used, so that it starts in a moment.
"""

import difflib
import json
import math
import sys
import tomllib
from pathlib import Path
from typing import Any, Collection, Mapping, Sequence

from eau_jax.meta.evidence import made_up
from eau_jax.meta.proposal import MOST_CHANGES, MOST_RULES, Proposal, ProposalError, finding, parse
from eau_jax.meta.python_code import PythonError, check

NAME, TOOL = "eau", "submit_proposal"
PROTOCOL = "2025-06-18"
_NUMBER, _TEXT = {"type": "number"}, {"type": "string"}
_EVIDENCE = {"type": "object", "required": ["metric", "first", "last", "value", "limit"], "properties": {
    "metric": _TEXT, "first": {"type": "integer"}, "last": {"type": "integer"}, "value": _NUMBER, "limit": _NUMBER}}
INPUT = {"type": "object", "required": ["diagnosis"], "properties": {
    "base_generation": {"type": "integer", "description": "generation of view/knobs/current.json"},
    "diagnosis": {"type": "object", "required": ["owner", "fault"], "properties": {
        "owner": {"type": "string", "enum": ["user", "env", "rl", "infra", "checker", "policy", "none"]}, "fault": _TEXT,
        "confidence": _NUMBER, "evidence": {"type": "array", "items": _EVIDENCE},
        "tests": {"type": "array", "items": _TEXT}}},
    "changes": {"type": "object", "additionalProperties": _NUMBER, "description": "{knob: new value}, one owner"},
    "rules": {"type": "string", "description": "the whole new decision list of the user, TOML"},
    "python": {"type": "object", "required": ["code", "reads"], "additionalProperties": False, "description":
               "in place of rules, where view/knobs/current.json has python_rules = true", "properties": {
                   "code": {"type": "string", "description": "def reply(<features>): ... returns the name of a reply"},
                   "reads": {"type": "object", "description": "{feature: [low, high]}, one for each parameter",
                             "additionalProperties": {"type": "array", "items": {"type": "integer"}, "minItems": 2,
                                                      "maxItems": 2}}}},
    "task_mix": {"type": "object", "additionalProperties": _NUMBER},
    "prediction": {"type": "object", "required": ["metric", "direction", "min_effect", "within_updates"], "properties": {
        "metric": _TEXT, "direction": {"type": "string", "enum": ["up", "down"]}, "min_effect": _NUMBER,
        "within_updates": {"type": "integer"}}},
    "ttl_updates": {"type": "integer"}, "why": _TEXT}}
ABOUT = ("Hands in one bounded change with its diagnosis and prediction, or, with a diagnosis alone, says that no change is "
         "needed. The answer says what is wrong and what is allowed.")


def submit(text: str, view: Path, inbox: Path, most: int) -> tuple[bool, str]:
    """Checks what was handed in and keeps it when it is right. (whether it was accepted, what to tell the author)."""
    try:
        given = json.loads(text)
        if isinstance(given, dict) and not any(given.get(name) for name in ("changes", "rules", "python", "task_mix")):
            found = finding(text)
            _keep(inbox / "finding.json", text)
            return True, f"Accepted: no change, owner {found.owner!r}."
        proposal = parse(text, "inbox", "inbox")
    except (ValueError, RecursionError) as error:     # ProposalError is a ValueError
        return False, f"Refused: {error if isinstance(error, ProposalError) else f'not JSON: {error}'}"
    wrong = complaints(proposal, view)
    kept = len(list(inbox.glob("proposal-*.json")))
    if kept >= most:
        wrong.append(f"this round has {kept} proposals already, and no more than {most} are read")
    if wrong:
        return False, "Refused: " + "; ".join(wrong)
    _keep(inbox / f"proposal-{kept + 1}.json", text)
    return True, f"Accepted as proposal {kept + 1}. The trainer checks it again and tries it before it is used."


def complaints(proposal: Proposal, view: Path) -> list[str]:
    """What is wrong with a parsed proposal, one sentence each: its base, its owner, its knobs, their bounds and steps, what
    it predicts and what it cites."""
    read = lambda name: json.loads((view / name).read_text(encoding="utf-8"))
    schema, current = read("knobs/schema.json"), read("knobs/current.json")
    rows = [json.loads(line) for line in (view / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    wrong = _prediction(proposal, {name for row in rows for name in row} - {"step", "generation"})
    signals = {signal["name"] for signal in read("diagnosis.json").get("signals", ())}
    wrong += made_up(proposal.diagnosis.evidence, rows, signals)
    if proposal.base_generation != current["generation"]:
        wrong.append(f"base_generation is {proposal.base_generation}; the generation in force is {current['generation']}")
    if proposal.owner not in ("user", "env", "rl"):
        wrong.append(f"the changes belong to {proposal.owner}; one proposal changes what one of user, env, rl owns")
    if proposal.count > MOST_CHANGES:
        wrong.append(f"it makes {proposal.count} changes; allowed: {MOST_CHANGES}, rules and task mix counted as one each")
    for path, value in proposal.changes.items():
        wrong += _knob(path, value, schema, current)
    if proposal.task_mix and proposal.task_mix.keys() != current["task_mix"].keys():
        wrong.append(f"task_mix names {', '.join(proposal.task_mix)}; every bucket is named once, and the buckets are "
                     f"{', '.join(current['task_mix']) or 'none: the tasks of this run have no buckets'}")
    wrong += _rules(proposal.rules)
    return wrong + (_python(proposal.python, current, read("rules/features.json")) if proposal.python is not None else [])


def _prediction(proposal: Proposal, metrics: Collection[str]) -> list[str]:
    made, wrong = proposal.prediction, []
    if made.metric not in metrics:
        close = difflib.get_close_matches(made.metric, metrics, n=1)
        wrong.append(f"prediction.metric {made.metric!r} is not in metrics.jsonl" + (
            f"; did you mean {close[0]!r}?" if close else ""))
    if not made.min_effect > 0:
        wrong.append(f"prediction.min_effect is {made.min_effect:g}; it must be above 0")
    if made.within_updates > proposal.ttl_updates:
        wrong.append(f"prediction.within_updates is {made.within_updates}; allowed: up to ttl_updates = "
                     f"{proposal.ttl_updates}")
    return wrong


def _rules(rules: str) -> list[str]:
    size = len(rules.encode())
    if size > MOST_RULES:
        return [f"the rules have {size} bytes; allowed: {MOST_RULES}"]
    try:
        tomllib.loads(rules)
    except (ValueError, RecursionError) as error:
        return [f"rules are not TOML: {error}"]
    return []


def _python(python: Any, current: Mapping[str, Any], features: Sequence[str]) -> list[str]:
    if not current["python_rules"]:
        return ["this run takes no rules in Python; give them as a list in `rules`"]
    try:
        check(python.code, python.reads, features)
    except PythonError as error:
        return [f"python: {error}"]
    return []


def _knob(path: str, value: float, schema: Mapping[str, Mapping[str, Any]], current: Mapping[str, Any]) -> list[str]:
    if path not in schema:
        close = difflib.get_close_matches(path, schema, n=1)
        return [f"unknown knob {path!r}; " + (f"did you mean {close[0]!r}?" if close else "see view/knobs/schema.json")]
    spec, old = schema[path], current["values"][path]
    first = current.get("first", {}).get(path, old)
    if not spec["low"] <= value <= spec["high"]:
        return [f"{path} = {value:g} is out of range; allowed: {spec['low']:g} to {spec['high']:g} ({spec['doc']})"]
    if spec["integer"] and value != int(value):
        return [f"{path} = {value:g} is not a whole number"]
    if min(old, first) <= value <= max(old, first):   # back to what the run began with
        return []
    if spec["log"] and (old <= 0 or value <= 0 or abs(math.log(value / old)) > math.log(spec["trust"]) + 1e-6):
        return [f"{path}: {old:g} -> {value:g} is more than a factor {spec['trust']:g} in one swap"]
    if not spec["log"] and abs(value - old) > spec["trust"] * (1 + 1e-6):
        return [f"{path}: {old:g} -> {value:g} is more than {spec['trust']:g} in one swap"]
    return []


def answer(message: Mapping[str, Any], view: Path, inbox: Path, most: int) -> dict[str, Any] | None:
    """The reply to one JSON-RPC message; None for a notification."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        return None
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        return reply | {"result": {"protocolVersion": params.get("protocolVersion", PROTOCOL), "capabilities": {"tools": {}},
                                   "serverInfo": {"name": NAME, "version": "1"}}}
    if method == "ping":
        return reply | {"result": {}}
    if method == "tools/list":
        return reply | {"result": {"tools": [{"name": TOOL, "description": ABOUT, "inputSchema": INPUT}]}}
    if method == "tools/call" and params.get("name") == TOOL:
        accepted, told = submit(json.dumps(params.get("arguments") or {}), view, inbox, most)
        return reply | {"result": {"content": [{"type": "text", "text": told}], "isError": not accepted}}
    return reply | {"error": {"code": -32601, "message": f"no such method or tool: {method} {params.get('name', '')}"}}


def _keep(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Serves until standard input ends, or hands in one file; then exit status 1 says that it was refused."""
    view, inbox, most = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    for file in sys.argv[4:]:
        accepted, told = submit(Path(file).read_text(encoding="utf-8", errors="replace"), view, inbox, most)
        print(told)
        sys.exit(not accepted)
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            reply: dict[str, Any] | None = {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "not JSON"}}
        else:
            reply = answer(message, view, inbox, most)
        if reply is not None:
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
