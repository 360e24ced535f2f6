from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tiny_models import KINDS, VOCAB, drain, engine_of, model_of, prompts, submit, target_of

from steersman_engine.bench.greedy import RandomK
from steersman_engine.decode.model import TargetModel
from steersman_engine.decode.request import Request, Sampling
from steersman_engine.decode.warmup import warm_up
from steersman_engine.drafters.drafter import Proposal
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.rows import StepRows
from steersman_engine.steering import Launch
from steersman_engine.telemetry import aggregate
from steersman_policies.executor import Decision, Load
from steersman_policies.messages import RequestReport


class Recording(Launch):
    """Keeps all that the engine tells; K by segment, 0 for those not named."""

    def __init__(self, lengths: Mapping[str, int] | None = None) -> None:
        super().__init__()
        self.lengths = dict(lengths or {})
        self.loads: list[Load] = []
        self.rows: list[StepRows] = []
        self.reports: list[RequestReport] = []

    def decide(self, load: Load) -> Decision:
        self.loads.append(load)
        return Decision({s: self.lengths.get(s, 0) for s in load.decode_requests}, 7, "test", False)

    def record(self, rows: StepRows) -> None:
        self.rows.append(rows)

    def finished(self, report: RequestReport) -> None:
        self.reports.append(report)


class Scripted:
    """Proposes the given tokens, whatever is asked."""

    name, version, survives_off, confident = "scripted", "1", True, False

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)
        self.calls: list[Any] = []

    def admit(self, request: Request) -> None:
        self.calls.append(("admit", request.number))

    def release(self, request: Request) -> None:
        self.calls.append(("release", request.number))

    def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
        self.calls.append(("propose", list(limits)))
        return [Proposal(self.tokens) for _ in requests]

    def commit(self, request: Request, accepted: int) -> None:
        self.calls.append(("commit", accepted))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return target_of()


def alone(kind: str, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy output of the model by itself, without any cache."""
    model, tokens = model_of(kind), list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mistral"])
@pytest.mark.parametrize("k", [0, 3])
def test_greedy_output_is_the_models_own(kind: str, k: int) -> None:
    """Batched, chunked, drafted and rolled back: the same tokens as the model alone."""
    engine = engine_of(target_of(kind), Launch(k), prefill_tokens=7)
    requests = [submit(engine, prompt, max_tokens=20) for prompt in prompts(5)]
    drain(engine)
    for request in requests:
        assert request.output == alone(kind, request.prompt, 20)
    assert bool(sum(r.accepted for r in requests)) is bool(sum(r.drafted for r in requests)) is bool(k)


def test_random_k_per_request_and_step_changes_no_token(target: TargetModel) -> None:
    """Ragged verification is exact for every mixture of K, with requests coming and going."""
    texts = prompts(12, seed=2)
    outputs = []
    for steering in (Launch(0), RandomK(1), RandomK(2)):
        engine = engine_of(target, steering, max_batch=4, prefill_tokens=9)
        requests = []
        for number, text in enumerate(texts):
            requests.append(submit(engine, text, max_tokens=5 + number * 3, segment=f"s{number}"))
            engine.step()
        drain(engine)
        outputs.append([request.output for request in requests])
    assert outputs[0] == outputs[1] == outputs[2]


def test_each_segment_gets_its_own_k(target: TargetModel) -> None:
    """K by segment becomes K by request; the reports say what was commanded and drafted."""
    steering = Recording({"a": 2, "b": 5})
    engine = engine_of(target, steering, Scripted(3, 3, 3, 3, 3, 3, 3, 3))
    for segment in ("a", "b", "c"):
        submit(engine, [4, 5, 6], max_tokens=30, segment=segment)
    engine.step()
    engine.step()
    rows = steering.rows[1]
    assert list(rows.segments) == ["a", "b", "c"]
    assert list(rows.commanded_k) == [2, 5, 0]
    assert list(rows.drafted) == [2, 5, 0]
    assert list(rows.context_tokens) == [3, 3, 3]
    assert rows.requests_drafting == 2
    assert rows.decision.plan_id == 7


def test_every_step_report_is_valid(target: TargetModel) -> None:
    """The link refuses no row of ours, and its sums agree with the outputs."""
    steering = Recording({f"s{number}": number for number in range(6)})
    engine = engine_of(target, steering, prefill_tokens=8, max_batch=4)
    requests = [submit(engine, p, segment=f"s{n}", max_tokens=9 + n) for n, p in enumerate(prompts(6))]
    drain(engine)
    reports = []
    for rows in steering.rows:
        report, refused = aggregate(rows)
        assert not refused
        assert report is not None
        assert report.busy_s <= report.started_s + 1000
        reports.append(report)
    assert sum(report.committed_tokens for report in reports) == sum(len(r.output) for r in requests)
    assert sum(report.prefill_tokens for report in reports) == sum(len(r.prompt) for r in requests)
    assert [report.step for report in reports] == list(range(len(reports)))


def test_the_load_is_taken_after_the_batch_was_composed(target: TargetModel) -> None:
    """Requests whose prefill ended in this step count, ended ones do not."""
    steering = Recording()
    engine = engine_of(target, steering, max_batch=2)
    for _ in range(3):
        submit(engine, [4, 5, 6], max_tokens=2, segment="a")
    engine.step()
    load = steering.loads[0]
    assert dict(load.decode_requests) == {"a": 2}
    assert (load.mean_context_tokens, load.prefill_tokens, load.waiting) == (4.0, 6, 1)
    engine.step()
    assert dict(steering.loads[1].decode_requests) == {}


def test_k_zero_never_calls_the_drafter(target: TargetModel) -> None:
    """The plain path: requests are admitted and released, nothing else."""
    drafter = Scripted(1, 2, 3)
    engine = engine_of(target, Launch(0), drafter)
    submit(engine, [4, 5, 6], max_tokens=6)
    drain(engine)
    assert drafter.calls == [("admit", 0), ("release", 0)]


def test_the_drafter_hears_how_much_was_kept(target: TargetModel) -> None:
    """Commits follow proposals, and the last token is never drafted."""
    true_output = alone("llama", [4, 5, 6], 6)
    drafter = Scripted(*true_output[1:3], (true_output[3] + 1) % VOCAB)
    engine = engine_of(target, Launch(3), drafter)
    request = submit(engine, [4, 5, 6], max_tokens=6)
    engine.step()
    engine.step()
    assert request.output == true_output[:4]
    assert drafter.calls == [("admit", 0), ("propose", [3]), ("commit", 2), ("propose", [1])]


def test_proposals_are_clamped_to_what_is_left(target: TargetModel) -> None:
    """With one token to go nothing is asked, and the report says why."""
    steering = Recording({"a": 4})
    engine = engine_of(target, steering, Scripted(1, 1, 1, 1))
    submit(engine, [4, 5, 6], max_tokens=2, segment="a")
    drain(engine)
    assert list(steering.rows[1].not_drafted) == ["length_limit"]
    assert list(steering.rows[1].commanded_k) == [4]


def test_a_drafter_that_proposes_nonsense_harms_nobody(target: TargetModel) -> None:
    """Too many tokens are cut; unknown ones are dropped with a reason."""
    steering = Recording({"a": 2})
    engine = engine_of(target, steering, Scripted(1, 1, 1, 1, 1))
    submit(engine, [4, 5, 6], segment="a")
    engine.step()
    engine.step()
    assert list(steering.rows[1].drafted) == [2]
    engine = engine_of(target, steering, Scripted(1, VOCAB))
    submit(engine, [4, 5, 6], segment="a")
    engine.step()
    engine.step()
    assert list(steering.rows[-1].not_drafted) == ["invalid_state"]


def test_a_drafter_that_fails_harms_nobody(target: TargetModel) -> None:
    """Whatever it raises, and whenever: the target goes on alone, and the report says why."""

    class Forgetful(Scripted):
        def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
            return []

    class Raising(Scripted):
        def propose(self, requests: Sequence[Request], limits: Sequence[int]) -> list[Proposal]:
            raise RuntimeError("no idea")

        def release(self, request: Request) -> None:
            raise RuntimeError("what request?")

    for drafter in (Forgetful(1), Raising(1)):
        steering = Recording({"a": 2})
        engine = engine_of(target, steering, drafter)
        request = submit(engine, [4, 5, 6], segment="a", max_tokens=5)
        drain(engine)
        assert request.output == alone("llama", [4, 5, 6], 5)
        assert list(steering.rows[1].not_drafted) == ["invalid_state"]


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact(target: TargetModel, k: int, max_tokens: int) -> None:
    """Never one token more, however many were accepted."""
    engine = engine_of(target, Launch(k))
    requests = [submit(engine, prompt, max_tokens=max_tokens) for prompt in prompts(4)]
    drain(engine)
    assert [len(request.output) for request in requests] == [max_tokens] * 4
    assert {request.finish_reason for request in requests} == {"length"}


@pytest.mark.parametrize("k", [0, 1, 5])
def test_output_ends_with_the_stop_token(target: TargetModel, k: int) -> None:
    """Wherever it falls in a proposal, nothing follows it."""
    prompt = prompts(1)[0]
    whole = alone("llama", prompt, 24)
    stop = whole[9]
    engine = engine_of(target, Launch(k))
    request = submit(engine, prompt, ignore_eos=False, stop_ids=frozenset({stop}))
    ignored = submit(engine, prompt, ignore_eos=True, stop_ids=frozenset({stop}))
    drain(engine)
    assert request.output == whole[: whole.index(stop) + 1]
    assert request.finish_reason == "stop"
    assert ignored.output == whole


def test_a_request_may_fill_the_slot_to_the_last_place(target: TargetModel) -> None:
    """Prompt and output up to max_len, drafting all the way."""
    engine = engine_of(target, Launch(8), max_len=40)
    request = submit(engine, [4, 5, 6, 4, 5], max_tokens=35)
    drain(engine)
    assert request.output == alone("llama", [4, 5, 6, 4, 5], 35)


def test_requests_that_cannot_be_served_are_refused_at_once(target: TargetModel) -> None:
    """One clear line, and nothing is queued."""
    engine = engine_of(target, max_len=32)
    for prompt, max_tokens, message in (
        ([], 4, "prompt: is empty"),
        ([1] * 30, 4, "max_tokens: 4 and a prompt of 30 tokens exceed max_len 32"),
        ([VOCAB], 4, "prompt: holds token ids outside 0 to 127"),
        ([-1], 4, "prompt: holds token ids outside 0 to 127"),
    ):
        with pytest.raises(ValueError, match=message):
            submit(engine, prompt, max_tokens=max_tokens)
    assert not engine.busy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 0}, "max_tokens: 0, must be at least 1"),
        ({"temperature": float("nan")}, "temperature: nan, must be 0"),
        ({"temperature": -0.1}, "temperature: -0.1, must be 0"),
        ({"top_p": 0.0}, "top_p: 0.0, must be above 0"),
        ({"seed": -1}, "seed: -1, must be 0"),
    ],
)
def test_bad_sampling_is_refused(changes: dict[str, Any], message: str) -> None:
    """The value and what is allowed are named."""
    with pytest.raises(ValueError, match=message):
        Sampling(**{"max_tokens": 4, **changes})


def test_cancelled_requests_leave_and_the_others_go_on(target: TargetModel) -> None:
    """Live, waiting, or in the middle of a prefill."""
    steering = Recording({"a": 3})
    engine = engine_of(target, steering, max_batch=2, prefill_tokens=4)
    texts = prompts(4)
    live, other, waiting, last = (submit(engine, text, segment="a") for text in texts)
    for _ in range(5):
        engine.step()
    live.cancelled = waiting.cancelled = True
    drain(engine)
    assert live.finish_reason == waiting.finish_reason == "cancelled"
    assert other.output == alone("llama", texts[1], 24)
    assert last.output == alone("llama", texts[3], 24)
    assert sorted(report.finish_reason for report in steering.reports) == ["cancelled"] * 2 + ["length"] * 2
    assert engine.slots.lengths == []


def test_a_receiver_that_fails_ends_its_request_only(target: TargetModel) -> None:
    """The batch goes on."""
    engine = engine_of(target, Launch(2))

    def broken(request: Request, tokens: list[int]) -> None:
        raise RuntimeError("no more")

    bad = engine.submit([4, 5, 6], Sampling(max_tokens=9), on_tokens=broken)
    good = submit(engine, [4, 5, 6], max_tokens=9)
    drain(engine)
    assert (bad.finish_reason, bad.error) == ("error", "no more")
    assert len(good.output) == 9


def test_first_come_first_served(target: TargetModel) -> None:
    """Requests are admitted in the order of their arrival, as slots become free."""
    engine = engine_of(target, max_batch=2)
    requests = [submit(engine, [4, 5, 6], max_tokens=4 + number) for number in range(6)]
    drain(engine)
    admitted = [request.admitted_s for request in requests]
    assert admitted == sorted(admitted)


def test_prefill_keeps_its_budget(target: TargetModel) -> None:
    """No step carries more prompt tokens than allowed, and decoding goes on meanwhile."""
    steering = Recording()
    engine = engine_of(target, steering, prefill_tokens=10)
    for length in (4, 33, 7):
        submit(engine, list(range(3, 3 + length)), max_tokens=12)
    drain(engine)
    assert [rows.prefill_tokens for rows in steering.rows[:5]] == [10, 10, 10, 10, 4]
    assert [sum(rows.committed) for rows in steering.rows[:3]] == [0, 1, 1]
    assert [rows.first_tokens for rows in steering.rows[:5]] == [1, 0, 0, 1, 1]


def test_the_request_report_adds_up(target: TargetModel) -> None:
    """Times are ordered and tokens are counted."""
    steering = Recording({"a": 3})
    engine = engine_of(target, steering)
    request = submit(engine, prompts(1)[0], max_tokens=12, segment="a")
    drain(engine)
    (report,) = steering.reports
    assert (report.prompt_tokens, report.output_tokens) == (len(request.prompt), 12)
    assert 0 < report.queue_s < report.ttft_s < report.e2e_s
    assert report.tpot_s == pytest.approx((report.e2e_s - report.ttft_s) / 11)
    assert report.steps <= 11
    assert (report.drafted, report.accepted) == (request.drafted, request.accepted)
    assert report.accepted + report.steps + 1 >= 12


def test_sampling_repeats_with_its_seed_whatever_runs_beside_it(target: TargetModel) -> None:
    """A seed belongs to the request, not to the batch."""
    outputs = []
    for neighbours in (0, 3):
        engine = engine_of(target, Launch(0))
        request = submit(engine, [4, 5, 6], temperature=1.0, top_p=0.95, seed=11)
        for number in range(neighbours):
            submit(engine, prompts(3)[number], temperature=0.5, seed=number)
        drain(engine)
        outputs.append(request.output)
    assert outputs[0] == outputs[1]


def test_greedy_and_sampled_requests_share_a_batch(target: TargetModel) -> None:
    """The greedy ones stay exact."""
    engine = engine_of(target, Launch(3))
    prompt = prompts(1)[0]
    greedy = submit(engine, prompt)
    sampled = [submit(engine, prompt, temperature=2.0, seed=seed) for seed in range(3)]
    drain(engine)
    assert greedy.output == alone("llama", prompt, 24)
    assert len({tuple(request.output) for request in [greedy, *sampled]}) == 4


def test_warm_up_leaves_no_trace(target: TargetModel) -> None:
    """Nothing is reported, no slot is used, and output is what it was."""
    steering = Recording()
    engine = engine_of(target, steering, max_len=48)
    warm_up(engine)
    assert (steering.rows, engine.slots.lengths) == ([], [])
    request = submit(engine, [4, 5, 6])
    drain(engine)
    assert request.output == alone("llama", [4, 5, 6], 24)


def test_without_a_drafter_k_is_zero(target: TargetModel) -> None:
    """A steering that asks for drafts gets none, and nothing breaks."""
    from steersman_engine.decode.engine import Engine

    steering = Recording({"a": 4})
    engine = Engine(target, steering=steering, drafter=None, clock=lambda: 0.0, max_len=64)
    submit(engine, [4, 5, 6], segment="a")
    drain(engine)
    assert {k for rows in steering.rows for k in rows.commanded_k} == {0}


def test_a_failed_step_can_be_survived(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests end with an error; the next ones are served."""
    engine = engine_of(target, Launch(2), PromptLookup())
    lost = [submit(engine, prompt) for prompt in prompts(3)]
    engine.step()
    engine.fail_all("out of memory")
    assert [(r.finish_reason, r.error) for r in lost] == [("error", "out of memory")] * 3
    request = submit(engine, [4, 5, 6])
    drain(engine)
    assert request.output == alone("llama", [4, 5, 6], 24)
