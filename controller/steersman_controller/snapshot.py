"""Bytes that hold what a controller has learned: checked before they are believed.

Deterministic msgpack: equal controllers give equal bytes.
"""

import hashlib
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Struct

from steersman_controller.belief.belief import BeliefState
from steersman_controller.belief.prior import NOTHING, Chosen
from steersman_controller.request_spread import RequestSpread
from steersman_policies.messages import Hello
from steersman_policies.plan import Plan

SNAPSHOT = 4
"""Version of the contents; another one is refused."""


class Contents(Struct):
    """Everything that outlives a sidecar."""

    hello: Hello
    mode: Literal["shadow", "steer"]
    policy: str
    params: dict[str, Any]
    memory: dict[str, Any]
    plan: Plan | None
    plan_id: int
    """The newest id given out."""
    plans: int
    """How often the planner was asked."""
    belief: BeliefState
    requests: dict[str, RequestSpread]
    counters: dict[str, int]
    chosen: Chosen = NOTHING
    """What the belief leans on."""


class Sealed(Struct, frozen=True, array_like=True):
    """The envelope of a snapshot."""

    version: int
    fingerprint: str
    checksum: bytes
    contents: bytes


class Packed(Struct, frozen=True, array_like=True):
    """An array."""

    kind: Literal["<f8", "<i8", "|b1"]
    shape: tuple[int, ...]
    body: bytes


def _pack(value: Any) -> Packed:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(type(value))
    array = np.ascontiguousarray(value)
    return Packed(array.dtype.newbyteorder("<").str, array.shape, array.tobytes())  # type: ignore[arg-type]


def _unpack(kind: type, value: Any) -> Any:
    """The array in `value`. Raises ValueError, which becomes a ValidationError, for anything else."""
    packed = msgspec.convert(value, Packed)
    if np.dtype(packed.kind) != np.dtype(get_args(get_args(kind)[1])[0]):
        raise ValueError(f"array of {packed.kind}")
    array = np.frombuffer(packed.body, packed.kind).reshape(packed.shape).copy()
    if not np.isfinite(array).all():
        raise ValueError("array with numbers that are not finite")
    if packed.kind == "<i8" and (array < 0).any():
        raise ValueError("array with counts below 0")
    return array


_encoder = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_pack)
_contents = msgspec.msgpack.Decoder(Contents, dec_hook=_unpack)
_sealed = msgspec.msgpack.Decoder(Sealed)


def seal(contents: Contents, fingerprint: str) -> bytes:
    """The snapshot that holds `contents`; equal contents give equal bytes."""
    body = _encoder.encode(contents)
    return _encoder.encode(Sealed(SNAPSHOT, fingerprint, _checksum(fingerprint, body), body))


def unseal(snapshot: bytes, fingerprint: str) -> Contents:
    """The contents of a snapshot taken of an engine with this fingerprint.

    Raises ValueError in one line where it is damaged, of another version or of another engine.
    """
    try:
        sealed = _sealed.decode(snapshot)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"snapshot: damaged ({error})") from None
    if sealed.version != SNAPSHOT:
        raise ValueError(f"snapshot: version {sealed.version}, understood is {SNAPSHOT}")
    if sealed.checksum != _checksum(sealed.fingerprint, sealed.contents):
        raise ValueError("snapshot: damaged (the checksum does not match)")
    if sealed.fingerprint != fingerprint:
        raise ValueError(f"snapshot: of engine {sealed.fingerprint}, this one is {fingerprint}")
    try:
        return _contents.decode(sealed.contents)
    except msgspec.DecodeError as error:
        raise ValueError(f"snapshot: damaged ({error})") from None


def same_shape(one: Struct, other: Struct) -> bool:
    """Whether all arrays of two states of one kind have equal shapes."""
    for name in one.__struct_fields__:
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, Struct) and not same_shape(mine, theirs):
            return False
        if isinstance(mine, np.ndarray) and mine.shape != theirs.shape:
            return False
    return True


def _checksum(fingerprint: str, body: bytes) -> bytes:
    return hashlib.blake2b(fingerprint.encode() + b"\0" + body, digest_size=16).digest()
