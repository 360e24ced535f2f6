"""Steers a vLLM server: ``vllm serve ... --scheduler-cls steersman_engine.adapters.vllm.SteersmanScheduler``.

Installed into vLLM's own environment with ``pip install --no-deps steersman``: nothing here needs more
than msgspec and pyzmq, which vLLM brings. Only `scheduler` and `draft_timer` know vLLM's classes; what
they need to know of a launch is read into `Facts`, judged by `checks`, and everything that happens per
step is in `hook` (the engine's thread) and `steps` (the link's thread).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # Late, so that the rest of this package can be used where vLLM is not installed.
    if name == "SteersmanScheduler":
        from steersman_engine.adapters.vllm.scheduler import SteersmanScheduler

        return SteersmanScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
