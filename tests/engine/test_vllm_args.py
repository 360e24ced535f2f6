"""The launch line that `steersman vllm-args` prints, and what it says that the largest K costs."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman_engine.adapters.vllm import memory
from steersman_engine.adapters.vllm.arguments import (
    Launch,
    command,
    cost_lines,
    costs,
    environment,
    shell_lines,
    speculative_config,
)
from steersman_engine.adapters.vllm.table import bands

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "dtype": "float32",
}
LATENT = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "num_nextn_predict_layers": 1,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}


def saved(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_the_line_can_be_pasted() -> None:
    """A shell takes variables and command apart into exactly what was meant, blanks in paths included."""
    launch = Launch(
        "some model",
        k="0,2,4",
        max_num_seqs=8,
        max_model_len=512,
        strict=True,
        engine_id="chat",
        tensor_parallel=2,
    )
    words = shlex.split("\n".join(shell_lines(launch)).replace("\\\n", " "))
    assert words[:3] == ["STEERSMAN_ENGINE_ID=chat", "STEERSMAN_REACHABLE_K=0,2,4", "STEERSMAN_STRICT=1"]
    assert words[3:] == command(launch)
    assert words[3:6] == ["vllm", "serve", "some model"]
    flags = dict(zip(words[6::2], words[7::2], strict=True))
    assert json.loads(flags.pop("--speculative-config")) == speculative_config(launch)
    assert flags == {
        "--max-num-seqs": "8",
        "--max-model-len": "512",
        "--tensor-parallel-size": "2",
        "--scheduler-cls": "steersman_engine.adapters.vllm.SteersmanScheduler",
    }


def test_only_what_differs_from_a_default_is_set() -> None:
    """Without wishes there is no variable to set, and every K up to 8 is in the table."""
    assert environment(Launch("m")) == {}
    config = speculative_config(Launch("m"))
    assert config["num_speculative_tokens"] == 8
    assert {k for _, _, k in config["num_speculative_tokens_per_batch_size"]} == set(range(9))


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (Launch("m"), {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        (Launch("m", prompt_lookup_max=1), {"prompt_lookup_min": 1, "prompt_lookup_max": 1}),
        (Launch("m", prompt_lookup_min=6), {"prompt_lookup_min": 6, "prompt_lookup_max": 6}),
        (Launch("m", method="eagle3", draft_model="d"), {"method": "eagle3", "model": "d"}),
        (Launch("m", method="mtp"), {"method": "mtp"}),
    ],
)
def test_each_method_gets_its_own_keys(launch: Launch, expected: dict[str, Any]) -> None:
    """Prompt look-up has n-gram lengths, drafters of their own have a model, nothing else is added."""
    config = speculative_config(launch)
    common = {"method": launch.method, "num_speculative_tokens": 8}
    del config["num_speculative_tokens_per_batch_size"]
    assert config == common | expected


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch("m", method="ngrm"), "--method: 'ngrm', did you mean 'ngram'"),
        (Launch("m", method="suffix"), "--method: 'suffix'.*can be steered: ngram"),
        (Launch("m", method="eagle"), "--draft-model: needed with --method eagle"),
        (Launch("m", draft_model="d"), "--draft-model: --method ngram has none"),
        (Launch("m", method="mtp", prompt_lookup_max=3), "--method mtp has none"),
        (Launch("m", prompt_lookup_min=5, prompt_lookup_max=3), "--prompt-lookup-min: 5"),
        (Launch("m", k="2,4"), "--k: '2,4' lacks 0"),
        (Launch("m", dtype="bflot16"), "--dtype: 'bflot16', did you mean 'bfloat16'"),
        (Launch("m", method="eagle", draft_model=" "), "--draft-model: ' '; allowed are a local folder"),
        (Launch("m", method="eagle", draft_model="--foo"), "--draft-model: '--foo'"),
        (Launch("m", k="0,4", k_max=8), "--k-max: 8, but the largest of --k is 4"),
        (Launch("m", max_num_seqs=4), "--k 0,3,5,8 or --max-num-seqs 9"),
        (Launch("m", max_num_seqs=1), "raise it to 9"),
        (Launch("m", engine_id="a/b"), "STEERSMAN_ENGINE_ID"),
        (Launch("m", sidecar="tcp://10.0.0.7:1"), "STEERSMAN_SIDECAR"),
    ],
)
def test_options_that_do_not_fit_are_refused(launch: Launch, message: str) -> None:
    """What vLLM or the adapter would refuse at start-up is refused here, in one line."""
    with pytest.raises(ValueError, match=message):
        list(shell_lines(launch))


def test_costs_of_prompt_lookup(tmp_path: Path) -> None:
    """Prompt look-up reserves slots only for the drafts it verifies; a float32 model is halved."""
    found = costs(Launch(saved(tmp_path, LLAMA), max_num_seqs=16))
    assert found is not None
    assert (found.kv_tokens_always, found.kv_tokens_at_k_max) == (0, 16 * 8)
    assert found.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert found.drafter_kv_bytes_per_token == 0
    assert found.logits_bytes == 16 * 9 * 49152 * 4
    assert found.logits_bytes_extra == 16 * 8 * 49152 * 4


def test_costs_of_a_drafter_with_a_cache(tmp_path: Path) -> None:
    """A drafter that writes ahead reserves as many slots again at any K, and takes its part of the pool."""
    target, head = saved(tmp_path / "t", LLAMA), saved(tmp_path / "d", LLAMA | {"num_hidden_layers": 1})
    launch = Launch(target, method="eagle3", draft_model=head, k_max=4, max_num_seqs=10, dtype="float32")
    found = costs(launch)
    assert found is not None
    assert (found.kv_tokens_always, found.kv_tokens_at_k_max) == (40, 80)
    assert (found.kv_bytes_per_token, found.drafter_kv_bytes_per_token) == (46080, 1536)
    text = "\n".join(cost_lines(launch, found))
    assert "80 tokens (3.6 MiB) less for context in steps at K=4, 40 tokens (1.8 MiB) at K=0" in text
    assert "1536 bytes per token, 3.2% of the pool" in text


def test_a_drafter_elsewhere_is_said_to_be_unknown(tmp_path: Path) -> None:
    """A drafter on the hub has costs that nobody can compute here, and the rest is still said."""
    launch = Launch(saved(tmp_path, LLAMA), method="eagle", draft_model="org/head")
    found = costs(launch)
    assert found is not None
    assert found.drafter_kv_bytes_per_token is None
    assert any("unknown, org/head is no local folder" in line for line in cost_lines(launch, found))


def test_latent_attention_keeps_one_vector(tmp_path: Path) -> None:
    """Latent attention keeps one vector per layer on every GPU; MTP layers come from the same file."""
    found = costs(Launch(saved(tmp_path, LATENT), method="mtp", tensor_parallel=4))
    assert found is not None
    assert (found.kv_bytes_per_token, found.drafter_kv_bytes_per_token) == (3 * 80 * 2, 80 * 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"kv_lora_rank": 64, "model_type": "novel"}, "latent attention of 'novel'"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"layer_types": 7}, "layer_types: 7"),
        ({"layer_types": [["a"], 1]}, "layer_types"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_cannot_be_computed_is_not_guessed(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    """Where layers differ there is no figure but a reason, and the other costs are still there."""
    launch = Launch(saved(tmp_path, LLAMA | change))
    found = costs(launch)
    assert found is not None
    assert found.kv_bytes_per_token is None
    assert reason in found.kv_unknown
    assert any(reason in line for line in cost_lines(launch, found))
    assert found.logits_bytes


def test_heads_are_shared_among_gpus_and_copied_when_too_few() -> None:
    """Each GPU keeps its part of the KV heads, at least one."""
    by_gpus = [memory.kv_bytes_per_token(LLAMA, dtype="half", tensor_parallel=n) for n in (1, 3, 9)]
    assert by_gpus == [3 * 7680, 7680, 7680]


def test_parts_of_a_larger_model_are_found(tmp_path: Path) -> None:
    """A model that also sees keeps its language part in a section of its own."""
    folder = saved(tmp_path, {"model_type": "vision", "text_config": LLAMA})
    assert memory.read_model(Path(folder))["num_hidden_layers"] == 30


# What vLLM 0.32.0's own _set_cudagraph_sizes and _init_candidates give.
@pytest.mark.parametrize(
    ("ks", "max_num_seqs", "by_k", "without"),
    [
        ((0, 2, 4, 8), 256, {0: 44, 2: 52, 4: 49, 8: 44}, 44),
        (tuple(range(9)), 256, {0: 49, 1: 61, 2: 55, 3: 55, 4: 53, 5: 49, 6: 50, 7: 49, 8: 44}, 44),
        ((0, 2, 4, 8), 16, {0: 11, 2: 10, 4: 12, 8: 16}, 16),
    ],
)
def test_graphs_are_counted_as_vllm_does(
    ks: tuple[int, ...], max_num_seqs: int, by_k: dict[int, int], without: int
) -> None:
    """The number of graphs for each K is that of vLLM's own code."""
    lookup = [0, *(k for first, last, k in bands(ks, max_num_seqs) for _ in range(first, last + 1))]
    found = memory.graph_cost(lookup, ks[-1], max_num_seqs)
    assert (found.sizes_by_k, found.without_table) == (by_k, without)
    assert found.extra == sum(by_k.values()) - without


def test_a_model_elsewhere_has_no_costs_and_one_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """A hub id gets its flags and one line about costs; a path to nowhere is a mistake."""
    launch = Launch("org/model")
    assert costs(launch) is None
    assert len(list(cost_lines(launch, None))) == 1
    with pytest.raises(ValueError, match="MODEL: there is no folder"):
        costs(Launch(str(tmp_path / "nowhere")))
    with pytest.raises(OSError, match=r"config\.json"):
        costs(Launch(str(tmp_path)))


def test_every_figure_is_called_computed(tmp_path: Path) -> None:
    """No reader can take a figure for a measurement: each line with a size or a count says computed."""
    launch = Launch(saved(tmp_path, LLAMA), method="mtp", max_model_len=512)
    lines = list(cost_lines(launch, costs(launch)))
    assert all(line.startswith("# ") for line in lines)
    figures = [line for line in lines if "MiB" in line or "graphs of the target" in line or "tokens" in line]
    assert len(figures) >= 4
    assert all("(computed)" in line for line in figures)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "steersman_controller", "vllm-args", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_verb_prints_one_json_object(tmp_path: Path) -> None:
    """With --json there is one object: variables, command, line, table, costs."""
    done = run(saved(tmp_path, LLAMA), "--k", "0,2,4", "--max-num-seqs", "8", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["environment"] == {"STEERSMAN_REACHABLE_K": "0,2,4"}
    assert found["reachable_k"] == [0, 2, 4]
    assert found["speculative_config"]["num_speculative_tokens_per_batch_size"] == [
        [1, 2, 4],
        [3, 4, 2],
        [5, 8, 0],
    ]
    assert found["costs"]["kv_tokens_at_k_max"] == 32
    assert found["command"][:2] == ["vllm", "serve"]


def test_the_verb_prints_lines_to_paste_and_one_line_for_a_mistake(tmp_path: Path) -> None:
    """Standard output can be pasted whole, since costs are comments; a mistake is one line and code 2."""
    done = run(saved(tmp_path, LLAMA), "--k-max", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("vllm serve ")
    assert shlex.split(done.stdout.replace("\\\n", " "), comments=True)[-2] == "--speculative-config"
    wrong = run("org/model", "--method", "suffix")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("steersman: --method: 'suffix'")
    assert wrong.stderr.count("\n") == 1


def test_a_vocabulary_of_unknown_size_leaves_the_other_costs(tmp_path: Path) -> None:
    """A model may describe its language part where nobody expects it."""
    launch = Launch(saved(tmp_path, LLAMA | {"vocab_size": None}))
    found = costs(launch)
    assert found is not None
    assert (found.logits_bytes, found.logits_bytes_extra) == (None, None)
    assert found.kv_bytes_per_token
    assert any("vocab_size" in line for line in cost_lines(launch, found))


def test_what_is_neither_folder_nor_hub_id_is_refused() -> None:
    """An empty name would be this very folder, and a dash an option of vLLM's."""
    for name in ("", " ", "--foo"):
        with pytest.raises(ValueError, match="MODEL: "):
            costs(Launch(name))
