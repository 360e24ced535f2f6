"""What a user installs is what the repository says."""

import ast
import importlib
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

PACKAGES = ["steersman_policies", "steersman_controller", "steersman_engine", "steersman_simulator"]
ROOT = Path(__file__).parents[2]
BANNED = re.compile(r"^(pickle|cloudpickle|marshal|dill|shelve)$")


def python_files() -> list[Path]:
    return [path for package in PACKAGES for path in Path(folder_of(package)).rglob("*.py")]


def folder_of(package: str) -> str:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    return str(Path(module.__file__).parent)


def is_editable() -> bool:
    return '"editable": true' in (distribution("steersman").read_text("direct_url.json") or "")


@pytest.mark.skipif(
    is_editable(), reason="the checkout is installed editable; `make test` installs the wheel"
)
@pytest.mark.parametrize("package", PACKAGES)
def test_the_wheel_is_tested(package: str) -> None:
    """The packages under test come from the installed wheel, not from the checkout."""
    assert folder_of(package).startswith(sysconfig.get_paths()["purelib"])


def test_every_verb_loads() -> None:
    """Each entry point of the command line names something that exists."""
    points = [point for point in entry_points(group="steersman.verbs") if point.dist is not None]
    assert len(points) >= 13
    for point in points:
        assert callable(point.load()), point.name


def test_version_is_printed() -> None:
    """`steersman --version` prints the version of the distribution."""
    done = subprocess.run(
        [sys.executable, "-m", "steersman_controller", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert distribution("steersman").version in done.stdout


def calls_that_run_code(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if BANNED.match(alias.name.split(".")[0])]
        elif isinstance(node, ast.ImportFrom) and BANNED.match((node.module or "").split(".")[0]):
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            found += [name for name in [ast.unparse(node.func)] if is_unsafe_call(name, node)]
    return found


def is_unsafe_call(name: str, node: ast.Call) -> bool:
    if name in {"eval", "exec", "joblib.load", "yaml.load", "yaml.unsafe_load"} or name.endswith(
        "recv_pyobj"
    ):
        return True
    safe = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
    return name == "torch.load" and not safe


def test_nothing_executes_code_from_files_or_peers() -> None:
    """No pickle, marshal, joblib.load, eval or exec anywhere in what is installed."""
    found = {str(path): calls_that_run_code(ast.parse(path.read_text())) for path in python_files()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "joblib.load(f)",
        "torch.load(f)",
        "s.recv_pyobj()",
    ],
)
def test_the_ban_is_able_to_fail(line: str) -> None:
    """Each banned way is recognised."""
    assert calls_that_run_code(ast.parse(line))


def test_no_part_reads_a_clock_where_time_is_an_argument() -> None:
    """Policies and the controller's core import neither time nor random nor datetime."""
    pure = [p for p in python_files() if "steersman_policies" in p.parts]
    pure += [
        p for p in python_files() if p.name in {"core.py", "fleet.py", "cost.py", "acceptance.py", "world.py"}
    ]
    for path in pure:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {a.name for a in node.names} & {"time", "random", "datetime"}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in {"time", "random", "datetime"}, path
