"""`steersman train`: from evidence to a bundle and its figures."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from steersman_controller.progress import Progress
from steersman_controller.trace.segment_facts import SegmentFacts
from steersman_controller.train.bundle import (
    FORMAT,
    Bundle,
    Evidence,
    Manifest,
    decode_bundle,
    encode_bundle,
    pack_tables,
    tables_hash,
)
from steersman_controller.train.card import group_card, mean
from steersman_controller.train.cells import NO_CELLS, Cells
from steersman_controller.train.choice import evaluate_choice, read_served
from steersman_controller.train.compiled import Tables, compile_tables
from steersman_controller.train.hardware import Forwards, Hardware, Measured, forwards_of, prior_figures
from steersman_controller.train.intervals import residuals
from steersman_controller.train.models import CANDIDATES
from steersman_controller.train.outcomes import Outcomes, read_acceptance_trace
from steersman_controller.train.prior import nobody_measured
from steersman_controller.train.recorded import read_recorded
from steersman_controller.train.reduction import Group
from steersman_controller.train.report import LOW_LOAD, ChoiceReport, SegmentsCard
from steersman_controller.train.segment_gain import step_of
from steersman_controller.train.segmentation import enough, segments_of
from steersman_controller.train.selection import Selected, select, unscored
from steersman_controller.train.step_times import Source, read_step_times
from steersman_controller.train.survival import Survival, read_acceptance
from steersman_controller.train.table_file import members
from steersman_controller.whole_file import write_whole
from steersman_policies.messages import Fingerprint
from steersman_policies.segmenter import Segmenter


class Request(Struct, frozen=True):
    """Everything that `train` is asked for."""

    created_at: str
    step_times: Source | None = None
    recording: Path | None = None
    acceptance: Path | None = None
    hardware: Hardware | None = None
    measured: Measured | None = None
    evaluate_choice: str = ""
    segments: bool = False
    """Learn how to sort requests, from the recording or the acceptance trace."""
    acceptance_trace: Path | None = None
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
    coverage: dict[str, float] = {}
    fingerprints: dict[Group, Fingerprint] = {}
    is_served: bool = False
    outcomes: Outcomes | None = None
    segmenter: Segmenter = Segmenter()
    facts: dict[str, SegmentFacts] = {}


def train(request: Request, progress: Progress) -> Trained:
    """Train as asked, and write the bundle if it has a place. Raises ValueError or OSError in one line."""
    import sklearn.ensemble  # noqa: F401 - threads can be limited only once they are there
    from threadpoolctl import threadpool_limits

    # Hundreds of fits to some hundred cells each: threads that wait for each other take longer than one
    # alone, a hundred times as long on a busy machine.
    with threadpool_limits(1):
        return _train(request, progress)


def _train(request: Request, progress: Progress) -> Trained:
    _refuse_nonsense(request)
    forwards = None if request.hardware is None else forwards_of(request.hardware)
    prior = {} if forwards is None else prior_figures(forwards, request.measured)
    gathered = _gathered(request, progress)
    if not gathered.groups and request.out is None:
        return Trained(None, prior, gathered.warning)
    if request.segments:
        trace = request.acceptance_trace
        found = gathered.outcomes if trace is None else read_acceptance_trace(trace)
        assert found is not None, "a recording or a trace: one of them was asked for"
        gathered = msgspec.structs.replace(gathered, outcomes=enough(found))
    selected = _selected(gathered, forwards, progress)
    groups = gathered.groups
    if not groups:
        assert forwards is not None, "evidence or a prior: one of them was asked for"
        groups = {(): nobody_measured(forwards.cells())}
    tables = {
        g: compile_tables(s.model, groups[g], _relative_error(s, groups[g])) for g, s in selected.items()
    }
    choice: ChoiceReport | None = None
    measured: dict[str, tuple[float, ...]] = {}
    if request.step_times is not None and (request.evaluate_choice or gathered.is_served):
        served = read_served(request.step_times, groups)
        survivals = {"/".join(group): Survival(by_k) for group, by_k in served.survivals.items()}
        measured = {name: survival.position_acceptance for name, survival in survivals.items()}
        if request.evaluate_choice:
            progress("evaluating the choice of K", 1.0)
            by, column = request.step_times.by, request.evaluate_choice
            choice = evaluate_choice(served, selected, groups, by, column)
    gathered = msgspec.structs.replace(gathered, acceptance=gathered.acceptance or measured)
    segmenter, segments = _segments(request, gathered, groups, tables, progress)
    content = encode_bundle(
        *_contents(request, gathered, selected, groups, tables, choice, segmenter, segments)
    )
    if request.out is not None:
        write_whole(request.out, content)
    warnings = [gathered.warning, _never_drafted(gathered.groups)]
    return Trained(decode_bundle(content, "the new bundle"), prior, "; ".join(filter(None, warnings)) or None)


def _never_drafted(groups: Mapping[Group, Cells]) -> str | None:
    names = ["/".join(group) or "the evidence" for group, cells in groups.items() if not cells.k.any()]
    if not names:
        return None
    return (
        f"no step with K > 0 in {', '.join(names)}: what drafts cost and bring is not known, so the best K "
        "means nothing; record with `serve --steer`, or an engine that is launched with drafts"
    )


def _refuse_nonsense(request: Request) -> None:
    if request.step_times and request.recording:
        raise ValueError("train: --step-times and --recording are two kinds of evidence; give one")
    if not (request.step_times or request.recording or request.hardware):
        raise ValueError("train: give --step-times, --recording, or --target-config with --device")
    if request.measured and not request.hardware:
        raise ValueError("--measured: needs --target-config and --device to compare with")
    if request.acceptance_trace and not request.segments:
        raise ValueError("--acceptance-trace: is evidence for --segments; give both")
    if request.segments and not (request.recording or request.acceptance_trace):
        raise ValueError("--segments: needs --recording or --acceptance-trace, which show single requests")
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
            is_served=found.is_served,
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
            coverage={} if acceptance else recorded.coverage,
            fingerprints={} if request.fingerprint else recorded.fingerprints,
            outcomes=recorded.outcomes,
            segmenter=recorded.segmenter,
            facts=recorded.facts,
        )
    return _Gathered({}, {}, (), (), acceptance, request.fingerprint)


def _selected(gathered: _Gathered, forwards: Forwards | None, progress: Progress) -> dict[Group, Selected]:
    if not gathered.groups:
        assert forwards is not None, "evidence or a prior: one of them was asked for"
        return {(): unscored(forwards.cells(), "prior")}
    out: dict[Group, Selected] = {}
    for index, (group, cells) in enumerate(gathered.groups.items()):
        named = "fitting " + ("/".join(group) or "all rows")

        def report(done: float, named: str = named, before: int = index) -> None:
            progress(named, (before + done) / len(gathered.groups))

        out[group] = select(cells, CANDIDATES if forwards is None else forwards.candidates(cells), report)
    progress("fitted", 1.0)
    return out


def _contents(
    request: Request,
    gathered: _Gathered,
    selected: Mapping[Group, Selected],
    groups: Mapping[Group, Cells],
    tables: Mapping[Group, Tables],
    choice: ChoiceReport | None,
    segmenter: Segmenter | None,
    segments: SegmentsCard | None,
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
                gathered.fingerprints.get(g),
            )
            for g, s in selected.items()
        ),
        acceptance=gathered.acceptance,
        choice=choice,
        facts=gathered.facts,
        segments=segments,
        segmenter=segmenter,
        tables_bytes=len(packed),
        tables_sha256=tables_hash(packed),
        coverage=gathered.coverage,
    )
    return manifest, packed


def _segments(
    request: Request,
    gathered: _Gathered,
    groups: Mapping[Group, Cells],
    tables: Mapping[Group, Tables],
    progress: Progress,
) -> tuple[Segmenter | None, SegmentsCard | None]:
    """What there is to know about segments, where it was asked for."""
    if not request.segments:
        return None, None
    assert gathered.outcomes is not None, "a recording or a trace: one of them was asked for"
    progress("learning segments", 1.0)
    most = max(groups, key=lambda group: float(groups[group].steps.sum()))
    return segments_of(gathered.outcomes, gathered.segmenter, step_of(tables[most]))


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
    """Of a folder: over its files, by name."""
    digest = hashlib.sha256()
    for one in members(path):
        with one.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return Evidence(path.name, digest.hexdigest(), rows)
