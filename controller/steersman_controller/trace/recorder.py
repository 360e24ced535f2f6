"""Writes down every event of a sidecar. A full disk ends the recording, never the sidecar."""

import fcntl
import logging
import os
from pathlib import Path

from steersman_controller.events import Event
from steersman_controller.trace.journal import JournalWriter, encode_event
from steersman_controller.trace.recording import JOURNAL, PARQUET

CONVERT_AT_MOST_BYTES = 6 << 20
"""A sidecar that is told to stop has a second; a larger journal stays as it is, equally readable."""

log = logging.getLogger("steersman.recorder")


class Recorder:
    """Appends events to `journal.bin` in a folder; an older recording there is renamed, never lost."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        _set_aside(folder)
        self.folder = folder
        self.failed = ""
        """Why the recording ended early; empty while it is whole."""
        self._journal = JournalWriter(folder / JOURNAL)
        self._dirty = False

    def write(self, event: Event) -> None:
        """Append one event."""
        if self.failed:
            return
        self._dirty = True
        try:
            self._journal.append(encode_event(event))
        except OSError as error:
            self._fail(error)

    def flush(self) -> None:
        """Make what was written survive a kill of this process."""
        if not self._dirty or self.failed:
            return
        self._dirty = False
        try:
            self._journal.flush()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """End the recording; a journal of moderate size also becomes Parquet."""
        try:
            self._journal.close()
        except OSError as error:
            self._fail(error)
        path = self._journal.path
        from steersman_controller.trace.parquet import convert

        try:
            if path.stat().st_size > CONVERT_AT_MOST_BYTES:
                log.info("%s is large and stays a journal; every verb reads it as it is", path)
                return
            convert(path)
        except (OSError, ValueError) as error:
            log.error("%s stays a journal: %s", path, error)

    def _fail(self, error: OSError) -> None:
        self.failed = str(error)
        log.error("recording ends here, the sidecar goes on: %s: %s", self._journal.path, error)


def _set_aside(folder: Path) -> None:
    old = [folder / name for name in (JOURNAL, PARQUET) if (folder / name).exists()]
    if not old:
        return
    if (folder / JOURNAL).exists():
        with (folder / JOURNAL).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"--record: another sidecar is recording into {folder}; choose another"
                ) from None
    number = 1
    while any(_numbered(path, number).exists() for path in (folder / JOURNAL, folder / PARQUET)):
        number += 1
    for path in old:
        os.replace(path, _numbered(path, number))
        log.info("%s was there before and is now %s", path, _numbered(path, number).name)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
