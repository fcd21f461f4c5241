"""A real server on a local port that plays a language model's part from a script, in three protocols.

    with api_server([Call("Read", {"file_path": "SKILL.md"}), Call("mcp__eau__submit_proposal", {...}), "done"]) as server:
        claude("test-model", base_url=server.url)

A step is a `Call` of a tool or a text, which ends the conversation. Which step is next follows from the number of tool
results in the request, so a repeated request gets the same answer. Modes: "normal"; "down" answers 529 always; "stall"
sends nothing; "cut" closes the stream in the middle.
"""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Iterator, NamedTuple, Sequence


class Call(NamedTuple):
    """One call of a tool."""

    tool: str
    arguments: dict[str, Any]
    space: str = ""      # Codex: the namespace of the tool


class Server:
    """What the tests look at."""

    def __init__(self):
        self.url, self.requests, self.closing = "", [], threading.Event()
        self.keys: list[str] = []

    def results(self) -> list[str]:
        """What the tools answered, as the model saw it in its last request that had any, in order."""
        for body in reversed(self.requests):
            found = list(_results(body))
            if found:
                return [json.dumps(result) for result in found]
        return []


@contextlib.contextmanager
def api_server(script: Sequence[Call | str], mode: str = "normal") -> Iterator[Server]:
    """A running server of the Anthropic protocol (/v1/messages), the Responses API and Chat Completions."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_HEAD(self):
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self):
            self.json(200, {"data": [], "models": []})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path.partition("?")[0].endswith("count_tokens"):
                return self.json(200, {"input_tokens": 10})
            state.keys.append(self.headers.get("x-api-key") or self.headers.get("authorization") or "")
            if mode == "down":
                return self.json(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
            place = len(list(_results(body)))
            if not _tools(body):      # a side question of the program, such as a title for the conversation
                step: Call | str = "a title"
            else:
                state.requests.append(body)
                step = script[min(place, len(script) - 1)]
            if self.path.endswith("/chat/completions"):
                return self.json(200, _completion(step, place))
            events = _messages(step, place) if self.path.startswith("/v1/messages") else _responses(step, place)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            if mode == "stall":
                state.closing.wait(60)
                return None
            for number, event in enumerate(events):
                if mode == "cut" and number == 2:
                    break
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.close_connection = True
            return None

        def json(self, status, body):
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        server.server_close()


def _tools(body: dict) -> bool:
    return bool(body.get("tools"))


def _results(body: dict) -> Iterator[Any]:
    """What tools have answered, in any of the protocols."""
    for message in body.get("messages", []):
        if message["role"] == "tool":
            yield message["content"]
            continue
        if isinstance(message.get("content"), list):
            yield from (block["content"] for block in message["content"] if block["type"] == "tool_result")
    for item in body["input"] if isinstance(body.get("input"), list) else []:
        if str(item.get("type", "")).endswith("_call_output"):
            yield item["output"]


def _messages(step: Call | str, place: int) -> Iterator[dict]:
    yield {"type": "message_start", "message": {
        "id": f"msg_{place}", "type": "message", "role": "assistant", "model": "test-model", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 1}}}
    if isinstance(step, str):
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": step}
    else:
        block = {"type": "tool_use", "id": f"toolu_{place}", "name": step.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn" if isinstance(step, str) else "tool_use",
                                              "stop_sequence": None}, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def _completion(step: Call | str, place: int) -> dict:
    message: dict[str, Any] = {"role": "assistant", "content": step if isinstance(step, str) else None}
    if isinstance(step, Call):
        message["tool_calls"] = [{"id": f"call_{place}", "type": "function", "function": {
            "name": step.tool, "arguments": json.dumps(step.arguments)}}]
    return {"id": f"c{place}", "object": "chat.completion", "created": 0, "model": "test-model", "choices": [
        {"index": 0, "message": message, "finish_reason": "stop" if isinstance(step, str) else "tool_calls"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}}


def _responses(step: Call | str, place: int) -> Iterator[dict]:
    name = f"resp_{place}"
    if isinstance(step, str):
        item = {"type": "message", "id": f"msg_{place}", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": step, "annotations": []}]}
    else:
        item = {"type": "function_call", "id": f"fc_{place}", "call_id": f"call_{place}", "name": step.tool,
                "arguments": json.dumps(step.arguments), "status": "completed",
                **({"namespace": step.space} if step.space else {})}
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 20,
             "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 120}
    yield {"type": "response.created", "response": {"id": name, "object": "response", "status": "in_progress", "output": []}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {"id": name, "object": "response", "status": "completed",
                                                      "output": [item], "usage": usage}}
