"""The engine in a thread of its own, for callers that live in another."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from steersman_engine.decode.engine import Engine
from steersman_engine.decode.request import Request

log = logging.getLogger(__name__)


class EngineLoop:
    """Steps an engine as long as there is work, and sleeps when there is none."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="steersman-engine", daemon=True)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def submit(
        self, *arguments: Any, on_tokens: Callable[[Request, list[int]], None], **named: Any
    ) -> Request:
        """`Engine.submit`, and wake the engine."""
        request = self.engine.submit(*arguments, on_tokens=on_tokens, **named)
        self._wake.set()
        return request

    def cancel(self, request: Request) -> None:
        """End a request at the next step; nothing happens where it is already over."""
        request.cancelled = True
        self._wake.set()

    def close(self) -> None:
        """Finish what was submitted, then stop."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not (self._stopping and not self.engine.busy):
            self._wake.clear()
            try:
                worked = self.engine.step()
            except Exception as error:  # whatever it was, the requests behind it must still be served
                log.exception("a step failed; its requests are ended")
                self.engine.fail_all(f"{type(error).__name__}: {error}")
                continue
            if not worked and not self._stopping:
                self._wake.wait()
