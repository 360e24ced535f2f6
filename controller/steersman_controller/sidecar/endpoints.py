"""Where the sidecar listens, and that only one of them does."""

import fcntl
import ipaddress
import os
import tempfile
from pathlib import Path
from typing import TextIO

IPC = "ipc://"
TCP = "tcp://"
MAX_IPC_BYTES = 107
"""The kernel's limit on the path of a Unix socket."""


def default_endpoint(name: str) -> str:
    """The `ipc://` endpoint for "telemetry" or "admin", in a folder of this user's own."""
    return f"{IPC}{_runtime_dir() / name}.ipc"


def prepare(endpoint: str, *, flag: str, insecure: bool) -> None:
    """Check that binding here is allowed, and make the folder of an `ipc://` endpoint (mode 0700).

    Raises ValueError for an endpoint that other machines or other users could reach.
    """
    if endpoint.startswith(TCP):
        port = endpoint.rpartition(":")[2]
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):  # ZeroMQ takes it modulo 65536
            raise ValueError(f"{flag}: {endpoint!r}: the port must be 1 to 65535")
        if not insecure and not _is_loopback(endpoint):
            raise ValueError(
                f"{flag}: {endpoint} is reachable from other machines and carries no keys; "
                "allowed are ipc:// and tcp://127.0.0.1:PORT (--insecure binds it all the same)"
            )
        return
    path = _ipc_path(endpoint, flag)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent == _runtime_dir() and not insecure:
        _check_private(path.parent, flag)


def claim(endpoint: str, *, flag: str) -> TextIO | None:
    """Hold an `ipc://` endpoint until the returned file is closed; ports need no such lock.

    ZeroMQ would silently take the socket file away from a sidecar that is still alive. The kernel
    drops the lock when the process dies, however it dies. Raises ValueError naming the holder.
    """
    if not endpoint.startswith(IPC):
        return None
    lock = Path(f"{_ipc_path(endpoint, flag)}.lock").open("a+", encoding="ascii")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise ValueError(
            f"{flag}: another sidecar (process {holder}) is serving {endpoint}; "
            f"stop it or choose another {flag}"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _runtime_dir() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR")
    return Path(given) / "steersman" if given else Path(tempfile.gettempdir()) / f"steersman-{os.getuid()}"


def _check_private(folder: Path, flag: str) -> None:
    # In a world-writable parent somebody else may have made the folder first.
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(
            f"{flag}: {folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; "
            f"it must be yours with mode 700"
        )


def _ipc_path(endpoint: str, flag: str) -> Path:
    path = endpoint.removeprefix(IPC)
    if not endpoint.startswith(IPC) or not path.startswith("/"):
        raise ValueError(f"{flag}: {endpoint!r} is no endpoint; allowed are ipc:///PATH and tcp://HOST:PORT")
    if len(os.fsencode(path)) > MAX_IPC_BYTES:
        raise ValueError(f"{flag}: the path of {endpoint} is longer than {MAX_IPC_BYTES} bytes")
    return Path(path)


def _is_loopback(endpoint: str) -> bool:
    host = endpoint.removeprefix(TCP).rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
