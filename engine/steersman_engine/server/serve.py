"""Puts an engine together and serves it until it is told to stop."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import uvicorn

from steersman_engine.decode.engine import Engine
from steersman_engine.decode.model import TargetModel, load_target
from steersman_engine.decode.warmup import warm_up
from steersman_engine.drafters.drafter import Drafter
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.server.http import Server
from steersman_engine.server.loop import EngineLoop
from steersman_engine.steering import Launch, Steering
from steersman_policies.messages import Fingerprint, Hello
from steersman_policies.policy import did_you_mean

DRAFTERS: dict[str, Callable[["Settings"], Drafter | None]] = {
    "prompt_lookup": lambda settings: PromptLookup(min_ngram=settings.min_ngram),
    "none": lambda _: None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that `steersman engine serve` can be told."""

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    sidecar: str | None = None
    with_sidecar: bool = True
    engine_id: str = "engine-0"
    max_batch: int = 16
    max_len: int = 2048
    k_max: int = 8
    launch_k: int = 0
    prefill_tokens: int = 256
    threads: int | None = None
    state_dir: Path | None = None
    drafter: str = "prompt_lookup"
    min_ngram: int = 2
    device: str | None = None

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS:
            hint = did_you_mean(self.drafter, DRAFTERS)
            raise ValueError(f"drafter: no {self.drafter!r}{hint}; allowed: {', '.join(DRAFTERS)}")
        if self.launch_k > self.k_max:
            raise ValueError(f"launch_k: {self.launch_k}, at most k_max {self.k_max}")
        if self.launch_k > 0 and self.drafter == "none":
            raise ValueError(f"launch_k: {self.launch_k}, but there is no drafter")


def run(settings: Settings, ready: Callable[[dict[str, object]], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was accepted. `ready` gets the address."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    listener = _listen(settings.host, settings.port)
    drafter = DRAFTERS[settings.drafter](settings)
    target, tokenizer = load_target(settings.model, settings.device)
    steering = _steering(settings, target, drafter)
    engine = Engine(
        target,
        steering=steering,
        drafter=drafter,
        clock=time.monotonic,
        max_batch=settings.max_batch,
        max_len=settings.max_len,
        k_max=settings.k_max,
        prefill_tokens=settings.prefill_tokens,
    )
    try:
        warm_up(engine)
    except (RuntimeError, MemoryError) as error:  # torch's allocators raise the first
        reason = str(error).splitlines()[0][:200]
        raise ValueError(f"max_batch {settings.max_batch}, max_len {settings.max_len}: {reason}") from error
    loop = EngineLoop(engine)
    host, port = listener.getsockname()[:2]
    facts: dict[str, object] = {
        "url": f"http://{host}:{port}",
        "model": target.name,
        "engine_id": settings.engine_id,
        "k_max": engine.drafting.k_max,
        "version": version("steersman"),
    }

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        loop.start()
        ready(facts)
        yield
        # Uvicorn has drained its connections; what is still in the engine is finished too.
        loop.close()
        steering.close()

    server = Server(loop, tokenizer, target.name, stop_ids(target.model, tokenizer), lifespan)
    config = uvicorn.Config(server.app, log_level="warning", lifespan="on")
    # Uvicorn drains on a signal and then raises it once more; these handlers let it end with 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        raise ValueError(f"host, port: cannot listen on {host}:{port}: {error.strerror or error}") from None


def _steering(settings: Settings, target: TargetModel, drafter: Drafter | None) -> Steering:
    if not settings.with_sidecar:
        return Launch(settings.launch_k)
    from steersman_engine.fallback import default_state_dir
    from steersman_engine.link import Link
    from steersman_engine.transport import default_endpoint

    state_dir = settings.state_dir or default_state_dir(os.environ)
    state_dir.mkdir(parents=True, exist_ok=True)
    if not os.access(state_dir, os.W_OK | os.X_OK):
        raise ValueError(
            f"--state-dir: {state_dir} is not writable; pause file and fallback table live there"
        )
    link = Link(
        engine_id=settings.engine_id,
        hello=hello(settings, target, drafter),
        endpoint=settings.sidecar or default_endpoint(),
        state_dir=state_dir,
        clock=time.monotonic,
    )
    link.start()
    return link


def hello(settings: Settings, target: TargetModel, drafter: Drafter | None) -> Hello:
    """What the engine tells the sidecar about itself."""
    k_max = settings.k_max if drafter is not None else 0
    return Hello(
        fingerprint=Fingerprint(
            engine="steersman",
            engine_version=version("steersman"),
            target=target.name,
            drafter=drafter.name if drafter is not None else "none",
            drafter_version=drafter.version if drafter is not None else "",
            method="ngram" if drafter is not None else "none",
            quantisation="none",
            dtype=str(target.dtype).removeprefix("torch."),
            device=device_name(target.device),
            graph_mode="eager",
        ),
        k_max=k_max,
        reachable_k=tuple(range(k_max + 1)),
        k_floor=0,
        launch_k=min(settings.launch_k, k_max),
        max_batch=settings.max_batch,
        per_request_k=True,
        draft_timing=True,
        confidence=drafter is not None and drafter.confident,
        drafter_state_survives_off=drafter.survives_off if drafter is not None else True,
    )


def device_name(device: torch.device) -> str:
    """The kind of device, so that numbers learned on one are not taken for another's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}-{torch.get_num_threads()}-threads"


def stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an output, as the model and its tokenizer name them."""
    named: set[int] = set()
    for source in (model.generation_config, model.config, tokenizer):
        found = getattr(source, "eos_token_id", None)
        named |= {found} if isinstance(found, int) else set(found or ())
    return frozenset(named)
