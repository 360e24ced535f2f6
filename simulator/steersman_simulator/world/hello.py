"""What an engine says of itself that is simulated for its own sake, and not in the place of a known one."""

from steersman_policies.messages import Fingerprint, Hello


def plain_hello(k_max: int, max_batch: int) -> Hello:
    """An engine in which every K up to `k_max` is reachable, by request."""
    fingerprint = Fingerprint(
        "simulated", "1", "target", "drafter", "1", "eagle", "none", "bfloat16", "none", "eager"
    )
    return Hello(
        fingerprint=fingerprint,
        k_max=k_max,
        reachable_k=tuple(range(k_max + 1)),
        k_floor=0,
        launch_k=0,
        max_batch=max_batch,
        per_request_k=True,
        draft_timing=True,
        confidence=False,
        drafter_state_survives_off=True,
    )
