"""Acceptance traces of written text say what the engine's own drafters would have had accepted."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import drain, engine_of, model_of, prompts, submit, target_of

from steersman_engine.decode.model import load_causal_lm, load_tokenizer
from steersman_engine.decode.request import Request, Sampling
from steersman_engine.drafters.prompt_lookup import PromptLookup
from steersman_engine.rows import StepRows
from steersman_engine.steering import Launch
from steersman_engine.trace import command, draft_model
from steersman_engine.trace.draft_model import DraftModelMethod
from steersman_engine.trace.method import record_of
from steersman_engine.trace.ngram import NgramMethod
from steersman_engine.trace.pairs import Pair
from steersman_engine.trace.verbs import trace_acceptance
from steersman_policies.acceptance_trace import read_trace
from steersman_policies.acceptance_walk import walk


class Watched(Launch):
    """A constant K; keeps (drafted, accepted) of every step by request."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.steps: dict[int, list[tuple[int, int]]] = {}

    def record(self, rows: StepRows) -> None:
        for number, drafted, accepted in zip(rows.requests, rows.drafted, rows.accepted, strict=True):
            self.steps.setdefault(number, []).append((drafted, accepted))


def served(k: int, max_ngram: int, min_ngram: int) -> tuple[Watched, list[Request]]:
    steering = Watched(k)
    engine = engine_of(target_of(), steering, PromptLookup(max_ngram, min_ngram))
    requests = [submit(engine, prompt, max_tokens=40, segment="s") for prompt in prompts(6)]
    drain(engine)
    return steering, requests


def replayed(request: Request, k: int, method: NgramMethod) -> list[tuple[int, int]]:
    record = record_of(Pair(request.number, request.prompt, request.output), method, 64)
    steps = walk(record.accepted_by_position, record.offered_by_position, k)
    return [(drafted, accepted) for _, drafted, accepted in steps]


@pytest.mark.parametrize(("k", "max_ngram", "min_ngram"), [(1, 4, 2), (3, 4, 1), (8, 3, 1)])
def test_the_trace_is_what_the_engine_did(k: int, max_ngram: int, min_ngram: int) -> None:
    """Served with prompt lookup at some K, every step drafted and accepted what the trace says."""
    steering, requests = served(k, max_ngram, min_ngram)
    method = NgramMethod(max_ngram, min_ngram)
    assert sum(accepted for steps in steering.steps.values() for _, accepted in steps) > 20
    for request in requests:
        assert replayed(request, k, method) == steering.steps[request.number]


def test_another_drafter_is_found_out() -> None:
    """The check above is able to fail: with another shortest match some step differs."""
    steering, requests = served(4, 4, 1)
    wrong = NgramMethod(4, 3)
    assert any(replayed(request, 4, wrong) != steering.steps[request.number] for request in requests)


@pytest.mark.parametrize("alphabet", [2, 3, 6])
def test_prompt_lookup_by_position_is_the_drafter_itself(alphabet: int) -> None:
    """At every position of any text the drafter's proposal agrees with it as far as the trace says."""
    rng = random.Random(alphabet)
    for _ in range(20):
        prompt = [rng.randrange(alphabet) for _ in range(rng.randint(0, 12))]
        output = [rng.randrange(alphabet) for _ in range(rng.randint(1, 40))]
        k = rng.randint(1, 12)
        offered, accepted = NgramMethod().by_position(prompt, output, k)
        for at in range(len(output)):
            drafter, request = PromptLookup(), request_of([*prompt, *output[:at]])
            drafter.admit(request)
            (proposal,) = drafter.propose([request], [k])
            assert len(proposal.tokens) == offered[at]
            assert agreeing(list(proposal.tokens), output[at:]) == accepted[at]


def request_of(tokens: list[int]) -> Request:
    sampling = Sampling(max_tokens=9)
    return Request(
        number=0, segment="s", prompt=tokens, sampling=sampling, arrived_s=0.0, on_tokens=lambda *_: None
    )


def agreeing(draft: list[int], text: list[int]) -> int:
    return next(
        (at for at, pair in enumerate(zip(draft, text, strict=False)) if pair[0] != pair[1]),
        min(len(draft), len(text)),
    )


@torch.inference_mode()
def greedy(model: Any, tokens: list[int], count: int) -> list[int]:
    out = list(tokens)
    for _ in range(count):
        out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))
    return out[len(tokens) :]


def half_right(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What the model would write, with a slip now and then."""
    rng, out = random.Random(5), list(prompt)
    for _ in range(tokens):
        out += greedy(model, out, 1)
        if rng.random() < 0.25:
            out[-1] = rng.randrange(128)
    return out[len(prompt) :]


def test_teacher_forcing_equals_drafting_at_every_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """One forward in pieces tells how far greedy drafts get that are generated one by one."""
    monkeypatch.setattr(draft_model, "CHUNK_TOKENS", 7)
    model = model_of(seed=3)
    prompt = list(range(3, 20))
    output = half_right(model, prompt, 30)
    offered, accepted = DraftModelMethod(model, "tiny").by_position(prompt, output, 5)
    naive = [agreeing(greedy(model, [*prompt, *output[:at]], 5), output[at:]) for at in range(len(output))]
    assert accepted == naive
    assert offered == [5] * 30
    assert {0, 1, 2} < set(accepted)


def test_text_that_the_draft_model_cannot_read_is_refused() -> None:
    """Another tokenizer, too many tokens, no prompt: one line each."""
    method = DraftModelMethod(model_of(max_position_embeddings=16), "tiny")
    for prompt, output, words in (
        ([1, 2], [400, 1], "token id 400, the draft model tiny has 128"),
        ([1] * 16, [1] * 3, "19 tokens, the draft model tiny reads 16"),
        ([], [1, 2], "prompt_token_ids is empty"),
    ):
        with pytest.raises(ValueError, match=words):
            method.by_position(prompt, output, 4)


def settings(source: Path, out: Path, **changes: Any) -> command.Settings:
    wanted: dict[str, Any] = {
        "method": "ngram", "source": source, "out": out, "columns": {}, "tokenizer": None, "target": "",
        "k_max": None, "min_ngram": 2, "max_ngram": 4, "model": None, "device": None,
    }  # fmt: skip
    return command.Settings(**{**wanted, **changes})


LINES: list[dict[str, Any]] = [
    {"request_id": "a", "prompt_token_ids": [5, 6, 7, 5, 6], "output_token_ids": [7, 5, 6, 7, 9]},
    {"prompt_token_ids": [1], "output_token_ids": [2, 3], "seconds": 1.5, "finish_reason": "stop"},
]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_logs_become_a_trace(tmp_path: Path, name: str) -> None:
    """Pairs in, a trace out, in any format; what was not used is counted, and any K can be walked."""
    source = tmp_path / "in.jsonl.gz"
    source.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in LINES).encode()))
    read: list[int] = []
    found = command.run(settings(source, tmp_path / name, target="llama"), read.append)
    assert (found["requests"], found["positions"], found["ignored_fields"]) == (2, 7, {"seconds": 1})
    one, two = read_trace(tmp_path / name)
    assert (one.request_id, one.target, one.stops) == ("a", "llama", False)
    assert (str(two.request_id), two.stops) == ("2", True)
    assert one.accepted_by_position == (4, 3, 2, 1, 0)
    assert two.offered_by_position == (0, 0)
    # Steps at 1 (a bonus token behind three of four) and 1 in the other request.
    assert found["tokens_per_step"]["7"] == pytest.approx(1.0 + 3 / 2)
    assert read == sorted(read)


def test_no_k_behind_the_longest_draft_is_walked(tmp_path: Path) -> None:
    """With drafts of two tokens, K = 3 would be answered by K = 2."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    found = command.run(settings(source, tmp_path / "t.jsonl", k_max=2), lambda read: None)
    assert (list(found["tokens_per_step"]), found["spread_at_k"]) == (["1"], 1)


GOOD = '{"prompt_token_ids": [1], "output_token_ids": [2]}'


@pytest.mark.parametrize(
    ("line", "changes", "words"),
    [
        ('{"prompt_token_ids": [1], "output_tokens_ids": [2]}', {}, ["line 1", "mean 'output_token_ids'"]),
        ('{"prompt": "a", "output": "b"}', {}, ["line 1", "no 'prompt_token_ids'", "--tokenizer"]),
        ('{"prompt_token_ids": [1], "output_token_ids": [-2]}', {}, ["line 1", "output_token_ids"]),
        ("nonsense", {}, ["line 1", "malformed"]),
        ("", {}, ["holds no request"]),
        (GOOD, {"columns": {"output": "x"}}, ["--columns", "output"]),
        (GOOD, {"min_ngram": 5}, ["min_ngram 5"]),
    ],
)  # fmt: skip
def test_bad_logs_are_refused_in_one_line(
    tmp_path: Path, line: str, changes: dict[str, Any], words: list[str]
) -> None:
    """File, line, what is wrong; and nothing is left behind."""
    source = tmp_path / "in.jsonl"
    source.write_text(line + "\n")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is checked below
        command.run(settings(source, tmp_path / "t.jsonl", **changes), lambda _: None)
    assert all(word in str(error.value) for word in words), str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "some/model"}, "--model: goes with --method draft-model, not with ngram"),
        ({"device": "cpu"}, "--device: goes with --method draft-model"),
        ({"method": "draft-model", "min_ngram": 3}, "--min-ngram: goes with --method ngram"),
    ],
)
def test_an_option_of_the_other_method_is_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    """Else a model that was named would never be asked, and prompt lookup would pass for it."""
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD + "\n")
    with pytest.raises(ValueError, match=words):
        trace_acceptance(source, tmp_path / "t.jsonl", **options)
    assert not (tmp_path / "t.jsonl").exists()


def test_the_bundled_model_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--model bundled` is what leaving it out means, as `--tokenizer bundled` is a name."""
    asked: list[str | None] = []

    def load(source: str | None, device: str | None) -> DraftModelMethod:
        asked.append(source)
        return DraftModelMethod(model_of(), "bundled")

    monkeypatch.setattr(draft_model, "load_draft_model", load)
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD + "\n")
    for name in (None, "bundled"):
        trace_acceptance(source, tmp_path / "t.jsonl", method="draft-model", model=name)
    assert asked == [None, None]


@pytest.mark.slow
def test_the_bundled_model_drafts_its_own_text_to_the_end(tmp_path: Path) -> None:
    """With its tokenizer, from text or ids: what it wrote itself is all accepted, other people's is not."""
    model = load_causal_lm(None)
    tokenizer = load_tokenizer(None)
    prompt = tokenizer.encode("The capital of France is")
    own = greedy(model, prompt, 20)
    lines = [
        {"prompt_token_ids": prompt, "output_token_ids": own},
        {"prompt": "The capital of France is", "output": " Paris, and the capital of Zebra is purple rain!"},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = settings(source, tmp_path / "t.jsonl", method="draft-model", tokenizer="bundled")
    found = command.run(asked, lambda read: None)
    one, two = read_trace(tmp_path / "t.jsonl")
    assert one.accepted_by_position == tuple(min(8, left) for left in range(20, 0, -1))
    assert set(two.offered_by_position) == {8}
    assert 0 < sum(accepted > 0 for accepted in two.accepted_by_position) < two.output_tokens
    assert (found["coverage"], found["k_max"]) == (1.0, 8)
