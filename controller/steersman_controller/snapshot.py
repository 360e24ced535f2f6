"""Bytes that hold what a controller has learned: checked before they are believed.

Deterministic msgpack: equal controllers give equal bytes.
"""

import hashlib
from typing import Any, Literal

import msgspec
from msgspec import Struct

from steersman_controller.belief.cost import CostState
from steersman_controller.belief.evidence import Evidence
from steersman_controller.belief.load import LoadState
from steersman_policies.messages import Hello
from steersman_policies.plan import Plan

SNAPSHOT = 1
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
    cost: CostState
    acceptance: dict[str, Evidence]
    load: LoadState
    counters: dict[str, int]


class Sealed(Struct, frozen=True, array_like=True):
    """The envelope of a snapshot."""

    version: int
    fingerprint: str
    checksum: bytes
    contents: bytes


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_contents = msgspec.msgpack.Decoder(Contents)
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


def _checksum(fingerprint: str, body: bytes) -> bytes:
    return hashlib.blake2b(fingerprint.encode() + b"\0" + body, digest_size=16).digest()
