"""How vLLM is found, launched and told about segments; bad options are refused before anything starts."""

import json
import sys
from pathlib import Path

import pytest

from steersman_simulator.demo.client import request_body
from steersman_simulator.demo.command import run_demo
from steersman_simulator.demo.schedule import Request
from steersman_simulator.demo.vllm.launch import OFF, STATIC, Launch, steerable, tuned, vllm_xargs
from steersman_simulator.demo.vllm.program import Program, find_program
from steersman_simulator.demo.workload import WorkItem

PROGRAM = Program(Path("/venv/bin/vllm"), Path("/venv/bin/python"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model's configuration."""
    folder = tmp_path_factory.mktemp("model")
    shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 8}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, **shape}
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


def speculation(launch: Launch) -> dict[str, object] | None:
    """What follows --speculative-config on the command line."""
    command = launch.command(PROGRAM, "model", 1)
    if "--speculative-config" not in command:
        return None
    found: dict[str, object] = json.loads(command[command.index("--speculative-config") + 1])
    return found


def fake_vllm(folder: Path, *, adapter: bool) -> Path:
    """A command with an interpreter beside it, in which the adapter can be imported or not."""
    folder.mkdir()
    vllm, python = folder / "vllm", folder / "python"
    vllm.write_text("#!/bin/sh\n")
    code = "pass" if adapter else "raise ModuleNotFoundError('no adapter')"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    for path in (vllm, python):
        path.chmod(0o755)
    return vllm


def test_arms_differ_in_speculation_alone(model: Path) -> None:
    """Off has none, static has no table, steered holds every K; all else on the command line is the same."""
    assert speculation(OFF) is None
    static, steered = speculation(STATIC), speculation(steerable(str(model)))
    assert static is not None
    assert steered is not None
    assert (static["num_speculative_tokens"], "num_speculative_tokens_per_batch_size" in static) == (4, False)
    table = steered["num_speculative_tokens_per_batch_size"]
    assert {k for _, _, k in table} == set(range(9))  # type: ignore[attr-defined]
    rest = [launch.command(PROGRAM, "model", 1)[:-2] for launch in (STATIC, steerable(str(model)))]
    assert rest[0] == rest[1] == OFF.command(PROGRAM, "model", 1)
    assert "--no-enable-prefix-caching" in rest[0]


def test_table_of_the_steered_launch_is_whole(model: Path) -> None:
    """First and last batch meet without gap or overlap, up to the largest batch."""
    table = speculation(steerable(str(model)))["num_speculative_tokens_per_batch_size"]  # type: ignore[index]
    batches = [n for first, last, _ in table for n in range(first, last + 1)]  # type: ignore[attr-defined]
    assert batches == list(range(1, 17))


def test_tuned_table_without_any_drafts_can_still_be_launched() -> None:
    """vLLM needs at least one speculative token to have a table at all."""
    zeros = speculation(tuned(((1, 16, 0),)))
    assert zeros is not None
    assert zeros["num_speculative_tokens"] == 1
    assert zeros["num_speculative_tokens_per_batch_size"] == [[1, 16, 0]]
    assert speculation(tuned(((1, 8, 2), (9, 16, 0))))["num_speculative_tokens"] == 2  # type: ignore[index]


def test_segment_travels_where_vllm_hands_it_on() -> None:
    """vLLM passes on `vllm_xargs` and nothing else; an untagged request has none."""
    tagged = Request(0, "quiet", 0.0, WorkItem(prompt="x", segment="chat"))
    assert request_body(tagged, "m", vllm_xargs)[1]["vllm_xargs"] == {"steersman_segment": "chat"}
    assert "segment" not in request_body(tagged, "m", vllm_xargs)[1]
    plain = Request(0, "quiet", 0.0, WorkItem(prompt="x"))
    assert "vllm_xargs" not in request_body(plain, "m", vllm_xargs)[1]


def test_model_that_is_refused_is_told_in_the_words_of_the_verb(tmp_path: Path) -> None:
    """`steersman vllm-args` knows what is wrong with a model; its line is passed on."""
    with pytest.raises(ValueError, match=r"steersman vllm-args: .*nowhere"):
        steerable(str(tmp_path / "nowhere"))


def test_vllm_with_the_adapter_is_found(tmp_path: Path) -> None:
    """The interpreter is the one beside the command."""
    vllm = fake_vllm(tmp_path / "bin", adapter=True)
    assert find_program(vllm) == Program(vllm, vllm.parent / "python")


def test_missing_adapter_is_one_line_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """What is missing, where, and the one command."""
    vllm = fake_vllm(tmp_path / "bin", adapter=False)
    with pytest.raises(ValueError, match="no adapter") as error:
        find_program(vllm)
    assert str(error.value).endswith(f"{vllm.parent / 'python'} -m pip install --no-deps steersman")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["missing", "a folder", "not executable", "lonely"])
def test_what_is_no_vllm_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A wrong path is one clear line, and no folder is made for a demo that cannot run."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "vllm"
    if kind == "a folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755 if kind == "lonely" else 0o644)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=r"^--vllm: .*allowed is"):
        run_demo(workload=None, rounds=1, model="", out=None, as_json=False, vllm=path)
    assert sorted(tmp_path.rglob("*")) == before


def test_small_workload_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Two prompts cannot both tune and compare."""
    workload = tmp_path / "mine.jsonl"
    workload.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    vllm = fake_vllm(tmp_path / "bin", adapter=True)
    with pytest.raises(ValueError, match="--workload: 2 requests"):
        run_demo(workload=workload, rounds=1, model="", out=tmp_path / "out", as_json=False, vllm=vllm)
    assert not (tmp_path / "out").exists()
