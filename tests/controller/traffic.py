"""Steps of made-up traffic for the belief: what a test does not say is usual."""

from collections import Counter
from collections.abc import Sequence

from steersman_policies.messages import Fingerprint, Group, Hello, StepReport

FINGERPRINT = Fingerprint("toy", "1", "target", "drafter", "1", "ngram", "none", "float32", "cpu", "eager")
K_MAX = 8
HELLO = Hello(FINGERPRINT, K_MAX, tuple(range(K_MAX + 1)), 0, 4, 16, True, True, False, True)
STEP_S = 0.01


def group(segment: str, k: int, accepted: Sequence[int], *, bucket: int = 0, undrafted: int = 0) -> Group:
    """Requests that had `k` draft tokens each, and how many of them were accepted; some had no draft."""
    outcomes = tuple((k, n, times) for n, times in Counter(accepted).items()) if k else ()
    reasons = {"no_match": undrafted} if undrafted else {}
    drafted = len(accepted) if k else 0
    return Group(segment, bucket, len(accepted) + undrafted, k, drafted, outcomes, not_drafted=reasons)  # type: ignore[arg-type]


def report(step: int, groups: Sequence[Group], *, verify_s: float = 0.008, **more: object) -> StepReport:
    """A step of the batch that these groups make."""
    requests = sum(one.requests for one in groups)
    fields: dict[str, object] = {
        "step": step,
        "started_s": STEP_S * step,
        "draft_s": 0.0005,
        "verify_s": verify_s,
        "other_s": 0.0005,
        "decode_requests": requests,
        "prefill_tokens": 0,
        "target_tokens": requests + sum(d * n for one in groups for d, _, n in one.outcomes),
        "context_tokens": 100 * requests,
        "drafting_depth": max((one.commanded_k for one in groups), default=0),
        "requests_drafting": sum(one.requests for one in groups if one.commanded_k),
        "waiting": 0,
        "kv_used_fraction": 0.1,
        "committed_tokens": requests + sum(a * n for one in groups for _, a, n in one.outcomes),
        "plan_id": 0,
        "groups": tuple(groups),
    }
    return StepReport(**(fields | more))  # type: ignore[arg-type]
