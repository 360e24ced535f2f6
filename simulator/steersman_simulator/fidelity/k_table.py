"""A table of serving runs by drafter, K and concurrency, and what is fitted on a part of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from steersman_controller.train.compiled import compile_tables
from steersman_controller.train.devices import ARITHMETIC_SHARE, device
from steersman_controller.train.models import CANDIDATES
from steersman_controller.train.selection import select
from steersman_controller.train.step_times import Source, read_step_times
from steersman_controller.train.survival import parse_survival
from steersman_policies.view import StepCost
from steersman_simulator.acceptance.by_position import conditional
from steersman_simulator.workload.rows import rows
from steersman_simulator.workload.values import Cells
from steersman_simulator.world.shape import Shape

_TEXT = ("dataset", "draft_model", "per_position_accept_pct")
_COUNTS = ("num_spec_tokens", "concurrency", "kv_cache_tokens", "successful_requests")
_TOTALS = ("input_tokens", "output_tokens")
_NUMBERS = ("output_tok_s", "median_itl_ms")
COLUMNS = (*_TEXT, *_COUNTS, *_TOTALS, *_NUMBERS, "num_drafts")

Key = tuple[str, str, int]
"""Data set, drafter, concurrency."""


class Arithmetic(Struct, frozen=True, forbid_unknown_fields=True):
    """What a token of the target's forward takes at least where arithmetic is what takes time: 2 operations a
    parameter at the attainable share of the data sheet's peak."""

    parameters: Annotated[float, Meta(gt=0.0)]
    """Of the products with weights, the output head included, embeddings not."""
    device: str
    """One that `steersman_controller.train.devices` knows."""
    devices: Annotated[int, Meta(ge=1)] = 1

    @property
    def token_s(self) -> float:
        """Raises ValueError for an unknown device."""
        rate = ARITHMETIC_SHARE * device(self.device).flops_per_s * self.devices
        return 2.0 * self.parameters / rate


class TableSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="k_table"):
    """Fitted is on rows of `fit_dataset` up to `fit_concurrency`; every other row is predicted."""

    table: str
    fit_dataset: str
    engine: Shape
    """KV pool and concurrency are those of each row."""
    fit_concurrency: int = 32
    acceptance: Literal["each", "fitted"] = "each"
    """Position acceptance up to `fit_concurrency`: of each data set its own, or that of `fit_dataset`."""
    columns: dict[str, str] = {}
    """Our name to the file's, where they differ."""
    arithmetic: Arithmetic | None = None
    """How steep a forward gets beyond what was fitted, at least; without it goes on as the fit says."""
    seeds: int = 1
    """Worlds for each row; their mean tokens per second counts."""


class ServedRow(Struct, frozen=True):
    """One run: `requests` came at a rate of `concurrency` a second, at most so many at once."""

    dataset: str
    drafter: str
    """Empty: none was loaded."""
    k: int
    concurrency: int
    kv_tokens: int
    requests: int
    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    drafts: float
    survival: tuple[float, ...]
    """Share of drafts accepted up to position 1, 2, ..., K."""

    @property
    def key(self) -> Key:
        """What the K of a choice have in common."""
        return self.dataset, self.drafter, self.concurrency


class Fit(Struct, frozen=True):
    """What is known before a row is predicted."""

    costs: dict[str, StepCost]
    """By drafter; K = 0 is without it."""
    acceptance: dict[tuple[str, str], tuple[float, ...]]
    """Position acceptance by data set and drafter."""


def read_table(path: Path, columns: Mapping[str, str]) -> list[ServedRow]:
    """The rows of a file. Raises ValueError or FileNotFoundError in one line naming file and line."""
    cells, found = Cells(path), []
    for row in rows(path, COLUMNS, columns):
        cells.at, values = row.number, row.values
        count = {name: cells.tokens(name, values[name]) for name in (*_COUNTS, *_TOTALS)}
        speed = {name: cells.number(name, values[name], "a number above 0") for name in _NUMBERS}
        for name, value in (*count.items(), *speed.items()):
            if not value and name != "num_spec_tokens":
                raise cells.error(name, value, "a number above 0")
        k, text = count["num_spec_tokens"], str(values["per_position_accept_pct"] or "")
        where = f"{path}:{row.number}: per_position_accept_pct"
        found.append(
            ServedRow(
                dataset=str(values["dataset"]),
                drafter=str(values["draft_model"] or ""),
                k=k,
                concurrency=count["concurrency"],
                kv_tokens=count["kv_cache_tokens"],
                requests=count["successful_requests"],
                input_tokens=count["input_tokens"],
                output_tokens=count["output_tokens"],
                output_tokens_per_s=speed["output_tok_s"],
                drafts=cells.number("num_drafts", values["num_drafts"], "a number from 0") if k else 0.0,
                survival=parse_survival(text, k, where) if k else (),
            )
        )
    if not found:
        raise ValueError(f"{path}: no rows")
    return found


def fit_table(spec: TableSpec, path: Path, table: Sequence[ServedRow]) -> Fit:
    """Step cost as `steersman train` does it, acceptance pooled over K and concurrency.

    Raises ValueError where a drafter has no rows to fit on.
    """
    low = [row for row in table if row.concurrency <= spec.fit_concurrency]
    drafters = sorted({row.drafter for row in table if row.drafter})
    datasets = sorted({row.dataset for row in table})
    acceptance = {}
    for dataset in datasets:
        source = dataset if spec.acceptance == "each" else spec.fit_dataset
        for drafter in drafters:
            mine = [row for row in low if row.k and (row.dataset, row.drafter) == (source, drafter)]
            if not mine:
                raise ValueError(
                    f"{path}: no drafts of {drafter!r} on {source!r} up to {spec.fit_concurrency}"
                )
            acceptance[dataset, drafter] = _pooled(mine)
    return Fit({drafter: _cost(spec, path, drafter) for drafter in drafters}, acceptance)


def is_fitted(spec: TableSpec, row: ServedRow) -> bool:
    """Whether a row took part in the fit of the step cost."""
    return row.dataset == spec.fit_dataset and row.concurrency <= spec.fit_concurrency


def _cost(spec: TableSpec, path: Path, drafter: str) -> StepCost:
    named = {"batch_size": "concurrency", "num_draft_tokens": "num_spec_tokens", "step_ms": "median_itl_ms"}
    theirs = {ours: spec.columns.get(name, name) for ours, name in named.items()}
    by = tuple(spec.columns.get(name, name) for name in ("draft_model", "dataset"))
    groups = read_step_times(Source(path, theirs, by)).groups
    if (drafter, spec.fit_dataset) not in groups:
        raise ValueError(f"{path}: no step times of {drafter!r} on {spec.fit_dataset!r}")
    cells = groups[drafter, spec.fit_dataset]
    cells = cells.take(cells.batch <= spec.fit_concurrency)
    model = select(cells, CANDIDATES, lambda _: None).model
    cost = compile_tables(model, cells, 0.0).cost
    return cost if spec.arithmetic is None else _steeper(cost, spec.arithmetic.token_s)


def _steeper(cost: StepCost, token_s: float) -> StepCost:
    """The same, where tokens beyond the last that was fitted take at least so long: tables end with a point
    beyond it, and are extended by their last slope."""
    last, beyond = cost.tokens_grid[-2:]
    return replace(
        cost,
        verify_s=tuple(
            tuple((*row[:-1], max(row[-1], row[-2] + token_s * (beyond - last))) for row in plane)
            for plane in cost.verify_s
        ),
    )


def _pooled(rows_: Sequence[ServedRow]) -> tuple[float, ...]:
    """Accepted / reached of each position, over all drafts."""
    accepted, reached = [0.0] * max(row.k for row in rows_), [0.0] * max(row.k for row in rows_)
    for row in rows_:
        before = 1.0
        for position, (share, up_to) in enumerate(zip(conditional(row.survival), row.survival, strict=True)):
            reached[position] += row.drafts * before
            accepted[position] += row.drafts * before * share
            before = up_to
    return tuple(a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True))
