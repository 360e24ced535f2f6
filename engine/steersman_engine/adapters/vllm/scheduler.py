"""vLLM's scheduler with Steersman attached. Where anything is not as expected, it is vLLM's scheduler.

Every method calls vLLM's own and returns what that returns. What the hook does around it is caught: the
first exception is logged, the hook is dropped, and from then on only vLLM's own code runs.
"""

from types import MethodType
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from steersman_engine.adapters.vllm.attach import attach
from steersman_engine.adapters.vllm.hook import Hook

logger = init_logger("vllm.steersman")


class SteersmanScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is not there when this is checked
    """`AsyncScheduler`, which also schedules synchronously, steered by a sidecar where there is one."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._after_schedule = super()._update_after_schedule
        if not self.scheduler_config.async_scheduling:
            # vLLM would have taken `Scheduler`: what `AsyncScheduler` adds goes through all requests in
            # every step, and serves nothing here.
            self._after_schedule = MethodType(Scheduler._update_after_schedule, self)
            self._update_request_with_output = MethodType(Scheduler._update_request_with_output, self)
        self._hook: Hook | None = attach(self, logger)

    def schedule(self, *arguments: Any, **named: Any) -> Any:
        """Compose a batch."""
        if self._hook is not None:
            self._hook.begin()
        return super().schedule(*arguments, **named)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        hook = self._hook
        if hook is not None:
            native_k = scheduler_output.num_spec_tokens_to_schedule
            try:
                hook.choose(self, scheduler_output)
            except Exception as error:
                scheduler_output.num_spec_tokens_to_schedule = native_k
                self._drop_hook(error)
        self._after_schedule(scheduler_output)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Take the drafts that the worker made."""
        super().update_draft_token_ids(draft_token_ids)
        hook = self._hook
        if hook is not None:
            try:
                hook.drafted(draft_token_ids)
                hook.limit()
            except Exception as error:
                self._drop_hook(error)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process what a step brought."""
        hook, step = self._hook, None
        if hook is not None:
            try:
                step = hook.returned(self, scheduler_output, model_runner_output)
            except Exception as error:
                self._drop_hook(error)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        hook = self._hook
        if hook is not None and step is not None:
            try:
                hook.processed(self, step)
            except Exception as error:
                self._drop_hook(error)
        return outputs

    def add_request(self, request: Any) -> None:
        """Queue a request, or the next part of one that streams its input."""
        is_new = request.request_id not in self.requests
        super().add_request(request)
        hook = self._hook
        if hook is not None and is_new:
            try:
                hook.admitted(request)
            except Exception as error:
                self._drop_hook(error)

    def _free_request(self, request: Any, *arguments: Any, **named: Any) -> Any:
        hook = self._hook
        if hook is not None:
            try:
                hook.ended(request)
            except Exception as error:
                self._drop_hook(error)
        return super()._free_request(request, *arguments, **named)

    def shutdown(self) -> None:
        """Stop, and let the sidecar know."""
        hook, self._hook = self._hook, None
        if hook is not None:
            hook.link.close()
        super().shutdown()

    def _drop_hook(self, error: Exception) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            reason = f"{type(error).__name__}: {error}"
            logger.error("Steersman stopped steering, vLLM goes on by itself: %s", reason, exc_info=error)
            hook.link.stop_following(f"stopped: {reason}")
