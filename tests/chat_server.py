"""A real OpenAI-compatible server on a local port, for tests of everything that talks to one.

    with chat_server("normal") as server:
        client = ChatClient(server.base_url, "test-model", ...)

Modes: "normal" echoes the draft it is asked to reword; "limited" answers 429 twice, then as normal; "broken" always
500; "refusing" always 400; "hang" never answers; "trickle" sends a byte now and then and never ends; "garbage" sends
what is not JSON; "odd" sends JSON that is no completion; "empty" an empty reply; "leak" says `server.secret`.

`server.script` goes first: (status, body, headers) or (status, body) for one request after the other, a body being text or
JSON values; the last one stays. `completion(...)` makes a body, and `refusal(...)` that of an error. `server.speaks`, where it is given, is asked next: a
function of a request's body that returns the words, or (status, body) as in a script, where a body may be bytes as well.
"""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Callable, Iterator

from local_http import serving

MARK = "The reply to say in your own words: "


def completion(content, finish="stop", **message) -> dict:
    """The body of a chat completion."""
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [
        {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content} | message}]}


def refusal(message: str, **more) -> dict:
    """The body of an error."""
    return {"error": {"message": message} | more}


class Server:
    """What the tests may look at and change while the server runs."""

    def __init__(self, mode: str, retry_after: str | None, delay_s: float):
        self.mode, self.retry_after, self.delay_s = mode, retry_after, delay_s
        self.secret = "a secret"
        self.script: list[tuple] = []
        self.speaks: Callable[[dict], str | tuple] | None = None
        self.requests: list[dict] = []      # bodies, in the order they came
        self.headers: list[dict] = []       # of the same requests, names in lower case
        self.in_flight = self.most_in_flight = 0
        self.lock, self.closing = threading.Lock(), threading.Event()
        self.base_url = ""


@contextlib.contextmanager
def chat_server(mode: str = "normal", *, retry_after: str | None = None, delay_s: float = 0.0,
                port: int = 0) -> Iterator[Server]:
    """A running server; `retry_after` is the header of its 429 answers, `delay_s` seconds pass before each answer, `port`
    0 is a free one."""
    state = Server(mode, retry_after, delay_s)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with state.lock:
                state.requests.append(body)
                state.headers.append({name.lower(): value for name, value in self.headers.items()})
                state.in_flight += 1
                state.most_in_flight = max(state.most_in_flight, state.in_flight)
                number = len(state.requests)
            try:
                time.sleep(state.delay_s)
                self.answer(body, number)
            except (BrokenPipeError, ConnectionResetError):
                pass
            finally:
                with state.lock:
                    state.in_flight -= 1

        def answer(self, body, number):
            mode = state.mode
            if state.script:
                with state.lock:
                    status, content, *headers = state.script.pop(0) if len(state.script) > 1 else state.script[0]
                self.send(status, content if isinstance(content, str) else json.dumps(content), *headers)
            elif state.speaks is not None:
                said = state.speaks(body)
                status, content = (200, completion(said)) if isinstance(said, str) else said
                self.send(status, content if isinstance(content, (str, bytes)) else json.dumps(content))
            elif mode == "hang":
                state.closing.wait()
            elif mode == "trickle":
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", "1000000")
                self.end_headers()
                while not state.closing.wait(0.05):
                    self.wfile.write(b" ")
                    self.wfile.flush()
            elif mode == "limited" and number <= 2:
                self.send(429, json.dumps({"error": {"message": "slow down"}}),
                          {} if state.retry_after is None else {"retry-after": state.retry_after})
            elif mode == "broken":
                self.send(500, json.dumps({"error": {"message": "it broke"}}))
            elif mode == "refusing":
                self.send(400, json.dumps({"error": {"message": "no such model: " + body["model"]}}))
            elif mode == "garbage":
                self.send(200, "<html>not json</html>")
            elif mode == "odd":
                self.send(200, json.dumps({"answer": 42}))
            else:
                asked = body["messages"][-1]["content"]
                text = {"empty": "", "leak": f"All right, it is {state.secret.upper()}!"}.get(
                    mode, asked.rsplit(MARK, 1)[-1])
                self.send(200, json.dumps(completion(text)))

        def send(self, status, text, headers={}):
            data = text if isinstance(text, bytes) else text.encode()
            self.send_response(status)
            self.send_header("content-type", "text/html" if data.startswith(b"<") else "application/json")
            self.send_header("content-length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler, port) as url:
        state.base_url = f"{url}/v1"
        try:
            yield state
        finally:
            state.closing.set()
