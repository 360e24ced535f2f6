"""Engines side by side: they help each other, and the sick one is told apart."""

import msgspec
import numpy as np
import pytest
import traffic

from steersman_controller.belief.estimate import PRIOR
from steersman_controller.events import ControllerConfig, Received, Started
from steersman_controller.fleet import Fleet
from steersman_policies.messages import StepReport


class Site:
    """Engines of one kind that report to one fleet."""

    def __init__(self, *names: str) -> None:
        self.fleet = Fleet(Started(0.0, 1, "0", 1, ControllerConfig(mode="steer"), "fixed", {"k": 4}))
        self.rng = np.random.default_rng(1)
        self.sent = dict.fromkeys(names, 0)
        self.now_s = 1.0
        for name in names:
            self._send(name, traffic.HELLO)

    def run(self, steps: int, alphas: dict[str, float], *, slow: str = "", chat: int = 4) -> None:
        """Each engine serves code at its acceptance, and chat, which is half as easy."""
        for _ in range(steps):
            self.now_s += 0.05
            for name, alpha in alphas.items():
                groups = [
                    traffic.group(segment, 4, self._taken(level, requests))
                    for segment, level, requests in (("code", alpha, 4), ("chat", alpha / 2.0, chat))
                ]
                seconds = 0.02 if name == slow else 0.012
                self._send(name, traffic.report(self.sent[name], groups, verify_s=seconds))
                self.fleet.tick(name, self.now_s)

    def complaints(self) -> dict[str, tuple[str, ...]]:
        return {name: found.complaints for name, found in self.fleet.health.items() if found.complaints}

    def _taken(self, alpha: float, requests: int) -> list[int]:
        return [int(n) for n in np.minimum(self.rng.geometric(1.0 - alpha, requests) - 1, 4)]

    def _send(self, name: str, record: object) -> None:
        if isinstance(record, StepReport):
            record = msgspec.structs.replace(record, started_s=self.now_s)
        self.fleet.apply(Received(self.now_s, name, 1, self.sent[name], 0, record))  # type: ignore[arg-type]
        self.sent[name] += 1


def test_a_sick_drafter_among_healthy_peers_is_flagged() -> None:
    """The one that accepts less in every segment is; it is planned alone and teaches nobody."""
    site = Site("a", "b", "c", "d")
    site.run(700, {"a": 0.8, "b": 0.8, "c": 0.8, "d": 0.55})
    assert site.complaints() == {"d": ("acceptance",)}
    assert site.fleet.controllers["d"].fleet_acceptance == PRIOR
    peers = site.fleet.controllers["a"].fleet_acceptance
    assert peers.mean == pytest.approx(0.69, abs=0.04)


def test_a_slow_engine_among_its_peers_is_flagged() -> None:
    """Steps that take 1.6 times as long on one of four equal machines are the machine's."""
    site = Site("a", "b", "c", "d")
    site.run(700, {"a": 0.8, "b": 0.8, "c": 0.8, "d": 0.8}, slow="b")
    assert site.complaints() == {"b": ("cost",)}


def test_healthy_engines_are_not_flagged() -> None:
    """Neither by chance, nor because one of them serves other traffic than the rest."""
    site = Site("a", "b", "c", "d")
    for _ in range(5):
        site.run(200, {"a": 0.8, "b": 0.8, "c": 0.8}, chat=4)
        site.run(200, {"d": 0.8}, chat=30)
        assert site.complaints() == {}


def test_a_busy_engine_is_not_slow() -> None:
    """Engines whose batches have nothing in common are not compared: the large ones compute longer."""
    site = Site("a", "b", "busy")
    for step in range(700):
        site.now_s += 0.05
        for name, requests in (("a", 2), ("b", 2), ("busy", 60)):
            groups = [traffic.group("code", 4, site._taken(0.8, requests))]
            seconds = max(0.006, 0.0005 * 5 * requests)
            site._send(name, traffic.report(step, groups, verify_s=seconds))
            site.fleet.tick(name, site.now_s)
    assert site.complaints() == {}


def test_two_engines_accuse_nobody() -> None:
    """With one peer there is no telling which of the two is sick."""
    site = Site("a", "b")
    site.run(600, {"a": 0.8, "b": 0.5})
    assert site.complaints() == {}


def test_a_new_engine_starts_from_its_peers() -> None:
    """Before it has drafted anything it expects what they see, and is very unsure."""
    site = Site("a", "b", "new")
    site.run(300, {"a": 0.9, "b": 0.9})
    site.fleet.tick("new", site.now_s + 2.0)
    unknown = site.fleet.controllers["new"].segments()[0]
    assert unknown.acceptance[0] == pytest.approx(0.78, abs=0.05)
    assert unknown.acceptance_low[0] < 0.3
    alone = Site("new").fleet.controllers["new"].segments()[0]
    assert alone.acceptance[0] == 0.5
