"""Single values of a row, checked: whatever does not fit is refused with file, line and what is allowed."""

from math import isfinite
from pathlib import Path
from typing import Any

from steersman_policies.units import UNKNOWN_SEGMENT
from steersman_simulator.workload.arrival import MAX_REQUEST_TOKENS

MAX_SECONDS = 1e9


class Cells:
    """Reads the cells of one file; `at` is the line that it reads now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0

    def tokens(self, name: str, value: Any) -> int:
        """A number of tokens, from 0 on; text is converted."""
        found = self._number(name, value, f"a whole number from 0 to {MAX_REQUEST_TOKENS}")
        if found != int(found) or not 0 <= found <= MAX_REQUEST_TOKENS:
            raise self.error(name, value, f"a whole number from 0 to {MAX_REQUEST_TOKENS}")
        return int(found)

    def seconds(self, name: str, value: Any, scale: float = 1.0) -> float:
        """A moment from 0 on, in units of `scale` seconds."""
        allowed = f"a number from 0 to {MAX_SECONDS / scale:g}"
        found = self._number(name, value, allowed)
        if not 0.0 <= found <= MAX_SECONDS / scale:
            raise self.error(name, value, allowed)
        return found * scale

    def number(self, name: str, value: Any, allowed: str) -> float:
        """Any finite number from 0 on; `allowed` says in words what it means."""
        found = self._number(name, value, allowed)
        if found < 0.0:
            raise self.error(name, value, allowed)
        return found

    def flag(self, name: str, value: Any) -> bool:
        """true or false, as a word or as it is; nothing counts as false."""
        words = {"": False, "0": False, "false": False, "1": True, "true": True}
        word = str(value if value is not None else "").strip().lower()
        if word not in words:
            raise self.error(name, value, "true or false")
        return words[word]

    def ids(self, name: str, value: Any) -> tuple[int, ...]:
        """A list of whole numbers, or such a list as text (`1 2 3`)."""
        allowed = "a list of whole numbers from 0 on"
        parts = value.replace(",", " ").split() if isinstance(value, str) else value or ()
        if not isinstance(parts, list | tuple):
            raise self.error(name, value, allowed)
        try:
            found = tuple(int(part) for part in parts)
        except (TypeError, ValueError):
            raise self.error(name, value, allowed) from None
        if any(isinstance(part, bool | float) for part in parts) or min(found, default=0) < 0:
            raise self.error(name, value, allowed)
        return found

    def error(self, name: str, value: Any, allowed: str) -> ValueError:
        """The one line about a value that does not fit."""
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return ValueError(f"{self.path}:{self.at}: {name}: found {shown}, allowed: {allowed}")

    def _number(self, name: str, value: Any, allowed: str) -> float:
        if isinstance(value, bool) or value is None:
            raise self.error(name, value, allowed)
        try:
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            raise self.error(name, value, allowed) from None
        if not isfinite(found):
            raise self.error(name, value, allowed)
        return found


def segment_name(text: Any) -> str:
    """A column's text as the name of a segment; characters that no name has become `_`.

    >>> segment_name("API log"), segment_name(None)
    ('API_log', 'unknown')
    """
    word = str(text).strip() if text is not None else ""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_.:/-") else "_" for c in word)[:64]
    return kept or UNKNOWN_SEGMENT
