"""The parts of the house load without what they must not know."""

import subprocess
import sys

import pytest

FORBIDDEN = {
    "steersman_policies.executor": ["numpy", "zmq", "torch", "steersman_controller"],
    "steersman_policies.policy": ["numpy", "zmq", "torch", "steersman_controller"],
    "steersman_controller.core": ["zmq", "socket", "threading.local", "torch", "prometheus_client", "simpy"],
    "steersman_controller.fleet": ["zmq", "torch", "prometheus_client", "simpy", "pyarrow"],
    "steersman_controller.cli": ["numpy", "sklearn", "torch", "zmq", "pyarrow", "matplotlib", "simpy"],
    "steersman_controller.verbs": ["numpy", "sklearn", "torch", "zmq", "pyarrow"],
    "steersman_controller.train.verbs": ["numpy", "sklearn", "scipy", "duckdb", "pyarrow", "matplotlib"],
    "steersman_controller.train.priors": ["sklearn", "scipy.optimize", "duckdb", "pyarrow", "torch", "zmq"],
    "steersman_engine.verbs": ["numpy", "torch", "transformers", "zmq"],
    "steersman_engine.link": ["torch", "transformers", "numpy", "steersman_controller", "sklearn"],
    "steersman_engine.telemetry": ["torch", "transformers", "numpy", "zmq"],
    "steersman_engine.rows": ["torch", "transformers", "numpy", "zmq"],
    "steersman_engine.trace.verbs": ["numpy", "torch", "transformers", "pyarrow"],
    "steersman_engine.trace.command": ["torch", "transformers", "pyarrow"],
    "steersman_engine.trace.ngram": ["torch", "transformers"],
    "steersman_engine.decode.engine": ["steersman_controller", "steersman_simulator", "simpy", "sklearn"],
    "steersman_simulator.verbs": ["numpy", "simpy", "torch", "matplotlib", "pyarrow"],
    "steersman_simulator.validate.verbs": ["numpy", "simpy", "torch", "scipy", "joblib"],
    "steersman_simulator.world.world": ["torch", "transformers", "steersman_engine", "zmq"],
}


@pytest.mark.parametrize("module", sorted(FORBIDDEN))
def test_loads_without(module: str) -> None:
    """A fresh process that imports the module has none of the forbidden ones."""
    code = f"import sys, {module}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    # `socket` comes with the interpreter's own machinery in some builds; only a direct import counts,
    # which the import contracts check.
    assert not loaded & (set(FORBIDDEN[module]) - {"socket"})


def test_a_planted_import_is_seen() -> None:
    """The check above is able to fail."""
    code = "import sys, steersman_policies.executor, sqlite3; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "sqlite3" in done.stdout.split()
