"""Claude Code as a proposer: the `claude` command, or the one that the package `claude-agent-sdk` brings along.

    claude -p PROMPT --output-format stream-json --verbose ...      events: system, assistant, user, result
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Sequence

from eau_jax.meta.drivers import process
from eau_jax.meta.drivers.agent import IDLE_SECONDS, Launch, Outcome, Program, events, prompt, proposer, server
from eau_jax.meta.inbox_server import NAME, TOOL
from eau_jax.meta.proposer import Budget, Proposer, View

KEY = "ANTHROPIC_API_KEY"
RETRIES = 3        # of a call of the API; the program's own ten take minutes
QUIET = {name: "1" for name in ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY",
                                "DISABLE_ERROR_REPORTING")}


def claude(model: str = "", *, base_url: str = "", binary: str = "", turns: int = 40,
           idle_seconds: float = IDLE_SECONDS) -> Proposer:
    """Claude Code. The key comes from the environment variable ANTHROPIC_API_KEY and goes to the program only.

    Args:
      model: name sent to the API; "": the program's default.
      base_url: of another server that speaks the Anthropic protocol.
      binary: path of the executable; "": `claude` on the PATH, else the one in `claude-agent-sdk`.
      turns: the most answers of the model in one round.
      idle_seconds: without any event, after which the program is ended.
    """
    return proposer(program(model, base_url, binary, turns), idle_seconds)


def program(model: str = "", base_url: str = "", binary: str = "", turns: int = 40) -> Program:
    """Its command line; arguments as of `claude`."""

    def launch(found: Path, view: View, budget: Budget) -> Launch:
        command, arguments, environment = server(view, budget)
        config = view.home / "mcp.json"
        served = {"type": "stdio", "command": command, "args": arguments, "env": environment}
        config.write_text(json.dumps({"mcpServers": {NAME: served}}), encoding="utf-8")
        # A shell only where the kernel holds it: the program's own rules are no boundary.
        tools = ["Read", "Grep", "Glob", *(["Bash"] if "landlock" in process.protections() else [])]
        line = [str(found), "-p", prompt(budget), "--output-format", "stream-json", "--verbose",
                "--permission-mode", "dontAsk", "--tools", ",".join(tools),
                "--allowedTools", *tools, f"mcp__{NAME}__{TOOL}", "--mcp-config", str(config), "--strict-mcp-config",
                "--setting-sources", "", "--max-turns", str(turns), "--max-budget-usd", f"{budget.cost:g}",
                "--no-session-persistence", *(["--model", model] if model else [])]
        settings = {**QUIET, "CLAUDE_CODE_MAX_RETRIES": str(RETRIES), "SHELL": "/bin/bash",
                    "CLAUDE_CODE_TMPDIR": str(view.home / "tmp"), **({"ANTHROPIC_BASE_URL": base_url} if base_url else {})}
        return Launch(line, settings, view.folder, [found.resolve().parent])

    return Program("claude", lambda: find(binary), "Claude Code was not found; install it with "
                   "pip install 'eau-jax[meta]', or name its executable with `binary`", launch, read, spent, KEY, base_url)


def find(binary: str = "") -> Path | None:
    """The executable: the one named, the one on the PATH, or the one in `claude-agent-sdk`."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    bundled = [Path(folder) / "_bundled" / "claude" for folder in folders]
    choices = [binary] if binary else [shutil.which("claude"), *bundled]
    return next((Path(path) for path in choices if path and Path(path).is_file()), None)


def read(lines: Sequence[str]) -> Outcome:
    """What the events say. `subtype` may be "success" where `is_error` is true, so both are asked."""
    facts: dict[str, object] = {}
    result = None
    for event in events(lines):
        if event.get("type") == "system" and event.get("subtype") == "init":
            facts |= {"model": event.get("model"), "session": event.get("session_id"), "tools": event.get("tools"),
                      "servers": event.get("mcp_servers")}
        elif event.get("type") == "result":
            result = event
    if result is None:
        return Outcome(False, "", facts)
    usage = result.get("usage") if isinstance(result.get("usage"), dict) else {}
    facts |= {"turns": result.get("num_turns"), "cost": result.get("total_cost_usd"), "denials": [
        denial.get("tool_name") for denial in result.get("permission_denials") or [] if isinstance(denial, dict)],
        "tokens": {"input": usage.get("input_tokens"), "output": usage.get("output_tokens"),
                   "cached": usage.get("cache_read_input_tokens")}}
    wrong = result.get("is_error") is not False or result.get("subtype") != "success"
    return Outcome(True, f"{result.get('subtype')}: {str(result.get('result'))[:500]}" if wrong else "", facts)


def spent(line: str) -> tuple[str, int]:
    """Tokens of one message, without those read from a cache. A message comes once for each of its blocks."""
    for event in events([line]):
        message = event.get("message")
        if event.get("type") == "assistant" and isinstance(message, dict) and isinstance(message.get("usage"), dict):
            usage = message["usage"]
            return str(message.get("id")), sum(int(usage.get(name) or 0) for name in (
                "input_tokens", "output_tokens", "cache_creation_input_tokens"))
    return "", 0
