"""Whether this launch may be steered, decided once at start-up and said in words that help.

A launch that may not be steered is observed: telemetry flows, the K that a plan would ask for is logged,
and vLLM's own number is never touched.
"""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import Struct

from steersman_engine.adapters.vllm.facts import NO_METHOD, Facts
from steersman_engine.adapters.vllm.settings import REACHABLE_K, STRICT, Settings
from steersman_engine.adapters.vllm.signatures import EXPECTED, differences, release
from steersman_engine.adapters.vllm.table import TABLE_KEY, bands, fewer, flag_line, held, with_table
from steersman_policies.messages import NO_SPECULATION
from steersman_policies.units import K_LIMIT

MAX_REASON = 200

METHODS = ("ngram", "draft_model", "eagle", "eagle3", "mtp")
"""Their proposers take K at every step. vLLM stores its model-specific names of `mtp` as `mtp`."""

_FIXED_K = "its proposer is built for one K and crashes when K changes"
_BLOCK = "it drafts a whole block at once, sized for one K"
NOT_STEERED: Mapping[str, str] = {
    "suffix": _FIXED_K,
    "medusa": _FIXED_K,
    "ngram_gpu": _FIXED_K,
    "extract_hidden_states": _FIXED_K,
    "dflash": _BLOCK,
    "dspark": _BLOCK,
    "custom_class": "vLLM does not tell a proposer of one's own which K is in force",
}
"""Why other methods are only observed."""

TESTED = frozenset({("0.32.0", "v1", "ngram", False), ("0.32.0", "v1", "draft_model", False)})
"""Version, runner, method and asynchronous scheduling that a test drives in a real server, on one CPU."""

DEPTH_BLIND = frozenset({("v2", "ngram"), ("v2", "draft_model")})
"""Here the drafter always makes `num_speculative_tokens` drafts; a smaller K cuts them off."""


class Verdict(Struct, frozen=True):
    """What the adapter may do with a launch."""

    observe_only: str
    """Why K is never touched, in at most 200 characters; empty where it may be."""
    clamp: bool
    """Whether each request may have a K of its own."""
    reachable_k: tuple[int, ...]
    """Ascending, with 0."""
    lines: tuple[str, ...]
    """What the operator must read: what is wrong, then the exact line that helps. May be empty."""
    tested: bool
    """Whether a test drives this very combination."""


Problem: TypeAlias = tuple[str, tuple[str, ...]]
"""Why nobody steers, and further lines that help."""


def judge(facts: Facts, settings: Settings) -> Verdict:
    """What may be done with this launch.

    Raises ValueError where the settings name a K that vLLM was not started for.
    """
    ks = _reachable(facts, settings)
    problems = (
        _unread(facts),
        _no_speculation(facts),
        _version(facts),
        _declarations(facts),
        _method(facts),
        _data_parallel(facts),
        _limit(facts),
        _table(facts, ks),
    )
    found = [problem for problem in problems if problem is not None]
    tested = _is_tested(facts)
    if not found:
        return Verdict(
            observe_only="",
            clamp=not facts.is_async and not facts.adaptive_verification,
            reachable_k=ks,
            lines=_remarks(facts, tested),
            tested=tested,
        )
    reasons = [reason for reason, _ in found]
    lines = [line for reason, more in found if more for line in (f"only observing: {reason}", *more)]
    return Verdict(
        observe_only=reasons[0][:MAX_REASON], clamp=False, reachable_k=ks, lines=tuple(lines), tested=tested
    )


def refusal(verdict: Verdict, settings: Settings) -> str | None:
    """Why vLLM must not start with these settings, in one line; None where it may."""
    if not settings.strict or not verdict.observe_only:
        return None
    return f"{STRICT}=1, and K cannot be steered here: {verdict.observe_only}"


def combination(facts: Facts) -> str:
    """What the tested list is about, in words: version, runner, method, scheduling, device, parallelism."""
    scheduling = "asynchronous" if facts.is_async else "synchronous"
    sizes = {"tensor": facts.tensor_parallel, "pipeline": facts.pipeline_parallel}
    parallel = "".join(f", {name} parallel {size}" for name, size in sizes.items() if size > 1)
    return (
        f"vLLM {facts.vllm_version}, runner {facts.runner}, {facts.method}, {scheduling}"
        f", {facts.device}{parallel}"
    )


def _is_tested(facts: Facts) -> bool:
    alone = facts.device == "cpu" and facts.tensor_parallel == facts.pipeline_parallel == 1
    return alone and (release(facts.vllm_version), facts.runner, facts.method, facts.is_async) in TESTED


def _reachable(facts: Facts, settings: Settings) -> tuple[int, ...]:
    asked = settings.reachable_k
    if facts.k_max == 0:
        return (0,)
    if asked is None:
        return tuple(range(min(facts.k_max, K_LIMIT) + 1))
    if asked[-1] > facts.k_max:
        raise ValueError(
            f"{REACHABLE_K}: {asked[-1]} is more than num_speculative_tokens={facts.k_max} in"
            f" --speculative-config; allowed are 0 to {facts.k_max}"
        )
    return asked


def _unread(facts: Facts) -> Problem | None:
    if not facts.unread:
        return None
    reason = f"vLLM {facts.vllm_version} does not say {', '.join(facts.unread)}"
    return reason, (_versions(),)


def _no_speculation(facts: Facts) -> Problem | None:
    return None if facts.method != NO_METHOD else (NO_SPECULATION, ())


def _version(facts: Facts) -> Problem | None:
    if release(facts.vllm_version) in EXPECTED:
        return None
    return f"vLLM {facts.vllm_version} is not a version that this adapter was written for", (_versions(),)


def _declarations(facts: Facts) -> Problem | None:
    if release(facts.vllm_version) not in EXPECTED or "signatures" in facts.unread:
        return None
    changed = differences(facts.vllm_version, facts.signatures)
    if not changed:
        return None
    names = ", ".join(line.partition(":")[0] for line in changed)
    reason = f"vLLM {facts.vllm_version} does not declare as expected: {names}"
    return reason, (*changed, f"something has patched vLLM, or it is a build of its own; {_versions()}")


def _method(facts: Facts) -> Problem | None:
    if facts.method == NO_METHOD:
        return None
    allowed = f"methods that can be steered: {', '.join(METHODS)}"
    if facts.method not in METHODS:
        why = NOT_STEERED.get(facts.method, "nobody has tried whether its proposer bears a K that changes")
        return f"method {facts.method}: {why}", (allowed,)
    if facts.speculative.get("parallel_drafting"):
        return f"{facts.method} with parallel_drafting: {_BLOCK}", (allowed,)
    if facts.runner == "v1" and facts.drafter_type == "step3p5_mtp":
        return "method mtp of Step 3.5 on the V1 runner: it drafts one token at K = 0, too", (allowed,)
    return None


def _data_parallel(facts: Facts) -> Problem | None:
    if facts.data_parallel <= 1 or facts.method == NO_METHOD:
        return None
    reason = (
        f"data parallel {facts.data_parallel}: vLLM drops the start-up table and ranks must agree on K,"
        " which stays as launched"
    )
    return reason, ("a dense model can be steered as one server per replica: --data-parallel-size 1",)


def _limit(facts: Facts) -> Problem | None:
    if facts.k_max <= K_LIMIT:
        return None
    reason = f"num_speculative_tokens={facts.k_max}: Steersman knows K up to {K_LIMIT}"
    return reason, (f'put "num_speculative_tokens":{K_LIMIT} or less into --speculative-config',)


def _table(facts: Facts, ks: tuple[int, ...]) -> Problem | None:
    """Every reachable K must stand in the table, within the batches that can occur."""
    if facts.method == NO_METHOD or _method(facts) or _data_parallel(facts) or _limit(facts):
        return None  # no table would help
    missing = [k for k in ks if k not in held(facts.lookup, facts.max_num_seqs)]
    if not missing:
        return None
    if len(ks) > facts.max_num_seqs:
        return _crowded(facts, ks)
    what = f"lacks K = {', '.join(map(str, missing))}" if facts.lookup else "is missing"
    return f"the start-up table ({TABLE_KEY}) {what}", ("start vLLM with", _flag(facts, ks))


def _crowded(facts: Facts, ks: tuple[int, ...]) -> Problem:
    rows = facts.max_num_seqs
    reason = f"{len(ks)} reachable K, but a table for max_num_seqs={rows} holds {rows} at most"
    widen = f"start vLLM with --max-num-seqs {len(ks)} or more"
    if rows < 2:
        return reason, (widen,)
    smaller = fewer(ks, rows)
    names = ",".join(map(str, smaller))
    return reason, (f"{widen}, or with", f"{REACHABLE_K}={names}", _flag(facts, smaller))


def _flag(facts: Facts, ks: tuple[int, ...]) -> str:
    return flag_line(with_table(facts.speculative, bands(ks, facts.max_num_seqs)))


def _versions() -> str:
    return f"pip install vllm=={' or vllm=='.join(EXPECTED)} to steer"


def _remarks(facts: Facts, tested: bool) -> tuple[str, ...]:
    """What an operator should know although K may be steered."""
    found = []
    if not tested:
        found.append(f"untested: {combination(facts)}")
    if facts.adaptive_verification:
        found.append("adaptive verification is on: it trims drafts per request, only the depth is steered")
    if (facts.runner, facts.method) in DEPTH_BLIND:
        found.append(
            f"{facts.method} on runner {facts.runner} always drafts num_speculative_tokens={facts.k_max}:"
            " a smaller K saves verification, not drafting"
        )
    return tuple(found)
