"""A real server on a local port that speaks SGLang's interface, with its traps to switch on.

It reads the weights it is given from their files and samples from them: the logits after token `a` are
`3 * embed[a] @ head.T`, so that no model has to be compiled. What it holds of earlier histories it counts as cached.

    with sglang_server(step_s=0.01) as server:
        SGLang((server.url,))

`server.script` takes what the next requests to /generate meet, one after the other: "ok", "500", "400", "stall", "reset"
(of the connection), "garbage" (no JSON), "odd" (JSON of another form), "short" (too few log-probabilities), "null" (a
log-probability that is none), "huge" (a token that no array holds), "abort" (before it has drawn
anything), "cut" (an abort in the middle).
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import socket
import struct
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Iterator

import numpy as np

from local_http import HttpServer, serving

PATHS = ("/generate", "/health", "/model_info", "/server_info", "/pause_generation", "/continue_generation",
         "/abort_request", "/update_weights_from_disk", "/flush_cache", "/get_load")


@dataclasses.dataclass
class Switches:
    step_s: float = 0.0             # seconds for a token
    repeats: int = 0                # log-probabilities of the whole history are sent again after so many tokens; 0: never
    labels: bool = True             # answers and /model_info say which weights the server holds
    missing: tuple[str, ...] = ()   # paths that it does not have
    context: int | None = None      # its context length
    jax: bool = False               # it describes itself as sglang-jax does
    overlap: bool = False           # and with this schedule
    refuses: bool = False           # an update answers 400
    keeps: bool = False             # an update says that it succeeded, but the weights stay
    mislabels: bool = False         # after an update the server names another version
    update_500s: int = 0            # so many updates answer 500 first
    eos: int = -1                   # a stop token of the server's own
    key: str = ""                   # wanted of every request
    gone: bool = False              # every connection is reset
    holds_after: int = 0            # after so many requests to /generate the next wait until the file `until` is there
    until: str = ""
    dies_after: int = 0             # the process ends after so many requests to /generate; 0: never


class Scripted:
    """What the tests may look at and change while the server runs."""

    def __init__(self, **switches):
        self.switches = Switches(**switches)
        self.script: list[str] = []
        self.requests: list[dict] = []      # bodies of /generate
        self.headers: list[dict] = []       # of the same requests
        self.controls: list[tuple[str, dict]] = []
        self.label, self.weights = "default", None
        self.held: list[list[int]] = []     # histories in the cache
        self.active: dict[str, bool] = {}   # rid -> whether it is to end
        self.most_active = 0
        self.paused, self.closing = False, threading.Event()
        self.changed = threading.Condition()
        self.workers: list[Scripted] = []   # a router has these, and draws nothing itself
        self.url = ""

    def load(self, folder: str, label: str) -> None:
        from safetensors.numpy import load_file

        importlib.import_module("ml_dtypes")   # by which numpy knows bfloat16
        tensors = load_file(Path(folder) / "model.safetensors")
        embed = tensors["model.embed_tokens.weight"]
        self.weights, self.label = (embed, tensors.get("lm_head.weight", embed)), label

    # Control

    def pause(self, body) -> tuple[int, dict]:
        with self.changed:
            self.paused = True
            assert body["mode"] == "abort"
            self._end(lambda rid: True)
            self.changed.wait_for(lambda: not self.active)
        return 200, {"status": "ok"}

    def go_on(self, body) -> tuple[int, dict]:
        with self.changed:
            self.paused = False
            self.changed.notify_all()
        return 200, {"status": "ok"}

    def abort(self, body) -> tuple[int, None]:
        with self.changed:
            self._end(lambda rid: body.get("abort_all") or rid == body["rid"])
        return 200, None

    def _end(self, chosen) -> None:
        for rid in self.active:
            self.active[rid] = self.active[rid] or bool(chosen(rid))
        self.changed.notify_all()

    def update(self, body) -> tuple[int, dict]:
        switches = self.switches
        with self.changed:
            if body["abort_all_requests"]:
                self._end(lambda rid: True)
            self.changed.wait_for(lambda: not self.active)
            if switches.update_500s:
                switches.update_500s -= 1
                return 500, {"error": "it broke"}
            if switches.refuses or not Path(body["model_path"]).is_dir():
                return 400, {"success": False, "message": f"no weights in {body['model_path']}"}
            if not switches.keeps:
                self.load(body["model_path"], body["weight_version"])
            if switches.mislabels:
                self.label = "other"
            if body["flush_cache"]:
                self.held.clear()
        return 200, {"success": True, "message": "done", "num_paused_requests": 0}

    # Generation

    def generate(self, body) -> tuple[int, dict]:
        ids, sampling, rid = body["input_ids"], body["sampling_params"], body["rid"]
        with self.changed:
            self.changed.wait_for(lambda: not self.paused or self.closing.is_set())
            if self.switches.context and len(ids) + sampling["max_new_tokens"] > self.switches.context:
                return 400, {"error": {"message": "Requested token count exceeds the model's maximum context length"}}
            self.active[rid] = False
            self.most_active = max(self.most_active, len(self.active))
            kind = self.script.pop(0) if self.script else "ok"
            cached = max((_common(ids, held) for held in self.held), default=0)
            cached = min(cached, len(ids) - 1)
        try:
            drawn, entries, labels, finish = self._draw(rid, ids, sampling, kind)
        finally:
            with self.changed:
                del self.active[rid]
                self.held.append([*ids, *drawn])
                self.changed.notify_all()
        meta = {"id": rid, "finish_reason": finish, "prompt_tokens": len(ids), "cached_tokens": cached,
                "completion_tokens": len(drawn), "output_token_logprobs": entries}
        if self.switches.labels:
            meta |= {"weight_version": self.label, "weight_versions": labels}
        if kind == "abort":
            del meta["output_token_logprobs"]
        if kind == "short":
            entries.pop()
        if kind == "null":
            entries[-1][0] = None
        if kind == "huge":
            entries[-1][1] = 2**40
        return 200, {"output_ids": drawn, "meta_info": meta}

    def _draw(self, rid, ids, sampling, kind):
        drawn, entries, labels, size = [], [], [], sampling["max_new_tokens"]
        finish = {"type": "length", "length": size}
        while len(drawn) < size:
            with self.changed:
                if self.active[rid] or kind == "abort" or (kind == "cut" and len(drawn) >= 2):
                    finish = {"type": "abort", "message": "aborted", "status_code": None, "err_type": None}
                    break
                position = len(ids) + len(drawn)
                token, logprob = draw(self.weights, (ids + drawn)[-1], sampling["temperature"],
                                      (sampling["sampling_seed"], position))
                drawn.append(token)
                entries.append([logprob, token, None])
                if self.switches.repeats and len(drawn) % self.switches.repeats == 0:
                    entries += entries[-len(drawn):]
                if not labels or labels[-1]["version"] != self.label:
                    labels.append({"version": self.label, "start": len(drawn) - 1, "end": len(drawn)})
                labels[-1]["end"] = len(drawn)
            if token in sampling["stop_token_ids"] or token == self.switches.eos:
                finish = {"type": "stop", "matched": token}
                break
            if self.closing.wait(self.switches.step_s):
                break
        return drawn, entries, labels, finish

    # Description

    def answer(self, method: str, path: str, body: dict | None) -> tuple[int, object]:
        if path == "/openapi.json":
            return 200, {"paths": {name: {} for name in PATHS if name not in self.switches.missing}}
        if path not in PATHS or path in self.switches.missing:
            return 404, {"detail": "Not Found"}
        if path == "/get_load":
            return 500, {"error": "it never works"}
        if path == "/model_info":
            return 200, {"model_path": "", **({"weight_version": self.label} if self.switches.labels else {})}
        if path == "/server_info":
            jax = {"disable_precompile": False, "disable_overlap_schedule": not self.switches.overlap}
            return 200, {"context_length": self.switches.context, "device": "cpu", **(jax if self.switches.jax else {})}
        if path in ("/health", "/flush_cache"):
            return 200, None
        if path == "/generate":
            return self.generate(body)
        self.controls.append((path, body))
        return {"/pause_generation": self.pause, "/continue_generation": self.go_on, "/abort_request": self.abort,
                "/update_weights_from_disk": self.update}[path](body)


def draw(weights: tuple[np.ndarray, np.ndarray], last: int, temperature: float, seed) -> tuple[int, float]:
    """A token and its log-probability under softmax(logits after `last` / temperature)."""
    embed, head = weights
    logits = 3 * (head.astype(np.float64) @ embed[last].astype(np.float64))
    logprobs = log_softmax(logits / temperature if temperature else logits)
    if temperature == 0:
        token = int(logprobs.argmax())
    else:
        token = int(np.searchsorted(np.cumsum(np.exp(logprobs)), np.random.default_rng(seed).random()))
    token = min(token, len(logprobs) - 1)
    return token, float(logprobs[token])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def handler(state: Scripted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def reset(self):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

        def do_GET(self):
            if state.switches.gone:
                return self.reset()
            self.send(*state.answer("GET", self.path, None))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kind = ""
            if state.switches.gone:
                return self.reset()
            if self.path == "/generate":
                with state.changed:
                    state.requests.append(body)
                    state.headers.append({name.lower(): value for name, value in self.headers.items()})
                    kind = state.script[0] if state.script else "ok"
                    if kind in ("500", "400", "stall", "reset", "garbage", "odd"):
                        state.script.pop(0)
                    number = len(state.requests)
                if 0 < state.switches.dies_after < number:
                    os._exit(3)
                while 0 < state.switches.holds_after < number and not os.path.exists(state.switches.until):
                    time.sleep(0.01)
            if state.switches.key and self.headers["authorization"] != f"Bearer {state.switches.key}":
                return self.send(401, {"error": "Unauthorized"})
            if kind == "stall":
                return state.closing.wait()
            if kind == "reset":
                return self.reset()
            if state.workers and self.path == "/generate":
                number = zlib.crc32(self.headers["x-smg-routing-key"].encode())
                return self.send(*state.workers[number % len(state.workers)].generate(body))
            plain = {"500": (500, {"error": "it broke"}), "400": (400, {"error": "no"}), "garbage": (200, "<html>"),
                     "odd": (200, {"answer": 42})}
            try:
                self.send(*(plain[kind] if kind in plain else state.answer("POST", self.path, body)))
            except (BrokenPipeError, ConnectionResetError):
                pass

        def send(self, status, content):
            data = b"" if content is None else content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextlib.contextmanager
def sglang_server(**switches) -> Iterator[Scripted]:
    """A running server; see `Switches`."""
    state = Scripted(**switches)
    with serving(handler(state)) as state.url:
        try:
            yield state
        finally:
            state.closing.set()
            with state.changed:
                state.changed.notify_all()


def main(arguments: list[str], switches: dict) -> None:
    """Serves as a process, with the flags of SGLang that matter here."""
    flags = argparse.ArgumentParser()
    for name in ("--model-path", "--weight-version"):
        flags.add_argument(name, required=True)
    flags.add_argument("--port", type=int, required=True)
    given, _ = flags.parse_known_args(arguments)
    delay = switches.pop("starts_after_s", 0.0)
    state = Scripted(**switches)
    state.load(given.model_path, given.weight_version)
    time.sleep(delay)
    HttpServer(("127.0.0.1", given.port), handler(state)).serve_forever()
