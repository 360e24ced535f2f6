"""What a policy is, and how one is found by name.

A policy is one module that defines a class `Policy`: a frozen msgspec `Struct` of parameters with a
method `plan(view, memory, u)`. Modules of `steersman_policies.zoo` are found by their name, those
of other distributions by the entry-point group ``steersman.policies``. There is no registry, and a
name that comes over the network can only pick among what is installed.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol, TypeAlias

import msgspec

from steersman_policies import zoo
from steersman_policies.plan import Plan
from steersman_policies.view import View

Memory: TypeAlias = Mapping[str, Any]
"""What a planner remembers between two calls: a JSON-like object, empty at first."""

ENTRY_POINTS = "steersman.policies"


class Planner(Protocol):
    """A pure decision: same view, memory and chance, same plan."""

    version: ClassVar[str]

    def plan(self, view: View, memory: Memory, u: float) -> tuple[Plan, Memory]:
        """The next plan and what to remember. `u` in [0, 1) is the only source of chance.

        Mutates nothing; raises nothing for any view that holds its contract.
        """
        ...


def available() -> list[str]:
    """Names of the installed policies, sorted."""
    shipped = (module.name for module in pkgutil.iter_modules(zoo.__path__))
    return sorted({*shipped, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def policy_class(name: str) -> type[Planner]:
    """The class of a policy. Raises ValueError with a suggestion when there is none of that name."""
    if name in {module.name for module in pkgutil.iter_modules(zoo.__path__)}:
        module = importlib.import_module(f"{zoo.__name__}.{name}")
        found: type[Planner] = module.Policy
        return found
    for point in entry_points(group=ENTRY_POINTS, name=name):
        loaded: type[Planner] = point.load()
        return loaded
    names = available()
    raise ValueError(f"policy: no {name!r}{did_you_mean(name, names)}; installed: {', '.join(names)}")


def load(name: str, params: Mapping[str, Any] | None = None) -> Planner:
    """A policy with its parameters. Strings are converted ("4" -> 4).

    Raises ValueError naming the parameter, the value and what is allowed.

    >>> load("fixed", {"k": "4"})
    Policy(k=4, explore=0.0, explore_k=8)
    >>> load("fixed", {"q": 4})
    Traceback (most recent call last):
    ...
    ValueError: policy fixed: no parameter 'q'; parameters: k, explore, explore_k
    """
    cls = policy_class(name)
    if not issubclass(cls, msgspec.Struct):
        raise ValueError(f"policy {name}: its class `Policy` must be a msgspec Struct")
    fields = [field.name for field in msgspec.structs.fields(cls)]
    for key in params or {}:
        if key not in fields:
            hint = did_you_mean(key, fields)
            listed = ", ".join(fields) or "none"
            raise ValueError(f"policy {name}: no parameter {key!r}{hint}; parameters: {listed}")
    try:
        planner: Planner = msgspec.convert(dict(params or {}), cls, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"policy {name}: {_placed(error)}") from None
    return planner


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word, or an empty string.

    >>> did_you_mean("godput", ["fixed", "goodput"]), did_you_mean("x", ["fixed"])
    (", did you mean 'goodput'?", '')
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def _placed(error: msgspec.ValidationError) -> str:
    """`$.k` at the end of msgspec's message, moved to its front."""
    text, _, place = str(error).partition(" - at `$.")
    return f"{place.rstrip('`')}: {text}" if place else text
