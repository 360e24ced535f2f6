"""The simulator's verbs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from steersman_controller.belief.prior import Prior


def simulate(
    trace: Annotated[Path, typer.Option(help="A recording: journal, Parquet, or the folder that holds it.")],
    policy: Annotated[str, typer.Option(help="The policy that steers.")],
    param: Annotated[list[str] | None, typer.Option(help="A parameter of the policy, as name=value.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Chance of the simulated world.")] = 0,
    fit_policies: Annotated[
        str, typer.Option(help="Fit under these policies only, as a,b; by default on all.")
    ] = "",
    arrivals_policies: Annotated[
        str, typer.Option(help="Serve only requests that came under these policies, as a,b.")
    ] = "",
    load: Annotated[float, typer.Option(help="Arrivals this many times as dense.")] = 1.0,
    max_batch: Annotated[int, typer.Option(min=0, help="Slots of the engine; 0: as recorded.")] = 0,
    engine: Annotated[str, typer.Option(help="The recorded engine; by default the first with steps.")] = "",
    bundle: Annotated[
        Path | None,
        typer.Option(help="What the controller believes at first; by default what the recorded one did."),
    ] = None,
    bundle_group: Annotated[str, typer.Option(help="Its group, where it has several.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for result.json and a recording.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Replay a recording's arrivals under a policy, in a world fitted on the recording."""
    from steersman_simulator.report import show as report
    from steersman_simulator.simulate import Settings
    from steersman_simulator.simulate import simulate as run

    settings = Settings(
        trace=trace,
        policy=policy,
        params=_params(param or []),
        seed=seed,
        fit_policies=_words(fit_policies),
        arrivals_policies=_words(arrivals_policies),
        load=load,
        max_batch=max_batch,
        engine_id=engine,
        priors=() if bundle is None else _priors(bundle, bundle_group),
    )
    result, outcome = run(settings)
    if out is not None:
        report.write(out, result, outcome.events)
    if json_output:
        print(report.encode_result(result).decode())
    else:
        report.show(result)


def _priors(bundle: Path, group: str) -> "tuple[Prior, ...]":
    from steersman_controller.train.priors import read_priors

    return read_priors(bundle, group)


def demo(
    workload: Annotated[
        Path | None,
        typer.Option(help="JSONL of prompt or messages, with segment, max_tokens, arrival_s if you like."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=50,
            help="Runs of each arm. Default: 2, or 1 on a machine too slow for 2; with --vllm 5.",
        ),
    ] = None,
    vllm: Annotated[
        Path | None,
        typer.Option(help="Drive real `vllm serve` with this vLLM command instead of our engine."),
    ] = None,
    model: Annotated[str, typer.Option(help="A causal LM: folder or hub id. Default: the bundled one.")] = "",
    out: Annotated[Path | None, typer.Option(help="Empty or new folder. Default: runs/TIME.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Serve a real model under changing load, with drafting off, fixed and steered; measure and simulate.

    Starts an engine and a sidecar of its own, and stops both. Takes about six minutes on two CPU cores.
    With --vllm: vLLM without speculation, with K = 4, with its own table as a sweep tunes it, and steered;
    45 minutes. The adapter must be installed in vLLM's environment.
    """
    from steersman_simulator.demo.command import run_demo

    return run_demo(workload=workload, rounds=rounds, model=model, out=out, as_json=json_output, vllm=vllm)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _params(pairs: list[str]) -> dict[str, str]:
    params = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ValueError(f"--param: {pair!r} is not of the form name=value")
        params[name] = value
    return params
