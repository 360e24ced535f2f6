"""Priors: step times from data sheets and from measured operators, before any step was measured."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import train_truth as truth

from steersman_controller.train.bundle import read_bundle
from steersman_controller.train.cells import Cells, shapes
from steersman_controller.train.crossover import best_k
from steersman_controller.train.devices import BANDWIDTH_SHARE, DEVICES
from steersman_controller.train.model_shape import ModelShape, read_shape, shape_of
from steersman_controller.train.operator_tables import ComposedForward, OperatorTables
from steersman_controller.train.prior import prior_cells, step_seconds, with_prior
from steersman_controller.train.roofline import Roofline
from steersman_controller.train.serving import Deployment, compare, tpot_parts_s

Run = Callable[..., int]

LLAMA_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
LLAMA_1B = {
    **LLAMA_8B,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "intermediate_size": 8192,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    return path


def test_the_folder_of_a_model_stands_for_its_config(tmp_path: Path) -> None:
    """As a hub download or `save_pretrained` leaves it."""
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 16, '
        '"vocab_size": 32}'
    )
    assert read_shape(tmp_path) == read_shape(tmp_path / "config.json")


def test_sizes_come_from_the_config() -> None:
    """Parameters and cache bytes of a published architecture are what its authors say."""
    shape = shape_of(LLAMA_8B, "here")
    # 8.03e9 in all, of which the input embedding (128,256 x 4,096) is looked up and not read.
    assert shape.dense_parameters == pytest.approx(8.03e9 - 128256 * 4096, rel=2e-3)
    assert shape.kv_bytes_per_token == 131_072


def test_experts_are_read_by_the_union_that_tokens_visit() -> None:
    """One token reads its own experts, many tokens nearly all; the weights of a step follow."""
    moe = shape_of(
        {**LLAMA_8B, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}, "here"
    )
    assert moe.experts_read(1) == pytest.approx(8.0)
    assert moe.experts_read(1000) == pytest.approx(128.0)
    forward = Roofline(moe, DEVICES["h100"])
    few, many = (
        forward.seconds(tokens=n, sequences=n, context_tokens=0.0, prefill_tokens=0.0) for n in (1.0, 32.0)
    )
    assert many > 2.0 * few
    dense = Roofline(shape_of(LLAMA_8B, "here"), DEVICES["h100"])
    few, many = (
        dense.seconds(tokens=n, sequences=n, context_tokens=0.0, prefill_tokens=0.0) for n in (1.0, 32.0)
    )
    assert many < 1.05 * few


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_a_quiet_device_reads_its_weights_and_a_busy_one_computes(name: str) -> None:
    """One token takes the weights over the bandwidth; many take their arithmetic."""
    shape, device = shape_of(LLAMA_8B, "here"), DEVICES[name]
    one, two, many, more = (
        Roofline(shape, device).seconds(tokens=n, sequences=1.0, context_tokens=0.0, prefill_tokens=0.0)
        for n in (1.0, 2.0, 4096.0, 8192.0)
    )
    floor_s = shape.dense_parameters * 2.0 / (device.bytes_per_s * BANDWIDTH_SHARE)
    assert floor_s < one < 1.25 * floor_s
    assert two < 1.01 * one
    assert more / many == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers is '32'"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_local_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9, allowed is up to 8"),
        ({"torch_dtype": "int3"}, "dtype 'int3'"),
        ({"quantization_config": {"quant_method": "magic"}}, "names neither bits nor a known method"),
    ],
)
def test_a_bad_config_is_one_line(change: dict[str, Any], line: str) -> None:
    """File, key and what is allowed."""
    with pytest.raises(ValueError, match=line):
        shape_of({**LLAMA_8B, **change}, "config.json")


def test_a_prior_alone_makes_a_bundle(
    tmp_path: Path, config: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any measurement the tables come from data sheets, and claim no error and no evidence."""
    drafter = tmp_path / "drafter.json"
    drafter.write_text(json.dumps(LLAMA_1B))
    out = tmp_path / "prior.zip"
    args = [
        "--target-config",
        config,
        "--drafter-config",
        drafter,
        "--device",
        "H100",
        "--out",
        out,
        "--json",
    ]
    assert train_verbs("train", *args) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cv_mape_all"] is None
    bundle = read_bundle(out)
    assert bundle.manifest.groups[0].model == "prior"
    assert bundle.manifest.groups[0].relative_error == 1.0
    assert bundle.manifest.evidence == ()
    assert not bundle.table(0, "steps").any()
    step_s = bundle.table(0, "step_s")[0]
    card = bundle.manifest.groups[0]
    assert step_s[0, 0] == pytest.approx(0.0062, rel=0.1)
    assert step_s[0, 4] - step_s[0, 0] == pytest.approx(4 * 0.0013, rel=0.3), "four passes of the drafter"
    assert (np.diff(step_s, axis=1) > 0).all()
    assert card.cv_mape is None


def test_an_unknown_device_is_named(
    config: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Did-you-mean, and all that are known."""
    assert train_verbs("train", "--target-config", config, "--device", "h1000") == 2
    assert "did you mean 'h100'?" in capsys.readouterr().err


def test_a_prior_tells_what_small_batches_cannot() -> None:
    """Batches of 1 to 8 do not show where a device begins to compute; with the prior behind them they do."""
    shape = shape_of(LLAMA_8B, "here")
    forward = Roofline(shape, DEVICES["h100"])
    prior = prior_cells(forward, None, k_max=0, mean_contexts=(0.0,))
    batches = np.array([1.0, 2.0, 3.0, 4.0, 6.0, 8.0])

    def slower(batch: Any) -> Cells:
        cells = shapes(batch, 0.0 * batch)
        seconds = 1.3 * step_seconds(forward, None, cells)
        return replace(cells, seconds=seconds, steps=np.full(len(batch), 100.0))

    seen, unseen = slower(batches), slower(np.array([768.0]))
    candidates = with_prior(prior)
    error = {
        name: float(np.abs(candidates[name](seen).seconds(unseen) / unseen.seconds - 1.0)[0])
        for name in ("physics", "physics, prior")
    }
    assert error["physics"] > 0.4
    assert error["physics, prior"] < 0.25


def test_little_evidence_leans_on_the_prior(
    tmp_path: Path, config: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a prior there are candidates that have it behind them, scored like all others."""
    steps = truth.write(tmp_path / "a.csv", truth.rows(batches=(1, 2, 4, 64)))
    args = ["--step-times", steps, "--target-config", config, "--device", "h100", "--json"]
    assert train_verbs("train", *args) == 0
    scores = json.loads(capsys.readouterr().out)["groups"][0]["scores"]
    assert {"physics", "physics, prior", "physics, jumps, prior"} <= set(scores)


SMALL = ModelShape(1024, 4, 8, 2, 128, 4096, 16384, 2.0, dense_layers=4)


def write_operators(folder: Path) -> None:
    """Operator times of a made-up device, by formulas that the composition does not know."""

    def gemm_ms(m: float, n: float, k: float) -> float:
        return 0.003 + max(2.0 * n * k / 3e12, 2.0 * m * n * k / 8e14) * 1e3

    widths = (1024, 2048, 4096, 8192, 16384)
    gemm = [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency_ms": gemm_ms(m, n, k)}
        for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
        for n in widths
        for k in widths
    ]
    attention = [
        {
            "kv_cache_dtype": "bfloat16",
            "batch_size": batch,
            "isl": isl,
            "step": step,
            "num_heads": 8,
            "num_key_value_heads": 2,
            "latency_ms": 0.005 + batch * (isl + step) * 1024 / 3e12 * 1e3,
        }
        for batch in (1, 4, 16, 64, 256)
        for isl, step in ((1, 0), (1, 127), (1, 1023), (1, 8191))
    ]
    reduce = [
        {"backend": "vllm_graph", "num_gpus": 2, "message_size": size, "latency_ms": 0.004 + size * 1e-8}
        for size in (128, 65536, 16777216)
    ]
    for name, table in {
        "gemm": gemm,
        "decode_attention": attention,
        "prefill_attention": attention,
        "allreduce": reduce,
    }.items():
        truth.write(folder / f"x_toy100_{name}.csv", table)


def test_operators_compose_to_a_forward(tmp_path: Path) -> None:
    """Four products, attention and element-wise work a layer, and the output head once."""
    write_operators(tmp_path)
    tables = OperatorTables(tmp_path, "toy100")
    forward = ComposedForward(tables, SMALL, DEVICES["h100"])
    found = forward.seconds(tokens=16.0, sequences=16.0, context_tokens=16.0 * 1024.0, prefill_tokens=0.0)
    widths = ((1536, 1024), (1024, 1024), (8192, 1024), (1024, 4096))
    products = sum(0.003e-3 + 2.0 * n * k / 3e12 for n, k in widths)
    attention = 0.005e-3 + 16 * 1024 * 1024 / 3e12
    head = 0.003e-3 + 2.0 * 16384 * 1024 / 3e12
    expected = 4 * (products + attention + forward._elementwise_s(16.0)) + head
    assert found == pytest.approx(expected, rel=0.02)
    with pytest.raises(ValueError, match="no decode attention with 9 heads"):
        tables.decode_attention_s(1.0, 128.0, 9, 3)
    with pytest.raises(ValueError, match="no allreduce over 4, it has"):
        tables.allreduce_s(1024.0, 4)
    with pytest.raises(ValueError, match=r"no file \*other\*_gemm.csv"):
        OperatorTables(tmp_path, "other")


MOE: dict[str, Any] = {
    **LLAMA_8B,
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "head_dim": 128,
    "intermediate_size": 6144,
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
}


def test_with_experts_the_best_k_may_rise_with_the_batch(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone, each draft token makes the device read more experts; in a larger batch they are all read anyway.
    A dense model of the same kind hardly differs."""
    drafter = tmp_path / "drafter.json"
    drafter.write_text(json.dumps({**LLAMA_1B, "num_hidden_layers": 1, "vocab_size": 32000}))
    shares = [{"segment": "chat", "position": j, "acceptance": 0.7} for j in range(1, 9)]
    acceptance = truth.write(tmp_path / "acceptance.csv", shares)
    best: dict[str, dict[int, int]] = {}
    dense = {key: value for key, value in MOE.items() if "expert" not in key and "moe" not in key}
    for name, sizes in (("moe", MOE), ("dense", dense)):
        config, out = tmp_path / f"{name}.json", tmp_path / f"{name}.zip"
        config.write_text(json.dumps(sizes))
        args = ["--target-config", config, "--drafter-config", drafter, "--device", "h100"]
        assert train_verbs("train", *args, "--acceptance", acceptance, "--out", out) == 0
        bundle = read_bundle(out)
        ks = best_k(bundle, 0, bundle.manifest.acceptance["chat"])[0].tolist()
        best[name] = dict(zip(bundle.manifest.groups[0].batches, ks, strict=True))
    assert best["moe"][32] >= best["moe"][2] + 3
    assert best["dense"][32] <= best["dense"][2] + 1
    capsys.readouterr()


def test_experts_are_composed_of_their_own_table(tmp_path: Path) -> None:
    """A layer takes attention, its router and what was measured for its experts, the mean over distributions.
    Sizes that are not in the table are refused."""
    write_operators(tmp_path)
    sizes = {"hidden_size": 1024, "inter_size": 512, "topk": 4, "num_experts": 1024, "moe_tp_size": 1}
    rows = [
        {
            "moe_dtype": "bfloat16",
            **sizes,
            "moe_ep_size": 1,
            "num_tokens": n,
            "latency_ms": ms,
        }
        for n in (1, 4, 16, 64)
        for ms in (0.02 * n, 0.04 * n)
    ]
    shape = ModelShape(1024, 4, 8, 2, 128, 4096, 16384, 2.0, 2.0, 1024, 4, 512, dense_layers=1)
    with pytest.raises(ValueError, match=r"no file \*toy100\*_moe.csv"):
        ComposedForward(OperatorTables(tmp_path, "toy100"), shape, DEVICES["h100"])
    truth.write(tmp_path / "x_toy100_moe_small.csv", rows)
    tables = OperatorTables(tmp_path, "toy100")
    forward = ComposedForward(tables, shape, DEVICES["h100"])
    dense = ComposedForward(tables, SMALL, DEVICES["h100"])
    state = {"sequences": 16.0, "context_tokens": 16.0 * 1024.0, "prefill_tokens": 0.0}
    saved = 3 * dense._mlp_s(16.0, 4096) + 4 * (dense._elementwise_s(16.0) - forward._elementwise_s(16.0))
    added = 3 * (16 * 0.03e-3 + tables.gemm_s(16.0, 1024, 1024))
    expected = dense.seconds(tokens=16.0, **state) - saved + added
    assert forward.seconds(tokens=16.0, **state) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match=r"no experts of .*8, 1024, 1.*, it has .*4, 1024, 1"):
        ComposedForward(tables, msgspec.structs.replace(shape, experts_per_token=8), DEVICES["h100"])


def test_deployments_are_compared_and_corrected_on_other_batch_sizes(tmp_path: Path) -> None:
    """A device that is a fifth slower and whose host takes time shows as such, and is learned elsewhere."""
    write_operators(tmp_path)
    tables = OperatorTables(tmp_path, "toy100")
    forward = ComposedForward(tables, SMALL, DEVICES["h100"])

    def deployment(batch: float, output: float) -> Deployment:
        row = Deployment(batch, 512.0, output, 1.0, 1)
        decode_s, prompts_s = tpot_parts_s(forward, row)
        return Deployment(batch, 512.0, output, 1.2 * decode_s + prompts_s + 2e-5 * batch, 1)

    rows = [deployment(batch, output) for batch in (4.0, 8.0, 16.0, 32.0) for output in (64.0, 256.0)]
    report = compare(rows, lambda ways: forward)
    assert report.all.bias < -0.1
    assert report.unseen_batch_sizes.mape < 0.01
    assert report.by_tensor_parallel["1"].rows == len(rows)
    odd = [*rows, Deployment(64.0, 512.0, 64.0, 1.0, 1)]
    assert compare(odd, lambda ways: forward).unseen_batch_sizes.max_error > 0.5, (
        "a wild row is not fitted away"
    )
