"""Keys of a scenario as `--set` and `--vary` name them: dotted, as `workload.load` or `policy.params.k`."""

import copy
from typing import Any, TypeAlias

import msgspec

Tree: TypeAlias = dict[str, Any]
"""A scenario as its YAML says it."""


def put(tree: Tree, key: str, value: Any) -> None:
    """Set a dotted key in place of all that was there. What a YAML alias shares comes apart.

    Raises ValueError where something on its way holds no keys.

    >>> part = {"load": 1.0}
    >>> tree = {"workload": part, "other": part}
    >>> put(tree, "workload.load", 2.0)
    >>> put(tree, "policy.params.k", 4)
    >>> tree
    {'workload': {'load': 2.0}, 'other': {'load': 1.0}, 'policy': {'params': {'k': 4}}}
    """
    *path, last = key.split(".")
    place = tree
    for depth, word in enumerate(path, start=1):
        inner = place.get(word, {})
        if not isinstance(inner, dict):
            name = ".".join(path[:depth])
            raise ValueError(f"{key}: {name} is {said(inner)}, which has no keys inside")
        place[word] = dict(inner)
        place = place[word]
    place[last] = copy.deepcopy(value)


def said(value: Any) -> str:
    """A value as `--vary` takes it.

    >>> said("off"), said(0.5), said({"kind": "constant"})
    ('off', '0.5', '{"kind":"constant"}')
    """
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
