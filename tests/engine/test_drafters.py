import pytest
from tiny_models import engine_of, submit, target_of

from steersman_engine.decode.request import Request, Sampling
from steersman_engine.drafters.ngram_index import Index
from steersman_engine.drafters.prompt_lookup import PromptLookup

SIZES = range(4, 1, -1)


def request_of(tokens: list[int], number: int = 0) -> Request:
    return Request(
        number=number,
        segment="s",
        prompt=tokens,
        sampling=Sampling(max_tokens=9),
        arrived_s=0.0,
        on_tokens=lambda *_: None,
    )


def brute_force(tokens: list[int], limit: int) -> list[int]:
    """Prompt lookup as it is defined: search from the end."""
    for size in SIZES:
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                draft = list(tokens)
                for at in range(limit):
                    draft.append(draft[end + at])
                return draft[len(tokens) :]
    return []


def test_the_longest_match_wins_over_the_most_recent() -> None:
    """Four equal tokens say more than two."""
    tokens = [1, 2, 3, 4, 50, 3, 4, 60, 1, 2, 3, 4]
    assert Index(SIZES).continuation(tokens, 1) == [50]


def test_of_equal_matches_the_most_recent_wins() -> None:
    """What was said last is most likely said again."""
    assert Index(SIZES).continuation([1, 2, 50, 1, 2, 60, 1, 2], 1) == [60]


def test_no_match_gives_the_reason() -> None:
    """An empty proposal says why."""
    drafter = PromptLookup()
    request = request_of([1, 2, 3, 4])
    drafter.admit(request)
    (proposal,) = drafter.propose([request], [4])
    assert proposal.tokens == ()
    assert proposal.not_drafted == "no_match"


def test_a_proposal_is_never_longer_than_its_limit() -> None:
    """Each request has its own limit."""
    drafter = PromptLookup()
    requests = [request_of([1, 2, 3, 4, 1, 2], number) for number in range(2)]
    for request in requests:
        drafter.admit(request)
    proposals = drafter.propose(requests, [1, 3])
    assert [list(proposal.tokens) for proposal in proposals] == [[3], [3, 4, 1]]


@pytest.mark.parametrize("alphabet", [2, 3, 5])
def test_the_index_equals_a_search(alphabet: int) -> None:
    """Grown token by token or in leaps, it finds what a search from the end finds."""
    state, tokens = 1, []
    index = Index(SIZES)
    for at in range(120):
        state = (state * 1103515245 + 12345) % 2**31
        tokens.append(state >> 16 & 0xFFFF)
        tokens[-1] %= alphabet
        if at % 7 not in (2, 3):
            assert index.continuation(tokens, 5) == brute_force(tokens, 5), at


def test_released_requests_leave_nothing() -> None:
    """Memory follows the live requests."""
    drafter = PromptLookup()
    engine = engine_of(target_of(), drafter=drafter)
    request = submit(engine, [3, 4, 5], max_tokens=2)
    while engine.busy:
        engine.step()
    assert request.finish_reason == "length"
    assert not drafter._indexes


def test_bad_sizes_are_refused() -> None:
    """One clear line."""
    with pytest.raises(ValueError, match="min_ngram 5, must be 1 to max_ngram 4"):
        PromptLookup(4, 5)
