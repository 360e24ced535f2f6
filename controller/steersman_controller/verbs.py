"""The sidecar's verbs. Light on purpose: everything heavy is imported inside the functions."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Admin = Annotated[str, typer.Option(help="Admin endpoint of the sidecar; default: this user's.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.0, max=86_400.0, help="Seconds to wait for answers.")
]
Params = Annotated[list[str] | None, typer.Option("--param", help="A policy parameter, as key=value.")]


def serve(
    config: Annotated[Path | None, typer.Option(help="YAML file; see `steersman schema`.")] = None,
    telemetry: Annotated[str | None, typer.Option(help="Endpoint that engines connect to.")] = None,
    admin: Annotated[str | None, typer.Option(help="Endpoint of the operator's verbs.")] = None,
    record: Annotated[Path | None, typer.Option(help="Record everything into this folder.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Keep what was learned in this folder.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="On 127.0.0.1; 0 for no metrics.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="The policy to begin with; an engine known in --state-dir keeps its own."),
    ] = None,
    param: Params = None,
    bundle: Annotated[
        Path | None, typer.Option(help="What to believe at first: a file made by `steersman train`.")
    ] = None,
    bundle_group: Annotated[str | None, typer.Option(help="Its group, as a/b, where it has several.")] = None,
    target_config: Annotated[
        Path | None, typer.Option(help="Without a bundle: the target's config.json, with --device.")
    ] = None,
    drafter_config: Annotated[Path | None, typer.Option(help="The drafter's config.json.")] = None,
    device: Annotated[
        str | None, typer.Option(help="h100, a100, ... as `steersman train` knows them.")
    ] = None,
    tensor_parallel: Annotated[int | None, typer.Option(help="Devices that share the target.")] = None,
    segments: Annotated[
        Path | None, typer.Option(help="How requests are sorted: a bundle with a segmenter, or YAML.")
    ] = None,
    steer: Annotated[bool, typer.Option("--steer", help="Act; without it plans are only logged.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow other machines to connect.")] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print it and exit.")] = False,
    as_json: Json = False,
) -> int:
    """Run the sidecar: learn from engines, send them plans and leases. Shadow mode unless --steer.

    Flags override STEERSMAN__SECTION__KEY in the environment, which overrides the file.
    """
    # The engine needs the cores; this must be said before numpy is imported.
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    from steersman_controller.sidecar.config import read_config

    flags: dict[str, Any] = {
        "telemetry": telemetry,
        "admin": admin,
        "record": None if record is None else str(record),
        "state_dir": None if state_dir is None else str(state_dir),
        "segments": None if segments is None else str(segments),
        "metrics_port": metrics_port,
        "policy.name": policy,
        "policy.params": _params(param) or None,
        "prior.bundle": None if bundle is None else str(bundle),
        "prior.group": bundle_group,
        "prior.target_config": None if target_config is None else str(target_config),
        "prior.drafter_config": None if drafter_config is None else str(drafter_config),
        "prior.device": device,
        "prior.tensor_parallel": tensor_parallel,
        "controller.mode": "steer" if steer else None,
        "insecure": True if insecure else None,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    read = read_config(config, os.environ, given)
    if print_config:
        return _print_config(read, as_json)
    from steersman_controller.sidecar.serving import serve as serve_sidecar

    return serve_sidecar(read, as_json=as_json)


def policy_push(
    name: Annotated[str, typer.Argument(help="The policy's name.")],
    param: Params = None,
    engine: Annotated[str, typer.Option(help="One engine; default: all, and later ones.")] = "",
    admin: Admin = "",
    timeout_s: Timeout = 10.0,
    as_json: Json = False,
) -> int:
    """Put a policy in force on a running sidecar, and wait until the engines have acknowledged it.

    A wrong name or parameter is refused (NACK) and nothing changes. Exit code 1 on any NACK or timeout.
    """
    from steersman_controller.sidecar.admin import PolicyRequest

    params = _params(param)
    wanted = PolicyRequest(policy=name, params=params, engine_id=engine)
    return _change(wanted, {"policy": name, "params": params}, admin, timeout_s, as_json)


def policy_status(admin: Admin = "", timeout_s: Timeout = 5.0, as_json: Json = False) -> int:
    """Show the sidecar, and for each engine its policy, its plan and what the engine said to it."""
    import msgspec

    from steersman_controller.console import status_lines
    from steersman_controller.sidecar.push import status

    found = status(_endpoint(admin), timeout_s)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found)))
    else:
        print("\n".join(status_lines(found)))
    return 0


def pause(
    engine: Annotated[str, typer.Argument(help="The engine's id.")] = "",
    all_engines: Annotated[bool, typer.Option("--all", help="Every engine, and later ones.")] = False,
    admin: Admin = "",
    timeout_s: Timeout = 10.0,
    as_json: Json = False,
) -> int:
    """Give an engine its launch setting back at once; learning goes on."""
    return _mode("pause", engine, all_engines, admin, timeout_s, as_json)


def resume(
    engine: Annotated[str, typer.Argument(help="The engine's id.")] = "",
    all_engines: Annotated[bool, typer.Option("--all", help="Every engine, and later ones.")] = False,
    admin: Admin = "",
    timeout_s: Timeout = 10.0,
    as_json: Json = False,
) -> int:
    """Put an engine back into the mode that the sidecar was started in (shadow, or --steer)."""
    return _mode("resume", engine, all_engines, admin, timeout_s, as_json)


def doctor_vllm(
    engine: Annotated[str, typer.Option(help="One engine; default: every vLLM engine.")] = "",
    admin: Admin = "",
    state_dir: Annotated[
        Path | None,
        typer.Option(help="The engine's: where its pause file and fallback table live."),
    ] = None,
    timeout_s: Timeout = 5.0,
    as_json: Json = False,
) -> int:
    """Say whether vLLM is steered, and why not: ok, note or problem by line, and what to do about it.

    Looks for about a second. Exit code 1 where anything is a problem.
    """
    import msgspec

    from steersman_controller.console import examination_lines
    from steersman_controller.doctor import examine_vllm
    from steersman_controller.state_dir import default_state_dir

    if state_dir is not None and not state_dir.is_dir():
        raise ValueError(f"--state-dir: no folder {state_dir}; it is the engine's STEERSMAN_STATE_DIR")
    folder = default_state_dir(os.environ) if state_dir is None else state_dir
    found = examine_vllm(_endpoint(admin), folder, timeout_s, engine)
    print(json.dumps(msgspec.to_builtins(found)) if as_json else "\n".join(examination_lines(found)))
    return 0 if found.is_well else 1


def schema(as_json: Json = False) -> int:
    """Print the JSON Schema of the records on the wire, of the recording and of the configuration."""
    from steersman_controller.schemas import schemas

    print(json.dumps(schemas(), indent=None if as_json else 2))
    return 0


def trace_inspect(
    path: Annotated[
        Path, typer.Argument(help="A recording (folder, journal.bin, trace.parquet), or an acceptance trace.")
    ],
    as_json: Json = False,
) -> int:
    """Say what a recording holds: events, engines, seconds, segments, policies, and what was lost.

    Of an exact acceptance trace: requests, drafters, and what a few K would have brought.
    """
    from steersman_controller.trace.acceptance_facts import acceptance_lines, acceptance_summary
    from steersman_controller.trace.inspection import summary, summary_lines
    from steersman_controller.trace.recording import read_recording
    from steersman_policies.acceptance_trace import is_acceptance_trace

    if is_acceptance_trace(path):
        facts = acceptance_summary(path)
        print(json.dumps(facts) if as_json else "\n".join(acceptance_lines(facts)))
        return 0
    recording = read_recording(path)
    if recording.warning is not None:
        print(f"steersman: {recording.warning}", file=sys.stderr)
    found = summary(recording)
    print(json.dumps(found) if as_json else "\n".join(summary_lines(found)))
    return 0


def bench_belief(
    reports: Annotated[
        int, typer.Option(min=1_000, max=10_000_000, help="Reports to learn from.")
    ] = 1_000_000,
    frames: Annotated[int, typer.Option(min=1_000, help="Frames to send through a socket.")] = 60_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the reports.")] = 0,
    as_json: Json = False,
) -> int:
    """Measure what learning and planning cost, from the socket to the next plan (two minutes)."""
    # One core is what is measured; this must be said before numpy is imported.
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")
    from steersman_controller.bench.belief import run

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    result = run(reports=reports, frames=frames, seed=seed, progress=progress)
    print(json.dumps(result, indent=None if as_json else 2))
    return 0 if result["passed"] else 1


def _mode(action: str, engine: str, all_engines: bool, admin: str, timeout_s: float, as_json: bool) -> int:
    from steersman_controller.sidecar.admin import ModeRequest

    if bool(engine) == all_engines:
        raise ValueError(f"{action}: name one ENGINE, or use --all")
    wanted = ModeRequest(action="pause" if action == "pause" else "resume", engine_id=engine)
    return _change(wanted, {"action": action}, admin, timeout_s, as_json)


def _change(wanted: Any, named: dict[str, Any], admin: str, timeout_s: float, as_json: bool) -> int:
    import msgspec

    from steersman_controller.console import outcome_lines
    from steersman_controller.sidecar.push import request

    outcome = request(_endpoint(admin), wanted, timeout_s)
    if as_json:
        print(json.dumps({**named, **msgspec.to_builtins(outcome)}))
    elif not outcome.accepted:
        print(f"steersman: NACK: {outcome.reason}", file=sys.stderr)
    else:
        print("\n".join(outcome_lines(outcome)))
    return 0 if outcome.is_done else 1


def _endpoint(admin: str) -> str:
    from steersman_controller.sidecar.endpoints import default_endpoint

    return admin or default_endpoint("admin")


def _params(given: list[str] | None) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"--param: {text!r} is not key=value")
        try:
            params[key] = json.loads(value)
        except ValueError:  # JSONDecodeError, and an integer of more than 4,300 digits
            params[key] = value
    return params


def _print_config(config: Any, as_json: bool) -> int:
    import yaml

    from steersman_controller.sidecar.shape import plain

    tree = plain(config)
    print(json.dumps(tree) if as_json else yaml.safe_dump(tree, sort_keys=False), end="\n" if as_json else "")
    return 0
