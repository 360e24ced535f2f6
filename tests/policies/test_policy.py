"""Policies are found by name, and their parameters are checked before anything happens."""

import msgspec
import pytest

from steersman_policies.conformance import example_view
from steersman_policies.policy import available, load, policy_class


def test_shipped_policies_are_found() -> None:
    """Each module of the zoo is a policy by its name."""
    assert {"fixed", "goodput", "off"} <= set(available())
    for name in available():
        assert policy_class(name).version


def test_a_wrong_name_gets_a_suggestion() -> None:
    """One line that names the word, what was meant, and what there is."""
    with pytest.raises(ValueError, match=r"no 'gooput', did you mean 'goodput'\?; installed: .*fixed"):
        load("gooput")


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("fixed", {"kk": 1}, r"policy fixed: no parameter 'kk', did you mean 'k'\?; parameters: k"),
        ("off", {"k": 1}, "policy off: no parameter 'k'; parameters: none"),
        ("fixed", {"k": 65}, "policy fixed: k: .*<= 64"),
        ("fixed", {"k": "many"}, "policy fixed: k: .*int"),
        ("goodput", {"band": -0.1}, "policy goodput: band: .*>= 0"),
        ("goodput", {"band": "nan"}, "policy goodput: band: "),
    ],
)
def test_a_wrong_parameter_is_one_clear_line(name: str, params: dict[str, object], words: str) -> None:
    """What, where and what is allowed."""
    with pytest.raises(ValueError, match=words) as error:
        load(name, params)
    assert "\n" not in str(error.value)


def test_parameters_arrive_as_text() -> None:
    """The command line gives strings."""
    assert load("goodput", {"band": "0.1"}) == load("goodput", {"band": 0.1})


@pytest.mark.parametrize("reachable", [(0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 1, 3, 7), (2, 6)])
def test_fixed_takes_the_largest_k_it_may(reachable: tuple[int, ...]) -> None:
    """`fixed` falls to the next reachable K, `off` to the smallest there is."""
    view = example_view(acceptance=0.5, weight=1.0, reachable_k=reachable)
    for k in range(9):
        plan, _ = load("fixed", {"k": k}).plan(view, {}, 0.5)
        expected = max((r for r in reachable if r <= k), default=min(reachable))
        assert {value for row in plan.proposal_length["unknown"] for value in row} == {expected}
        assert set(plan.fallback) == {expected}
    plan, _ = load("off").plan(view, {}, 0.5)
    assert set(plan.fallback) == {min(reachable)}


def test_the_mode_of_the_view_is_the_mode_of_the_plan() -> None:
    """No policy decides whether it acts."""
    view = msgspec.structs.replace(example_view(acceptance=0.5, weight=1.0), mode="shadow")
    for name in available():
        plan, _ = load(name).plan(view, {}, 0.5)
        assert plan.mode == "shadow"
