"""The client against small local servers that speak the OpenAI stream, well and badly."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from steersman_simulator.demo.client import Flight, request_body
from steersman_simulator.demo.schedule import Request
from steersman_simulator.demo.workload import Message, WorkItem

Script = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Script], tuple[str, list[dict[str, Any]]]]]:
    """Starts a server that answers every POST by a script; gives its URL and the bodies it saw."""
    servers: list[ThreadingHTTPServer] = []

    def start(script: Script) -> tuple[str, list[dict[str, Any]]]:
        seen: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                seen.append(body | {"path": self.path})
                script(self, body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def stream(handler: BaseHTTPRequestHandler, *events: Any, done: bool = True) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    for event in events:
        handler.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
    if done:
        handler.wfile.write(b"data: [DONE]\n\n")


def request(number: int, scheduled_s: float = 0.0, **item: Any) -> Request:
    return Request(number, "quiet", scheduled_s, WorkItem(**({"prompt": "Once"} | item)))


def fly(url: str, *requests: Request) -> list[Any]:
    flight = Flight(url, "m", requests)
    flight.start()
    assert flight.wait(20.0)
    return flight.outcomes()


def test_plain_openai_server_without_extras(serve: Callable[..., Any]) -> None:
    """Chunks are counted where a server reports no usage, and what it does not know is None."""

    def script(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        opening = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        words = [{"choices": [{"delta": {"content": word}}]} for word in ("one ", "two ", "three")]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        stream(handler, opening, *words, end)

    url, seen = serve(script)
    message = Message("user", "count")
    outcome = fly(url, request(0, prompt=None, messages=(message,), max_tokens=9, segment="chat"))[0]
    assert (outcome.text, outcome.tokens, outcome.finish_reason) == ("one two three", 3, "stop")
    assert (outcome.drafted, outcome.accepted, outcome.prompt_tokens) == (None, None, None)
    assert outcome.error == ""
    assert outcome.first_token_s <= outcome.last_token_s
    assert seen[0]["path"] == "/v1/chat/completions"
    assert (seen[0]["max_tokens"], seen[0]["segment"], seen[0]["temperature"]) == (9, "chat", 0.0)


def test_usage_and_token_ids_are_believed(serve: Callable[..., Any]) -> None:
    """Several tokens of a step in one chunk count as several, and the usage has the last word."""

    def script(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "drafted": 8, "accepted": 3}
        first = {"choices": [{"text": "", "token_ids": [7]}]}
        second = {"choices": [{"text": "abc", "token_ids": [1, 2, 3, 4, 5]}]}
        stream(handler, first, second, {"choices": [{"text": "", "finish_reason": "length"}], "usage": usage})

    url, _ = serve(script)
    outcome = fly(url, request(3))[0]
    assert (outcome.number, outcome.tokens, outcome.prompt_tokens) == (3, 6, 5)
    assert (outcome.drafted, outcome.accepted, outcome.segment) == (8, 3, "unknown")
    assert outcome.tpot_s == pytest.approx((outcome.last_token_s - outcome.first_token_s) / 5)


def test_usage_chunk_without_choices_after_the_last_token(serve: Callable[..., Any]) -> None:
    """The usage chunk that OpenAI and vLLM send at the end has no choices and is no token."""

    def script(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        usage = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 1}}
        stream(handler, {"choices": [{"text": "a"}], "usage": None}, usage)

    outcome = fly(serve(script)[0], request(0))[0]
    assert (outcome.text, outcome.tokens, outcome.prompt_tokens) == ("a", 1, 2)
    assert outcome.tpot_s is None


@pytest.mark.parametrize("fault", ["status", "cut", "error", "garbage", "silent"])
def test_failed_request_is_reported_never_dropped(serve: Callable[..., Any], fault: str) -> None:
    """Whatever goes wrong with one request is its own error; the others are served."""

    def script(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        token = {"choices": [{"text": "a"}]}
        if body["prompt"] == "fine":
            stream(handler, token)
        elif fault == "status":
            handler.send_error(503, "too busy")
        elif fault == "cut":
            stream(handler, token, done=False)
        elif fault == "error":
            stream(handler, token, {"error": {"message": "out of memory"}})
        elif fault == "garbage":
            stream(handler, ["not", "an", "object"])
        else:
            stream(handler)

    url, _ = serve(script)
    bad, good = fly(url, request(0, prompt="bad"), request(1, prompt="fine"))
    words = {
        "status": "HTTP 503",
        "cut": "without [DONE]",
        "error": "out of memory",
        "garbage": "expected an object",
        "silent": "held no token",
    }
    assert words[fault] in bad.error
    assert (good.error, good.text) == ("", "a")


def test_absent_server_is_an_error_of_each_request() -> None:
    """With nobody listening every request has an outcome that says so."""
    outcomes = fly("http://127.0.0.1:9", request(0), request(1))
    assert [bool(outcome.error) for outcome in outcomes] == [True, True]
    assert outcomes[0].ttft_s is None


def test_requests_are_sent_in_the_order_of_their_schedule(serve: Callable[..., Any]) -> None:
    """No request is sent before its moment, and an early one does not wait for a late one."""

    def script(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        stream(handler, {"choices": [{"text": "a"}]})

    url, seen = serve(script)
    outcomes = fly(url, request(0, 0.3, prompt="late"), request(1, 0.0, prompt="early"))
    assert [body["prompt"] for body in seen] == ["early", "late"]
    assert all(outcome.sent_s >= outcome.scheduled_s for outcome in outcomes)


def test_closed_loop_keeps_its_number_of_requests_under_way(serve: Callable[..., Any]) -> None:
    """With at most two at a time no third is sent before one has ended, and all are served."""
    lock, under_way, most = threading.Lock(), 0, 0

    def script(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.05)
        with lock:
            under_way -= 1
        stream(handler, {"choices": [{"text": "a"}]})

    flight = Flight(serve(script)[0], "m", [request(n) for n in range(6)], at_most=2)
    flight.start()
    assert flight.wait(20.0)
    assert [outcome.error for outcome in flight.outcomes()] == [""] * 6
    assert most == 2


def test_untagged_request_carries_no_segment() -> None:
    """A request without a tag leaves the field out, so that a server's own rules decide."""
    path, body = request_body(request(0), "m")
    assert path == "/v1/completions"
    assert "segment" not in body
    assert body["stream_options"] == {"include_usage": True}
