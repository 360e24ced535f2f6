"""Who is live, by what changes from step to step; scheduler and steps are stand-ins with vLLM's names."""

from types import SimpleNamespace

import pytest

from steersman_engine.adapters.vllm.roster import Roster


class World:
    """A roster and a scheduler that agree on who runs."""

    def __init__(self) -> None:
        self.roster = Roster()
        self.scheduler = SimpleNamespace(requests={}, running=[], _inflight_prefills=[])

    def admit(self, *request_ids: str, segment: str = "chat", prompt: int = 8) -> None:
        for request_id in request_ids:
            self.scheduler.requests[request_id] = SimpleNamespace(
                request_id=request_id, num_computed_tokens=0, num_tokens=prompt
            )
            self.roster.admit(request_id, segment)

    def end(self, request_id: str) -> None:
        self.leave(request_id)
        self.roster.end(request_id)

    def leave(self, request_id: str) -> None:
        self.scheduler.running = [r for r in self.scheduler.running if r.request_id != request_id]

    def step(
        self, *new: str, resumed: tuple[str, ...] = (), preempted: tuple[str, ...] = (), **scheduled: int
    ) -> tuple[dict[str, int], int]:
        """Compose a step; whoever is not named in `scheduled` gets one token."""
        for request_id in preempted:
            self.leave(request_id)
        self.scheduler.running += [self.scheduler.requests[name] for name in (*new, *resumed)]
        tokens = {r.request_id: scheduled.get(r.request_id, 1) for r in self.scheduler.running}
        output = SimpleNamespace(
            num_scheduled_tokens=tokens,
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(resumed)),
            preempted_req_ids=set(preempted) or None,
        )
        found = self.roster.update(self.scheduler, output)
        for request in self.scheduler.running:
            request.num_computed_tokens += tokens[request.request_id]
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_requests_count_in_their_segment_from_the_end_of_their_prompt_on(world: World) -> None:
    """One that goes on with its prompt is not drafted for; its tokens are prefill."""
    world.admit("a", "b")
    world.admit("c", segment="code", prompt=20)
    world.scheduler._inflight_prefills = [world.scheduler.requests["c"]]
    assert world.step("a", "b", "c", a=8, b=8, c=12) == ({"chat": 2}, 28)
    world.scheduler._inflight_prefills = []
    assert world.step(c=8) == ({"chat": 2, "code": 1}, 8)
    assert world.step() == ({"chat": 2, "code": 1}, 0)


def test_who_comes_and_goes_is_seen_at_once(world: World) -> None:
    """Ends, preemptions, returns and new requests, also several in the same step."""
    world.admit("a", "b", "c")
    world.step("a", "b", a=8, b=8)
    assert world.step() == ({"chat": 2}, 0)
    world.end("a")
    assert world.step() == ({"chat": 1}, 0)
    assert world.step("c", preempted=("b",), c=8) == ({"chat": 1}, 8)
    assert world.step(preempted=("c",)) == ({}, 0)
    assert world.step(resumed=("b",), b=9) == ({"chat": 1}, 9)


def test_who_leaves_without_a_word_is_missed(world: World) -> None:
    """A pause in streamed input takes a request out of the batch and tells nobody."""
    world.admit("a")
    world.admit("b", segment="code")
    world.step("a", "b", a=8, b=8)
    world.step()
    world.leave("b")
    assert world.step() == ({"chat": 1}, 0)


def test_who_waits_for_its_cache_from_elsewhere_is_not_in_the_batch(world: World) -> None:
    """vLLM keeps it among its prefills all the same."""
    world.admit("a", "b")
    world.step("a", a=8)
    world.scheduler._inflight_prefills = [world.scheduler.requests["b"]]
    assert world.step() == ({"chat": 1}, 0)


def test_what_was_given_away_stays_as_it_was(world: World) -> None:
    """A decision keeps it while the batch goes on."""
    world.admit("a", "b")
    first, _ = world.step("a", a=8)
    world.step("b", b=8)
    assert first == {"chat": 1}
