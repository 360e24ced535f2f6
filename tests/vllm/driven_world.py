"""vLLM's own scheduler with the adapter in it and no model, driven through whatever can happen to a request.

``python driven_world.py MODEL FOLDER`` runs with vLLM's interpreter and prints one JSON line per run: what
vLLM counted, and what the adapter reported.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

K, SEGMENTS, STEPS = 4, ("a", "b", "other"), 800


def main(model: str, folder: Path) -> None:
    """Every kind of run once."""
    os.environ |= {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "STEERSMAN_SIDECAR": f"ipc://{folder}/nobody.ipc",
        "STEERSMAN_STATE_DIR": str(folder),
        "STEERSMAN_REACHABLE_K": "0,2,4",
    }
    for is_async in (False, True):
        for is_streamed in (False, True):
            for blocks in (2_000, 40):
                print(json.dumps(Run(model, is_async, is_streamed, blocks).run()), flush=True)


class Run:
    """One scheduler. With 40 blocks it has to preempt; streamed input stops and goes on."""

    def __init__(self, model: str, is_async: bool, is_streamed: bool, blocks: int) -> None:
        self.name = f"async={is_async} streamed={is_streamed} blocks={blocks}"
        self.is_async, self.is_streamed = is_async, is_streamed
        self.rng = random.Random(blocks + is_streamed)
        self.scheduler = _scheduler(model, is_async, blocks)
        self.hook = self.scheduler._hook
        self.link = self.hook.link
        self.link.close()
        self.reader = self.link.publisher._read
        self.ours: Counter[str] = Counter()
        self.vllms: Counter[str] = Counter()
        self.happened: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.flying: list[tuple[Any, set[str]]] = []
        self.admitted: list[str] = []

    def run(self) -> dict[str, Any]:
        """Steps, with everything that comes between them, and then what is left."""
        from steersman_policies.messages import Lease

        self._adopt()
        for _ in range(STEPS):
            self.link.executor.renew(Lease(plan_id=1), time.monotonic())
            self._between()
            self._schedule()
            while len(self.flying) > self.is_async:
                self._process()
            self._read()
        while self.flying:
            self._process()
        self._read()
        self.wrong["hook dropped"] = int(self.scheduler._hook is None)
        self.wrong["fault"] = int(self.hook.fault is not None)
        return {
            "run": self.name,
            "ours": self.ours,
            "vllms": self.vllms,
            "happened": self.happened,
            "wrong": +self.wrong,
        }

    def _adopt(self) -> None:
        from steersman_policies.plan import Dwell, Plan

        plan = Plan(
            plan_id=1,
            policy="p",
            policy_version="1",
            fingerprint=self.link.executor.fingerprint,
            mode="steer",
            batch_edges=(4,),
            context_edges=(),
            proposal_length={"unknown": ((2,), (0,)), "a": ((K,), (2,)), "b": ((0,), (K,))},
            fallback=(2, 2),
            dwell=Dwell(steps=0, seconds=0.0),
        )
        assert self.link.executor.adopt(plan).applied

    def _between(self) -> None:
        from vllm.v1.request import RequestStatus

        scheduler, rng = self.scheduler, self.rng
        if rng.random() < 0.12 and len(scheduler.requests) < 20:
            self._admit()
        if scheduler.requests and rng.random() < 0.02:
            scheduler.finish_requests(rng.choice(list(scheduler.requests)), RequestStatus.FINISHED_ABORTED)
            self.happened["abort"] += 1
        if self.is_streamed and rng.random() < 0.1:
            self._more_input()
        if not self.is_streamed and rng.random() < 0.01:
            scheduler.reset_prefix_cache(reset_running_requests=True)
            self.happened["reset"] += 1

    def _admit(self) -> None:
        request_id, rng = f"r{len(self.admitted)}", self.rng
        self.admitted.append(request_id)
        prompt, tokens = rng.choice([1, 5, 30, 100, 200]), rng.choice([1, 3, 20, 60])
        self.scheduler.add_request(
            _request(
                request_id, prompt, tokens, rng.choice(SEGMENTS), self.is_streamed and rng.random() < 0.4
            )
        )

    def _more_input(self) -> None:
        open_ones = [held.request_id for held in self.scheduler.requests.values() if held.resumable]
        if open_ones:
            request_id = self.rng.choice(open_ones)
            self.scheduler.add_request(_request(request_id, 7, 5, "a", self.rng.random() < 0.7))
            self.happened["more input"] += 1

    def _schedule(self) -> None:
        scheduler = self.scheduler
        before = {held.request_id: held.is_prefill_chunk for held in scheduler.running}
        output = scheduler.schedule()
        scheduled = output.num_scheduled_tokens
        self.happened["preempted"] += len(output.preempted_req_ids or ())
        if scheduled and self.scheduler._hook is not None:
            step = self.hook._flying[-1]
            decoding = sum(not held.is_prefill_chunk for held in scheduler.running)
            prefill = sum(n for name, n in scheduled.items() if before.get(name, True))
            self.wrong["live requests"] += decoding != step.decode_requests
            self.wrong["prefill tokens"] += prefill != step.prefill_tokens
        self.flying.append(
            (output, {name for name in scheduled if scheduler.requests[name].is_prefill_chunk})
        )

    def _process(self) -> None:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        output, chunks = self.flying.pop(0)
        ids, drafts = list(output.num_scheduled_tokens), output.scheduled_spec_decode_tokens
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: at for at, name in enumerate(ids)},
            sampled_token_ids=[
                [] if name in chunks else self._sampled(len(drafts.get(name, ()))) for name in ids
            ],
        )
        for each in self.scheduler.update_from_output(output, result).values():
            self.vllms["tokens"] += sum(len(one.new_token_ids) for one in each.outputs)
            found = each.scheduler_stats and each.scheduler_stats.spec_decoding_stats
            if found:
                self.vllms["drafted"] += found.num_draft_tokens
                self.vllms["accepted"] += found.num_accepted_tokens
        if ids and not self.is_async:
            k = output.num_spec_tokens_to_schedule
            drafted = [[5] * self.rng.choice([0, k, k]) for _ in ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(list(ids), drafted))

    def _sampled(self, drafted: int) -> list[int]:
        accepted = 0
        while accepted < drafted and self.rng.random() < 0.6:
            accepted += 1
        return [5] * (1 + accepted)

    def _read(self) -> None:
        from steersman_engine.rows import StepRows

        outbox = self.link._outbox
        while outbox:
            for record in self.reader(outbox.popleft()):
                if isinstance(record, StepRows):
                    self.ours["tokens"] += sum(record.committed) + record.first_tokens
                    self.ours["drafted"] += sum(record.drafted)
                    self.ours["accepted"] += sum(record.accepted)
                    pairs = zip(record.drafted, record.commanded_k, strict=True)
                    self.wrong["over K"] += sum(drafted > k for drafted, k in pairs)


def _scheduler(model: str, is_async: bool, blocks: int) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    from steersman_engine.bench.vllm.driven import scheduler_without_model

    arguments = EngineArgs(
        model=model,
        dtype="float32",
        max_num_seqs=12,
        max_num_batched_tokens=64,
        max_model_len=1_024,
        enable_prefix_caching=False,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": K,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 4,
            "num_speculative_tokens_per_batch_size": [[1, 2, K], [3, 6, 2], [7, 12, 0]],
        },
    )
    return scheduler_without_model(arguments, is_async=is_async, blocks=blocks, block_size=16)


def _request(request_id: str, prompt: int, tokens: int, segment: str, is_open: bool) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(
        temperature=0.0, max_tokens=tokens, ignore_eos=True, extra_args={"steersman_segment": segment}
    )
    return Request(request_id, [1] * prompt, sampling, None, resumable=is_open)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
