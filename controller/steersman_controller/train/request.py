"""From what was typed to what is trained."""

from pathlib import Path

from steersman_controller.train.hardware import Hardware, Measured
from steersman_controller.train.run import Request
from steersman_controller.train.step_times import Source
from steersman_controller.train.table_file import known, pairs
from steersman_policies.messages import Fingerprint

_NUMBERS = ("tensor_parallel", "pipeline_parallel", "data_parallel")


def request_of(
    *,
    step_times: Path | None,
    columns: list[str],
    by: str,
    where: list[str],
    recording: Path | None,
    acceptance: Path | None,
    evaluate_choice: str,
    segments: bool,
    acceptance_trace: Path | None,
    target_config: Path | None,
    drafter_config: Path | None,
    device: str,
    tensor_parallel: int,
    operators: Path | None,
    measured: Path | None,
    measured_columns: list[str],
    measured_where: list[str],
    fingerprint: list[str],
    created_at: str,
    out: Path | None,
) -> Request:
    """The request. Raises ValueError naming the option."""
    if step_times is None and (columns or by or where):
        raise ValueError("train: --columns, --by and --where say how to read --step-times")
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"--out: no folder {out.parent}")
    groups = tuple(dict.fromkeys(part.strip() for part in by.split(",") if part.strip()))
    source = None
    if step_times is not None:
        source = Source(step_times, pairs(columns, "--columns"), groups, pairs(where, "--where"))
    hardware = None
    if target_config is not None and device:
        hardware = Hardware(target_config, device, drafter_config, tensor_parallel, operators)
    elif target_config or device or drafter_config or operators:
        raise ValueError("train: a prior needs both --target-config and --device")
    deployments = None
    if measured is not None:
        deployments = Measured(
            measured, pairs(measured_columns, "--measured-columns"), pairs(measured_where, "--measured-where")
        )
    return Request(
        created_at=created_at,
        step_times=source,
        recording=recording,
        acceptance=acceptance,
        hardware=hardware,
        measured=deployments,
        evaluate_choice=evaluate_choice,
        segments=segments,
        acceptance_trace=acceptance_trace,
        fingerprint=_fingerprint(pairs(fingerprint, "--fingerprint")),
        out=out,
    )


def _fingerprint(given: dict[str, str]) -> Fingerprint | None:
    if not given:
        return None
    fields: dict[str, str | int] = dict.fromkeys(Fingerprint.__struct_fields__, "")
    fields |= dict.fromkeys(_NUMBERS, 1)
    for name, value in given.items():
        known(Fingerprint.__struct_fields__, name, "--fingerprint")
        if name in _NUMBERS and not value.isdecimal():
            raise ValueError(f"--fingerprint: {name} is {value!r}, allowed is a whole number")
        fields[name] = int(value) if name in _NUMBERS else value
    return Fingerprint(**fields)  # type: ignore[arg-type]
