"""The table for the time without a lease, kept on disk so that it survives the engine."""

import logging
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import msgspec

from steersman_policies.executor import Fallback
from steersman_policies.messages import Hello

log = logging.getLogger(__name__)


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """Where fallback table and pause file are kept: ``$XDG_STATE_HOME/steersman``, else in the home.

    >>> str(default_state_dir({"XDG_STATE_HOME": "/state"}))
    '/state/steersman'
    """
    root = environment.get("XDG_STATE_HOME")
    return (Path(root) if root else Path.home() / ".local" / "state") / "steersman"


def load_fallback(path: Path, hello: Hello, fingerprint: str) -> tuple[Fallback | None, bool]:
    """The table in this file, if it was made for this engine; and whether there was a corrupt one.

    A corrupt file is refused with one logged line. Raises nothing.
    """
    try:
        fallback = msgspec.json.decode(path.read_bytes(), type=Fallback)
    except FileNotFoundError:
        return None, False
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _refused(path, str(error))
    if fallback.fingerprint != fingerprint:
        log.info("%s: made for another engine (%s), not used", path, fallback.fingerprint)
        return None, False
    problem = _problem(fallback, hello)
    return (fallback, False) if problem is None else _refused(path, problem)


def save_fallback(path: Path, fallback: Fallback) -> None:
    """Replace the file as a whole: a reader finds the old table or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(fallback))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _problem(fallback: Fallback, hello: Hello) -> str | None:
    edges, lengths = fallback.batch_edges, fallback.proposal_length
    if len(lengths) != len(edges) + 1:
        return f"proposal_length: {len(lengths)} entries for {len(edges) + 1} batch buckets"
    if any(left >= right for left, right in pairwise(edges)):
        return f"batch_edges: must ascend, found {edges}"
    unreachable = set(lengths) - set(hello.reachable_k)
    if unreachable:
        return f"proposal_length: K={min(unreachable)} is not one of {hello.reachable_k}"
    return None


def _refused(path: Path, why: str) -> tuple[None, bool]:
    log.warning("%s: fallback table refused: %s", path, why)
    return None, True
