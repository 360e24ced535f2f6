"""Truths as data: what a scenario, a sweep or a test says about step seconds."""

from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from steersman_policies.policy import did_you_mean
from steersman_policies.units import Count, Seconds
from steersman_simulator.truths.constant import ConstantSteps
from steersman_simulator.truths.link import Link
from steersman_simulator.truths.noise import Noise, NoisyTruth
from steersman_simulator.truths.scaled import ScaledTruth
from steersman_simulator.truths.step_work import Truth
from steersman_simulator.truths.surcharges import SurchargedTruth, Surcharges


class _Spec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class RecordedSteps(_Spec, frozen=True, tag="recording"):
    """Curves fitted to recorded steps, and the noise of the recording."""

    recording: str
    policies: tuple[str, ...] = ()
    """Only windows under these; empty: all."""
    engine_id: str = ""
    """Empty: the first that reported a step."""


class MeasuredSteps(_Spec, frozen=True, tag="step_times"):
    """A table in the format of `steersman train --step-times`."""

    step_times: str
    columns: dict[str, str] = {}
    """Our name to the file's, where they differ."""
    by: tuple[str, ...] = ()
    group: str = ""
    """Values of the `by` columns, as a/b; may be left out where there is one group."""
    where: dict[str, str] = {}
    drafter_loaded: bool = True
    """Which K = 0 is meant, where both were measured."""
    prefill_token_s: Seconds | None = None
    """None: as rows with prefill say, else as tokens of drafts cost."""
    noise: Noise | None = None
    """None: the spread of the file's repeats, without memory."""


class BundledSteps(_Spec, frozen=True, tag="bundle"):
    """Tables of `steersman train`, with its conformal intervals as noise."""

    bundle: str
    group: str = ""
    """As a/b; may be left out where there is one group."""
    noise: Noise | None = None
    """None: what fills the interval, without memory."""


class ModelledSteps(_Spec, frozen=True, tag="roofline"):
    """Data sheet and model shapes, or operator tables in the form of AIConfigurator."""

    target_config: str
    device: str
    drafter_config: str = ""
    tensor_parallel: int = 1
    operators: str = ""
    """Folder of such tables; empty: the data sheet."""


class OperatorSteps(_Spec, frozen=True, tag="operators"):
    """Per-operator tables measured inside vLLM, times the layers. See `operators`."""

    tables: str
    """What the names of the three files begin with, or their folder."""
    layers: Count
    link: Link | None = None
    """Needed where the tables are of one rank of several."""
    drafter: "OperatorSteps | None" = None


class NoisySteps(_Spec, frozen=True, tag="noisy"):
    """Another truth, times noise."""

    truth: "TruthSpec"
    noise: Noise


class SurchargedSteps(_Spec, frozen=True, tag="surcharged"):
    """Another truth, and what steps cost beyond their tokens."""

    truth: "TruthSpec"
    surcharges: Surcharges


class ScaledSteps(_Spec, frozen=True, tag="scaled"):
    """Another truth, so many times as slow."""

    truth: "TruthSpec"
    factor: float

    def __post_init__(self) -> None:
        if not 0.0 < self.factor < 1e6:
            raise ValueError(f"truth: factor is {self.factor}, allowed is above 0 and below 1e6")


TruthSpec: TypeAlias = (
    ConstantSteps
    | RecordedSteps
    | MeasuredSteps
    | BundledSteps
    | ModelledSteps
    | OperatorSteps
    | NoisySteps
    | SurchargedSteps
    | ScaledSteps
)


def build_truth(spec: TruthSpec, folder: Path) -> Truth:  # noqa: PLR0911 - one for each kind
    """The truth that a spec describes; its paths are relative to `folder`.

    Raises ValueError or FileNotFoundError in one line.

    >>> build_truth(ScaledSteps(ConstantSteps(0.01), 2.0), Path()).factor
    2.0
    """
    match spec:
        case ConstantSteps():
            return spec
        case RecordedSteps():
            return _recorded(spec, folder)
        case MeasuredSteps():
            return _measured(spec, folder)
        case BundledSteps():
            return _bundled(spec, folder)
        case ModelledSteps():
            return _modelled(spec, folder)
        case OperatorSteps():
            return _operators(spec, folder)
        case NoisySteps():
            return NoisyTruth(build_truth(spec.truth, folder), spec.noise)
        case SurchargedSteps():
            return SurchargedTruth(build_truth(spec.truth, folder), spec.surcharges)
        case ScaledSteps():
            return ScaledTruth(build_truth(spec.truth, folder), spec.factor)


def decode_truth(content: bytes) -> TruthSpec:
    """A spec in JSON. Raises ValueError saying where it is wrong.

    >>> decode_truth(b'{"kind": "constant", "step_s": 0.01}').step_s
    0.01
    """
    found: TruthSpec = msgspec.json.decode(content, type=TruthSpec)
    return found


def _recorded(spec: RecordedSteps, folder: Path) -> Truth:
    from steersman_controller.trace.recording import read_recording
    from steersman_simulator.truths.recorded import fit_steps
    from steersman_simulator.windows import engine_trace

    trace = engine_trace(read_recording(folder / spec.recording).events, spec.engine_id)
    return fit_steps([step for window in trace.under(spec.policies) for step in window.steps])


def _measured(spec: MeasuredSteps, folder: Path) -> Truth:
    from steersman_controller.train.step_times import Source, read_step_times
    from steersman_simulator.truths.step_table import StepTable, spread_of

    path = folder / spec.step_times
    groups = read_step_times(Source(path, spec.columns, spec.by, spec.where)).groups
    cells = {"/".join(group): found for group, found in groups.items()}[
        group_name(path, ["/".join(group) for group in groups], spec.group)
    ]
    table = StepTable(cells, drafter_loaded=spec.drafter_loaded, prefill_token_s=spec.prefill_token_s)
    return NoisyTruth(table, spread_of(cells) if spec.noise is None else spec.noise)


def _bundled(spec: BundledSteps, folder: Path) -> Truth:
    from steersman_controller.train.bundle import read_bundle
    from steersman_simulator.truths.bundle import BundleSteps, interval_noise

    path = folder / spec.bundle
    bundle = read_bundle(path)
    cards = bundle.manifest.groups
    names = ["/".join(card.group) for card in cards]
    place = names.index(group_name(path, names, spec.group))
    noise = interval_noise(cards[place]) if spec.noise is None else spec.noise
    return NoisyTruth(BundleSteps(bundle.step_cost(place)), noise)


def _modelled(spec: ModelledSteps, folder: Path) -> Truth:
    from steersman_controller.train.hardware import Hardware, forwards_of
    from steersman_simulator.truths.composed import ComposedSteps, ModelPasses

    forwards = forwards_of(
        Hardware(
            folder / spec.target_config,
            spec.device,
            folder / spec.drafter_config if spec.drafter_config else None,
            spec.tensor_parallel,
            folder / spec.operators if spec.operators else None,
        )
    )
    drafter = None if forwards.drafter is None else ModelPasses(forwards.drafter)
    return ComposedSteps(ModelPasses(forwards.target), drafter)


def _operators(spec: OperatorSteps, folder: Path) -> Truth:
    from steersman_simulator.truths.composed import ComposedSteps
    from steersman_simulator.truths.operators import OperatorPasses

    drafter = spec.drafter
    return ComposedSteps(
        OperatorPasses(folder / spec.tables, spec.layers, spec.link),
        None if drafter is None else OperatorPasses(folder / drafter.tables, drafter.layers, drafter.link),
    )


def group_name(path: Path, names: list[str], wanted: str) -> str:
    """The group called `wanted`, or the only one. Raises ValueError naming those that are there."""
    if wanted in names:
        return wanted
    if not wanted and len(names) == 1:
        return names[0]
    hint = did_you_mean(wanted, names)
    raise ValueError(f"{path}: no group {wanted!r}{hint}; it has {', '.join(map(repr, names))}")
