"""A sidecar that learns nothing: one plan for every engine that says hello, and leases.

It starts in a fraction of the real one's time and dies like it, for trials that kill a hundred.
Run as ``python -m steersman_engine.bench.stand_in ENDPOINT PLAN_K FALLBACK_K LEASE_S``.
"""

import sys
import time
from collections.abc import Callable

import zmq

from steersman_policies import codec
from steersman_policies.codec import Envelope, FromSidecar, WireError
from steersman_policies.messages import Hello, Lease
from steersman_policies.plan import Dwell, Plan
from steersman_policies.units import UNKNOWN_SEGMENT

LEASE_INTERVAL_S = 0.1


def constant_plan(fingerprint: str, plan_k: int, fallback_k: int, plan_id: int = 1) -> Plan:
    """`plan_k` for everybody under a lease, `fallback_k` without one; no dwell."""
    return Plan(
        plan_id=plan_id,
        policy="stand_in",
        policy_version="1",
        fingerprint=fingerprint,
        mode="steer",
        batch_edges=(),
        context_edges=(),
        proposal_length={UNKNOWN_SEGMENT: ((plan_k,),)},
        fallback=(fallback_k,),
        dwell=Dwell(steps=0, seconds=0.0),
    )


class StandIn:
    """Binds `endpoint` and answers; `turn` does what is due and takes at most `wait_s`."""

    def __init__(
        self,
        endpoint: str,
        *,
        plan_k: int,
        fallback_k: int,
        lease_s: float,
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(endpoint)
        self._plan_k, self._fallback_k, self._lease_s = plan_k, fallback_k, lease_s
        self._epoch = epoch
        self._clock = clock
        self._lease_due_s = 0.0
        self._sequence = 0
        self._engines: set[bytes] = set()

    def turn(self, wait_s: float) -> None:
        """Answer what came in; renew the leases when due."""
        if self._socket.poll(wait_s * 1_000.0):
            engine, *frames = self._socket.recv_multipart()
            self._answer(engine, frames)
        now_s = self._clock()
        if now_s >= self._lease_due_s:
            self._lease_due_s = now_s + LEASE_INTERVAL_S
            for engine in self._engines:
                self.send(engine, Lease(plan_id=1, lease_s=self._lease_s))

    def send(self, engine: bytes, record: FromSidecar) -> None:
        """Send a record to one engine."""
        topic = str(record.__struct_config__.tag).encode()
        envelope = Envelope(codec.SCHEMA, self._epoch, "stand-in", 0, record)
        self._socket.send_multipart([engine, *codec.encode(topic, self._sequence, envelope)], zmq.NOBLOCK)
        self._sequence += 1

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(0)
        self._context.term()

    def _answer(self, engine: bytes, frames: list[bytes]) -> None:
        try:
            record = codec.decode(frames).envelope.body
        except WireError:
            return
        if isinstance(record, Hello):
            digest = codec.fingerprint_digest(record.fingerprint)
            self.send(engine, constant_plan(digest, self._plan_k, self._fallback_k))
            self.send(engine, Lease(plan_id=1, lease_s=self._lease_s))
            self._engines.add(engine)


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    endpoint, plan_k, fallback_k, lease_s = arguments
    stand_in = StandIn(
        endpoint,
        plan_k=int(plan_k),
        fallback_k=int(fallback_k),
        lease_s=float(lease_s),
        epoch=time.time_ns() // 1_000,
        clock=time.monotonic,
    )
    while True:
        stand_in.turn(0.01)


if __name__ == "__main__":
    main(sys.argv[1:])
