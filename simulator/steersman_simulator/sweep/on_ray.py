"""Cells on a Ray cluster: the one that RAY_ADDRESS names, else workers of our own on this machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import joblib

_OBJECT_STORE_BYTES = 128 << 20
"""Cells and rows are small."""


@contextmanager
def workers(jobs: int) -> Iterator[type[Exception]]:
    """joblib knows the backend `ray` in here; the error that tells of a worker that has died.

    A cluster that was there before is left as it was.

    Raises ValueError where Ray is not installed or does not start.
    """
    # Ray would report its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not os.environ.get("RAY_ADDRESS"):
        # Read when Ray is imported: without it Ray listens on an outer address, also for one machine.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        from ray.exceptions import RayActorError
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError:
        raise ValueError("--backend ray: Ray is not installed; pip install 'steersman[ray]'") from None

    class RowByRow(RayBackend):  # type: ignore[misc]
        """joblib collects the results of pools of processes at the end; we keep each when it is there."""

        supports_return_generator = True

    joblib.register_parallel_backend("ray", RowByRow)
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **_cluster(jobs))
        except (OSError, RuntimeError, TimeoutError) as error:
            raise ValueError(f"--backend ray: {' '.join(str(error).split())}") from None
    died: type[Exception] = RayActorError
    try:
        yield died
    finally:
        if ours:
            ray.shutdown()


def _cluster(jobs: int) -> dict[str, Any]:
    if os.environ.get("RAY_ADDRESS"):
        return {}
    return {
        "address": "local",  # else a cluster that somebody started here, or that is gone, is tried first
        "num_cpus": joblib.effective_n_jobs(jobs),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
    }
