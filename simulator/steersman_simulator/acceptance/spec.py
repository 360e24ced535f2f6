"""What a scenario file says about acceptance, and the truth that it stands for."""

from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from steersman_policies.acceptance_trace import is_acceptance_trace, read_trace
from steersman_policies.units import UNKNOWN_SEGMENT, Fraction, Name, Seconds, Segment
from steersman_simulator.acceptance.by_position import by_position, conditional, read_positions
from steersman_simulator.acceptance.draft_table import Acceptance
from steersman_simulator.acceptance.exact import ExactAcceptance, Pick
from steersman_simulator.acceptance.schedule import Phase, ScheduledAcceptance
from steersman_simulator.acceptance.segments import AcceptanceTruth, ConstantAcceptance, SegmentTruth
from steersman_simulator.acceptance.specdec_bench import Drafter, read_specdec_bench
from steersman_simulator.acceptance.trace_fit import fit_traces


class _Spec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class ConstantSpec(_Spec, frozen=True, tag="constant"):
    """Always a full draft, every position accepted with one probability."""

    acceptance: Fraction


class ByPositionSpec(_Spec, frozen=True, tag="by_position"):
    """Always a full draft; exactly one of the three says what is accepted at each position."""

    acceptance: dict[Segment, tuple[Fraction, ...]] = {}
    """Conditional (accepted / reached), by segment; `unknown` stands for all others."""
    survival: dict[Segment, tuple[Fraction, ...]] = {}
    """Unconditional, as engines log and most publish: share of drafts accepted up to each position."""
    table: str = ""
    """A file with columns position, acceptance (conditional) and perhaps segment."""


class SegmentsSpec(_Spec, frozen=True, tag="segments"):
    """By segment, with requests, stretches and bursts; see `SegmentTruth`."""

    segments: dict[Segment, SegmentTruth]


class FittedSpec(_Spec, frozen=True, tag="fitted"):
    """By segment, fitted from an exact acceptance trace or a recording."""

    path: str
    policies: tuple[Name, ...] = ()
    """Of a recording only the windows of these; empty: all."""
    engine_id: Name = ""


class TraceSpec(_Spec, frozen=True, tag="trace"):
    """The requests of an exact acceptance trace."""

    path: str
    pick: Pick = "order"


class SpecdecBenchSpec(_Spec, frozen=True, tag="specdec_bench"):
    """The same from files of SpecDecode-Bench, by segment."""

    paths: dict[Segment, str]
    drafter: Drafter
    pick: Pick = "segment"
    fitted: bool = False
    """Draw from a fit instead of the requests themselves."""


class PhaseSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a schedule; see `Phase`."""

    at_s: Seconds
    factor: Fraction | None = None
    over_s: Seconds = 0.0
    drafter: "AcceptanceSpec | None" = None
    segments: tuple[Segment, ...] = ()
    engine: Name = ""
    """Only the drafter of this engine; empty: of all."""


class ScheduleSpec(_Spec, frozen=True, tag="schedule"):
    """A drafter whose acceptance changes, or that is replaced, while requests are served."""

    drafter: "AcceptanceSpec"
    phases: tuple[PhaseSpec, ...]


AcceptanceSpec: TypeAlias = (
    ConstantSpec | ByPositionSpec | SegmentsSpec | FittedSpec | TraceSpec | SpecdecBenchSpec | ScheduleSpec
)


def build_acceptance(spec: AcceptanceSpec, folder: Path, engine: str = "") -> Acceptance:
    """The truth of `spec`; its paths are relative to `folder`. `engine`: whose drafter it is.

    Raises ValueError or FileNotFoundError in one line.
    """
    built: Acceptance
    match spec:
        case ConstantSpec(acceptance=acceptance):
            built = ConstantAcceptance(acceptance)
        case ByPositionSpec():
            built = _by_position(spec, folder)
        case SegmentsSpec(segments=segments):
            if UNKNOWN_SEGMENT not in segments:
                raise ValueError(f"acceptance: segments: give {UNKNOWN_SEGMENT!r} too, for all others")
            built = AcceptanceTruth(segments)
        case FittedSpec():
            built = _fitted(spec, folder)
        case TraceSpec(path=path, pick=pick):
            built = ExactAcceptance(read_trace(folder / path), pick)
        case SpecdecBenchSpec():
            built = _specdec_bench(spec, folder)
        case ScheduleSpec(drafter=drafter, phases=phases):
            own = [_phase(phase, folder, engine) for phase in phases if phase.engine in {"", engine}]
            built = ScheduledAcceptance(build_acceptance(drafter, folder, engine), own)
    return built


def sick_engines(spec: AcceptanceSpec) -> list[str]:
    """The engines that a phase names, whose acceptance is not that of the others."""
    if not isinstance(spec, ScheduleSpec):
        return []
    inner = [spec.drafter, *(phase.drafter for phase in spec.phases if phase.drafter is not None)]
    own = [phase.engine for phase in spec.phases if phase.engine]
    return [*own, *(name for drafter in inner for name in sick_engines(drafter))]


def _phase(spec: PhaseSpec, folder: Path, engine: str) -> Phase:
    drafter = None if spec.drafter is None else build_acceptance(spec.drafter, folder, engine)
    return Phase(spec.at_s, spec.factor, spec.over_s, drafter, spec.segments)


def _by_position(spec: ByPositionSpec, folder: Path) -> AcceptanceTruth:
    given = [name for name in ("acceptance", "survival", "table") if getattr(spec, name)]
    if len(given) != 1:
        raise ValueError(f"acceptance: by_position: give one of acceptance, survival, table, not {given}")
    if spec.table:
        return by_position(read_positions(folder / spec.table))
    survival = {name: conditional(values) for name, values in spec.survival.items()}
    return by_position(spec.acceptance or survival)


def _fitted(spec: FittedSpec, folder: Path) -> AcceptanceTruth:
    path = folder / spec.path
    if is_acceptance_trace(path):
        return fit_traces(read_trace(path))
    from steersman_controller.trace.recording import read_recording
    from steersman_simulator.acceptance.fit import fit_acceptance
    from steersman_simulator.windows import engine_trace

    windows = engine_trace(read_recording(path).events, spec.engine_id).under(spec.policies)
    steps = [step for window in windows for step in window.steps]
    return fit_acceptance(steps, [request for window in windows for request in window.requests])


def _specdec_bench(spec: SpecdecBenchSpec, folder: Path) -> Acceptance:
    records = [
        record
        for segment, path in spec.paths.items()
        for record in read_specdec_bench(folder / path, spec.drafter, segment)
    ]
    return fit_traces(records) if spec.fitted else ExactAcceptance(records, spec.pick)
