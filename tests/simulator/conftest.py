"""A small engine, hand-made truths, and arrivals, for every test of the simulator."""

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from steersman_controller.events import ControllerConfig, Event
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_policies.messages import Fingerprint, Hello
from steersman_simulator.acceptance.segments import AcceptanceTruth, SegmentTruth
from steersman_simulator.simulate import started
from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.world.shape import Shape
from steersman_simulator.world.world import Arm, Change, Outcome, World

sys.path.insert(0, str(Path(__file__).parent))  # for the made-up modules beside this file

from made_truths import STEPS

ACCEPTANCE = AcceptanceTruth(
    {
        "unknown": SegmentTruth(0.5, 0.3, (1.0,), (0.6,)),
        "edit": SegmentTruth(0.9, 0.6, (1.0, 0.95), (0.9, 0.95), effect_sd=0.5),
        "chat": SegmentTruth(0.3, 0.4, (1.0, 0.9), (0.3, 0.2), effect_sd=0.5),
    }
)


@pytest.fixture(scope="session")
def hello() -> Hello:
    fingerprint = Fingerprint("sim", "1", "t", "ngram", "1", "ngram", "none", "float32", "cpu", "eager")
    return Hello(
        fingerprint=fingerprint,
        k_max=8,
        reachable_k=tuple(range(9)),
        k_floor=0,
        launch_k=0,
        max_batch=16,
        per_request_k=True,
        draft_timing=True,
        confidence=False,
        drafter_state_survives_off=True,
    )


@pytest.fixture(scope="session")
def make_world(hello: Hello) -> Callable[..., World]:
    """A world with the truths above; every part can be replaced."""

    def make(
        *,
        truth: Any = STEPS,
        acceptance: Any = ACCEPTANCE,
        max_batch: int = 16,
        prefill_budget_tokens: int = 256,
        seed: int = 0,
        policy: str = "off",
        config: ControllerConfig | None = None,
        per_request_k: bool = True,
        **params: Any,
    ) -> World:
        return World(
            started=started(config or ControllerConfig(), policy, params),
            hello=replace(hello, per_request_k=per_request_k),
            shape=Shape(max_batch, prefill_budget_tokens),
            truth=truth,
            acceptance=acceptance,
            seed=seed,
        )

    return make


@pytest.fixture(scope="session")
def arm() -> Callable[..., Arm]:
    """An arm under one policy."""

    def make(arrivals: Sequence[Arrival], policy: str = "off", **params: Any) -> Arm:
        return Arm(policy, tuple(arrivals), (Change(0.0, policy, params),))

    return make


@pytest.fixture(scope="session")
def mixed() -> Callable[..., list[Arrival]]:
    """Poisson arrivals of edits and chats."""

    def make(count: int, per_s: float = 1.0, seed: int = 1, output_tokens: int = 40) -> list[Arrival]:
        rng, at_s, out = random.Random(seed), 0.0, []
        for _ in range(count):
            at_s += rng.expovariate(per_s)
            segment = rng.choice(["edit", "chat"])
            prompt, output = rng.randint(20, 200), rng.randint(output_tokens // 2, output_tokens * 3 // 2)
            out.append(Arrival(at_s, segment, prompt, output))
        return out

    return make


@pytest.fixture(scope="session")
def experiment(
    make_world: Callable[..., World], arm: Callable[..., Arm], mixed: Callable[..., list[Arrival]]
) -> Callable[..., Outcome]:
    """Off, fixed and steered on the same arrivals, one after the other, in one world."""

    def run(count: int = 60, *, seed: int = 0, **parts: Any) -> Outcome:
        arrivals = mixed(count, 1.5)
        arms = [arm(arrivals), arm(arrivals, "fixed", k=4), arm(arrivals, "goodput")]
        return make_world(seed=seed, **parts).run(arms)

    return run


@pytest.fixture(scope="session")
def recorded(experiment: Callable[..., Outcome]) -> Outcome:
    """One experiment that many tests read: 40 requests an arm."""
    return experiment(40, seed=8)


@pytest.fixture(scope="session")
def write_recording() -> Callable[[Path, Sequence[Event]], Path]:
    """Writes events as a journal and returns its path."""

    def write(path: Path, events: Sequence[Event]) -> Path:
        writer = JournalWriter(path)
        for event in events:
            writer.append(encode_event(event))
        writer.close()
        return path

    return write
