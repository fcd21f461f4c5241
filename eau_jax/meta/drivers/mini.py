"""mini-swe-agent as a proposer, for chat models that one serves oneself: Chat Completions and one tool, a shell.

    mini -m openai/MODEL -t PROMPT -y -l COST --exit-immediately -o traj.json

It has no rules of its own about what it may touch, so it runs only where the kernel holds it.
"""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any, Sequence

from eau_jax.meta.drivers import process
from eau_jax.meta.drivers.agent import IDLE_SECONDS, Launch, Outcome, Program, prompt, proposer, server
from eau_jax.meta.proposer import Budget, Proposer, View

KEY = "OPENAI_API_KEY"
MARK = "EAU-TRAJECTORY "     # before the trajectory, which is one line of output
# The program writes its trajectory to a file; it is read by the same shell, so that all of a round is one stream.
SCRIPT = ('"$0" -m "$1" -t "$2" -y -l "$4" --exit-immediately -o "$3" >&2; code=$?; printf "%s" "' + MARK + '"; '
          'tr -d "\\n" < "$3"; echo; exit $code')
TOOL = (" You have no tool submit_proposal. In its place, write a proposal to {home}/proposal.json and hand it in with the "
        "command: {command} {home}/proposal.json")


def mini(model: str, *, base_url: str = "", binary: str = "", idle_seconds: float = IDLE_SECONDS) -> Proposer:
    """mini-swe-agent. The key comes from the environment variable OPENAI_API_KEY and goes to the program only.

    Args:
      model: name sent to the server.
      base_url: of the OpenAI-compatible server, ending in /v1.
      binary: path of `mini`; "": the one on the PATH.
      idle_seconds: without any output, after which the program is ended.
    """
    return proposer(program(model, base_url, binary), idle_seconds)


def program(model: str, base_url: str = "", binary: str = "") -> Program:
    """Its command line; arguments as of `mini`."""

    def launch(found: Path, view: View, budget: Budget) -> Launch:
        if "landlock" not in process.protections():
            raise OSError("mini-swe-agent needs Landlock (Linux 5.13 or newer): nothing else keeps its shell in place")
        command, arguments, environment = server(view, budget)
        submit = shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), command, *arguments])
        told = prompt(budget) + TOOL.format(home=view.home, command=submit)
        line = ["/bin/sh", "-c", SCRIPT, str(found), f"openai/{model}", told, str(view.home / "traj.json"),
                f"{budget.cost:g}"]
        own = found.resolve().parent.parent      # a virtual environment, as a rule, whose Python may lie elsewhere
        python = (own / "bin" / "python").resolve().parent.parent
        return Launch(line, {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors",
                             "MSWEA_GLOBAL_CONFIG_DIR": str(view.home), "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                             **({"OPENAI_API_BASE": base_url} if base_url else {})}, view.folder, [own, python])

    return Program("mini", lambda: find(binary), "mini-swe-agent was not found; install it with "
                   "pip install mini-swe-agent, or name its executable with `binary`", launch, read, lambda line: ("", 0),
                   KEY, base_url)


def find(binary: str = "") -> Path | None:
    """The executable: the one named, or `mini` on the PATH."""
    path = binary or shutil.which("mini")
    return Path(path) if path and Path(path).is_file() else None


def read(lines: Sequence[str]) -> Outcome:
    """What the trajectory says; only "Submitted" is an end as it should be."""
    info: dict[str, Any] = {}
    for line in lines:
        if line.startswith(MARK):
            try:
                info = json.loads(line.removeprefix(MARK))["info"]
            except (ValueError, KeyError, TypeError, RecursionError):
                return Outcome(False, "its trajectory cannot be read", {})
    status = str(info.get("exit_status") or "")
    stats = info.get("model_stats") if isinstance(info.get("model_stats"), dict) else {}
    facts = {"turns": stats.get("api_calls"), "cost": stats.get("instance_cost"),
             "version": f"mini-swe-agent {info.get('mini_version', '')}"}
    return Outcome(bool(status), "" if status in ("", "Submitted") else f"it ended with {status}", facts)
