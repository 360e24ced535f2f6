"""Where a figure was measured and with what."""

import gc
import os
import platform
import resource
from importlib.metadata import version as installed
from pathlib import Path


def machine() -> str:
    """Processor, number of usable cores and system, in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()}, {cores} cores, {platform.system()}, Python {platform.python_version()}"


def version() -> str:
    """The version of this distribution."""
    return installed("steersman")


def resident_bytes() -> int:
    """Memory of this process that is in RAM, after a collection; where nobody says, its peak."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
