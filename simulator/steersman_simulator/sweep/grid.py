"""What to sweep, from a file and from the command line.

The file is a scenario, or a sweep:

```yaml
scenario: base.yaml        # or the scenario itself
vary:                      # every combination
  workload.load: [0.5, 1, 2]
cells:                     # settings that belong together
  - {policy: off}
  - {policy: fixed, params.k: 3}
seeds: 5                   # or a list of them
```

`policy` and `params.k` are short for `policy.name` and `policy.params.k`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from steersman_controller.sidecar.config import read_yaml
from steersman_controller.sidecar.shape import shaped
from steersman_simulator.dotted import Tree
from steersman_simulator.sweep.cells import MAX_CELLS, NAME, SEED, Grid


class SweepFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep as its YAML says it."""

    scenario: str | Tree
    """The scenario, or its file relative to this one."""
    vary: dict[str, list[Any]] = {}
    cells: list[dict[str, Any]] = []
    seeds: int | list[int] = 1
    """So many, from the scenario's own seed on; or these."""


def read_sweep(path: Path, vary: Sequence[str] = (), seeds: int | None = None) -> tuple[Tree, Path, Grid]:
    """The scenario, the folder that its paths are relative to, and what is varied.

    `vary` are texts like `policy=off,fixed`, which take the place of what the file says of the same
    key. Raises OSError, or ValueError in one line naming file or option and key.
    """
    tree = _tree(path)
    said = {"scenario": tree} if "scenario" not in tree else tree
    found = msgspec.convert(shaped(said, SweepFile, str(path)), SweepFile)
    folder, scenario = path.parent, found.scenario
    if isinstance(scenario, str):
        folder, scenario = (path.parent / scenario).parent, _tree(path.parent / scenario)
    vary_all = found.vary | dict(_varied(text) for text in vary)
    for key, values in found.vary.items():
        if not values:
            raise ValueError(f"{path}: vary.{key}: no values, so there is nothing to run")
    many = found.seeds if seeds is None else seeds
    grid = Grid(
        {_key(key): values for key, values in vary_all.items()},
        [{_key(key): value for key, value in cell.items()} for cell in found.cells],
        _seeds(many, scenario, str(path)),
    )
    if SEED in grid.vary or any(SEED in cell for cell in grid.cells):
        raise ValueError(f"{path}: {SEED} is not varied like other keys; say how many with seeds")
    return scenario, folder, grid


def values_of(text: str) -> list[Any]:
    """The values in a text: JSON where it is, else a word. Commas inside brackets and quotes separate none.

    >>> values_of('off,fixed'), values_of('1,2.5,true,[1,2]'), values_of('{"kind":"a","b":1},null')
    (['off', 'fixed'], [1, 2.5, True, [1, 2]], [{'kind': 'a', 'b': 1}, None])
    """
    return [_value(part.strip()) for part in _split(text) if part.strip()]


def _tree(path: Path) -> Tree:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    tree = read_yaml(path)
    if not isinstance(tree, Mapping):
        raise ValueError(f"{path}: must map keys to values, found {type(tree).__name__}")
    return dict(tree)


def _key(key: str) -> str:
    """The whole key.

    >>> _key("policy"), _key("params.k"), _key("workload.load")
    ('policy.name', 'policy.params.k', 'workload.load')
    """
    if key == "policy":
        return NAME
    return f"policy.{key}" if key.startswith("params.") else key


def _varied(text: str) -> tuple[str, list[Any]]:
    key, equals, listed = text.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"--vary: {text!r} is not of the form key=value,value")
    values = values_of(listed)
    if not values:
        raise ValueError(f"--vary {key}: no values, so there is nothing to run")
    return key.strip(), values


def _split(text: str) -> list[str]:
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += 0 if quoted else (char in "[{") - (char in "]}")
        if char == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _seeds(many: int | list[int], scenario: Tree, where: str) -> tuple[int, ...]:
    if isinstance(many, list):
        seeds = list(dict.fromkeys(many))
    else:
        first = scenario.get(SEED, 0)
        if not isinstance(first, int):
            raise ValueError(f"{where}: {SEED}: expected a whole number, found {first!r}")
        if many > MAX_CELLS:
            raise ValueError(f"{where}: seeds: {many}, at most {MAX_CELLS}")
        seeds = list(range(first, first + many))
    if not seeds or min(seeds) < 0:
        raise ValueError(f"{where}: seeds: at least one, none below 0, found {many}")
    return tuple(seeds)
