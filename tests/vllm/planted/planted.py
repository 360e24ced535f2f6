"""What the tests put into vLLM's process: schedulers that find vLLM changed or a fault in the adapter."""

from collections.abc import Callable
from typing import Any

import vllm
from vllm.v1.core.sched.scheduler import Scheduler

from steersman_engine.adapters.vllm.scheduler import SteersmanScheduler

FAULT_STEP = 20


class OtherVersion(SteersmanScheduler):
    """As under a vLLM that nobody has tried."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        vllm.__version__ = "0.99.0"
        super().__init__(*arguments, **named)


class OtherSignature(SteersmanScheduler):
    """As under a vLLM whose `add_request` takes one argument more."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        original: Callable[..., None] = Scheduler.add_request

        def add_request(self: Any, request: Any, lane: int = 0) -> None:
            original(self, request)

        Scheduler.add_request = add_request
        super().__init__(*arguments, **named)


class Faulty(SteersmanScheduler):
    """With a fault in the hook from a certain step on."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        choose = self._hook.choose
        chosen = iter(range(FAULT_STEP))

        def faulty(scheduler: Any, output: Any) -> None:
            if next(chosen, None) is None:
                raise RuntimeError("planted fault")
            choose(scheduler, output)

        self._hook.choose = faulty
