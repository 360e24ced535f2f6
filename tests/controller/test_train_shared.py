"""Figures on public measurements that are not part of the repository; skipped without them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from test_train_prior import LLAMA_8B

DATA = Path(os.environ.get("STEERSMAN_SHARED", Path(__file__).parents[3] / "shared")) / "data"
CHOICES = DATA / "specdec" / "vllm_qwen3-32b_h100_k_by_concurrency.csv"
PROFILES = DATA / "profiles"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the public measurements in ../shared/data")

Run = Callable[..., int]


@pytest.mark.slow
def test_k_by_concurrency(train_verbs: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """323 serving runs of three drafters: errors on concurrencies left out, and regret of the chosen K."""
    columns = (
        "batch_size=concurrency,num_draft_tokens=num_spec_tokens,step_ms=median_itl_ms,"
        "throughput_tok_s=output_tok_s,position_survival=per_position_accept_pct"
    )
    args = ["--step-times", CHOICES, "--columns", columns, "--by", "draft_model,dataset"]
    assert train_verbs("train", *args, "--evaluate-choice", "dataset", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["groups"]) == 6
    assert found["cv_mape_to_64"] <= 0.04
    assert found["cv_mape_all"] <= 0.08
    assert found["affine_cv_mape_all"] > found["cv_mape_all"]
    choice = found["choice"]
    assert choice["learned"]["max_regret_to_64"] <= 0.04
    for rule, score in choice["naive"].items():
        assert choice["learned"]["mean_regret"] < score["mean_regret"], rule


def test_operators_against_measured_deployments(
    tmp_path: Path, train_verbs: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama-3.1-8B on H100: composed operators, the data sheet, and batch sizes that were not fitted on."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_8B))
    args = [
        *("--target-config", config, "--device", "h100", "--operators", PROFILES),
        *("--measured", PROFILES / "aic_e2e_ttft_tpot_h100_sxm.csv"),
        *("--measured-columns", "input_tokens=isl,output_tokens=osl,tpot_ms=silicon_tpot_ms"),
        *("--measured-columns", "tensor_parallel=tp_size"),
        *("--measured-where", "model_path=meta-llama/Llama-3.1-8B-Instruct", "--json"),
    ]
    assert train_verbs("train", *args) == 0
    tpot = json.loads(capsys.readouterr().out)["prior"]["tpot"]
    assert tpot["operators"]["all"]["rows"] == 177
    assert tpot["operators"]["all"]["mape"] <= 0.15
    assert tpot["operators"]["by_tensor_parallel"]["1"]["mape"] <= 0.08
    assert tpot["operators"]["unseen_batch_sizes"]["mape"] <= 0.08
    assert tpot["datasheet"]["all"]["mape"] <= 0.25
