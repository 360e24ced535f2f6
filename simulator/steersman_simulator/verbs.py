"""The simulator's verbs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from steersman_controller.belief.prior import Prior


def simulate(
    scenario: Annotated[Path | None, typer.Argument(help="A YAML file; see docs/simulate.md.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Instead: a recording (journal, Parquet, or their folder), to fit and serve."),
    ] = None,
    policy: Annotated[str, typer.Option(help="The policy that steers; by default the scenario's.")] = "",
    param: Annotated[list[str] | None, typer.Option(help="A parameter of the policy, as name=value.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Chance of the simulated world; default 0.")] = None,
    load: Annotated[float | None, typer.Option(help="Arrivals so many times as dense; default 1.")] = None,
    changed: Annotated[
        list[str] | None, typer.Option("--set", help="A key of the scenario, as dotted.key=value.")
    ] = None,
    example: Annotated[str, typer.Option(help="Print an example scenario: NAME, or list.")] = "",
    fit_policies: Annotated[
        str, typer.Option(help="With --trace: fit under these policies only, as a,b; by default on all.")
    ] = "",
    arrivals_policies: Annotated[
        str, typer.Option(help="With --trace: serve only requests that came under these policies, as a,b.")
    ] = "",
    max_batch: Annotated[int | None, typer.Option(min=0, help="With --trace: slots; 0: as recorded.")] = None,
    engine: Annotated[str, typer.Option(help="With --trace: which engine; default: the first one.")] = "",
    bundle: Annotated[
        Path | None,
        typer.Option(help="With --trace: what the controller believes at first; default: as recorded."),
    ] = None,
    bundle_group: Annotated[str, typer.Option(help="Its group, where it has several.")] = "",
    journal: Annotated[bool, typer.Option(help="With --out: also a recording, held in memory.")] = True,
    trace_events: Annotated[
        int, typer.Option(min=0, help="With --out: at most so many events in trace.json; 0: none.")
    ] = 500_000,
    exact_itl: Annotated[
        bool, typer.Option(help="Exact inter-token latencies; memory for every delivery.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for the result and everything about it.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Serve a workload on a virtual clock, under the real controller and a policy.

    From a scenario: workload, engine, what steps take, what is accepted, policy. Or, in short, from a
    recording: fit the world on it and replay its arrivals under another policy.
    """
    from steersman_simulator.command import print_example, simulate_recording, simulate_scenario

    if example:
        print_example(example)
    elif (scenario is None) == (trace is None):
        raise ValueError("simulate: needs a SCENARIO or --trace RECORDING; see --example list")
    elif scenario is not None:
        only = {
            "--fit-policies": fit_policies,
            "--arrivals-policies": arrivals_policies,
            "--max-batch": max_batch,
            "--engine": engine,
            "--bundle": bundle,
            "--bundle-group": bundle_group,
        }
        _refuse(only, "goes with --trace; a scenario has keys for it")
        keys: dict[str, Any] = {
            "policy.name": policy or None,
            "policy.params": _settings(param or [], "--param", "name=value") or None,
        }
        keys |= {"seed": seed, "workload.load": load}
        given = {key: value for key, value in keys.items() if value is not None}
        simulate_scenario(
            scenario,
            _settings(changed or [], "--set", "dotted.key=value") | given,
            out=out,
            journal=journal,
            trace_events=trace_events,
            deliveries=exact_itl,
            as_json=json_output,
        )
    elif trace is not None:
        _refuse({"--set": changed}, "goes with a scenario")
        if not policy:
            raise ValueError("simulate: --trace needs a --policy")
        from steersman_simulator.simulate import Settings

        settings = Settings(
            trace=trace,
            policy=policy,
            params=_settings(param or [], "--param", "name=value"),
            seed=seed or 0,
            fit_policies=_words(fit_policies),
            arrivals_policies=_words(arrivals_policies),
            load=1.0 if load is None else load,
            max_batch=max_batch or 0,
            engine_id=engine,
            priors=() if bundle is None else _priors(bundle, bundle_group),
        )
        simulate_recording(settings, out, json_output)


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value:
            raise ValueError(f"{name}: {why}")


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


def _settings(pairs: list[str], option: str, form: str) -> dict[str, Any]:
    import yaml

    from steersman_controller.sidecar.config import parse_yaml

    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise ValueError(f"{option}: {pair!r} is not of the form {form}")
        try:
            found[key] = parse_yaml(value)
        except yaml.YAMLError:
            raise ValueError(f"{option}: {value!r} is not YAML") from None
    return found
