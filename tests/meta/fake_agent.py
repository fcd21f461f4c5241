"""A small program that behaves like Claude Code does, in one of several ways; tests copy it with another MODE."""

import json
import os
import subprocess
import sys
import time

MODE = "good"

if "--version" in sys.argv:
    print("9.9.9 (fake)")
    sys.exit(0)


def event(**fields):
    print(json.dumps(fields), flush=True)


def end(text, error=False, code=0):
    event(type="result", subtype="success", is_error=error, result=text, num_turns=3, total_cost_usd=0.02,
          usage={"input_tokens": 30, "output_tokens": 6, "cache_read_input_tokens": 100}, permission_denials=[])
    sys.exit(code)


def used(message, tokens):
    event(type="assistant", message={"id": message, "content": [], "usage": {"input_tokens": tokens, "output_tokens": 1}})


def submit(*proposals):
    """Hands in through the server that the command line names, as the real program does; the answers."""
    config = json.load(open(sys.argv[sys.argv.index("--mcp-config") + 1]))["mcpServers"]["eau"]
    server = subprocess.Popen([config["command"], *config["args"]], env={**os.environ, **config["env"]}, text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    inbox = config["args"][-2]
    answers = []
    for number, given in enumerate(proposals):
        call = {"jsonrpc": "2.0", "id": number, "method": "tools/call",
                "params": {"name": "submit_proposal", "arguments": given}}
        print(json.dumps(call), file=server.stdin, flush=True)
        answers.append(json.loads(server.stdout.readline())["result"]["content"][0]["text"])
    server.stdin.close()
    server.wait()
    return inbox, answers


def tried(action):
    try:
        action()
        return "done"
    except OSError as error:
        return error.strerror


event(type="system", subtype="init", session_id="s", model="m", tools=["Read"], mcp_servers=[])
with open(os.path.join(os.path.dirname(os.path.realpath(sys.argv[0])), "proposal.json")) as file:
    good = json.load(file)
bad = {**good, "changes": {"env.max_turns": 1000}}
if MODE == "good":
    inbox, answers = submit(bad, good)
    end(" | ".join(answers))
elif MODE == "finding":
    submit({"diagnosis": {"owner": "none", "fault": ""}, "why": "all is well"})
    end("nothing to do")
elif MODE == "down":
    for attempt in range(2):
        event(type="system", subtype="api_retry", attempt=attempt, max_retries=2, error_status=529)
    end("API Error: 529 Overloaded", error=True, code=1)
elif MODE == "error inside":
    submit(good)
    end("API Error: 500", error=True, code=0)
elif MODE == "stall":
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
    submit(good)
    time.sleep(600)
elif MODE == "cut":
    submit(good)
    print('{"type":"assistant","message":{"id":"x","cont', end="", flush=True)
elif MODE == "prose":
    end("I would raise env.max_turns to 20.")
elif MODE == "look":
    outside = os.path.realpath("../../run/metrics.jsonl")
    inbox, _ = submit(good)
    end(json.dumps({"read": tried(lambda: open(outside).read()), "write": tried(lambda: open("metrics.jsonl", "a")),
                    "add": tried(lambda: open("more.txt", "w")), "environment": sorted(os.environ)}))
elif MODE == "link":
    inbox, _ = submit(good)
    os.symlink("/etc/passwd", os.path.join(inbox, "proposal-2.json"))
    end("done")
elif MODE == "giant":
    inbox, _ = submit(good)
    with open(os.path.join(inbox, "proposal-1.json"), "w") as file:
        file.write(" " * 100_000)
    end("done")
elif MODE == "flood":
    while True:
        print("x" * 65536)
elif MODE == "tokens":
    used("first", 600)
    used("first", 600)
    used("second", 600)
    time.sleep(600)
elif MODE == "key":
    event(type="assistant", message={"id": "k", "text": os.environ["ANTHROPIC_API_KEY"]})
    print(os.environ["ANTHROPIC_API_KEY"], file=sys.stderr)
    end(f"failed with {os.environ['ANTHROPIC_API_KEY']}", error=True)
