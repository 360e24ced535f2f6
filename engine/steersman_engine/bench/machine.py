"""Where a figure was measured and with what."""

import os
import platform
from importlib.metadata import version as installed
from pathlib import Path


def machine() -> str:
    """Processor, number of usable cores and system, in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def version() -> str:
    """The version of this distribution."""
    return installed("steersman")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
