"""Real vLLM servers, one at a time, since a start costs half a minute and most of the memory."""

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the helper module beside this file

from vllm_sidecar import Sidecar
from vllm_world import HERE, PROMPTS, Completion, Server

Launch = Callable[..., Server]
Start = Callable[..., Sidecar]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These come last, those that share a server together, whatever order chance has given them."""
    ours = [item for item in items if HERE in item.path.parents]
    others = [item for item in items if HERE not in item.path.parents]
    items[:] = [*others, *sorted(ours, key=_server_of)]


def _server_of(item: pytest.Item) -> int:
    fixtures = getattr(item, "fixturenames", ())
    return next((rank for rank, name in enumerate(("attended", "drafting", "launch")) if name in fixtures), 3)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter of the environment that vLLM and the wheel are installed in."""
    given = os.environ.get("VLLM_PYTHON", "")
    if not given:
        here = f"{platform.system()} {platform.machine()}"
        pytest.skip(f"VLLM_PYTHON names no vLLM; `make test-vllm` brings one on Linux x86_64, this is {here}")
    if shutil.which(given) is None:
        pytest.fail(f"VLLM_PYTHON: {given} is no program")
    return given


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of the bundled model."""
    from steersman_engine.decode.bundled import bundled_model

    return bundled_model()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where servers and sidecars find each other, with a policy that only tests have."""
    made = tmp_path_factory.mktemp("vllm")
    shutil.copy(HERE / "planted" / "by_segment.py", made)
    about = made / "planted_policies-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted-policies\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[steersman.policies]\nby_segment = by_segment:Policy\n")
    return made


@pytest.fixture(scope="session")
def servers(vllm_python: str, model: Path, folder: Path) -> Iterator[Launch]:
    """Starts servers; a new one ends the one before it."""
    running: list[Server] = []

    def start(**launch: Any) -> Server:
        while running:
            running.pop().stop()
        running.append(Server(vllm_python, launch.pop("model", model), folder, **launch))
        return running[-1]

    yield start
    while running:
        running.pop().stop()


@pytest.fixture(scope="session")
def plain(servers: Launch) -> list[Completion]:
    """What vLLM does for `PROMPTS` without us."""
    server = servers(scheduler=None).wait()
    return [server.complete(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="session")
def attended(plain: list[Completion], servers: Launch) -> tuple[Server, list[Completion]]:
    """The server that most tests share, and what it said before it had met a sidecar."""
    server = servers(environment={"STEERSMAN_DRAFT_TIMER": "1"}).wait()
    return server, [server.complete(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="session")
def server(attended: tuple[Server, list[Completion]]) -> Server:
    """N-gram drafts, a table that holds every K, the draft timer on."""
    return attended[0]


@pytest.fixture(scope="session")
def unattended(attended: tuple[Server, list[Completion]]) -> list[Completion]:
    """What that server answered to `PROMPTS` before it had met a sidecar."""
    return attended[1]


@pytest.fixture
def launch(servers: Launch) -> Launch:
    """Starts a server of the test's own."""
    return servers


@pytest.fixture
def sidecar(folder: Path) -> Iterator[Start]:
    """Starts sidecars, one after the other, and ends what the test left running.

    Their leases outlast the pauses of a busy machine; a test of what follows a lease asks for a short one.
    """
    started: list[Sidecar] = []

    def start(*flags: str, lease_s: float = 15.0) -> Sidecar:
        started.append(Sidecar(folder, *flags, lease_s=lease_s))
        return started[-1]

    yield start
    for one in started:
        one.stop()
