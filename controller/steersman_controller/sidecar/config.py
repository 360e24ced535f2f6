"""The sidecar's configuration: one strict YAML file, overridden by the environment, then by flags.

An unknown key is an error that says where it is, what it may have meant and what is allowed.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct

from steersman_controller.events import ControllerConfig
from steersman_controller.sidecar.endpoints import default_endpoint
from steersman_controller.sidecar.segments_file import read_segmenter
from steersman_controller.sidecar.shape import shaped
from steersman_policies.segmenter import Segmenter, SegmentRule
from steersman_policies.units import MAX_SEGMENTS, UNKNOWN_SEGMENT, Name

ENV_PREFIX = "STEERSMAN__"
MIN_PLAN_INTERVAL_S = 0.01
MAX_RULES = 256
"""An engine goes through them for each new request, and every plan carries them."""


class PolicyChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Which policy plans, until an operator pushes another."""

    name: Name = "goodput"
    params: dict[str, Any] = {}


class PriorChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """What is believed of engines before they have taken a step: a bundle, or data sheets."""

    bundle: str = ""
    """A file that `steersman train` made."""
    group: str = ""
    """Which of its groups, where it has several."""
    target_config: str = ""
    """The target's config.json; with a device."""
    drafter_config: str = ""
    device: str = ""
    tensor_parallel: Annotated[int, Meta(ge=1, le=1024)] = 1


class SidecarConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything `steersman serve` can be told. An empty string means: not used."""

    telemetry: str = ""
    """Endpoint that engines connect to; the default is in the user's runtime folder."""
    admin: str = ""
    """Endpoint of the operator's verbs."""
    insecure: bool = False
    """Bind where other machines can connect, without keys."""
    record: str = ""
    """Folder for the recording."""
    state_dir: str = ""
    """Folder for snapshots of what was learned."""
    metrics_port: Annotated[int, Meta(ge=0, le=65535)] = 9464
    """On 127.0.0.1; 0 switches the exporter off."""
    segments: str = ""
    """File that says how requests are sorted; `controller.segmenter` must then say nothing."""
    lease_s: Annotated[float, Meta(ge=0.2, le=60.0)] = 1.0
    policy: PolicyChoice = PolicyChoice()
    prior: PriorChoice = PriorChoice()
    controller: ControllerConfig = ControllerConfig()


def read_config(path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> SidecarConfig:
    """The configuration, with default endpoints filled in.

    `flags` maps dotted keys to values. Raises ValueError with one line: source, key, what is allowed.

    >>> read_config(None, {"STEERSMAN__CONTROLLER__MODE": "steer"}, {"lease_s": 2}).controller.mode
    'steer'
    >>> read_config(None, {}, {"controller.moed": "steer"})
    Traceback (most recent call last):
    ...
    ValueError: --controller.moed: unknown key 'controller.moed', did you mean 'mode'?; allowed: ...
    """
    merged: dict[str, Any] = {}
    for where, tree in _sources(path, environment, flags):
        _converted(tree, where)  # now, so that the error names the source
        merged = merged_trees(merged, tree)
    config = _with_segments(_converted(merged, "configuration"))
    return msgspec.structs.replace(
        config,
        telemetry=config.telemetry or default_endpoint("telemetry"),
        admin=config.admin or default_endpoint("admin"),
    )


def _sources(
    path: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    if path is not None:
        yield str(path), read_yaml(path)
    for name in sorted(environment):
        if name.startswith(ENV_PREFIX):
            yield name, nested(_env_keys(name), _env_value(name, environment))
    for key, value in flags.items():
        yield "--" + key.replace("_", "-"), nested(key.split("."), value)


def _converted(tree: Any, where: str) -> SidecarConfig:
    config = msgspec.convert(shaped(tree, SidecarConfig, where), SidecarConfig)
    found = config.controller.plan_interval_s
    if found < MIN_PLAN_INTERVAL_S:
        raise ValueError(
            f"{where}: controller.plan_interval_s: at least {MIN_PLAN_INTERVAL_S}, found {found}"
        )
    _check_segmenter(config.controller, f"{where}: controller.segmenter")
    return config


def _with_segments(config: SidecarConfig) -> SidecarConfig:
    """With what the file of segments says."""
    if not config.segments:
        return config
    if config.controller.segmenter != Segmenter():
        raise ValueError(
            "segments: controller.segmenter says already how requests are sorted; keep one of them"
        )
    found = read_segmenter(Path(config.segments))
    controller = msgspec.structs.replace(config.controller, segmenter=found)
    _check_segmenter(controller, config.segments)
    return msgspec.structs.replace(config, segments="", controller=controller)


def _check_segmenter(controller: ControllerConfig, where: str) -> None:
    segmenter = controller.segmenter
    tree = () if segmenter.tree is None else segmenter.tree.names
    _check_rules(segmenter.rules, set(tree), f"{where}.rules")
    for name, other in segmenter.same_as.items():
        if other in segmenter.same_as:
            raise ValueError(f"{where}.same_as: {name!r} counts as {other!r}, which counts as another one")
        if name in controller.slo:
            raise ValueError(f"{where}.same_as: {name!r} counts as {other!r}, but has an SLO of its own")


def _check_rules(rules: tuple[SegmentRule, ...], tree: set[str], where: str) -> None:
    """Every rule can match, engines know as many segments, and a plan with the rules fits a frame."""
    if len(rules) > MAX_RULES:
        raise ValueError(f"{where}: at most {MAX_RULES}, found {len(rules)}")
    segments = {rule.segment for rule in rules} | tree
    segments -= {UNKNOWN_SEGMENT}
    if len(segments) >= MAX_SEGMENTS:
        most = f"at most {MAX_SEGMENTS - 1} segments beside {UNKNOWN_SEGMENT!r}"
        raise ValueError(f"{where}: {most}, found {len(segments)}")
    places: dict[tuple[str, str], int] = {}
    for number, rule in enumerate(rules):
        earlier = places.setdefault((rule.attribute, rule.value), number)
        if earlier != number:
            which = f"{rule.attribute} {rule.value!r}"
            raise ValueError(f"{where}.{number}: never reached, rule {earlier} takes {which} already")


class _Loader(yaml.SafeLoader):
    """Like YAML 1.1, but `on` and `off` are words (`off` is a policy), and 1e-3 is a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:bool"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool",
    re.compile("^(?:yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE)$"),
    list("yYnNtTfF"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """The tree in a text. Raises yaml.YAMLError.

    >>> parse_yaml("{policy: off, steer: yes, step_s: 1e-3}")
    {'policy': 'off', 'steer': True, 'step_s': 0.001}
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_yaml(path: Path) -> Any:
    """The tree in a file; an empty file is an empty map. Raises ValueError in one line."""
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not YAML: {error}") from None
    return {} if tree is None else tree


def _env_keys(name: str) -> list[str]:
    return name.removeprefix(ENV_PREFIX).lower().split("__")


def _env_value(name: str, environment: Mapping[str, str]) -> Any:
    try:
        return parse_yaml(environment[name])
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: not YAML: {error}") from None


def nested(keys: list[str], value: Any) -> Any:
    """The value under these keys.

    >>> nested(["a", "b"], 1)
    {'a': {'b': 1}}
    """
    for key in reversed(keys):
        value = {key: value}
    return value


def merged_trees(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Two trees as one; where both say something, the upper one counts."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(out.get(key), dict) and isinstance(value, dict)
        out[key] = merged_trees(out[key], value) if both else value
    return out
