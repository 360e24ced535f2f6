"""The cells of a sweep: one scenario with some of its keys set, for every combination.

A key is dotted, as `workload.load` or `policy.params.k`. A cell is known by its content: the whole scenario,
the bytes of the files that it names, and the version that runs it.
"""

import copy
import glob
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from steersman_policies.policy import did_you_mean, policy_class
from steersman_simulator.dotted import Tree, put, said

Settings: TypeAlias = Mapping[str, Any]
"""Values by dotted key."""

Check: TypeAlias = Callable[[Tree, str], None]
"""Raises ValueError, in one line that begins with the second argument, for what is no scenario."""

SEED = "seed"
NAME, PARAMS = "policy.name", "policy.params"
_KEY_DIGITS = 24

MAX_CELLS = 100_000
"""Cells are made and checked before the first one runs: more are a slip of the pen."""


class Grid(Struct, frozen=True):
    """What is varied. A sweep is every one of `cells` under every combination of `vary` and every seed."""

    vary: dict[str, list[Any]] = {}
    cells: list[dict[str, Any]] = []
    """Settings that belong together, as a policy and its parameters; empty: the scenario as it is."""
    seeds: tuple[int, ...] = (0,)


class Cell(Struct, frozen=True):
    """One run."""

    key: str
    """Hash of its content."""
    scenario: Tree
    varied: dict[str, Any]
    """The values by which it differs from others, by dotted key; without the seed."""
    seed: int


class Cells(Struct, frozen=True):
    """All runs of a sweep, in the order of the grid."""

    cells: tuple[Cell, ...]
    repeated: int
    """Combinations left out because another one is the same run."""


def cells_of(scenario: Tree, grid: Grid, *, folder: Path, version: str, check: Check) -> Cells:
    """Every cell, each checked before any runs. Paths in the scenario are relative to `folder`.

    Parameters of policies are set where the cell's policy has them, so that `policy.name` and
    `policy.params.k` can be varied in one grid. Raises ValueError for a key or a value that no scenario has.
    """
    wanted = math.prod(
        [max(len(grid.cells), 1), len(grid.seeds), *(len(each) for each in grid.vary.values())]
    )
    if wanted > MAX_CELLS:
        raise ValueError(f"sweep: {wanted} cells, at most {MAX_CELLS}: vary fewer keys, or in several sweeps")
    digests: dict[Path, str] = {}
    found: dict[str, Cell] = {}
    combinations = 0
    taken = _parameters(scenario, grid)
    for settings in _combinations(grid):
        where = ", ".join(f"{key}={said(value)}" for key, value in settings.items()) or "scenario"
        tree = copy.deepcopy(scenario)
        for key, value in settings.items():
            put(tree, key, value)
        dropped = _fit_parameters(tree, taken)
        varied = {key: value for key, value in settings.items() if key not in dropped}
        for seed in grid.seeds:
            combinations += 1
            whole = {**tree, SEED: seed}
            if seed == grid.seeds[0]:
                check(whole, where)
            key = key_of(whole, folder, version, digests)
            found.setdefault(key, Cell(key, whole, varied, seed))
    return Cells(tuple(found.values()), combinations - len(found))


def key_of(scenario: Tree, folder: Path, version: str, digests: dict[Path, str]) -> str:
    """The hash of a cell's content. `digests` remembers those of files between calls.

    A text of the scenario that names a file counts by what is in that file, and the beginning of the names of
    operator tables by what is in these.
    """
    files = {}
    for text in _texts(scenario):
        if text in {"", ".", ".."}:
            continue
        path = folder / text
        if path not in digests:
            digests[path] = _digest(path)
        if digests[path]:
            files[text] = digests[path]
    for text in _table_names(scenario):
        for path in sorted((folder / text).parent.glob(f"{glob.escape(Path(text).name)}_*")):
            digests.setdefault(path, _digest(path))
            files[path.name] = digests[path]
    content = msgspec.json.encode([version, scenario, files], order="deterministic")
    return hashlib.sha256(content).hexdigest()[:_KEY_DIGITS]


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a JSON tree by dotted key; a list is a leaf.

    >>> flat({"a": {"b": 1, "c": [1, 2]}, "d": "x"})
    {'a.b': 1, 'a.c': [1, 2], 'd': 'x'}
    """
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return out


def _combinations(grid: Grid) -> Iterator[dict[str, Any]]:
    for chosen in grid.cells or [{}]:
        for values in product(*grid.vary.values()):
            yield {**chosen, **dict(zip(grid.vary, values, strict=True))}


def _parameters(scenario: Tree, grid: Grid) -> frozenset[str]:
    """Names of the parameters that any policy of the sweep has."""
    policy = scenario.get("policy")
    first = policy.get("name") if isinstance(policy, dict) else None
    named = [first, *grid.vary.get(NAME, ()), *(chosen.get(NAME) for chosen in grid.cells)]
    return frozenset(name for policy in named if isinstance(policy, str) for name in _fields(policy))


def _fit_parameters(tree: Tree, taken: frozenset[str]) -> set[str]:
    """Take parameters of other policies of the sweep out of `tree`; the dotted keys that went."""
    policy = tree.get("policy")
    if not isinstance(policy, dict) or not isinstance(policy.get("name"), str):
        return set()
    mine, params = _fields(policy["name"]), policy.get("params")
    if not isinstance(params, dict):
        return set()
    for name in params:
        if name not in taken and name not in mine:
            listed = ", ".join(sorted(taken)) or "none"
            hint = did_you_mean(name, taken)
            raise ValueError(f"{PARAMS}.{name}: no policy of this sweep has it{hint}; allowed: {listed}")
    others = [name for name in params if name not in mine]
    for name in others:
        del params[name]
    return {f"{PARAMS}.{name}" for name in others}


def _fields(policy: str) -> Sequence[str]:
    return [field.name for field in msgspec.structs.fields(policy_class(policy))]  # type: ignore[arg-type]


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, Sequence):
        for value in tree:
            yield from _texts(value)


def _table_names(tree: Any) -> Iterator[str]:
    """What the names of operator tables begin with, wherever a truth says it."""
    if isinstance(tree, Mapping):
        if tree.get("kind") == "operators" and isinstance(tree.get("tables"), str):
            yield tree["tables"]
        for value in tree.values():
            yield from _table_names(value)


def _digest(path: Path) -> str:
    """The hash of a file, or of the files in a folder (a recording is one); empty where there is none."""
    try:
        if path.is_file():
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        if path.is_dir():
            parts = [f"{inner.name} {_digest(inner)}" for inner in sorted(path.iterdir()) if inner.is_file()]
            return hashlib.sha256("\n".join(parts).encode()).hexdigest()
    except (OSError, ValueError):  # a text that is no path, or that nobody may read
        pass
    return ""
