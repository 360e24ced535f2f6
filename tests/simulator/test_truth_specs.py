"""Truths built from specs: what they say about steps, on tables made here."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from steersman_controller.train.bundle import read_bundle
from steersman_controller.train.devices import DEVICES
from steersman_controller.train.model_shape import read_shape
from steersman_controller.train.roofline import Roofline
from steersman_controller.train.run import Request, train
from steersman_controller.train.step_times import Source
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.truths.link import Link
from steersman_simulator.truths.noise import Noise
from steersman_simulator.truths.spec import (
    BundledSteps,
    MeasuredSteps,
    ModelledSteps,
    NoisySteps,
    OperatorSteps,
    ScaledSteps,
    SurchargedSteps,
    TruthSpec,
    build_truth,
    decode_truth,
)
from steersman_simulator.truths.step_work import DraftWork, StepSeconds, VerifyWork
from steersman_simulator.truths.surcharges import Surcharges
from steersman_simulator.world.chance import stream

CONFIG = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """CSV or Parquet, as the suffix says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def seconds_of(spec: TruthSpec, folder: Path) -> StepSeconds:
    return build_truth(spec, folder).sampler(stream(1))


def step_rows(*, repeats: tuple[float, ...] = (1.0,), contexts: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """10 ms + 1 ms a request + 2 ms a draft token of the longest draft, + 1 ms per 100 tokens of context."""
    return [
        {"batch_size": batch, "num_draft_tokens": k, "step_ms": (10 + batch + 2 * k + context / 100) * factor}
        | ({"context_tokens": context * batch} if contexts else {})
        for batch in (1, 2, 4, 8)
        for k in (0, 2, 4)
        for context in contexts or (0,)
        for factor in repeats
    ]


@pytest.mark.parametrize("name", ["steps.csv", "steps.parquet"])
def test_a_step_table_is_linear_between_what_was_measured(tmp_path: Path, name: str) -> None:
    """Batch, K and context: at measured points, between them, below and beyond."""
    write(tmp_path / name, step_rows(contexts=(100, 300)))
    steps = seconds_of(MeasuredSteps(name), tmp_path)

    def step_ms(batch: int, k: int, context: int) -> float:
        verify_s = steps.verify_s(VerifyWork(batch, batch * k, batch * context))
        return 1e3 * (verify_s + steps.draft_s(DraftWork(k, batch, batch * context)))

    assert step_ms(4, 2, 300) == pytest.approx(10 + 4 + 4 + 3)
    assert step_ms(3, 1, 200) == pytest.approx(10 + 3 + 2 + 2)
    assert step_ms(12, 4, 100) == pytest.approx(10 + 12 + 8 + 1)
    assert step_ms(2, 0, 10) == pytest.approx(10 + 2 + 1), "below the smallest context its value holds"
    assert steps.other_s(decode_requests=3, committed_tokens=3) == 0.0
    with pytest.raises(ValueError, match="K = 5, measured up to 4"):
        step_ms(2, 5, 100)


def test_drafting_is_what_was_timed(tmp_path: Path) -> None:
    """With draft_ms, a step without drafts behind it costs the rest only."""
    rows = [row | {"draft_ms": row["num_draft_tokens"] * 1.5} for row in step_rows()]
    write(tmp_path / "steps.csv", rows)
    steps = seconds_of(MeasuredSteps("steps.csv"), tmp_path)
    assert steps.draft_s(DraftWork(2, 4, 0)) == pytest.approx(3e-3)
    assert steps.verify_s(VerifyWork(4, 8, 0)) == pytest.approx((14 + 4 - 3) * 1e-3)
    assert steps.draft_s(DraftWork(0, 0, 0)) == 0.0


def test_prompts_in_a_step_cost_tokens(tmp_path: Path) -> None:
    """More prompt tokens never take less time; a given price is taken as it is."""
    write(tmp_path / "steps.csv", step_rows())
    steps = seconds_of(MeasuredSteps("steps.csv"), tmp_path)
    work = [VerifyWork(2, 0, 0, tokens, ((tokens, 0),)) for tokens in (0, 8, 64, 512, 9000)]
    seconds = [steps.verify_s(one) for one in work]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 2 * seconds[0]
    priced = seconds_of(MeasuredSteps("steps.csv", prefill_token_s=1e-4), tmp_path)
    assert priced.verify_s(work[2]) - priced.verify_s(work[0]) == pytest.approx(6.4e-3)


def test_repeats_are_noise(tmp_path: Path) -> None:
    """The spread of repeats comes back as the spread of steps, around what the table says."""
    write(tmp_path / "steps.csv", step_rows(repeats=(0.9, 0.95, 1.0, 1.05, 1.1)))
    steps = seconds_of(MeasuredSteps("steps.csv", noise=None), tmp_path)
    drawn = []
    for _ in range(4000):
        drawn.append(steps.verify_s(VerifyWork(4, 0, 0)))
        steps.other_s(decode_requests=4, committed_tokens=4)
    assert fmean(drawn) == pytest.approx(0.014, rel=0.01)
    assert stdev(drawn) / fmean(drawn) == pytest.approx(0.1 / 1.349, rel=0.1)


def test_noise_has_the_memory_that_was_asked_for() -> None:
    """Relative sd and lag-1 autocorrelation; all parts of a step share one factor."""
    steps = seconds_of(NoisySteps(ConstantSteps(0.01, host_s=0.02), Noise(0.2, 0.8)), Path())
    drawn = []
    for _ in range(20_000):
        verify_s = steps.verify_s(VerifyWork(1, 0, 0))
        assert steps.other_s(decode_requests=1, committed_tokens=1) == pytest.approx(2 * verify_s)
        drawn.append(verify_s / 0.01)
    mean, sd = fmean(drawn), stdev(drawn)
    lag = fmean((a - mean) * (b - mean) for a, b in pairwise(drawn)) / sd**2
    assert mean == pytest.approx(1.0, abs=0.02)
    assert sd == pytest.approx(0.2, rel=0.1)
    assert lag == pytest.approx(0.8, abs=0.04)


def test_a_bundle_says_what_its_tables_say(tmp_path: Path) -> None:
    """At tabulated points exactly; noise as wide as its interval; no K that it does not know."""
    rows = step_rows(repeats=(0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03))
    write(tmp_path / "steps.csv", rows)
    out = tmp_path / "bundle.zip"
    train(Request("now", Source(tmp_path / "steps.csv"), out=out), lambda text, done: None)
    cost = read_bundle(out).step_cost(0)
    steps = seconds_of(BundledSteps("bundle.zip", noise=Noise()), tmp_path)
    for tokens in cost.tokens_grid:
        assert steps.verify_s(VerifyWork(tokens, 0, 0)) == cost.verify_at(tokens, 0.0)
    assert steps.draft_s(DraftWork(4, 8, 0)) == cost.draft_at(4, 8)
    with pytest.raises(ValueError, match="knows K up to 4"):
        steps.draft_s(DraftWork(5, 1, 0))
    noisy = build_truth(BundledSteps("bundle.zip"), tmp_path)
    assert 0.0 < noisy.noise.relative_sd < 0.2  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"bundle.zip: no group 'eagle'; it has ''"):
        build_truth(BundledSteps("bundle.zip", group="eagle"), tmp_path)


def test_a_roofline_adds_up(tmp_path: Path) -> None:
    """One prompt and decode requests as in `train`; history makes a chunk dearer; drafting is linear in K."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    spec = ModelledSteps("config.json", "h100", drafter_config="config.json")
    steps = seconds_of(spec, tmp_path)
    roofline = Roofline(read_shape(tmp_path / "config.json"), DEVICES["h100"])
    expected = roofline.seconds(tokens=260.0, sequences=4.0, context_tokens=4000.0, prefill_tokens=256.0)
    found = steps.verify_s(VerifyWork(4, 0, 4000, 256, ((256, 0),)))
    assert found == pytest.approx(expected, rel=0.01)
    assert steps.verify_s(VerifyWork(4, 0, 4000, 256, ((256, 8192),))) > found
    one = steps.draft_s(DraftWork(1, 4, 4000))
    assert steps.draft_s(DraftWork(3, 4, 4000)) == pytest.approx(3 * one)
    assert one == pytest.approx(steps.verify_s(VerifyWork(4, 0, 4000)))


def operator_tables(folder: Path, *, added: float = 2.0) -> None:
    """10 us + tokens for `mlp`, 5 us for `layernorm` and `embedding`, 1 us a head, attention by context."""
    dense = [
        {"layer": layer, "tokens": tokens, "time_us": time}
        for tokens in (1, 64, 2048)
        for layer, time in (("mlp", 10.0 + tokens), ("layernorm", 5.0), ("embedding", 5.0))
    ]
    write(folder / "toy_dense.csv", dense)
    heads = [{"layer": "lm_head", "sequences": n, "time_us": float(n)} for n in (1, 256)]
    write(folder / "toy_per_sequence.csv", heads)
    attention = [
        {
            "prefill_chunk": chunk,
            "kv_prefill": before,
            "n_decode": n,
            "kv_decode": context,
            "time_us": chunk / 10 + before / 100 + n * context / 1000 * (added if chunk else 1.0),
        }
        for chunk in (0, 16, 512)
        for before in ((0, 1000) if chunk else (0,))
        for n in (0, 1, 64)
        for context in ((100, 1000) if n else (0,))
        if chunk or n
    ]
    write(folder / "toy_attention.csv", attention)


def test_operator_tables_are_composed(tmp_path: Path) -> None:
    """Layers times one layer; embedding and head once; decode requests beside a prompt cost what they do."""
    operator_tables(tmp_path)
    steps = seconds_of(OperatorSteps("toy", layers=3), tmp_path)
    decode = steps.verify_s(VerifyWork(10, 0, 5000))
    assert decode == pytest.approx((3 * (20 + 10 + 5) + 5 + 10) * 1e-6)
    mixed = steps.verify_s(VerifyWork(10, 0, 5000, 100, ((60, 0), (40, 500))))
    expected = 3 * (110 + 20 + (6 + 4 + 5) + 2 * 5) + 5 + 12
    assert mixed == pytest.approx(expected * 1e-6)
    drafts = seconds_of(OperatorSteps("toy", 3, drafter=OperatorSteps("toy", 1)), tmp_path)
    assert drafts.draft_s(DraftWork(2, 10, 5000)) == pytest.approx(2 * (20 + 10 + 5 + 5 + 10) * 1e-6)
    shared = seconds_of(OperatorSteps("toy", 3, link=Link(2, 1000, 1e9, 1e-5)), tmp_path)
    assert shared.verify_s(VerifyWork(10, 0, 5000)) - decode == pytest.approx(6 * 2 * (1e-5 + 1e-5))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("dense", ("10.0", "fast"), r"toy_dense.csv:2: time_us: found 'fast', allowed: a number"),
        ("dense", ("tokens", "token"), r"toy_dense.csv:1: .*'tokens'.*did you mean 'token'"),
        (
            "attention",
            ("0,0,1,100,", "0,0,1.5,100,"),
            r"toy_attention.csv:2: n_decode: found '1.5', allowed: a whole number",
        ),
        (
            "attention",
            ("16,1000,0,0,", "16,1001,0,0,"),
            "no row of chunk 16 after 1000 tokens with n_decode 0",
        ),
    ],
)
def test_damaged_operator_tables_are_named(
    tmp_path: Path, file: str, change: tuple[str, str], said: str
) -> None:
    """File, row, column and value, or the row that is missing."""
    operator_tables(tmp_path)
    path = tmp_path / f"toy_{file}.csv"
    text = path.read_text().replace("11.0", "10.0")
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ValueError, match=said):
        build_truth(OperatorSteps("toy", 3), tmp_path)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Both names that it could have had."""
    with pytest.raises(FileNotFoundError, match=r"no .*toy_dense.csv and no .*toy/dense.csv"):
        build_truth(OperatorSteps("toy", 3), tmp_path)


def test_surcharges_and_scale() -> None:
    """Each surcharge on its own cause, and everything times the factor."""
    base = ConstantSteps(0.01, per_draft_token_s=0.001)
    surcharges = Surcharges(
        step_s=0.5, ragged_row_s=0.001, first_after_switch_s=0.1, stale_token_s=1e-5, warm_follow_s=0.002
    )
    steps = seconds_of(ScaledSteps(SurchargedSteps(base, surcharges), 2.0), Path())
    assert steps.verify_s(VerifyWork(4, 4, 0)) == pytest.approx(0.02)
    assert steps.verify_s(VerifyWork(4, 4, 0, ragged_rows=3)) == pytest.approx(0.026)
    assert steps.verify_s(VerifyWork(4, 4, 0, first_after_switch=True)) == pytest.approx(0.22)
    assert steps.draft_s(DraftWork(2, 4, 0, stale_tokens=100)) == pytest.approx(2 * (0.002 + 0.001))
    assert steps.draft_s(DraftWork(0, 0, 0, stale_tokens=100)) == pytest.approx(2 * (0.001 + 0.002))
    assert steps.draft_s(DraftWork(0, 0, 0)) == 0.0
    assert steps.other_s(decode_requests=4, committed_tokens=4) == pytest.approx(1.0)


def test_specs_are_data() -> None:
    """A nested spec survives JSON; an unknown kind and an unknown key are refused."""
    spec = ScaledSteps(SurchargedSteps(OperatorSteps("a", 2, link=Link(2, 8, 1e9)), Surcharges()), 3.0)
    assert decode_truth(msgspec.json.encode(spec)) == spec
    with pytest.raises(ValueError, match="kind"):
        decode_truth(b'{"kind": "guess"}')
    with pytest.raises(ValueError, match="step_ms"):
        decode_truth(b'{"kind": "constant", "step_s": 1, "step_ms": 1}')
