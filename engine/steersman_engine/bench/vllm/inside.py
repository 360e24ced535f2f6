"""What runs with vLLM's interpreter: ``python -m steersman_engine.bench.vllm.inside SPEC``.

Nothing but the standard library, msgspec, pyzmq and vLLM is imported here. What vLLM prints goes where
this process prints; progress and result go through the spec's channel.
"""

import json
import os
import sys

import msgspec

from steersman_engine.bench.vllm.spec import Spec


def main(arguments: list[str]) -> int:
    """Run one part; the exit code."""
    spec = msgspec.json.decode(arguments[0], type=Spec)
    os.set_inheritable(spec.channel, False)
    os.environ |= {
        "STEERSMAN_SIDECAR": spec.endpoint,
        "STEERSMAN_STATE_DIR": f"{spec.folder}/state",
        # The engine's core runs in this process, so that the hook can be reached.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    with os.fdopen(spec.channel, "w", buffering=1) as channel:

        def tell(**message: object) -> None:
            print(json.dumps(message), file=channel)

        try:
            if spec.sizes.part == "driven":
                from steersman_engine.bench.vllm.driven import run
            else:
                from steersman_engine.bench.vllm.live import run
            import vllm

            result = run(spec, lambda line: tell(progress=line))
            tell(result={**result, "vllm_version": vllm.__version__})
        except Exception as error:
            tell(error=f"{type(error).__name__}: {error}")
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
