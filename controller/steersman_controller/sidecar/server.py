"""The sidecar: one poll loop that turns sockets and a clock into events for the fleet.

Rules of this file:

- Nothing changes a controller but an event, and every event is recorded. So a recording replays.
- The clock is passed in. `poll` and `tick` are all that the loop does, so a test or a replay can do
  it step by step on a clock of its own.
- What a peer sends wrong is counted and dropped. Nothing here waits for a peer.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable

import zmq

from steersman_controller.belief.prior import Prior
from steersman_controller.events import Alarmed, Event, PolicySet, Received, Restored, Started, Ticked
from steersman_controller.fleet import Fleet
from steersman_controller.sidecar import admin, desk, gauges
from steersman_controller.sidecar.config import SidecarConfig
from steersman_controller.sidecar.metrics import Metrics
from steersman_controller.sidecar.peer import LEASE_INTERVAL_S, Peer
from steersman_controller.sidecar.snapshots import Snapshots
from steersman_controller.sidecar.wire import Refused, TelemetrySocket, admin_socket
from steersman_controller.trace.recorder import Recorder
from steersman_policies.codec import SCHEMA, Frame
from steersman_policies.messages import Lease, PlanAck, StepReport
from steersman_policies.plan import Plan

FRAMES_PER_POLL = 256
"""Then leases and plans get their turn, however fast an engine talks."""

IDLE_S = 0.25
"""The longest wait: how soon a signal is noticed while nothing happens."""

UPKEEP_INTERVAL_S = 1.0
"""Between two looks at gauges and snapshots."""

log = logging.getLogger("steersman.server")


class Sidecar:
    """Serves engines and operators until closed. Raises ValueError where it cannot listen."""

    def __init__(
        self,
        config: SidecarConfig,
        *,
        clock: Callable[[], float],
        epoch: int,
        version: str,
        metrics: Metrics,
        recorder: Recorder | None = None,
        snapshots: Snapshots | None = None,
        priors: tuple[Prior, ...] = (),
    ) -> None:
        self.config = config
        self.clock = clock
        self.epoch = epoch
        self.version = version
        self.metrics = metrics
        self.recorder = recorder
        self.snapshots = snapshots
        self.policy = config.policy
        """For engines that have none of their own."""
        self.peers: dict[str, Peer] = {}
        self.refused_frames: Counter[str] = Counter()
        started = Started(
            at_s=clock(),
            schema=SCHEMA,
            version=version,
            epoch=epoch,
            config=config.controller,
            policy=config.policy.name,
            params=config.policy.params,
            priors=priors,
        )
        self.fleet = Fleet(started)
        self._context = zmq.Context()
        self.telemetry = TelemetrySocket(self._context, config.telemetry, epoch)
        self._admin = admin_socket(self._context, config.admin)
        self._poller = zmq.Poller()
        self._poller.register(self.telemetry.socket, zmq.POLLIN)
        self._poller.register(self._admin, zmq.POLLIN)
        self._upkeep_due_s = started.at_s
        self._record(started)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Serve until `stopped()`; notices it within `IDLE_S`."""
        while not stopped():
            self.poll(min(max(self._due_s() - self.clock(), 0.0), IDLE_S))
            self.tick()

    def poll(self, timeout_s: float) -> int:
        """Wait for frames and handle what is there; how many engine frames were handled or refused."""
        ready = dict(self._poller.poll(math.ceil(timeout_s * 1000.0)))
        handled = 0
        if self.telemetry.socket in ready:
            while handled < FRAMES_PER_POLL and self._receive():
                handled += 1
        if self._admin in ready:
            self._answer()
        self._flush()
        return handled

    def tick(self) -> None:
        """Send what is due: plans, plans that nobody acknowledged, leases. Then snapshots and gauges."""
        now_s = self.clock()
        for engine_id, controller in self.fleet.controllers.items():
            peer = self.peers[engine_id]
            if peer.is_silent(now_s):
                continue
            if now_s >= peer.plan_due_s:
                self.plan(engine_id)
            elif peer.owes_ack(now_s) and peer.unanswered is not None:
                self._send(peer, peer.unanswered)
            if now_s >= peer.lease_due_s:
                self._lease(peer, controller.leased_plan_id, now_s)
        if now_s >= self._upkeep_due_s:
            self._upkeep_due_s = now_s + UPKEEP_INTERVAL_S
            gauges.refresh(self, now_s)
            self._tell_alarms(now_s)
            self._tell_restarts()
            self._save()
        self._flush()

    def plan(self, engine_id: str) -> None:
        """Ask the controller of an engine for a plan now; send it where there is a new one."""
        now_s = self.clock()
        self.peers[engine_id].plan_due_s = now_s + self.config.controller.plan_interval_s
        self.apply(self.fleet.tick(engine_id, now_s))

    def apply(self, event: Event) -> None:
        """Change the fleet by an event, record it, send the plan that follows.

        Raises ValueError, with nothing changed, for what an operator or a snapshot got wrong.
        """
        plan = self.fleet.apply(event)
        self._record(event)
        if plan is not None and isinstance(event, Received | Ticked):
            self._send(self.peers[event.engine_id], plan)
        if isinstance(event, PolicySet) and not event.engine_id:
            self.policy = type(self.policy)(name=event.policy, params=event.params)

    def close(self) -> None:
        """Free the endpoints, save what was learned, end the recording."""
        self.telemetry.socket.close()
        self._admin.close()
        self._context.term()
        self._save()
        if self.snapshots is not None:
            self.snapshots.close()
        if self.recorder is not None:
            self.recorder.close()

    def _due_s(self) -> float:
        now_s = self.clock()
        known = (self.peers[engine_id] for engine_id in self.fleet.controllers)
        live = [min(peer.plan_due_s, peer.lease_due_s) for peer in known if not peer.is_silent(now_s)]
        return min([self._upkeep_due_s, *live])

    def _receive(self) -> bool:
        """Handle one frame; False when none waits."""
        try:
            frame = self.telemetry.receive()
        except Refused as refused:
            self._refuse(refused)
            return True
        if frame is None:
            return False
        received = _received(frame, self.clock())
        engine_id = received.engine_id
        peer = self._meet(engine_id, received.at_s)
        if isinstance(received.record, StepReport):  # nearly all of them
            self.apply(received)
            return True
        frames = self.fleet.frames(engine_id)
        self.apply(received)
        if self.fleet.frames(engine_id) > frames:
            gauges.note(self.metrics, received)
        if isinstance(received.record, PlanAck):
            peer.answer(received.record, received.at_s)
        self._restore(peer, received.at_s)
        return True

    def _meet(self, engine_id: str, now_s: float) -> Peer:
        peer = self.peers.get(engine_id)
        if peer is None:
            peer = self.peers[engine_id] = Peer(engine_id, plan_due_s=now_s, lease_due_s=now_s)
            log.info("engine %s: first frame", engine_id)
        peer.heard_s = now_s
        return peer

    def _restore(self, peer: Peer, now_s: float) -> None:
        """Give a controller that just began what an earlier sidecar had learned about its engine."""
        controller = self.fleet.controllers.get(peer.engine_id)
        if controller is None or controller.fingerprint == peer.fingerprint:
            return
        peer.fingerprint = controller.fingerprint
        if controller.chosen.text:
            log.info("engine %s: prior: %s", peer.engine_id, controller.chosen.text)
        snapshot = None if self.snapshots is None else self.snapshots.load(peer.engine_id)
        if snapshot is None:
            return
        try:
            self.apply(Restored(at_s=now_s, engine_id=peer.engine_id, snapshot=snapshot))
        except ValueError as error:
            self.metrics.add("snapshots_refused", 1.0)
            log.warning("engine %s: learning starts afresh: %s", peer.engine_id, error)
        else:
            log.info("engine %s: goes on with policy %s", peer.engine_id, controller.policy_name)
            if self.fleet.started.priors:
                began = controller.chosen.text or "none"
                log.info("engine %s: what it has learned counts more: prior: %s", peer.engine_id, began)

    def _tell_alarms(self, now_s: float) -> None:
        for engine_id, controller in self.fleet.controllers.items():
            for drift in controller.belief.taken_drifts():
                where = drift.segment or "all steps"
                log.warning("engine %s: %s of %s has changed; learning anew", engine_id, drift.kind, where)
                self.apply(Alarmed(now_s, engine_id, drift.kind, drift.segment, drift.step))

    def _tell_restarts(self) -> None:
        """Say when a launch without any drafter begins or ceases to be the better one."""
        for engine_id, controller in self.fleet.controllers.items():
            peer, found = self.peers[engine_id], controller.restart()
            if found is not None and found.wins != peer.restart_wins:
                peer.restart_wins = found.wins
                which = "would win" if found.wins else "would not win any more"
                log.warning("engine %s: a restart without speculation %s: %s", engine_id, which, found.text)

    def _save(self) -> None:
        if self.snapshots is not None:
            for engine_id, controller in self.fleet.controllers.items():
                self.snapshots.save(engine_id, controller.snapshot())

    def _refuse(self, refused: Refused) -> None:
        self.refused_frames[refused.reason] += 1
        self.metrics.add("wire_errors", 1.0, refused.reason)
        if self.refused_frames[refused.reason] == 1:
            log.warning("frame refused: %s; further ones of this kind are only counted", refused)

    def _send(self, peer: Peer, plan: Plan) -> None:
        self.telemetry.send(peer.engine_id, plan)
        peer.sent(plan, self.clock())
        self.metrics.plan(peer.engine_id, plan)

    def _lease(self, peer: Peer, plan_id: int | None, now_s: float) -> None:
        peer.lease_due_s = now_s + LEASE_INTERVAL_S
        if plan_id is None:
            return
        if self.telemetry.send(peer.engine_id, Lease(plan_id=plan_id, lease_s=self.config.lease_s)):
            peer.leased_s = now_s

    def _answer(self) -> None:
        parts = self._admin.recv_multipart(zmq.NOBLOCK)
        if len(parts) != 3:
            return
        request = admin.decode_request(parts[2])
        reply = request if isinstance(request, admin.Rejected) else desk.answer(self, request)
        try:
            self._admin.send_multipart([*parts[:2], admin.encode_reply(reply)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.info("an operator did not wait for the answer: %s", error)

    def _record(self, event: Event) -> None:
        if self.recorder is not None:
            self.recorder.write(event)

    def _flush(self) -> None:
        if self.recorder is not None:
            self.recorder.flush()


def _received(frame: Frame, now_s: float) -> Received:
    body = frame.envelope.body
    assert not isinstance(body, Plan | Lease), "the socket refuses what an engine may not send"
    return Received(
        at_s=now_s,
        engine_id=frame.envelope.sender,
        epoch=frame.envelope.epoch,
        sequence=frame.sequence,
        dropped=frame.envelope.dropped,
        record=body,
    )
