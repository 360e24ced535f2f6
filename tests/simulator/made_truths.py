"""A truth that many tests share."""

from steersman_simulator.truths.constant import ConstantSteps

STEPS = ConstantSteps(
    step_s=0.03,
    per_token_s=0.002,
    per_context_token_s=2e-6,
    per_draft_token_s=1e-4,
    per_drafting_request_s=2e-4,
    host_s=0.001,
)
