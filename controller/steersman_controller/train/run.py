"""`steersman train`: from evidence to a bundle and its figures."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from steersman_controller.train.bundle import (
    FORMAT,
    Bundle,
    Evidence,
    Manifest,
    decode_bundle,
    encode_bundle,
    pack_tables,
    tables_hash,
    write_bundle,
)
from steersman_controller.train.card import group_card, mean
from steersman_controller.train.cells import NO_CELLS, Cells
from steersman_controller.train.choice import LOW_LOAD, ChoiceReport, evaluate_choice, read_served
from steersman_controller.train.compiled import Tables, compile_tables
from steersman_controller.train.devices import device
from steersman_controller.train.intervals import residuals
from steersman_controller.train.model_shape import ModelShape, read_shape
from steersman_controller.train.models import CANDIDATES, Fit
from steersman_controller.train.operator_tables import ComposedForward, OperatorTables
from steersman_controller.train.prior import nobody_measured, prior_cells, with_prior
from steersman_controller.train.recorded import read_recorded
from steersman_controller.train.reduction import Group
from steersman_controller.train.roofline import Forward, Roofline
from steersman_controller.train.selection import Selected, select, unscored
from steersman_controller.train.serving import compare, read_deployments
from steersman_controller.train.step_times import Source, read_step_times
from steersman_controller.train.survival import Survival, read_acceptance
from steersman_policies.messages import Fingerprint

PRIOR_K = 8
"""The longest proposal of a prior without measurements."""

PRIOR_CONTEXTS = (0.0, 1024.0, 8192.0)

Progress = Callable[[str, float], None]
"""Told what is being done and the fraction that is done."""


class Hardware(Struct, frozen=True):
    """What a prior is made of."""

    target_config: Path
    device: str
    drafter_config: Path | None = None
    tensor_parallel: int = 1
    operators: Path | None = None


class Measured(Struct, frozen=True):
    """A file of measured deployments to compare the prior with."""

    path: Path
    columns: dict[str, str]
    where: dict[str, str]


class Request(Struct, frozen=True):
    """Everything that `train` is asked for."""

    created_at: str
    step_times: Source | None = None
    recording: Path | None = None
    acceptance: Path | None = None
    hardware: Hardware | None = None
    measured: Measured | None = None
    evaluate_choice: str = ""
    fingerprint: Fingerprint | None = None
    out: Path | None = None


class Trained(Struct, frozen=True):
    """The bundle, and what else was found."""

    bundle: Bundle | None
    prior: dict[str, Any]
    warning: str | None


class _Gathered(Struct, frozen=True):
    groups: dict[Group, Cells]
    sample: dict[Group, Cells]
    evidence: tuple[Evidence, ...]
    by: tuple[str, ...]
    acceptance: dict[str, tuple[float, ...]]
    fingerprint: Fingerprint | None
    warning: str | None = None


def train(request: Request, progress: Progress) -> Trained:
    """Train as asked, and write the bundle if it has a place. Raises ValueError or OSError in one line."""
    _refuse_nonsense(request)
    forwards = _forwards(request.hardware) if request.hardware is not None else None
    prior = _prior_figures(request, forwards) if request.hardware and forwards else {}
    gathered = _gathered(request, progress)
    if not gathered.groups and request.out is None:
        return Trained(None, prior, gathered.warning)
    selected = _selected(gathered, forwards, progress)
    groups = gathered.groups or {(): nobody_measured(_guessed(forwards))}
    tables = {
        g: compile_tables(s.model, groups[g], _relative_error(s, groups[g])) for g, s in selected.items()
    }
    choice: ChoiceReport | None = None
    measured: dict[str, tuple[float, ...]] = {}
    if request.evaluate_choice:
        choice, measured = _choice(request, selected, groups, progress)
    gathered = msgspec.structs.replace(gathered, acceptance=gathered.acceptance or measured)
    content = _encoded(request, gathered, selected, groups, tables, choice)
    if request.out is not None:
        write_bundle(request.out, *content)
    return Trained(decode_bundle(encode_bundle(*content), "the new bundle"), prior, gathered.warning)


def _refuse_nonsense(request: Request) -> None:
    if request.step_times and request.recording:
        raise ValueError("train: --step-times and --recording are two kinds of evidence; give one")
    if not (request.step_times or request.recording or request.hardware):
        raise ValueError("train: give --step-times, --recording, or --target-config with --device")
    if request.measured and not request.hardware:
        raise ValueError("--measured: needs --target-config and --device to compare with")
    by = () if request.step_times is None else request.step_times.by
    if request.evaluate_choice and request.evaluate_choice not in by:
        raise ValueError(f"--evaluate-choice: {request.evaluate_choice!r} must be one of the --by columns")


def _gathered(request: Request, progress: Progress) -> _Gathered:
    acceptance = read_acceptance(request.acceptance) if request.acceptance else {}
    if request.step_times is not None:
        source = request.step_times
        found = read_step_times(source, lambda done: progress(f"reading {source.path.name}", done))
        return _Gathered(
            found.groups,
            found.sample,
            (_evidence(source.path, found.rows),),
            source.by,
            acceptance,
            request.fingerprint,
        )
    if request.recording is not None:
        progress(f"reading {request.recording.name}", 0.0)
        recorded = read_recorded(request.recording)
        return _Gathered(
            recorded.groups,
            recorded.sample,
            (_evidence(recorded.path, recorded.steps),),
            ("engine",),
            acceptance or recorded.acceptance,
            request.fingerprint or recorded.fingerprint,
            recorded.warning,
        )
    return _Gathered({}, {}, (), (), acceptance, request.fingerprint)


def _selected(gathered: _Gathered, forwards: "_Forwards | None", progress: Progress) -> dict[Group, Selected]:
    if not gathered.groups:
        return {(): unscored(_guessed(forwards), "prior")}
    out: dict[Group, Selected] = {}
    for index, (group, cells) in enumerate(gathered.groups.items()):
        named = "fitting " + ("/".join(group) or "all rows")

        def report(done: float, named: str = named, before: int = index) -> None:
            progress(named, (before + done) / len(gathered.groups))

        out[group] = select(cells, _candidates(forwards, cells), report)
    progress("fitted", 1.0)
    return out


class _Forwards(Struct, frozen=True):
    target: Forward
    drafter: Forward | None
    of_degree: Callable[[int], Forward]
    datasheet: Callable[[int], Forward]
    operator_files: tuple[str, ...]
    source: str


def _forwards(hardware: Hardware) -> _Forwards:
    machine = device(hardware.device)
    target = read_shape(hardware.target_config)
    drafter = read_shape(hardware.drafter_config) if hardware.drafter_config else None
    tables = OperatorTables(hardware.operators, hardware.device.lower()) if hardware.operators else None

    def datasheet(shape: ModelShape, ways: int) -> Forward:
        return Roofline(shape, machine, ways)

    def best(shape: ModelShape, ways: int) -> Forward:
        return datasheet(shape, ways) if tables is None else ComposedForward(tables, shape, machine, ways)

    return _Forwards(
        target=best(target, hardware.tensor_parallel),
        # A drafter is too small for most tables; its data sheet time is what engines start from, too.
        drafter=None if drafter is None else datasheet(drafter, hardware.tensor_parallel),
        of_degree=lambda ways: best(target, ways),
        datasheet=lambda ways: datasheet(target, ways),
        operator_files=tuple(tables.files) if tables else (),
        source=machine.source,
    )


def _guessed(forwards: _Forwards | None) -> Cells:
    assert forwards is not None, "evidence or a prior: one of them was asked for"
    k_max = PRIOR_K if forwards.drafter is not None else 0
    return prior_cells(forwards.target, forwards.drafter, k_max=k_max, mean_contexts=PRIOR_CONTEXTS)


def _candidates(forwards: _Forwards | None, cells: Cells) -> Mapping[str, Fit]:
    if forwards is None:
        return CANDIDATES
    contexts = PRIOR_CONTEXTS if (cells.context > 0).any() else (0.0,)
    k_max = int(cells.k.max()) if forwards.drafter is not None else 0
    return with_prior(prior_cells(forwards.target, forwards.drafter, k_max=k_max, mean_contexts=contexts))


def _prior_figures(request: Request, forwards: _Forwards) -> dict[str, Any]:
    found: dict[str, Any] = {
        "device_source": forwards.source,
        "operator_files": list(forwards.operator_files),
        "one_request_ms": 1e3
        * forwards.target.seconds(tokens=1.0, sequences=1.0, context_tokens=1024.0, prefill_tokens=0.0),
    }
    if request.measured is not None:
        rows = read_deployments(request.measured.path, request.measured.columns, request.measured.where)
        ways = {"datasheet": forwards.datasheet}
        if forwards.operator_files:
            ways["operators"] = forwards.of_degree
        found["tpot_against"] = request.measured.path.name
        found["tpot"] = {name: msgspec.to_builtins(compare(rows, of)) for name, of in ways.items()}
    return found


def _choice(
    request: Request, selected: Mapping[Group, Selected], groups: Mapping[Group, Cells], progress: Progress
) -> tuple[ChoiceReport, dict[str, tuple[float, ...]]]:
    """How well K is chosen, and the acceptance that was measured in each group."""
    assert request.step_times is not None
    progress("evaluating the choice of K", 1.0)
    served = read_served(request.step_times, groups)
    report = evaluate_choice(served, selected, groups, request.step_times.by, request.evaluate_choice)
    survivals = {"/".join(group): Survival(by_k) for group, by_k in served.survivals.items()}
    return report, {name: survival.position_acceptance for name, survival in survivals.items()}


def _encoded(
    request: Request,
    gathered: _Gathered,
    selected: Mapping[Group, Selected],
    groups: Mapping[Group, Cells],
    tables: Mapping[Group, Tables],
    choice: ChoiceReport | None,
) -> tuple[Manifest, bytes]:
    packed = pack_tables(list(tables.values()))
    manifest = Manifest(
        format=FORMAT,
        created_at=request.created_at,
        fingerprint=gathered.fingerprint,
        evidence=gathered.evidence,
        by=gathered.by,
        figures=_figures(selected, groups),
        groups=tuple(
            group_card(
                g,
                groups[g],
                s,
                residuals(gathered.sample.get(g, NO_CELLS), groups[g], s.out_of_fold),
                tables[g],
            )
            for g, s in selected.items()
        ),
        acceptance=gathered.acceptance,
        choice=choice,
        tables_bytes=len(packed),
        tables_sha256=tables_hash(packed),
    )
    return manifest, packed


def _figures(selected: Mapping[Group, Selected], groups: Mapping[Group, Cells]) -> dict[str, float | None]:
    """Over the cells of all groups, each scored by a model that has not seen its batch size."""
    ours, affine, low = [], [], []
    for group, found in selected.items():
        cells = groups[group]
        ours.append(np.abs(found.out_of_fold.seconds / cells.seconds - 1.0))
        affine.append(np.abs(found.out_of_fold.affine_s / cells.seconds - 1.0))
        low.append(cells.batch <= LOW_LOAD)
    errors, baseline, to_64 = np.concatenate(ours), np.concatenate(affine), np.concatenate(low)
    return {
        "cv_mape_all": mean(errors),
        "cv_mape_to_64": mean(errors[to_64]),
        "affine_cv_mape_all": mean(baseline),
        "affine_cv_mape_to_64": mean(baseline[to_64]),
    }


def _relative_error(selected: Selected, cells: Cells) -> float:
    """Of the model on batch sizes left out; 1 where nothing could be left out."""
    found = mean(np.abs(selected.out_of_fold.seconds / cells.seconds - 1.0))
    return 1.0 if found is None else found


def _evidence(path: Path, rows: int) -> Evidence:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return Evidence(path.name, digest.hexdigest(), rows)
