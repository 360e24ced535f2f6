"""The folder that an engine shares with its operator: pause file and fallback table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from steersman_policies.executor import Fallback


class StateFiles(Struct, frozen=True):
    """What lies there for one engine."""

    folder: str
    is_there: bool
    """Whether the folder itself is."""
    pause: bool
    fallback: Literal["present", "absent", "of another engine", "unreadable"]
    pause_file: str
    fallback_file: str


def state_files(folder: Path, engine_id: str, fingerprint: str) -> StateFiles:
    """What lies in `folder` for this engine. Raises nothing, whatever lies there."""
    pause, fallback = folder / f"{engine_id}.pause", folder / f"{engine_id}.fallback.json"
    try:
        is_there, is_paused = folder.is_dir(), pause.exists()
    except OSError:
        is_there = is_paused = False
    return StateFiles(
        folder=str(folder),
        is_there=is_there,
        pause=is_paused,
        fallback=_fallback(fallback, fingerprint),
        pause_file=str(pause),
        fallback_file=str(fallback),
    )


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Where an engine keeps its files unless it was told otherwise.

    >>> str(default_state_dir({"XDG_STATE_HOME": "/state"}))
    '/state/steersman'
    >>> str(default_state_dir({"STEERSMAN_STATE_DIR": "/srv/engine", "XDG_STATE_HOME": "/state"}))
    '/srv/engine'
    """
    given = environment.get("STEERSMAN_STATE_DIR")
    if given:
        return Path(given).expanduser()
    root = environment.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "steersman"


def _fallback(
    path: Path, fingerprint: str
) -> Literal["present", "absent", "of another engine", "unreadable"]:
    try:
        table = msgspec.json.decode(path.read_bytes(), type=Fallback)
    except FileNotFoundError:
        return "absent"
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "unreadable"
    return "present" if table.fingerprint == fingerprint else "of another engine"
