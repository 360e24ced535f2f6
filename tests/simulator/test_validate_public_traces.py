"""V4, V5 and V10 on made-up traces in the public format, against a plain reckoning; and their faults.

With STEERSMAN_PUBLIC_TRACES, the folder of the real ones, they are also held against what is published.
"""

import json
import os
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from validate_faults import outside

from steersman_simulator.validate import closed_batch, policies, public_traces, stand_ins, walk
from steersman_simulator.validate.check import Asked, Skip
from steersman_simulator.world import kernels

REAL = os.environ.get("STEERSMAN_PUBLIC_TRACES", "")
SHARES = {"gsm8k": 0.65, "instructcoder": 0.75, "sharegpt": 0.55, "cnn": 0.6}


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    """Four files of 30 requests whose drafts are accepted at random."""
    folder, chance = tmp_path_factory.mktemp("traces"), random.Random(5)
    for name, share in SHARES.items():
        with (folder / f"combined_{name}.jsonl").open("w") as file:
            for number in range(30):
                tokens = chance.randint(20, 80)
                row = {
                    "id": str(number),
                    "prompt_token_ids": [chance.randrange(99) for _ in range(chance.randint(5, 60))],
                    "generated_token_ids": [1] * tokens,
                    "acc_eagle": {"acc_len": [emitted(share, chance) for _ in range(tokens)]},
                    "acc_ngram": {"acc_len": [emitted(share / 3, chance) for _ in range(tokens)]},
                }
                file.write(json.dumps(row) + "\n")
    return folder


def emitted(share: float, chance: random.Random) -> int:
    tokens = 1
    while tokens < 20 and chance.random() < share:
        tokens += 1
    return tokens


def rows_of(folder: Path, name: str, drafter: str) -> list[tuple[int, list[int]]]:
    """Prompt tokens and emitted lengths, straight from the file."""
    key = "acc_eagle" if drafter == "eagle3" else "acc_ngram"
    rows = map(json.loads, (folder / f"combined_{name}.jsonl").read_text().splitlines())
    return [(len(row["prompt_token_ids"]), row[key]["acc_len"]) for row in rows]


def walked(lengths: list[int], k: int) -> list[int]:
    """What each step of a walk emits."""
    at, out = 0, []
    while at < len(lengths):
        out.append(min(lengths[at], k + 1))
        at += out[-1]
    return out


@pytest.fixture
def tables(monkeypatch, traces):
    """The published tables replaced by those of the made-up traces, reckoned plainly."""
    for drafter, sets in walk.WALKED.items():
        for name, row in sets.items():
            for k in row:
                steps = [n for _, lengths in rows_of(traces, name, drafter) for n in walked(lengths, k)]
                monkeypatch.setitem(row, k, sum(steps) / len(steps))
                if drafter == "eagle3" and k == 5:
                    reached = [sum(n > j for n in steps) for j in range(6)]
                    shares = tuple(b / a for a, b in pairwise(reached))
                    monkeypatch.setitem(walk.HAZARDS, name, shares)
    monkeypatch.setattr(closed_batch, "BATCHES", (1, 32))
    found = {
        name: {k: tuple(speedup(rows_of(traces, name, "eagle3"), k, b) for b in (1, 32)) for k in (3, 0)}
        for name in ("gsm8k", "cnn")
    }
    monkeypatch.setattr(closed_batch, "SPEEDUPS", found)


def speedup(rows: list[tuple[int, list[int]]], k: int, batch: int) -> float:
    """The published experiment, as its authors describe it."""
    cost = public_traces.H100Steps()
    rates = []
    for prompt, lengths in random.Random(42).sample(rows, min(300, len(rows))):
        start_s = cost.fixed_s + cost.per_token_s * prompt * batch + cost.host_s
        seconds = []
        for drafts in (False, True):
            total_s, have = start_s, 1
            while have < len(lengths):
                length = lengths[have - 1]
                wide = 1 if not drafts else k + 1 if k else length
                context = batch * (prompt + have)
                total_s += cost.fixed_s + cost.per_token_s * batch * wide + cost.host_s
                total_s += cost.per_context_token_s * context
                if drafts:
                    total_s += cost.draft_fixed_s + cost.per_draft_token_s * wide
                    total_s += cost.draft_per_context_token_s * context
                have += min(length, wide)
            seconds.append(total_s)
        rates.append([len(lengths) / s for s in seconds])
    plain, drafted = np.mean(rates, axis=0)
    return float(drafted / plain)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("check", [walk.CHECK, closed_batch.V5], ids=lambda check: check.number)
def test_a_plain_reckoning_agrees(traces, check):
    """Walks and closed batches through the world are those of a few lines of arithmetic."""
    assert outside(check, public_traces=traces) == []


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("check", [walk.CHECK, closed_batch.V5], ids=lambda check: check.number)
def test_a_token_more_fails_v4_and_v5(monkeypatch, traces, check):
    """Reading the emitted tokens, bonus token included, as accepted ones is seen."""
    right = public_traces.records

    def generous(folder, name, drafter):
        return tuple(
            replace(r, accepted_by_position=tuple(n + 1 for n in r.accepted_by_position))
            for r in right(folder, name, drafter)
        )

    for module in (walk, closed_batch):
        monkeypatch.setattr(module, "records", generous)
    assert outside(check, public_traces=traces)


@pytest.mark.usefixtures("tables")
def test_a_wrong_cap_fails_v4(monkeypatch, traces):
    """An engine that drafts one token less than it was asked for is seen."""
    right = kernels.draft

    def shorter(rows, count, k_of, *rest):
        return right(rows, count, np.maximum(k_of - 1, 0), *rest)

    monkeypatch.setattr(kernels, "draft", shorter)
    assert outside(walk.CHECK, public_traces=traces)


@pytest.mark.usefixtures("tables")
def test_a_cost_without_drafts_fails_v5(monkeypatch, traces):
    """A step cost that does not see draft tokens is seen."""
    right = public_traces.H100Steps.verify_s

    def blind(self, work):
        return right(
            self, public_traces.VerifyWork(work.decode_requests, 0, work.context_tokens, work.prefill_tokens)
        )

    monkeypatch.setattr(public_traces.H100Steps, "verify_s", blind)
    assert outside(closed_batch.V5, public_traces=traces)


@pytest.fixture
def ranked(monkeypatch, traces):
    """The table of policies as it is on the made-up traces."""
    asked, found = Asked(scale=0.5), {}
    for batch in (8, 32):
        sets = [public_traces.records(traces, name, "eagle3") for name in public_traces.DATA_SETS]
        speedups = policies._speedups(policies._pool(sets), "eagle3", batch, asked)
        found["eagle3", batch] = tuple(speedups[name] for name in policies.NAMES)
    monkeypatch.setattr(policies, "SPEEDUPS", found)


@pytest.mark.usefixtures("ranked")
@pytest.mark.parametrize("fault", ["none", "censored as zero", "a blind oracle", "no allocation"])
def test_a_wrong_estimator_fails_v10(monkeypatch, traces, fault):
    """Positions that were not verified taken for rejections, and other slips, change the ranks."""
    right = stand_ins.PositionAcceptance.learn
    if fault == "censored as zero":
        monkeypatch.setattr(
            stand_ins.PositionAcceptance,
            "learn",
            lambda self, segments, lengths, accepted, renewed: right(
                self, segments, np.full_like(lengths, stand_ins.K_MAX), np.minimum(accepted, 0), renewed
            ),
        )
    elif fault == "a blind oracle":
        monkeypatch.setattr(
            stand_ins.Oracle, "lengths", lambda self, segments, truth, seconds: np.full_like(truth, 3)
        )
    elif fault == "no allocation":
        monkeypatch.setattr(
            stand_ins.PositionAcceptance,
            "_allocated",
            lambda self, segments, seconds: np.full(len(segments), 7),
        )
    failed = outside(policies.CHECK, public_traces=traces, scale=0.5)
    assert bool(failed) == (fault != "none")


@pytest.mark.parametrize("check", [walk.CHECK, closed_batch.V5, policies.CHECK], ids=lambda c: c.number)
def test_without_the_traces_a_check_is_skipped(check):
    """The reason names the option that is missing."""
    with pytest.raises(Skip, match="--public-traces"):
        check.figures(Asked())


def test_a_folder_without_the_files_is_refused(tmp_path):
    """A wrong folder is a mistake of the user's and no reason to skip."""
    with pytest.raises(FileNotFoundError, match="combined_gsm8k"):
        walk.CHECK.figures(Asked(public_traces=tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="STEERSMAN_PUBLIC_TRACES names no folder")
@pytest.mark.parametrize("check", [walk.CHECK, policies.CHECK], ids=lambda check: check.number)
def test_the_public_traces_agree_with_what_is_published(check):
    """On the traces themselves the published tables come out."""
    assert outside(check, public_traces=Path(REAL)) == []
