"""Codex as a proposer: the `codex` command of the npm package `@openai/codex`. It speaks the Responses API only.

    codex exec --json ...      events: thread.started, turn.started, item.*, turn.completed or turn.failed
"""

import json
import shutil
from pathlib import Path
from typing import Sequence

from eau_jax.meta.drivers import process
from eau_jax.meta.drivers.agent import IDLE_SECONDS, Launch, Outcome, Program, events, prompt, proposer, server
from eau_jax.meta.inbox_server import NAME
from eau_jax.meta.proposer import Budget, Proposer, View

KEY = "OPENAI_API_KEY"
RETRIES = 3


def codex(model: str = "", *, base_url: str = "", binary: str = "", idle_seconds: float = IDLE_SECONDS) -> Proposer:
    """Codex. The key comes from the environment variable OPENAI_API_KEY and goes to the program only.

    Args:
      model: name sent to the API; "": the program's default.
      base_url: of another server that speaks the Responses API, ending in /v1 as a rule.
      binary: path of the executable; "": `codex` on the PATH.
      idle_seconds: without any event, after which the program is ended.
    """
    return proposer(program(model, base_url, binary), idle_seconds)


def program(model: str = "", base_url: str = "", binary: str = "") -> Program:
    """Its command line; arguments as of `codex`."""

    def launch(found: Path, view: View, budget: Budget) -> Launch:
        home = view.home / "codex"
        home.mkdir()
        (home / "config.toml").write_text(_config(model, base_url, view, budget), encoding="utf-8")
        # Where the kernel holds the whole program, its own sandbox would be a second one inside and may not start.
        sandbox = "danger-full-access" if "landlock" in process.protections() else "read-only"
        line = [str(found), "exec", "--json", "--skip-git-repo-check", "-C", str(view.folder), "-s", sandbox, prompt(budget)]
        return Launch(line, {"CODEX_HOME": str(home), "SHELL": "/bin/bash"}, view.folder, [found.parent.parent])

    return Program("codex", lambda: find(binary), "Codex was not found; install it with npm install -g @openai/codex, or "
                   "name its executable with `binary`", launch, read, spent, KEY, base_url)


def _config(model: str, base_url: str, view: View, budget: Budget) -> str:
    """config.toml. Without approval of its tools, a server's calls fail where nobody can be asked."""
    command, arguments, environment = server(view, budget)
    text = json.dumps    # a JSON string is a TOML string
    settings = [f"model = {text(model)}"] if model else []
    settings += ['approval_policy = "never"', 'model_provider = "api"', "[analytics]", "enabled = false",
                 "[model_providers.api]", 'name = "api"', f"base_url = {text(base_url or 'https://api.openai.com/v1')}",
                 'wire_api = "responses"', f"env_key = {text(KEY)}", f"request_max_retries = {RETRIES}",
                 f"stream_max_retries = {RETRIES}", f"[mcp_servers.{NAME}]", f"command = {text(command)}",
                 f"args = {text(arguments)}", 'default_tools_approval_mode = "approve"', f"[mcp_servers.{NAME}.env]",
                 *(f"{name} = {text(value)}" for name, value in environment.items())]
    return "\n".join(settings) + "\n"


def find(binary: str = "") -> Path | None:
    """The native executable: the one named, or the one behind the script `codex` on the PATH, which needs Node."""
    path = binary or shutil.which("codex")
    if not path or not Path(path).is_file():
        return None
    script = Path(path).resolve()
    if script.suffix != ".js":
        return script
    packages = [script.parent.parent.parent, script.parent.parent / "node_modules" / "@openai"]
    return next((found for folder in packages for found in sorted(folder.glob("codex-*/vendor/*/bin/codex"))), None)


def read(lines: Sequence[str]) -> Outcome:
    """What the events say. An item of type "error" may be a mere warning; "turn.failed" is a failure."""
    facts: dict[str, object] = {}
    complete, error, calls = False, "", 0
    for event in events(lines):
        kind = event.get("type")
        if kind == "thread.started":
            facts["session"] = event.get("thread_id")
        elif kind == "item.completed":
            calls += 1
        elif kind == "turn.completed":
            usage = event.get("usage") if isinstance(event.get("usage"), dict) else {}
            complete = True
            facts["tokens"] = {"input": usage.get("input_tokens"), "output": usage.get("output_tokens"),
                               "cached": usage.get("cached_input_tokens")}
        elif kind == "turn.failed":
            failure = event.get("error")
            error = str(failure.get("message") if isinstance(failure, dict) else failure)[:500]
    return Outcome(complete, error, facts | {"turns": calls, "cost": None})


def spent(line: str) -> tuple[str, int]:
    """Tokens are told once, at the end of the turn; those read from a cache are not counted."""
    for event in events([line]):
        usage = event.get("usage")
        if event.get("type") == "turn.completed" and isinstance(usage, dict):
            total = sum(int(usage.get(name) or 0) for name in ("input_tokens", "output_tokens"))
            return "turn", total - int(usage.get("cached_input_tokens") or 0)
    return "", 0
