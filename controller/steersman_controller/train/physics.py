"""A step-time model in the shape of the hardware: a non-negative sum of things that take time.

``seconds = constant + curve(tokens in the forward) + requests + context + prefill + draft(K, requests)``,
where the curve is piecewise linear and may jump at graph and tile boundaries, and where no more requests than
fit into the KV pool run at once. Every coefficient is >= 0. So time never falls when work is added, but for
the extra cost of single graph buckets, which was measured: 80 tokens do take longer than 96 on some devices.
Nothing is said about the best K, which may rise or fall with the batch.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from scipy.optimize import nnls

from steersman_controller.train.cells import Cells, Flags, Floats

EDGES = tuple(
    edge
    for power in range(3, 14)
    for edge in (2**power, 2**power * 5 // 4, 2**power * 3 // 2, 2**power * 7 // 4)
)
"""Where steps of graph buckets and tiles may be."""

RIDGE = 1e-3
"""Relative size of a coefficient's penalty: decides between columns that say the same, nothing else."""

BUCKET_CELLS = 0.25
"""So many cells without extra cost are put into each bucket: one cell alone is shrunk by a fifth."""

FILLS = (4, 16, 64)
"""Tokens after which what fills up, such as the experts that a batch visits, is two thirds full."""

MOST_BUCKETS = 512

SEEN_STEPS = 10.0
"""A cell with so many steps counts half as much as one with very many."""

CEILING_STEPS = 12
CEILING_GAIN = 0.5
"""A ceiling is believed if it leaves at most this much of the squared error."""

Part: TypeAlias = Literal["verify", "draft", "other"]
_Ceilings: TypeAlias = Callable[[float | None], tuple[float | None, float | None]]


class PhysicsModel(Struct, frozen=True):
    """Predicts seconds. `terms` names the columns of the design; `coefficients` are seconds per unit."""

    terms: tuple[str, ...]
    coefficients: tuple[float, ...]
    ceiling: float | None = None
    """Requests that run at once beside a loaded drafter, at most; None: no limit was seen."""
    ceiling_without_drafter: float | None = None

    def seconds(self, cells: Cells) -> Floats:
        """Of each cell."""
        design = _design(cells, self.terms, self.running(cells))
        total: Floats = design @ np.array(self.coefficients)
        return np.maximum(total, 1e-9)

    def part_s(self, cells: Cells, part: Part) -> Floats:
        """Seconds of the target's forward, of drafting, or of what each request costs whatever its K is; with
        as many requests as the cells say."""
        mine = np.array([part_of(term) == part for term in self.terms])
        design = _design(cells, self.terms, cells.batch)
        total: Floats = design[:, mine] @ np.array(self.coefficients)[mine]
        return total

    def running(self, cells: Cells) -> Floats:
        """Requests that really run at once."""
        return np.minimum(cells.batch, _limits(cells, self.ceiling, self.ceiling_without_drafter))

    @property
    def knots(self) -> tuple[int, ...]:
        """Tokens at which the curve bends or jumps (both sides of a jump), ascending."""
        found: set[int] = set()
        for kind, _, at in (term.partition(":") for term in self.terms):
            if kind in ("bend", "jump", "bucket"):
                found.add(int(at))
            if kind in ("jump", "bucket"):
                found.add(int(at) + 1)
            if kind == "fill":
                found |= {n for p in range(11) for n in (2**p, 2**p * 3 // 2) if n <= 6 * int(at)}
            if kind == "bucket":
                found |= {
                    n
                    for n in range(max(int(at) - 16, 1), int(at))
                    if bucket_of(np.array([float(n)]))[0] != int(at)
                }
        return tuple(sorted(found))


def fit_physics(
    cells: Cells, *, jumps: bool = False, fills: bool = False, requests: bool = False
) -> PhysicsModel:
    """The model with the smallest squared *relative* error. Needs at least one cell.

    `jumps`: the curve may jump up at `EDGES`. `fills`: it may be steep at first and flatten, by `FILLS`;
    without them it only ever gets steeper. `requests`: each may cost something whatever its K is.
    Where `draft_s` is known of all drafting cells, drafting is fitted to it and the rest to what remains.
    """
    terms = _terms(cells, jumps, fills, requests)
    smooth = tuple(term for term in terms if not term.startswith(("jump", "bucket")))
    loaded = _best_ceiling(cells, smooth, cells.loaded, lambda at: (at, None))
    bare = _best_ceiling(cells, smooth, ~cells.loaded, lambda at: (loaded, at))
    return _fit(cells, terms, loaded, bare)[0]


def bucket_of(tokens: Floats) -> Floats:
    """The size that a CUDA graph pads so many tokens to: 1, 2, 4, multiples of 8, of 16 from 256 on.

    >>> bucket_of(np.array([1.0, 3.0, 5.0, 80.0, 81.0, 257.0])).tolist()
    [1.0, 4.0, 8.0, 80.0, 88.0, 272.0]
    """
    small = 2.0 ** np.ceil(np.log2(np.maximum(tokens, 1.0)))
    large = np.where(tokens > 256.0, 16.0 * np.ceil(tokens / 16.0), 8.0 * np.ceil(tokens / 8.0))
    found: Floats = np.where(tokens <= 4.0, small, large)
    return found


def part_of(term: str) -> Part:
    """Which part of a step a term belongs to."""
    if term == "requests":
        return "other"
    return "draft" if term.startswith(("draft", "depth")) else "verify"


def _terms(cells: Cells, jumps: bool, fills: bool, requests: bool) -> tuple[str, ...]:
    """Only what the cells can speak for."""
    terms = ["constant", "tokens"]
    distinct = np.unique(cells.tokens)
    # A bend needs evidence on both sides of it.
    bends = [
        2**p for p in range(3, 15) if _between(distinct, 2**p, 2**p * 4) >= 2 and (distinct < 2**p).sum() >= 2
    ]
    terms += [f"bend:{at}" for at in bends]
    if jumps:
        terms += [
            f"jump:{left}"
            for left, right in pairwise(EDGES)
            if (distinct <= left).sum() >= 2
            and _between(distinct, left, right) >= 1
            and (distinct > right).any()
        ]
    if fills and len(distinct) > len(FILLS):
        terms += [f"fill:{at}" for at in FILLS]
    # Each graph bucket that was seen may cost extra: tiles make 80 tokens slower than 96 on some devices.
    seen = np.unique(bucket_of(cells.tokens))[:MOST_BUCKETS]
    terms += [f"bucket:{int(at)}" for at in seen]
    # Apart from the tokens only where batches were seen at several K.
    if requests and len(distinct) > len(np.unique(cells.batch)):
        terms.append("requests")
    if (cells.context > 0).any():
        terms.append("context")
    if (cells.prefill > 0).any():
        terms += ["prefill", "any_prefill"]
    drafting = cells.k > 0
    if drafting.any():
        terms += ["draft", "depth", "depth_requests"]
    if (cells.loaded & ~drafting).any() and (~cells.loaded).any():
        terms.append("loaded")
    return tuple(terms)


def _between(values: Floats, low: float, high: float) -> int:
    return int(((values > low) & (values <= high)).sum())


def _design(cells: Cells, terms: Sequence[str], running: Floats) -> Floats:
    tokens = cells.tokens * running / cells.batch
    padded = bucket_of(tokens)
    drafting = (cells.k > 0).astype(np.float64)
    columns: dict[str, Floats] = {
        "constant": np.ones(len(cells)),
        "tokens": tokens,
        "context": cells.context * running / cells.batch,
        "requests": running,
        "prefill": cells.prefill,
        "any_prefill": (cells.prefill > 0).astype(np.float64),
        "draft": drafting,
        "depth": cells.k,
        "depth_requests": cells.k * running,
        "loaded": cells.loaded.astype(np.float64),
    }
    out = []
    for term in terms:
        kind, _, at = term.partition(":")
        if kind == "bend":
            out.append(np.maximum(tokens - float(at), 0.0))
        elif kind == "jump":
            out.append((tokens > float(at)).astype(np.float64))
        elif kind == "fill":
            out.append(1.0 - np.exp(-tokens / float(at)))
        elif kind == "bucket":
            out.append((padded == float(at)).astype(np.float64))
        else:
            out.append(columns[kind])
    return np.stack(out, axis=1)


def _limits(cells: Cells, ceiling: float | None, bare: float | None) -> Floats:
    none = np.inf
    return np.where(cells.loaded, none if ceiling is None else ceiling, none if bare is None else bare)


def _fit(
    cells: Cells, terms: tuple[str, ...], ceiling: float | None, bare: float | None
) -> tuple[PhysicsModel, float]:
    running = np.minimum(cells.batch, _limits(cells, ceiling, bare))
    design = _design(cells, terms, running)
    weight = np.sqrt(cells.steps / (cells.steps + SEEN_STEPS)) / cells.seconds
    rows, wanted = design * weight[:, None], cells.seconds * weight
    rows, wanted = _with_parts(cells, terms, design, weight, rows, wanted)
    scale = np.maximum(np.sqrt((rows**2).sum(axis=0)), 1e-30)
    ridge = np.diag(
        [
            BUCKET_CELLS**0.5 * float(weight.mean()) / size if term.startswith("bucket") else RIDGE
            for term, size in zip(terms, scale, strict=True)
        ]
    )
    solution = _non_negative(np.vstack([rows / scale, ridge]), np.concatenate([wanted, np.zeros(len(terms))]))
    residual = (rows / scale) @ solution - wanted
    error = float(residual @ residual)
    coefficients = tuple(float(x) for x in solution / scale)
    kept = [i for i, c in enumerate(coefficients) if c > 0.0] or [0]
    model = PhysicsModel(tuple(terms[i] for i in kept), tuple(coefficients[i] for i in kept), ceiling, bare)
    return model, error


def _non_negative(rows: Floats, wanted: Floats) -> Floats:
    """The non-negative least-squares solution; tall systems are squared up first, which changes nothing."""
    if len(rows) > 2 * rows.shape[1]:
        turned, rows = np.linalg.qr(rows)
        wanted = turned.T @ wanted
    found: Floats = nnls(rows, wanted)[0]
    return found


def _with_parts(
    cells: Cells, terms: tuple[str, ...], design: Floats, weight: Floats, rows: Floats, wanted: Floats
) -> tuple[Floats, Floats]:
    """Two more equations for each drafting cell whose drafting was timed: drafting, and the rest."""
    timed = np.isfinite(cells.draft_s) & (cells.k > 0)
    if not timed.any():
        return rows, wanted
    drafting = np.array([part_of(term) == "draft" for term in terms])
    scaled, draft_s = weight[timed], cells.draft_s[timed]
    only = design[timed] * scaled[:, None]
    rows = np.vstack([rows, only * drafting, only * ~drafting])
    rest_s = np.maximum(cells.seconds[timed] - draft_s, 0.0)
    return rows, np.concatenate([wanted, draft_s * scaled, rest_s * scaled])


def _best_ceiling(cells: Cells, terms: tuple[str, ...], mask: Flags, both: _Ceilings) -> float | None:
    """The number of requests beyond which more of them change nothing, where the evidence shows one."""
    batches = np.unique(cells.batch[mask])
    if len(batches) < 4:
        return None
    largest = float(batches[-1])
    tried = np.geomspace(largest / 8.0, largest, CEILING_STEPS, endpoint=False)
    _, free = _fit(cells, terms, *both(None))
    best, best_error = None, CEILING_GAIN * free
    # Most batch sizes must have been free of it: else it is the curve that is seen, not a ceiling.
    for at in tried[tried > np.median(batches)]:
        _, error = _fit(cells, terms, *both(float(at)))
        if error < best_error:
            best, best_error = float(at), error
    return best
