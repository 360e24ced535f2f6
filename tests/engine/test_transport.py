"""Where the link may connect to: nowhere that another machine or user could answer from."""

from pathlib import Path

import pytest

from steersman_engine.bench.driven import sample_hello
from steersman_engine.link import Link
from steersman_engine.transport import check_endpoint, default_endpoint


@pytest.mark.parametrize("endpoint", ["tcp://10.1.2.3:5000", "tcp://example.org:5000", "tcp://0.0.0.0:5000"])
def test_an_endpoint_on_another_machine_needs_insecure(endpoint: str, tmp_path: Path) -> None:
    """One line says what is allowed."""
    with pytest.raises(ValueError, match="allowed are ipc") as raised:
        Link("e", sample_hello(), endpoint, state_dir=tmp_path)
    assert "\n" not in str(raised.value)
    check_endpoint(endpoint, insecure=True)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "ipc://",
        "ipc://@abstract",
        "ipc://relative",
        "udp://1",
        "tcp://127.0.0.1",
        "tcp://localhost:0",
        "tcp://*:5000",
        "tcp://no such host:5000",
        "tcp://[::1:5000",
        "inproc://x",
        "ipc:///" + "x" * 107,
    ],
)
def test_no_endpoint_is_refused_however_insecure(endpoint: str) -> None:
    """Malformed is not a matter of trust."""
    with pytest.raises(ValueError, match="endpoint"):
        check_endpoint(endpoint, insecure=True)


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:5000", "tcp://localhost:1", "tcp://[::1]:5", "ipc:///run/x"]
)
def test_local_endpoints_are_allowed(endpoint: str) -> None:
    """Nothing is raised."""
    check_endpoint(endpoint)


def test_the_default_endpoint_is_in_a_folder_of_the_users_own(tmp_path: Path) -> None:
    """Made with mode 700; somebody else's, or an open one, is refused."""
    assert default_endpoint({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"ipc://{tmp_path}/steersman/telemetry.ipc"
    assert (tmp_path / "steersman").stat().st_mode & 0o777 == 0o700
    (tmp_path / "steersman").chmod(0o777)
    with pytest.raises(ValueError, match="mode 777"):
        default_endpoint({"XDG_RUNTIME_DIR": str(tmp_path)})
