"""vLLM as a library with its worker in the scheduler's own process, where both hold the same lists.

``python in_process.py MODEL FOLDER`` runs with vLLM's interpreter. Prints what vLLM used as an executor, and
why the adapter stopped, which should be empty.
"""

import os
import sys


def main(model: str, folder: str) -> None:
    """Two requests of different lengths, the second of them joining and leaving in between."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "STEERSMAN_SIDECAR": f"ipc://{folder}/nobody.ipc",
        "STEERSMAN_STATE_DIR": folder,
    }
    from vllm import EngineArgs, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype="float32",
            max_model_len=512,
            max_num_seqs=5,
            enforce_eager=True,
            distributed_executor_backend="uni",
            scheduler_cls="steersman_engine.adapters.vllm.SteersmanScheduler",
            speculative_config={
                "method": "ngram",
                "num_speculative_tokens": 4,
                "num_speculative_tokens_per_batch_size": [[n, n, 5 - n] for n in range(1, 6)],
            },
        )
    )
    core = engine.engine_core.engine_core
    prompt = "one two three four five six seven eight " * 6
    engine.add_request("a", prompt, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    steps = 0
    while engine.has_unfinished_requests():
        engine.step()
        steps += 1
        if steps == 3:
            engine.add_request("b", prompt, SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True))
    print("STOPPED" if core.scheduler._hook is None else "WENT ON", type(core.model_executor).__name__)
    sys.stdout.flush()
    os._exit(0)  # vLLM's processes and threads end here


if __name__ == "__main__":
    main(*sys.argv[1:])
