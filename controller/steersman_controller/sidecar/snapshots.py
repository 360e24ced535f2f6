"""What was learned, kept on disk between two sidecars: one file per engine, whole or absent.

The bytes are a controller's own snapshot, which checks itself when it is restored.
"""

import hashlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from steersman_controller.whole_file import write_whole

MAX_SNAPSHOT_BYTES = 16 << 20

log = logging.getLogger("steersman.snapshots")


class Snapshots:
    """Saves in the background, since a slow disk must not hold up a lease."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="snapshots")
        self._pending: dict[str, Future[None]] = {}
        self._saved: dict[str, bytes] = {}

    def save(self, engine_id: str, snapshot: bytes) -> None:
        """Write a snapshot unless it is the one already on disk, or the last one is still being written."""
        pending = self._pending.get(engine_id)
        if self._saved.get(engine_id) == snapshot or (pending is not None and not pending.done()):
            return
        self._saved[engine_id] = snapshot
        self._pending[engine_id] = self._writer.submit(_write, self.path(engine_id), snapshot)

    def load(self, engine_id: str) -> bytes | None:
        """The bytes kept for this engine; None where there are none that could be a snapshot."""
        path = self.path(engine_id)
        try:
            if path.stat().st_size <= MAX_SNAPSHOT_BYTES:
                return path.read_bytes()
            log.warning("%s is too large for a snapshot and is left alone", path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s cannot be read: %s", path, error)
        return None

    def path(self, engine_id: str) -> Path:
        """The file of an engine. An id may hold anything; the digest of it is a safe file name."""
        digest = hashlib.blake2b(engine_id.encode(), digest_size=8).hexdigest()
        return self.folder / f"{digest}.snapshot"

    def close(self) -> None:
        """Wait for the last write."""
        self._writer.shutdown(wait=True)


def _write(path: Path, snapshot: bytes) -> None:
    try:
        write_whole(path, snapshot)
    except OSError as error:
        log.error("snapshot not written: %s: %s", path, error)
