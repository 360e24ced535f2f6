"""The ways in which vLLM is launched, and a server of each."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from steersman_simulator.demo.live import View
from steersman_simulator.demo.processes import Children, free_port
from steersman_simulator.demo.serving import Sidecar, Stack, wait_connected
from steersman_simulator.demo.vllm.program import ADAPTER, Program, ask_steersman

START_S = 600.0
"""A first start compiles the model."""

MODEL_NAME = "target"
MAX_NUM_SEQS = 16
MAX_MODEL_LEN = 2048
DTYPE = "float32"
K_MAX = 8
STATIC_K = 4
LOOKUP_MIN, LOOKUP_MAX = 2, 4

Table = tuple[tuple[int, int, int], ...]
"""First batch, last batch, K."""

DEFAULTS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""For whoever has not set them: 1 GiB of cache for each of several servers, and no phoning home."""


class Launch(Struct, frozen=True):
    """A way of launching vLLM under the name of its engine."""

    engine_id: str
    speculative: dict[str, Any] = {}
    """vLLM's speculative configuration; empty: without speculation."""

    def command(self, program: Program, model: str, port: int) -> list[str]:
        """What is run. Prefixes are not cached: rounds would teach the servers each other's prompts."""
        command = [
            *(str(program.vllm), "serve", model, f"--served-model-name={MODEL_NAME}"),
            *("--host=127.0.0.1", f"--port={port}", f"--dtype={DTYPE}"),
            *(f"--max-model-len={MAX_MODEL_LEN}", f"--max-num-seqs={MAX_NUM_SEQS}"),
            *("--no-enable-prefix-caching", f"--scheduler-cls={ADAPTER}.SteersmanScheduler"),
        ]
        if self.speculative:
            command += ["--speculative-config", json.dumps(self.speculative)]
        return command


def prompt_lookup(k: int, table: Table = ()) -> dict[str, Any]:
    """vLLM's speculative configuration for n-gram drafts of up to `k` tokens."""
    by_batch = {"num_speculative_tokens_per_batch_size": table} if table else {}
    lookup = {"prompt_lookup_min": LOOKUP_MIN, "prompt_lookup_max": LOOKUP_MAX}
    return {"method": "ngram", "num_speculative_tokens": k, **lookup, **by_batch}


def steerable(model: str) -> Launch:
    """What `steersman vllm-args` says for this model. Raises ValueError where that verb refuses it."""
    shape = [f"--k-max={K_MAX}", f"--max-num-seqs={MAX_NUM_SEQS}", f"--max-model-len={MAX_MODEL_LEN}"]
    lookup = [f"--prompt-lookup-min={LOOKUP_MIN}", f"--prompt-lookup-max={LOOKUP_MAX}"]
    said = ask_steersman(["vllm-args", model, *shape, *lookup, f"--dtype={DTYPE}"])
    return Launch(STEERED, said["speculative_config"])


def tuned(table: Table) -> Launch:
    """vLLM's own batch table. A table of zeros only still needs a drafter to be launched with."""
    return Launch("table", prompt_lookup(max(1, *(k for _, _, k in table)), table))


OFF = Launch("off")
STATIC = Launch(f"static{STATIC_K}", prompt_lookup(STATIC_K))
STEERED = "steered"


class Servers:
    """Starts vLLM after vLLM, all beside one sidecar."""

    def __init__(
        self, program: Program, model: str, *, sidecar: Sidecar, children: Children, folder: Path, state: Path
    ) -> None:
        self.commands: dict[str, Sequence[str]] = {}
        """What was run, by engine."""
        self._program = program
        self._model = model
        self._sidecar = sidecar
        self._children = children
        self._folder = folder
        self._state = state

    def start(self, launch: Launch, view: View) -> Stack:
        """A server that answers and is known to the sidecar. Raises ChildError."""
        name, port = launch.engine_id, free_port()
        base_url = f"http://127.0.0.1:{port}"
        view.stage(f"starting vLLM for {name} ({base_url})")
        command = launch.command(self._program, self._model, port)
        self.commands[name] = command
        log = self._folder / f"vllm-{name}.log"
        child = self._children.run(f"vLLM for {name}", command, log, env=self._environment(name, os.environ))
        model = wait_connected(child, base_url, self._sidecar, name, START_S)
        return Stack(name, base_url, model, self._sidecar.admin, MAX_NUM_SEQS, vllm_xargs)

    def _environment(self, engine_id: str, present: Mapping[str, str]) -> dict[str, str]:
        defaults = dict(DEFAULTS)
        if Path(self._model).is_dir():
            defaults["HF_HUB_OFFLINE"] = "1"
        return {name: value for name, value in defaults.items() if name not in present} | {
            "STEERSMAN_ENGINE_ID": engine_id,
            "STEERSMAN_SIDECAR": self._sidecar.telemetry,
            "STEERSMAN_STATE_DIR": str(self._state),
            # Some arms are launched so that nobody could steer them.
            "STEERSMAN_STRICT": "0",
        }


def vllm_xargs(segment: str) -> dict[str, Any]:
    """How a segment travels through vLLM's OpenAI server to the adapter."""
    return {"vllm_xargs": {"steersman_segment": segment}}
