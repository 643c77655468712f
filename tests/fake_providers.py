"""A real HTTP server on loopback that speaks the providers' APIs, well and badly, as a script says."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Handler = Callable[["Exchange"], None]


class Exchange:
    """One request, and the means to answer it."""

    def __init__(self, http: BaseHTTPRequestHandler, body: Any) -> None:
        self.http = http
        self.body = body

    def send_json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        self.http.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(raw)),
            **(headers or {}),
        }.items():
            self.http.send_header(name, value)
        self.http.end_headers()
        self.http.wfile.write(raw)

    def start_stream(self) -> None:
        self.http.send_response(200)
        self.http.send_header("content-type", "text/event-stream")
        self.http.send_header("transfer-encoding", "chunked")
        self.http.end_headers()

    def send_raw(self, text: str) -> None:
        raw = text.encode()
        self.http.wfile.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        self.http.wfile.flush()

    def end_stream(self) -> None:
        self.http.wfile.write(b"0\r\n\r\n")
        self.http.wfile.flush()

    def break_off(self) -> None:
        """The connection goes away in the middle of the stream."""
        self.http.close_connection = True


class FakeProvider:
    """``with FakeProvider(handlers) as server:`` answers each request with the next handler; keeps every body."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self._handlers = list(handlers)
        self._lock = threading.Lock()
        owner = self

        class Http(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with owner._lock:
                    owner.bodies.append(body)
                    owner.headers.append({name.lower(): value for name, value in self.headers.items()})
                    owner.paths.append(self.path)
                    handler = owner._handlers.pop(0)
                try:
                    handler(Exchange(self, body))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the client went away, as some tests make it do

            def log_message(self, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def refusal(status: int, body: Any, headers: dict[str, str] | None = None) -> Handler:
    """Answer with an HTTP error."""
    return lambda exchange: exchange.send_json(status, body, headers)


# ── one answer in each provider's words; a call is (id, name, arguments text) ────────────────────────────────────

Call = tuple[str, str, str]
OPENAI_USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
}
ANTHROPIC_USAGE = {
    "input_tokens": 7,
    "output_tokens": 7,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 0,
}


def openai_whole(text: str = "", calls: Sequence[Call] = (), finish: str | None = None) -> Handler:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ]
    body = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "fake-1",
        "choices": [{"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}],
        "usage": OPENAI_USAGE,
    }  # fmt: skip
    return lambda exchange: exchange.send_json(200, body)


def openai_chunks(text: str, calls: Sequence[Call], finish: str | None) -> Iterator[dict[str, Any]]:
    for piece in text.split(" ") if text else []:
        yield {"content": piece + " "}
    for index, (id_, name, arguments) in enumerate(calls):
        yield {
            "tool_calls": [{"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}]
        }
        for start in range(0, len(arguments), 5):
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + 5]}}]}


def openai_event(delta: dict[str, Any] | None, finish: str | None = None, usage: Any = None) -> str:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "fake-1", "choices": choices}
    return "data: " + json.dumps({**chunk, "usage": usage}) + "\n\n"


def openai_streamed(
    text: str = "", calls: Sequence[Call] = (), finish: str | None = None, *, deltas: Sequence[Any] | None = None,
    break_after: int | None = None, before: Callable[[int], object] = lambda _: None,
) -> Handler:  # fmt: skip
    """Stream an answer; ``break_after`` that many events the connection goes away; ``before`` each event is called."""

    def handle(exchange: Exchange) -> None:
        exchange.start_stream()
        parts = list(deltas) if deltas is not None else list(openai_chunks(text, calls, finish))
        for number, delta in enumerate(parts):
            before(number)
            if break_after == number:
                return exchange.break_off()
            exchange.send_raw(openai_event(delta))
        if break_after is not None:
            return exchange.break_off()
        exchange.send_raw(openai_event({}, finish or ("tool_calls" if calls or deltas else "stop")))
        exchange.send_raw(openai_event(None, usage=OPENAI_USAGE))
        exchange.send_raw("data: [DONE]\n\n")
        return exchange.end_stream()

    return handle


def anthropic_whole(text: str = "", calls: Sequence[Call] = (), finish: str | None = None) -> Handler:
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "tool_use", "id": id_, "name": name, "input": json.loads(args)} for id_, name, args in calls]
    body = {
        "id": "m", "type": "message", "role": "assistant", "model": "fake-1", "content": content,
        "stop_reason": finish or ("tool_use" if calls else "end_turn"), "stop_sequence": None,
        "usage": ANTHROPIC_USAGE,
    }  # fmt: skip
    return lambda exchange: exchange.send_json(200, body)


def anthropic_events(text: str, calls: Sequence[Call], finish: str | None) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 7, "output_tokens": 1, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}
    message = {
        "id": "m", "type": "message", "role": "assistant", "model": "fake-1", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield {"type": "message_start", "message": message}
    index = 0
    if text:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        for piece in text.split(" "):
            yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece + " "}}
        yield {"type": "content_block_stop", "index": 0}
        index = 1
    for id_, name, arguments in calls:
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for start in range(0, len(arguments), 5):
            delta = {"type": "input_json_delta", "partial_json": arguments[start : start + 5]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    stop = finish or ("tool_use" if calls else "end_turn")
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": stop, "stop_sequence": None},
        "usage": {"output_tokens": 7},
    }
    yield {"type": "message_stop"}


def anthropic_streamed(
    text: str = "", calls: Sequence[Call] = (), finish: str | None = None, *,
    break_after: int | None = None, before: Callable[[int], object] = lambda _: None,
) -> Handler:  # fmt: skip
    def handle(exchange: Exchange) -> None:
        exchange.start_stream()
        for number, event in enumerate(anthropic_events(text, calls, finish)):
            before(number)
            if break_after == number:
                return exchange.break_off()
            exchange.send_raw(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n")
        return exchange.end_stream()

    return handle
