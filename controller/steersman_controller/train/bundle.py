"""A trained bundle: one file that holds a manifest (JSON) and tables (safetensors), and nothing else.

One file rather than a folder, so that it is copied, hashed, signed and replaced whole. It is a zip archive
without compression whose bytes follow from its contents: whatever does not read back to exactly the same
bytes is refused, so there is no place for anything that was not checked. No code is ever read from it.
"""

import hashlib
import io
import struct
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from steersman_controller.trace.segment_facts import SegmentFacts
from steersman_controller.train.report import ChoiceReport, Interval, SegmentsCard
from steersman_policies.messages import Fingerprint
from steersman_policies.segmenter import Segmenter
from steersman_policies.view import StepCost

if TYPE_CHECKING:
    from steersman_controller.train.compiled import Tables

FORMAT = 2
MAX_BYTES = 256 << 20
MANIFEST, TABLES = "manifest.json", "tables.safetensors"
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """A file that the bundle was trained on."""

    name: str
    sha256: str
    rows: int


class WorstCell(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a model that had not seen the batch size was far off."""

    batch_size: int
    num_draft_tokens: int
    measured_ms: float
    predicted_ms: float
    error: float


class GroupCard(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known about the model of one group, and the grids of its tables."""

    group: tuple[str, ...]
    model: str
    cells: int
    steps: float
    terms_s: dict[str, float]
    """Seconds per unit of each term, where the model is a sum."""
    ceiling: float | None
    ceiling_without_drafter: float | None
    scores: dict[str, float]
    cv_mape: float | None
    """On batch sizes left out; None where there were too few to leave any out."""
    cv_mape_to_64: float | None
    affine_cv_mape: float | None
    affine_cv_mape_to_64: float | None
    cv_mape_by_batch: dict[str, float]
    interval: Interval | None
    coverage: float | None
    """Share of the evidence between q05 and q95, each fold scored with the interval of the others."""
    worst: tuple[WorstCell, ...]
    spread: float
    """Distance between the quartiles of step times, over the median, of the median cell."""
    planner_table_error: float
    batches: tuple[int, ...]
    ks: tuple[int, ...]
    mean_contexts: tuple[int, ...]
    tokens_grid: tuple[int, ...]
    context_grid_tokens: tuple[int, ...]
    prefill_grid_tokens: tuple[int, ...]
    requests_grid: tuple[int, ...]
    relative_error: float
    fingerprint: Fingerprint | None = None
    """Of the engine that the group was recorded from; else that of the manifest holds."""


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a bundle that is not a table."""

    format: int
    created_at: str
    fingerprint: Fingerprint | None
    evidence: tuple[Evidence, ...]
    by: tuple[str, ...]
    figures: dict[str, float | None]
    groups: tuple[GroupCard, ...]
    acceptance: dict[str, tuple[float, ...]]
    choice: ChoiceReport | None
    facts: dict[str, SegmentFacts]
    """How the segments of a recording differ."""
    segments: SegmentsCard | None
    """Whether segments pay; None where that was not asked."""
    segmenter: Segmenter | None
    """How to sort requests; None where nothing better was found than what there was."""
    tables_bytes: int
    tables_sha256: str
    signature: str = ""
    """Empty until the bundle is signed."""
    coverage: dict[str, float] = {}
    """By segment, where it was recorded: drafts per request asked for one."""


class Bundle(Struct, frozen=True):
    """A manifest and its tables, checked."""

    manifest: Manifest
    tables: dict[str, Any]

    def table(self, group: int, name: str) -> NDArray[np.float64]:
        """A table of the group with this index in the manifest."""
        found: NDArray[np.float64] = self.tables[f"{group}/{name}"]
        return found

    def step_cost(self, group: int) -> StepCost:
        """The tables that planners read."""
        card = self.manifest.groups[group]
        return StepCost(
            tokens_grid=card.tokens_grid,
            context_grid_tokens=card.context_grid_tokens,
            prefill_grid_tokens=card.prefill_grid_tokens,
            verify_s=_tuples(self.table(group, "verify_s")),
            requests_grid=card.requests_grid,
            draft_s=_tuples(self.table(group, "draft_s")),
            other_s=_tuples(self.table(group, "other_s")),
            relative_error=card.relative_error,
        )


def pack_tables(groups: "list[Tables]") -> bytes:
    """The tables of all groups as safetensors."""
    arrays: dict[str, NDArray[np.float64]] = {}
    for index, tables in enumerate(groups):
        found = {
            "step_s": tables.step_s,
            "no_drafter_s": tables.no_drafter_s,
            "steps": tables.steps,
            "verify_s": np.array(tables.cost.verify_s),
            "draft_s": np.array(tables.cost.draft_s),
            "other_s": np.array(tables.cost.other_s),
        }
        arrays |= {
            f"{index}/{name}": np.ascontiguousarray(array, dtype=np.float64) for name, array in found.items()
        }
    return bytes(save(arrays))


def tables_hash(packed: bytes) -> str:
    """What `Manifest.tables_sha256` must say."""
    return hashlib.sha256(packed).hexdigest()


def encode_bundle(manifest: Manifest, packed: bytes) -> bytes:
    """The bytes of the file; equal contents give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in ((MANIFEST, msgspec.json.encode(manifest)), (TABLES, packed)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return out.getvalue()


def read_bundle(path: Path) -> Bundle:
    """The bundle in a file. Raises ValueError in one line where it is anything else than a whole one."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such bundle")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: no bundle: {path.stat().st_size} bytes, allowed are {MAX_BYTES}")
    return decode_bundle(path.read_bytes(), str(path))


def decode_bundle(content: bytes, where: str) -> Bundle:
    """The bundle in these bytes. Raises ValueError naming `where`."""
    try:
        manifest, packed = _opened(content)
        tables = _checked(manifest, packed)
        if encode_bundle(manifest, packed) != content:
            raise ValueError("holds something besides manifest and tables")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: no bundle: {error}") from None
    return Bundle(manifest, tables)


def _opened(content: bytes) -> tuple[Manifest, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if [member.filename for member in members] != [MANIFEST, TABLES]:
                raise ValueError(f"allowed are exactly {MANIFEST} and {TABLES}")
            if any(m.compress_type != zipfile.ZIP_STORED or m.file_size > len(content) for m in members):
                raise ValueError("its members are compressed")
            written, packed = (archive.read(member) for member in members)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, struct.error) as error:
        raise ValueError(f"damaged or no zip archive ({error})") from None
    version = msgspec.json.decode(written, type=dict[str, Any]).get("format")
    if version != FORMAT:
        raise ValueError(f"format {version!r}, understood is {FORMAT}")
    return msgspec.json.decode(written, type=Manifest), packed


def _checked(manifest: Manifest, packed: bytes) -> dict[str, Any]:
    if len(packed) != manifest.tables_bytes:
        raise ValueError(f"{len(packed)} bytes of tables, the manifest says {manifest.tables_bytes}")
    if tables_hash(packed) != manifest.tables_sha256:
        raise ValueError("the tables do not match their SHA-256")
    try:
        tables = load(packed)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"the tables are no safetensors ({error})") from None
    wanted = {
        f"{i}/{name}": shape
        for i, card in enumerate(manifest.groups)
        for name, shape in _wanted(card).items()
    }
    found = {name: array.shape for name, array in tables.items()}
    if wanted != found:
        odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise ValueError(f"table {odd[0]} has shape {found.get(odd[0])}, its grids say {wanted.get(odd[0])}")
    for name, array in tables.items():
        allowed = np.isnan(array) if name.endswith("/no_drafter_s") else np.zeros(array.shape, dtype=np.bool_)
        if array.dtype != np.float64 or not (allowed | (np.isfinite(array) & (array >= 0.0))).all():
            raise ValueError(f"table {name} holds what are no seconds")
    return dict(tables)


def _wanted(card: GroupCard) -> dict[str, tuple[int, ...]]:
    contexts, batches, ks = len(card.mean_contexts), len(card.batches), len(card.ks)
    requests = len(card.requests_grid)
    planes = (len(card.prefill_grid_tokens), len(card.context_grid_tokens), len(card.tokens_grid))
    return {
        "step_s": (contexts, batches, ks),
        "no_drafter_s": (contexts, batches),
        "steps": (batches, ks),
        "verify_s": planes,
        "draft_s": (ks, requests),
        "other_s": (requests,),
    }


def _tuples(array: NDArray[np.float64]) -> Any:
    return tuple(_tuples(row) for row in array) if array.ndim > 1 else tuple(float(x) for x in array)
