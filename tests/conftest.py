"""Options of the whole suite."""

import os

import pytest

# Small fits in many threads wait for each other, on a busy machine ten times as long as they compute.
# It has to be said before any of the libraries is imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--recording", default=None, help="Also check parity on this recording.")
