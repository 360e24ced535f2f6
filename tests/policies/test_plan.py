"""A plan that an engine cannot follow is refused, with the field and the reason."""

import doctest
import importlib
import pkgutil

import msgspec
import pytest

import steersman_policies
from steersman_policies.codec import fingerprint_digest
from steersman_policies.messages import Fingerprint, Hello
from steersman_policies.plan import Explore, Plan, refusal

FINGERPRINT = Fingerprint("e", "1", "target", "lookup", "1", "ngram", "none", "float32", "cpu", "eager")
DIGEST = fingerprint_digest(FINGERPRINT)
HELLO = Hello(FINGERPRINT, 3, (0, 1, 3), 0, 3, 16, True, True, False, False)
PLAN = Plan(
    plan_id=1,
    policy="p",
    policy_version="1",
    fingerprint=DIGEST,
    mode="steer",
    batch_edges=(1, 4),
    context_edges=(256,),
    proposal_length={"unknown": ((3, 3), (1, 1), (0, 0))},
    fallback=(3, 1, 0),
)


def test_a_good_plan_is_not_refused() -> None:
    """None means: the engine can follow it."""
    assert refusal(PLAN, HELLO, DIGEST) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fingerprint": "other"}, "fingerprint"),
        ({"batch_edges": (4, 1)}, "batch_edges"),
        ({"batch_edges": (4, 4)}, "batch_edges"),
        ({"context_edges": (9, 3)}, "context_edges"),
        ({"proposal_length": {"code": ((0, 0),) * 3}}, "unknown"),
        (
            {"proposal_length": {f"s{i}": ((0, 0),) * 3 for i in range(17)} | {"unknown": ((0, 0),) * 3}},
            "segments",
        ),
        ({"proposal_length": {"unknown": ((3, 3), (1, 1))}}, "3 batch x 2 context"),
        ({"proposal_length": {"unknown": ((3, 3), (1,), (0, 0))}}, "3 batch x 2 context"),
        ({"proposal_length": {"unknown": ((3, 3), (2, 1), (0, 0))}}, "K=2"),
        ({"deficit_proposal_length": {"code": ((2, 2),) * 3}}, "K=2"),
        ({"prefill_proposal_length": {"code": ((0, 0),)}}, "prefill_proposal_length[code]"),
        ({"fallback": (0, 0)}, "fallback"),
        ({"fallback": (0, 0, 2)}, "K=2"),
        ({"explore": Explore(seed=1, epsilon=0.1, k_set=(2,))}, "K=2"),
        ({"explore": Explore(seed=1, epsilon=0.1, k_set=())}, "k_set"),
        ({"drafter_state": "cold"}, "drafter_state"),
    ],
)
def test_a_bad_plan_names_its_field(change: dict[str, object], word: str) -> None:
    """The reason says where the plan is wrong."""
    reason = refusal(msgspec.structs.replace(PLAN, **change), HELLO, DIGEST)
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize(
    "module", [m.name for m in pkgutil.walk_packages(steersman_policies.__path__, "steersman_policies.")]
)
def test_examples_in_docstrings_hold(module: str) -> None:
    """Every doctest of the vocabulary passes."""
    assert doctest.testmod(importlib.import_module(module)).failed == 0
