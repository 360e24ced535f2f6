"""Whether a launch of vLLM may be steered, and what an operator reads where it may not."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from steersman_engine.adapters.vllm.checks import Verdict, judge, refusal
from steersman_engine.adapters.vllm.facts import Facts
from steersman_engine.adapters.vllm.settings import Settings
from steersman_engine.adapters.vllm.signatures import EXPECTED, differences
from steersman_engine.adapters.vllm.table import bands, fewer, held

SETTINGS = Settings(sidecar="ipc:///run/any", state_dir=Path("state"))


def dense(table: Any, max_num_seqs: int) -> tuple[int, ...]:
    """What vLLM makes of a table without gaps."""
    return (0, *(k for first, last, k in table for _ in range(first, last + 1)))[: max_num_seqs + 1]


GOOD = Facts(
    vllm_version="0.32.0+cpu",
    runner="v1",
    is_async=False,
    method="ngram",
    k_max=4,
    lookup=dense(bands(range(5), 16), 16),
    max_num_seqs=16,
    data_parallel=1,
    data_parallel_rank=0,
    tensor_parallel=1,
    pipeline_parallel=1,
    adaptive_verification=False,
    speculative={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
    signatures=dict(EXPECTED["0.32.0"]),
    model="smol",
    drafter="ngram 3 to 3",
    drafter_type="",
    dtype="float32",
    quantisation="none",
    device="cpu",
    graph_mode="NONE",
)


def judged(settings: Settings = SETTINGS, **changes: Any) -> Verdict:
    return judge(structs.replace(GOOD, **changes), settings)


def test_the_tested_combination_may_be_steered() -> None:
    """What the tests drive is steered per request, without a word."""
    assert judged() == Verdict("", clamp=True, reachable_k=(0, 1, 2, 3, 4), lines=(), tested=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vllm_version": "0.33.0"}, "0.33.0 is not a version"),
        ({"vllm_version": "0.32.0.post1"}, "0.32.0.post1 is not a version"),
        ({"vllm_version": "unknown"}, "unknown is not a version"),
        ({"method": "suffix"}, "method suffix: .* crashes when K changes"),
        ({"method": "medusa"}, "method medusa: .* crashes when K changes"),
        ({"method": "custom_class"}, "does not tell"),
        ({"method": "dflash"}, "whole block"),
        ({"method": "brand_new"}, "nobody has tried"),
        ({"speculative": {"method": "draft_model", "parallel_drafting": True}}, "parallel_drafting"),
        ({"method": "mtp", "drafter_type": "step3p5_mtp"}, "Step 3.5"),
        ({"data_parallel": 2, "lookup": ()}, "data parallel 2: .* stays as launched"),
        ({"k_max": 65}, "num_speculative_tokens=65: .* up to 64"),
        ({"lookup": ()}, "table .* is missing"),
        ({"lookup": (0, 4, 4, 2, 1, 0)}, r"table .* lacks K = 3$"),
        ({"unread": ("data_parallel", "runner")}, "does not say data_parallel, runner"),
    ],
)
def test_what_may_not_be_steered_is_only_observed(changes: dict[str, Any], reason: str) -> None:
    """A launch that could go wrong is observed, says why, and with strict settings does not start."""
    verdict = judged(**changes)
    assert re.search(reason, verdict.observe_only)
    assert len(verdict.observe_only) <= 200
    assert not verdict.clamp
    assert verdict.lines
    assert all("\n" not in line for line in verdict.lines)
    assert refusal(verdict, SETTINGS) is None
    refused = refusal(verdict, structs.replace(SETTINGS, strict=True))
    assert refused is not None
    assert verdict.observe_only in refused


@pytest.mark.parametrize("name", sorted(EXPECTED["0.32.0"]))
def test_a_method_declared_otherwise_is_noticed(name: str) -> None:
    """Each overridden method counts: one that looks different, or is gone, ends steering and is named."""
    changed = judged(signatures=GOOD.signatures | {name: "(self, another) -> None"})
    gone = judged(signatures={key: text for key, text in GOOD.signatures.items() if key != name})
    for verdict in (changed, gone):
        assert name in verdict.observe_only
    assert any(line.startswith(f"{name}: expected (") for line in changed.lines)
    assert any(line.endswith("found (self, another) -> None") for line in changed.lines)


def test_a_method_that_was_not_declared_before_is_noticed() -> None:
    """A scheduler that overrides more than it did may do anything there."""
    found = GOOD.signatures | {"AsyncScheduler.schedule": "(self) -> None"}
    assert differences("0.32.0", found) == ("AsyncScheduler.schedule: expected none, found (self) -> None",)
    assert "AsyncScheduler.schedule" in judged(signatures=found).observe_only


def test_no_speculation_is_no_alarm() -> None:
    """A server launched without speculation is a plain fact; nobody has to read or change anything."""
    settings = structs.replace(SETTINGS, reachable_k=(0, 2))
    verdict = judged(settings, method="none", k_max=0, lookup=(), speculative={})
    assert verdict == Verdict(
        "launched without speculation", clamp=False, reachable_k=(0,), lines=(), tested=False
    )


def test_adaptive_verification_leaves_only_the_depth() -> None:
    """vLLM trims per request by itself: the depth is steered and no request is clamped."""
    verdict = judged(adaptive_verification=True)
    assert (verdict.observe_only, verdict.clamp) == ("", False)
    assert any("only the depth is steered" in line for line in verdict.lines)


@pytest.mark.parametrize(
    ("changes", "clamp"),
    [
        ({"runner": "v2"}, True),
        ({"is_async": True}, False),
        ({"method": "eagle3"}, True),
        ({"device": "NVIDIA H200"}, True),
        ({"tensor_parallel": 2}, True),
        ({"pipeline_parallel": 2}, True),
        ({"runner": "v2", "method": "draft_model", "is_async": True}, False),
    ],
)
def test_an_untried_combination_is_steered_and_called_untested(changes: dict[str, Any], clamp: bool) -> None:
    """The whitelist steers beyond what is tested, and says so; where drafts stay in the worker, per step."""
    verdict = judged(**changes)
    assert (verdict.observe_only, verdict.tested, verdict.clamp) == ("", False, clamp)
    assert verdict.lines[0].startswith("untested: vLLM 0.32.0+cpu, runner ")


def test_a_drafter_that_always_drafts_everything_is_mentioned() -> None:
    """On the V2 runner some drafters ignore K: the operator reads that a smaller K saves less there."""
    assert any("always drafts num_speculative_tokens=4" in line for line in judged(runner="v2").lines)
    assert judged().lines == ()


def test_the_printed_line_makes_the_launch_steerable() -> None:
    """The line to change holds every reachable K and all the user's other keys; with it K is steered."""
    lacking = judged(lookup=(0, *[4] * 8, *[2] * 8))
    flag, config = shlex.split(lacking.lines[-1])
    printed = json.loads(config)
    table = printed.pop("num_speculative_tokens_per_batch_size")
    assert flag == "--speculative-config"
    assert printed == GOOD.speculative
    assert judged(lookup=dense(table, 16)).observe_only == ""


def test_rows_that_no_batch_reaches_do_not_count() -> None:
    """vLLM captures nothing for batches beyond max_num_seqs, so a K that stands only there is missing."""
    lookup = dense(bands(range(5), 16), 16)
    assert judged(lookup=lookup, max_num_seqs=16).observe_only == ""
    assert "lacks K = 0" in judged(lookup=lookup, max_num_seqs=8).observe_only


def test_more_k_than_rows_gets_a_smaller_set() -> None:
    """Where the table has no room for every K, a set that fits is proposed, and works."""
    verdict = judged(lookup=(0, 4, 3, 2), max_num_seqs=3)
    assert "5 reachable K" in verdict.observe_only
    assert any("--max-num-seqs 5" in line for line in verdict.lines)
    setting = next(line for line in verdict.lines if line.startswith("STEERSMAN_REACHABLE_K="))
    assert setting == "STEERSMAN_REACHABLE_K=0,2,4"
    table = json.loads(shlex.split(verdict.lines[-1])[1])["num_speculative_tokens_per_batch_size"]
    asked = structs.replace(SETTINGS, reachable_k=(0, 2, 4))
    assert judged(asked, lookup=dense(table, 3), max_num_seqs=3).observe_only == ""
    single = judged(lookup=(0, 4), max_num_seqs=1)
    assert "--max-num-seqs 5" in single.lines[-1]


def test_the_operator_may_ask_for_fewer_k() -> None:
    """Only the K that settings ask for must stand in the table, and only they are reachable."""
    asked = structs.replace(SETTINGS, reachable_k=(0, 4))
    assert judged(asked, lookup=(0, 4, 0)).reachable_k == (0, 4)
    assert judged(asked, lookup=(0, 4, 0)).observe_only == ""
    assert judged(lookup=(0, 4, 0)).observe_only != ""


def test_a_k_above_the_launch_is_an_error() -> None:
    """No server can draft more than it was started for, so settings that ask for it stop the start."""
    asked = structs.replace(SETTINGS, reachable_k=(0, 8))
    with pytest.raises(ValueError, match="STEERSMAN_REACHABLE_K: 8 is more than num_speculative_tokens=4"):
        judged(asked)


def test_every_table_holds_every_k() -> None:
    """For any number of rows: no gap, no overlap, falling K, every K held, the whole batch range covered."""
    for rows in (2, 3, 9, 16, 17, 100, 256, 1024):
        for ks in ((0, 1), (0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 2, 4, 8), tuple(range(17))):
            if len(ks) > rows:
                continue
            table = bands(ks, rows)
            assert (table[0][0], table[-1][1]) == (1, rows)
            assert all(left[1] + 1 == right[0] for left, right in pairwise(table))
            assert [k for _, _, k in table] == sorted(ks, reverse=True)
            assert held(dense(table, rows), rows) == frozenset(ks)


def test_bands_grow_with_the_batch() -> None:
    """Each K gets a range of batches that matters: no band is narrower than the one below it."""
    widths = [last - first + 1 for first, last, _ in bands((0, 1, 2, 4, 8), 256)]
    assert widths == sorted(widths)
    assert widths[0] > 1


def test_a_smaller_set_keeps_both_ends() -> None:
    """Off and the longest proposal survive whatever the number of rows is."""
    for rows in range(2, 9):
        found = fewer(range(9), rows)
        assert (len(found), found[0], found[-1]) == (rows, 0, 8)
