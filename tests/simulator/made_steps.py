"""Steps of an arm as tests make them up."""

from steersman_policies.messages import Group, StepReport
from steersman_simulator.demo.arms import TimedStep


def made_step(
    at_s: float, verify_s: float, tokens: int, *, k: int = 0, depth: int = 0, segment: str = "chat"
) -> TimedStep:
    """One token for each of `tokens` requests; with a K, one draft token accepted for each."""
    group = Group(segment, 0, tokens, k, tokens if k else 0, ((k, 1, tokens),) if k else ())
    report = StepReport(
        step=0,
        started_s=at_s,
        draft_s=0.0,
        verify_s=verify_s,
        other_s=0.0,
        decode_requests=tokens,
        prefill_tokens=0,
        target_tokens=tokens,
        context_tokens=0,
        drafting_depth=depth,
        requests_drafting=0,
        waiting=0,
        kv_used_fraction=0.0,
        committed_tokens=tokens,
        plan_id=0,
        groups=(group,),
    )
    return TimedStep(at_s, report)
