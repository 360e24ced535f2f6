"""Checks a tree that a person wrote, key by key, so that every error says where it is."""

from typing import Any

import msgspec
from msgspec.inspect import DictType, Field, LiteralType, StructType, Type, UnionType, VarTupleType, type_info

from steersman_policies.policy import did_you_mean


def shaped(tree: Any, kind: type, where: str) -> dict[str, Any]:
    """The tree as `msgspec.convert` takes it: records that travel as arrays may be written as maps.

    Raises ValueError naming source and key, and what is allowed or was found there.
    """
    out: dict[str, Any] = _shaped(tree, type_info(kind), where, "")
    return out


def _shaped(tree: Any, kind: Type, where: str, path: str) -> Any:
    if isinstance(kind, StructType):
        return _record(tree, kind, where, path)
    if isinstance(kind, DictType) and isinstance(tree, dict):
        return {key: _shaped(value, kind.value_type, where, f"{path}{key}.") for key, value in tree.items()}
    if isinstance(kind, VarTupleType) and isinstance(tree, list):
        return [_shaped(value, kind.item_type, where, f"{path}{n}.") for n, value in enumerate(tree)]
    if isinstance(kind, UnionType) and isinstance(tree, dict):
        options = [option for option in kind.types if isinstance(option, StructType)]
        if options:
            return _shaped(tree, _chosen(tree, options, where, path), where, path)
    return tree


def _chosen(tree: dict[str, Any], options: list[StructType], where: str, path: str) -> StructType:
    """The record that a tagged tree stands for; without tags there is only one."""
    field = options[0].tag_field
    if field is None:
        return options[0]
    tags = {str(option.tag): option for option in options}
    if field not in tree:
        raise ValueError(f"{where}: {path}{field} is missing; allowed: {', '.join(tags)}")
    if tree[field] not in tags:
        found = f"found {tree[field]!r}{did_you_mean(str(tree[field]), tags)}"
        raise ValueError(f"{where}: {path}{field}: {found}; allowed: {', '.join(tags)}")
    return tags[tree[field]]


def _record(tree: Any, kind: StructType, where: str, path: str) -> Any:
    fields = {field.name: field for field in kind.fields}
    if not isinstance(tree, dict):
        found = type(tree).__name__
        raise ValueError(f"{where}: {path.rstrip('.') or 'the file'} must map keys to values, found {found}")
    tag = {kind.tag_field: kind.tag} if kind.tag_field and kind.tag_field in tree else {}
    tree = {key: value for key, value in tree.items() if key not in tag}
    for key in tree:
        if key not in fields:
            hint = did_you_mean(str(key), fields)
            raise ValueError(f"{where}: unknown key '{path}{key}'{hint}; allowed: {', '.join(fields)}")
    out = {key: _shaped(value, fields[key].type, where, f"{path}{key}.") for key, value in tree.items()}
    types = {field.name: field.type for field in msgspec.structs.fields(kind.cls)}
    for key, value in out.items():
        try:
            msgspec.convert(value, types[key])
        except msgspec.ValidationError as error:
            raise ValueError(f"{where}: {path}{_unfit(key, value, fields[key].type, error)}") from None
    for name, field in fields.items():
        if field.required and name not in out:
            raise ValueError(f"{where}: {path}{name} is missing")
    return _positional(out, kind, where, path) if kind.array_like else tag | out


def _unfit(key: str, value: Any, kind: Type, error: msgspec.ValidationError) -> str:
    if isinstance(kind, LiteralType):
        words = [str(word) for word in kind.values]
        return f"{key}: found {value!r}{did_you_mean(str(value), words)}; allowed: {', '.join(words)}"
    text, _, place = str(error).partition(" - at `$")
    found = "" if isinstance(value, dict) else f", found {value!r}"
    return f"{key}{place.rstrip('`')}: {text}{found}"


def _positional(record: dict[str, Any], kind: StructType, where: str, path: str) -> list[Any]:
    return [
        record[field.name] if field.name in record else _default(field, where, path) for field in kind.fields
    ]


def _default(field: Field, where: str, path: str) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default_factory())
    raise ValueError(f"{where}: {path}{field.name} is missing")


def plain(value: Any) -> Any:
    """The tree that a person would write for a record; `shaped` and `msgspec.convert` reverse it.

    >>> from steersman_policies.plan import Slo
    >>> plain({"chat": Slo(ttft_s=1.0, tpot_s=0.1)})
    {'chat': {'ttft_s': 1.0, 'tpot_s': 0.1, 'quantile': 0.95}}
    """
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
