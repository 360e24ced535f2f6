"""A real `vllm serve`, and what tests ask of it."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from steersman_engine.adapters.vllm.table import bands, with_table

HERE = Path(__file__).parent
SCHEDULER = "steersman_engine.adapters.vllm.SteersmanScheduler"
K_MAX, MAX_BATCH, MAX_LEN = 8, 16, 1024
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": K_MAX,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
STEERABLE = with_table(NGRAM, bands(range(K_MAX + 1), MAX_BATCH))
CODE = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n"
PROSE = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"
STORY = "Once upon a time there was a small boat on a wide river, and"
PROMPTS = (CODE, PROSE, STORY)
EAGER = ("--enforce-eager", "--dtype", "float32")
"""Nothing is compiled, which would take longer than all tests of a server."""
START_S = 600.0
ANSWER_S = 120.0


def until(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Wait until something holds; what it says then."""
    deadline_s = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"within {seconds} s not: {what}"
        time.sleep(0.05)
    return found


class Completion(NamedTuple):
    """What vLLM answered, and what it says itself about each step of the request."""

    tokens: list[int]
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    drafted: list[int]
    """Of each step that verified drafts."""
    accepted: list[int]
    gaps: list[float]
    """Between the two best tokens at each place, in log probability; empty unless asked for."""


class Server:
    """`vllm serve` in a process group of its own. Ready when the constructor returns."""

    def __init__(
        self,
        python: str,
        model: Path,
        folder: Path,
        *,
        scheduler: str | None = SCHEDULER,
        speculative: Mapping[str, Any] = STEERABLE,
        environment: Mapping[str, str] | None = None,
        flags: Iterable[str] = EAGER,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"vllm-{port}.log"
        self.state_dir = folder / "state"
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model)]
        command += ["--served-model-name", "model", "--host", "127.0.0.1", "--port", str(port), *flags]
        command += ["--max-model-len", str(MAX_LEN), "--max-num-seqs", str(MAX_BATCH)]
        command += ["--per-request-spec-decode-metrics", "detailed"]
        command += ["--speculative-config", json.dumps(speculative)]
        command += ["--scheduler-cls", scheduler] if scheduler else []
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(folder, environment or {}),
                cwd=folder,
                start_new_session=True,
            )
        self.client = httpx.Client(base_url=self.url, timeout=ANSWER_S)

    def _environment(self, folder: Path, more: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STEERSMAN_")}
        return {
            **inherited,
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONPATH": str(HERE / "planted"),
            "XDG_RUNTIME_DIR": str(folder),
            "STEERSMAN_STATE_DIR": str(self.state_dir),
            **more,
        }

    def wait(self) -> "Server":
        """Until it serves."""

        def serves() -> bool:
            code = self.process.poll()
            assert code is None, f"vllm serve ended with {code}:\n{self.text()[-4000:]}"
            with suppress(httpx.TransportError):
                return self.client.get("/health").status_code == 200
            return False

        until(serves, f"vLLM serves, see {self.log}", START_S)
        return self

    def stop(self) -> None:
        """End all of its processes."""
        self.client.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10.0)

    def text(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")

    def complete(
        self, prompt: str, max_tokens: int = 48, *, headers: Mapping[str, str] | None = None, **body: Any
    ) -> Completion:
        """One greedy completion, unless the body says otherwise."""
        wanted = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0, "return_token_ids": True}
        answer = self.client.post("/v1/completions", json={**wanted, **body}, headers=dict(headers or {}))
        assert answer.status_code == 200, answer.text
        return _completion(answer.json())

    def complete_all(self, requests: Iterable[Mapping[str, Any]]) -> list[Completion]:
        """Several completions at the same time."""
        with ThreadPoolExecutor(MAX_BATCH) as pool:
            return list(pool.map(lambda wanted: self.complete(**wanted), requests))

    def abandon(self, prompt: str, after_chunks: int) -> None:
        """Begin a streamed completion and hang up in the middle of it."""
        # Long, and sampled so that few drafts hold: a busy server may be seconds late to see the hang-up.
        body = {"prompt": prompt, "max_tokens": 900, "temperature": 1.5, "stream": True, "ignore_eos": True}
        with self.client.stream("POST", "/v1/completions", json=body) as answer:
            for _, _ in zip(range(after_chunks), answer.iter_lines(), strict=False):
                pass

    def counters(self) -> tuple[int, int, int]:
        """What vLLM itself has counted: draft tokens, accepted ones, tokens generated."""
        text = self.client.get("/metrics").text
        names = (
            "vllm:spec_decode_num_draft_tokens_total",
            "vllm:spec_decode_num_accepted_tokens_total",
            "vllm:generation_tokens_total",
        )
        drafted, accepted, generated = (_metric(text, name) for name in names)
        return drafted, accepted, generated


def _completion(answer: Mapping[str, Any]) -> Completion:
    choice, metrics = answer["choices"][0], answer.get("metrics") or {}
    own = metrics.get("speculative_decoding") or {}
    best = (choice.get("logprobs") or {}).get("top_logprobs") or []
    ordered = (sorted(place.values(), reverse=True) for place in best)
    return Completion(
        tokens=choice["token_ids"],
        prompt_tokens=answer["usage"]["prompt_tokens"],
        output_tokens=answer["usage"]["completion_tokens"],
        finish_reason=choice["finish_reason"],
        drafted=own.get("per_step_drafted") or [],
        accepted=own.get("per_step_accepted") or [],
        gaps=[values[0] - values[1] for values in ordered],
    )


def _metric(text: str, name: str) -> int:
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    return round(sum(map(float, found)))


def longest(answer: Completion) -> int:
    """The most draft tokens that a step verified, by vLLM's own count."""
    return max(answer.drafted, default=0)


def assert_same_tokens(reference: Completion, other: Completion, tie: float = 1e-3) -> None:
    """Equal, or parted where two tokens of the reference are closer than `tie` in log probability."""
    pairs = zip(reference.tokens, other.tokens, strict=False)
    parted = next((place for place, (left, right) in enumerate(pairs) if left != right), None)
    if parted is None:
        assert reference.tokens == other.tokens
    else:
        gap = reference.gaps[parted]
        assert gap < tie, f"{reference.tokens} {other.tokens} part at {parted}, where the gap is {gap}"
