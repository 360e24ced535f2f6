"""The command line."""

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from steersman_controller import cli
from steersman_controller.cli import application, run

Verb = Callable[..., Any]


def points(**targets: str) -> list[EntryPoint]:
    """Entry points by name; a double underscore stands for the dot."""
    return [EntryPoint(name.replace("__", "."), value, cli.ENTRY_POINTS) for name, value in targets.items()]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes these the only verbs."""

    def use(**targets: str) -> None:
        found = points(**targets)
        monkeypatch.setattr(cli, "entry_points", lambda group: found)

    return use


def test_dotted_names_make_groups(only: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    """`a.b` is the verb b in the group a."""
    only(policy__push="steersman_controller.verbs:policy_push", serve="steersman_controller.verbs:serve")
    assert run(["policy", "push", "--help"]) == 0
    assert "Put a policy in force" in capsys.readouterr().out


def test_a_part_that_is_not_installed_costs_its_own_verbs_only(
    only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` lists it as unavailable with the reason; using it is one line and exit code 2."""
    only(gone="no_such_package.verbs:gone", serve="steersman_controller.verbs:serve")
    assert run(["--help"]) == 0
    assert "no_such_package" in capsys.readouterr().out
    assert run(["gone"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "steersman: gone: not available here (No module named 'no_such_package')\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["sreve"], "No such command 'sreve'. Did you mean 'serve'"),
        (["policy", "psh"], "Did you mean 'push'?"),
        (["serve", "--stee"], "No such option: --stee"),
        (["serve", "--config", "/no/such/file.yaml"], "/no/such/file.yaml: No such file or directory"),
        (["serve", "--param", "k"], "--param: 'k' is not key=value"),
        (["serve", "--telemetry", "tcp://0.0.0.0:1"], "--insecure"),
        (["serve", "--policy", "godput"], "did you mean 'goodput'?"),
        (["serve", "--policy", "fixed", "--param", "q=1"], "no parameter 'q'"),
        (["pause"], "name one ENGINE, or use --all"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(
    args: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What was wrong, where, and what is allowed; nothing on standard output."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("steersman: ")
    assert line in captured.err


def test_an_unknown_key_in_the_environment_is_one_line(
    run_verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real process says the variable, the key and what it may have meant."""
    monkeypatch.setenv("STEERSMAN__CONTROLLER__MOED", "steer")
    result = run_verb("serve")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "STEERSMAN__CONTROLLER__MOED" in result.stderr
    assert "did you mean 'mode'?" in result.stderr


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch, only: Callable[..., None]) -> None:
    """Ctrl-C leaves no traceback."""
    from steersman_controller import verbs

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "schema", interrupted)
    only(schema="steersman_controller.verbs:schema")
    assert run(["schema"]) == 130


def test_a_bug_of_ours_is_not_dressed_up_as_the_users(
    monkeypatch: pytest.MonkeyPatch, only: Callable[..., None]
) -> None:
    """Only input errors become a line; anything else keeps its traceback."""
    from steersman_controller import verbs

    def broken() -> None:
        raise AssertionError("ours")

    monkeypatch.setattr(verbs, "schema", broken)
    only(schema="steersman_controller.verbs:schema")
    with pytest.raises(AssertionError, match="ours"):
        run(["schema"])


def test_every_verb_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` is an option of every verb that this distribution installs."""
    from importlib.metadata import entry_points

    for point in entry_points(group=cli.ENTRY_POINTS):
        assert run([*point.name.split("."), "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--json" in shown or "Not available here" in shown, point.name


def test_help_names_the_exit_codes_and_loads_nothing_heavy(run_verb: Verb) -> None:
    """The root help is made without numpy, pyzmq or torch."""
    import subprocess
    import sys

    code = (
        "import sys; from steersman_controller.cli import run; run(['--help']);"
        "heavy = {'numpy', 'zmq', 'torch', 'sklearn', 'pyarrow', 'rich', 'yaml'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Exit codes: 0 done" in result.stdout


def test_version_and_schema(run_verb: Verb) -> None:
    """Both answer without a sidecar; the schema covers the wire and the configuration."""
    version = run_verb("--version")
    assert (version.returncode, version.stdout.startswith("steersman ")) == (0, True)
    schema = run_verb("schema", "--json")
    assert schema.returncode == 0
    assert {"wire", "config", "recording"} <= set(json.loads(schema.stdout))


def test_application_needs_no_verbs() -> None:
    """An installation without any part still has a command line."""
    assert application([]) is not None
