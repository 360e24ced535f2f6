"""What an operator can tell the vLLM adapter through the environment."""

from pathlib import Path

import pytest

from steersman_engine.adapters.vllm.settings import Settings, parse_k, read_settings
from steersman_engine.transport import default_endpoint

HERE = {"STEERSMAN_SIDECAR": "tcp://127.0.0.1:5557", "STEERSMAN_STATE_DIR": "/var/lib/steersman"}


def test_everything_has_a_default(tmp_path: Path) -> None:
    """An empty environment is enough: the user's own sidecar, the user's own state folder, every K."""
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    assert read_settings(environment) == Settings(
        sidecar=default_endpoint(environment), state_dir=tmp_path / "state" / "steersman", engine_id="vllm-0"
    )


def test_every_variable_is_read() -> None:
    """Each variable sets what its name says."""
    given = HERE | {
        "STEERSMAN_ENGINE_ID": "chat.1",
        "STEERSMAN_STRICT": "1",
        "STEERSMAN_INSECURE": "1",
        "STEERSMAN_REACHABLE_K": "4,0,2",
        "STEERSMAN_SIDECAR": "tcp://10.0.0.7:5557",
    }
    assert read_settings(given) == Settings(
        sidecar="tcp://10.0.0.7:5557",
        state_dir=Path("/var/lib/steersman"),
        engine_id="chat.1",
        strict=True,
        insecure=True,
        reachable_k=(0, 2, 4),
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("STEERSMAN_REACHABEL_K", "0,2", "did you mean 'STEERSMAN_REACHABLE_K'"),
        ("STEERSMAN_STRICT", "yes", "STEERSMAN_STRICT: 'yes'; allowed are 0 and 1"),
        ("STEERSMAN_INSECURE", "", "STEERSMAN_INSECURE: ''; allowed are 0 and 1"),
        ("STEERSMAN_ENGINE_ID", "a/b", "STEERSMAN_ENGINE_ID: 'a/b'"),
        ("STEERSMAN_ENGINE_ID", "..", "STEERSMAN_ENGINE_ID: '..'"),
        ("STEERSMAN_ENGINE_ID", "x" * 101, "STEERSMAN_ENGINE_ID"),
        ("STEERSMAN_STATE_DIR", "", "STEERSMAN_STATE_DIR"),
        ("STEERSMAN_SIDECAR", "tcp://10.0.0.7:5557", "STEERSMAN_SIDECAR: .*another machine"),
        ("STEERSMAN_SIDECAR", "", "STEERSMAN_SIDECAR"),
        ("STEERSMAN_SIDECAR", "tcp://no such host:1", "STEERSMAN_SIDECAR: .*'tcp://no such host:1'"),
        ("STEERSMAN_STATE_DIR", "~nobody-of-this-name/x", "STEERSMAN_STATE_DIR: ~nobody"),
        ("STEERSMAN_DRAFT_TIMER", "on", "STEERSMAN_DRAFT_TIMER: 'on'; allowed are 0 and 1"),
        ("STEERSMAN_SERVICE", "1", "STEERSMAN_SERVICE: unknown"),
        ("STEERSMAN_REACHABLE_K", "2,4", "STEERSMAN_REACHABLE_K: '2,4' lacks 0"),
        ("STEERSMAN_REACHABLE_K", "0", "leaves nothing to steer"),
        ("STEERSMAN_REACHABLE_K", "", "allowed are numbers from 0 to 64"),
        ("STEERSMAN_REACHABLE_K", "0,65", "allowed are numbers from 0 to 64"),
        ("STEERSMAN_REACHABLE_K", "0,-1", "allowed are numbers from 0 to 64"),
        ("STEERSMAN_REACHABLE_K", "0,²", "allowed are numbers from 0 to 64"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str, message: str) -> None:
    """What is wrong is said in one line: the variable, its value and what is allowed."""
    with pytest.raises(ValueError, match=message) as caught:
        read_settings(HERE | {name: value})
    assert "\n" not in str(caught.value)


def test_other_peoples_variables_are_left_alone() -> None:
    """Of the sidecar, the draft timer and the command line, and of a Kubernetes Service with our name."""
    others = {
        "STEERSMAN__CONTROLLER__MODE": "steer",
        "STEERSMAN_TRACEBACK": "1",
        "STEERSMAN_DRAFT_TIMER": "1",
        "STEERSMAN_SERVICE_HOST": "10.0.0.1",
        "STEERSMAN_SERVICE_PORT_METRICS": "9090",
        "STEERSMAN_PORT": "tcp://10.0.0.1:5557",
        "STEERSMAN_PORT_5557_TCP_ADDR": "10.0.0.1",
        "STEERSMAN_SIDECAR_PORT_5557_TCP": "tcp://10.0.0.1:5557",
    }
    assert read_settings(HERE | others) == read_settings(HERE)


def test_only_later_ranks_get_a_name_of_their_own() -> None:
    """A server without data parallelism is found under the name that it was given."""
    settings = read_settings(HERE | {"STEERSMAN_ENGINE_ID": "chat"})
    assert [settings.engine_id_of(rank) for rank in (0, 1, 12)] == ["chat", "chat-dp1", "chat-dp12"]


def test_k_are_sorted_and_unique() -> None:
    """The order in which K are given does not matter."""
    assert parse_k(" 8,0,2, 2", "--k") == (0, 2, 8)


def test_a_runtime_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """It belongs to somebody else after `su`; a relative one is not valid and not used."""
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=f"STEERSMAN_SIDECAR: .*{tmp_path}/file"):
        read_settings({"XDG_RUNTIME_DIR": str(tmp_path / "file")})
    assert default_endpoint({"XDG_RUNTIME_DIR": "relative"}) == default_endpoint({})
