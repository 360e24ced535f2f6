"""An open-loop client of any OpenAI-compatible server: sends on time, streams, writes down moments.

Nothing is dropped: a request that fails is an outcome with an `error`. What a plain OpenAI server
does not report (drafted, accepted) is None.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.demo.schedule import Request

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 300.0
"""Between two events of a stream; a request may queue that long."""

Clock = Callable[[], float]
Carrier = Callable[[str], dict[str, Any]]
"""The fields of a request's body that carry its segment."""


class Outcome(Struct, frozen=True):
    """What became of one request. Moments count in seconds from the start of the arm."""

    number: int
    segment: str
    phase: str
    scheduled_s: float
    sent_s: float
    first_token_s: float | None
    last_token_s: float | None
    tokens: int
    prompt_tokens: int | None
    text: str
    drafted: int | None
    accepted: int | None
    finish_reason: str
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Scheduled arrival to first token, so that a late client flatters nobody."""
        return None if self.first_token_s is None else self.first_token_s - self.scheduled_s

    @property
    def e2e_s(self) -> float | None:
        """Scheduled arrival to last token."""
        return None if self.last_token_s is None else self.last_token_s - self.scheduled_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        if self.first_token_s is None or self.last_token_s is None or self.tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.tokens - 1)


def segment_field(segment: str) -> dict[str, Any]:
    """How our own engine takes a segment."""
    return {"segment": segment}


class Flight:
    """The requests of one arm on their way. `live` and `tokens` may be read at any time.

    With `at_most` it is a closed loop: so many requests are under way at a time, the others wait.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        requests: Sequence[Request],
        *,
        carrier: Carrier = segment_field,
        at_most: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.model = model
        self.requests = requests
        self.live = 0
        self.tokens = 0
        self.started_at_s = 0.0
        self._carrier = carrier
        self._places = threading.Semaphore(max(1, len(requests)) if at_most is None else at_most)
        self._clock = clock
        self._lock = threading.Lock()
        self._landed = threading.Event()
        self._outcomes: list[Outcome] = []
        self._http = httpx.Client(
            base_url=base_url,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )

    def start(self) -> None:
        """Begin now; every request waits in a thread of its own for its moment."""
        self.started_at_s = self._clock()
        for request in self.requests:
            # Daemons: an interrupted demo must not wait for requests that nobody answers.
            threading.Thread(target=self._fly, args=(request,), daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Whether every request has an outcome, after at most `timeout_s`."""
        return self._landed.wait(timeout_s)

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self.started_at_s

    @property
    def done(self) -> int:
        """Requests with an outcome."""
        return len(self._outcomes)

    def outcomes(self) -> list[Outcome]:
        """All outcomes so far, by number; closes the connections when they are complete."""
        if self._landed.is_set():
            self._http.close()
        with self._lock:
            return sorted(self._outcomes, key=lambda outcome: outcome.number)

    def _fly(self, request: Request) -> None:
        time.sleep(max(0.0, request.scheduled_s - self.now_s))
        with self._places:
            self._converse(request)

    def _converse(self, request: Request) -> None:
        stream = _Stream()
        sent_s = self.now_s
        with self._lock:
            self.live += 1
        try:
            self._receive(request, stream)
        except (httpx.HTTPError, msgspec.DecodeError, ValueError) as error:
            stream.error = f"{type(error).__name__}: {error}"
        outcome = stream.outcome(request, sent_s)
        with self._lock:
            self.live -= 1
            self._outcomes.append(outcome)
            if len(self._outcomes) == len(self.requests):
                self._landed.set()

    def _receive(self, request: Request, stream: "_Stream") -> None:
        path, body = request_body(request, self.model, self._carrier)
        with self._http.stream("POST", path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = response.read().decode("utf-8", "replace")
                raise ValueError(f"HTTP {response.status_code}: {text[:200]}")
            for event in sse_events(response.iter_lines()):
                before = stream.tokens
                stream.take(event, self.now_s)
                with self._lock:
                    self.tokens += stream.tokens - before
        if not stream.finished:
            raise ValueError("the stream ended without [DONE]")


def request_body(
    request: Request, model: str, carrier: Carrier = segment_field
) -> tuple[str, dict[str, Any]]:
    """Path and JSON body of a request: greedy, streamed, with usage."""
    item = request.item
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": item.max_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if item.segment is not None:
        body |= carrier(item.segment)
    if item.messages is None:
        return "/v1/completions", body | {"prompt": item.prompt}
    messages = [{"role": message.role, "content": message.content} for message in item.messages]
    return "/v1/chat/completions", body | {"messages": messages}


def sse_events(lines: Iterator[str]) -> Iterator[dict[str, Any] | None]:
    """The JSON objects of a server-sent stream; None stands for [DONE]. Raises msgspec.DecodeError.

    >>> list(sse_events(iter(["data: {\\"a\\": 1}", "", ": ping", "data: [DONE]"])))
    [{'a': 1}, None]
    """
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            yield None
            return
        found = msgspec.json.decode(data)
        if not isinstance(found, dict):
            raise ValueError(f"expected an object in the stream, found {type(found).__name__}")
        yield found


class _Stream:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.counted = 0
        self.usage: dict[str, Any] = {}
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.finish_reason = ""
        self.finished = False
        self.error = ""

    @property
    def tokens(self) -> int:
        """As the usage says; until it comes, or where it never does, as the chunks say."""
        said = self.usage.get("completion_tokens")
        return said if isinstance(said, int) else self.counted

    def take(self, event: dict[str, Any] | None, now_s: float) -> None:
        if event is None:
            self.finished = True
            return
        if "error" in event:
            raise ValueError(f"server: {str(event['error'])[:200]}")
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage |= usage
        for choice in event.get("choices") or []:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            # Half a character has tokens but no text yet; a server without ids is counted by chunks.
            ids = choice.get("token_ids")
            arrived = len(ids) if isinstance(ids, list) else int(bool(text))
            self.parts.append(text)
            self.counted += arrived
            if arrived:
                self.first_s = now_s if self.first_s is None else self.first_s
                self.last_s = now_s

    def outcome(self, request: Request, sent_s: float) -> Outcome:
        error = self.error
        if not error and self.first_s is None:
            error = "the stream held no token"
        return Outcome(
            number=request.number,
            segment=request.item.segment or UNKNOWN_SEGMENT,
            phase=request.phase,
            scheduled_s=request.scheduled_s,
            sent_s=sent_s,
            first_token_s=self.first_s,
            last_token_s=self.last_s,
            tokens=self.tokens,
            prompt_tokens=self._count("prompt_tokens"),
            text="".join(self.parts),
            drafted=self._count("drafted"),
            accepted=self._count("accepted"),
            finish_reason=self.finish_reason,
            error=error,
        )

    def _count(self, key: str) -> int | None:
        found = self.usage.get(key)
        return found if isinstance(found, int) else None
