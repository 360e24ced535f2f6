import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tiny_models import VOCAB, engine_of, target_of

from steersman_engine.server.http import Server
from steersman_engine.server.loop import EngineLoop
from steersman_engine.server.serve import Settings, hello, stop_ids
from steersman_engine.server.text import TextStream
from steersman_engine.steering import Launch

MAX_LEN = 512


class Letters:
    """A tokenizer whose tokens are single bytes."""

    chat_template = "yes"
    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [byte % VOCAB for byte in text.encode()]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token for token in token_ids if token).decode(errors="replace")

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        if conversation[0]["role"] == "wizard":
            raise RuntimeError("no wizards")
        return "".join(f"<{turn['role']}>{turn['content']}" for turn in conversation) + "<assistant>"


class Served:
    """A real server on a free port."""

    def __init__(self) -> None:
        self.engine = engine_of(target_of(), Launch(3), max_len=MAX_LEN, max_batch=4)
        self.loop = EngineLoop(self.engine)
        self.app = Server(self.loop, Letters(), "tiny", frozenset({0}))
        self.uvicorn = uvicorn.Server(uvicorn.Config(self.app.app, port=0, log_level="warning"))
        self.thread = threading.Thread(target=self.uvicorn.run)
        self.loop.start()
        self.thread.start()
        wait_for(lambda: self.uvicorn.started)
        port = self.uvicorn.servers[0].sockets[0].getsockname()[1]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)

    def close(self) -> None:
        self.client.close()
        self.uvicorn.should_exit = True
        self.thread.join()
        self.loop.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


BODY = {"prompt": "abcabcab", "max_tokens": 20, "temperature": 0, "ignore_eos": True}


def test_a_completion_comes_whole(served: Served) -> None:
    """Text, tokens, counts, and why it ended."""
    answer = served.client.post("/v1/completions", json=BODY).json()
    (choice,) = answer["choices"]
    assert answer["object"] == "text_completion"
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == 20
    assert choice["text"] == Letters().decode(choice["token_ids"])
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 20, 28)
    assert usage["drafted"] > 0
    assert 0 <= usage["accepted"] <= usage["drafted"]


def test_a_stream_gives_the_tokens_of_each_step(served: Served) -> None:
    """One event per step; together they are the whole answer, and the counts come last."""
    whole = served.client.post("/v1/completions", json=BODY).json()
    chunks = events(served.client.post("/v1/completions", json={**BODY, "stream": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks) == whole["choices"][0]["text"]
    tokens = [c["choices"][0]["token_ids"] for c in chunks]
    assert [token for step in tokens for token in step] == whole["choices"][0]["token_ids"]
    assert len(tokens) == whole["usage"]["steps"] + 2
    assert chunks[-1]["usage"] == whole["usage"]
    assert [c["choices"][0]["finish_reason"] for c in chunks[-2:]] == [None, "length"]


def test_a_chat_goes_through_the_template(served: Served) -> None:
    """Whole and streamed."""
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 8}
    whole = served.client.post("/v1/chat/completions", json=body).json()
    assert whole["usage"]["prompt_tokens"] == len("<user>hi<assistant>")
    assert whole["choices"][0]["message"]["role"] == "assistant"
    chunks = events(served.client.post("/v1/chat/completions", json={**body, "stream": True}))
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == whole["choices"][0]["message"]["content"]


def test_a_seed_repeats(served: Served) -> None:
    """Sampled output is the same for the same seed, and another for another."""
    outputs = []
    for seed in (5, 5, 6):
        answer = served.client.post("/v1/completions", json={**BODY, "temperature": 1.5, "seed": seed}).json()
        outputs.append(answer["choices"][0]["token_ids"])
    assert outputs[0] == outputs[1] != outputs[2]


def test_requests_are_served_together(served: Served) -> None:
    """Twelve at once on four slots: each gets what it would get alone."""
    alone = served.client.post("/v1/completions", json=BODY).json()["choices"][0]["token_ids"]
    answers: list[list[int]] = []

    def ask() -> None:
        answer = served.client.post("/v1/completions", json=BODY).json()
        answers.append(answer["choices"][0]["token_ids"])

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [alone] * 12


@pytest.mark.parametrize("way", ["body", "header"])
def test_the_segment_comes_by_body_or_header(
    served: Served, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reaches the steering."""
    seen: list[tuple[str, Any]] = []
    segment_of = served.engine.steering.segment_of
    monkeypatch.setattr(
        served.engine.steering,
        "segment_of",
        lambda tag, attributes, _: seen.append((tag, dict(attributes))) or segment_of(tag, attributes),
    )
    body = {**BODY, "segment": "code"} if way == "body" else BODY
    headers = {"X-Steersman-Segment": "code"} if way == "header" else {}
    assert served.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    assert seen == [("code", {"route": "completions", "sampling": "greedy"})]


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        ("completions", {"temprature": 1}, "temprature: unknown parameter, did you mean 'temperature'?"),
        ("completions", {"temperature": -1}, "temperature: -1.0, must be 0"),
        ("completions", {"max_tokens": 0}, "max_tokens: 0, must be at least 1"),
        ("completions", {"max_tokens": 9999}, "exceed max_len 512"),
        ("completions", {"prompt": 5}, "prompt: Expected"),
        ("completions", {"prompt": ""}, "prompt: is empty"),
        ("completions", {"prompt": "x" * 600}, "prompt: 600 tokens leave no room in max_len 512"),
        ("completions", {"n": 2}, "n: 2 is not supported"),
        ("completions", {"segment": "what is this?"}, "segment: Expected"),
        ("chat/completions", {"messages": [{"role": "wizard", "content": ""}]}, "no wizards"),
        ("chat/completions", {"messages": "hi"}, "messages: Expected"),
    ],
)
def test_bad_requests_get_one_clear_line(
    served: Served, path: str, changes: dict[str, Any], message: str
) -> None:
    """What was wrong, where, and what is allowed; the engine never sees it."""
    body = {**({} if "chat" in path else {"prompt": "x"}), **changes}
    response = served.client.post(f"/v1/{path}", json=body)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert "\n" not in response.json()["error"]["message"]


def test_a_body_that_is_not_json_is_refused(served: Served) -> None:
    """With a reason."""
    response = served.client.post("/v1/completions", content=b"{")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("body: not JSON")


def test_neutral_parameters_of_clients_are_taken(served: Served) -> None:
    """Clients send defaults that change nothing."""
    body = {**BODY, "n": 1, "stop": None, "presence_penalty": 0, "stream_options": {"include_usage": True}}
    assert served.client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(
    served: Served, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine does not work for nobody: the request ends as cancelled, whole or streamed."""
    ended: list[str] = []
    monkeypatch.setattr(served.engine.steering, "finished", lambda report: ended.append(report.finish_reason))
    body = json.dumps({**BODY, "max_tokens": 500, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    steps = served.engine.steps
    with socket.create_connection((served.client.base_url.host, served.client.base_url.port or 80)) as client:
        client.sendall(head + body)
        wait_for(lambda: served.engine.steps > steps + 2)
    wait_for(lambda: bool(ended))
    assert ended == ["cancelled"]
    health = served.client.get("/health").json()
    assert (health["live"], health["waiting"], health["status"]) == (0, 0, "ok")


def test_health_and_models_answer(served: Served) -> None:
    """The model is listed, and health names the K in force."""
    served.client.post("/v1/completions", json={**BODY, "segment": "code"})
    assert served.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    health = served.client.get("/health").json()
    assert health["reason"] == "launch"
    assert health["proposal_length"] == {"code": 3}
    assert health["steps"] > 0


def test_a_failed_step_ends_its_requests_and_no_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 500 with the reason; the next request is served."""
    monkeypatch.setattr(served.engine.target, "logits", lambda *_: 1 / 0)
    response = served.client.post("/v1/completions", json=BODY)
    assert response.status_code == 500
    assert "ZeroDivisionError" in response.json()["error"]["message"]
    monkeypatch.undo()
    assert served.client.post("/v1/completions", json=BODY).status_code == 200


def test_streamed_text_never_splits_a_character() -> None:
    """Half a character waits for its other half."""

    class Bytes(Letters):
        def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
            return bytes(token_ids).decode(errors="replace")

    stream = TextStream(Bytes())
    pieces = [stream.add([byte]) for byte in "aé€z".encode()]
    assert pieces == ["a", "", "é", "", "", "€", "z"]
    assert stream.add(list("€".encode())[:2], last=True) == "\ufffd"


def test_hello_describes_the_real_engine() -> None:
    """Reachable K, drafter and dtype are those of the engine."""
    from steersman_engine.drafters.prompt_lookup import PromptLookup

    target = target_of()
    greeting = hello(Settings(k_max=4, launch_k=2), target, PromptLookup())
    assert greeting.reachable_k == (0, 1, 2, 3, 4)
    assert greeting.fingerprint.drafter == "prompt_lookup"
    assert greeting.fingerprint.dtype == "float32"
    assert (greeting.per_request_k, greeting.drafter_state_survives_off) == (True, True)
    assert hello(Settings(drafter="none"), target, None).reachable_k == (0,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": "prompt-lookup"}, "did you mean 'prompt_lookup'"),
        ({"launch_k": 9}, "launch_k: 9, at most k_max 8"),
        ({"launch_k": 1, "drafter": "none"}, "there is no drafter"),
    ],
)
def test_bad_settings_get_one_clear_line(changes: dict[str, Any], message: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(ValueError, match=message):
        Settings(**changes)


def test_stop_ids_come_from_model_and_tokenizer() -> None:
    """Lists and single numbers, from wherever they are named."""
    model = target_of(eos_token_id=[5, 6]).model
    assert stop_ids(model, Letters()) == {0, 5, 6}


@pytest.mark.slow
def test_the_verb_serves_drains_and_ends_with_zero() -> None:
    """One JSON line when ready; SIGTERM lets the request under way finish, and refuses new ones."""
    command = [str(Path(sys.executable).with_name("steersman")), "engine", "serve", "--json"]
    flags = ["--port", "0", "--no-sidecar", "--launch-k", "2", "--max-len", "256", "--threads", "1"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        body = {**BODY, "prompt": "Once upon a time", "max_tokens": 60, "stream": True}
        with httpx.stream("POST", f"{facts['url']}/v1/completions", json=body, timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 60
        assert process.wait(60) == 0
        assert process.stdout.read() == ""
