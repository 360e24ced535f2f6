"""Made-up traffic has the statistics that it was asked for, and transformations do what they say."""

import os
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, pstdev

import msgspec
import pytest

from steersman_simulator.workload.arrival import Arrival
from steersman_simulator.workload.spec import WorkloadSpec, read_arrivals
from steersman_simulator.workload.table import line_of

TRACES = Path(os.environ.get("STEERSMAN_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "traces"
SHORT = {"prompt_tokens": 10, "output_tokens": 5}


def arrivals(folder=Path(), seed=0, **spec):
    return list(read_arrivals(msgspec.convert(spec, WorkloadSpec), folder, seed))


def moments(found):
    return [arrival.at_s for arrival in found]


def gap_cv(found):
    gaps = [later - earlier for earlier, later in pairwise(moments(found))]
    return pstdev(gaps) / mean(gaps)


@pytest.fixture
def table(tmp_path):
    """Ten requests, one a second, in a file of ours."""
    found = [Arrival(float(at), "chat" if at % 2 else "code", 10 * at + 10, 5) for at in range(10)]
    lines = b"".join(msgspec.json.encode(line_of(each)) + b"\n" for each in found)
    (tmp_path / "t.jsonl").write_bytes(lines)
    return tmp_path


@pytest.mark.parametrize(
    ("spec", "cv"),
    [({"kind": "poisson"}, 1.0), ({"kind": "gamma", "cv": 0.4}, 0.4), ({"kind": "gamma", "cv": 2.5}, 2.5)],
)
def test_rate_and_burstiness_are_as_asked(spec, cv):
    """20,000 arrivals at 50 per second: the rate within 5 %, the gaps' variation within 6 %."""
    found = arrivals(**spec, rate_per_s=50.0, requests=20_000, **SHORT)
    assert len(found) == 20_000
    assert found[-1].at_s == pytest.approx(400.0, rel=0.05)
    assert gap_cv(found) == pytest.approx(cv, rel=0.06)


def test_bursts_come_in_their_turns():
    """On and off: all requests in the on windows, by their rate; a rate of 0 brings none."""
    found = arrivals(kind="on_off", on_rate_per_s=20.0, on_s=5.0, off_s=15.0, to_s=2000.0, **SHORT)
    assert all(at_s % 20.0 < 5.0 for at_s in moments(found))
    assert len(found) == pytest.approx(100 * 5 * 20, rel=0.05)


def test_a_ramp_follows_its_line():
    """From 0 to 100 per second in 100 s: a quarter of the requests in the first half, then it stays."""
    found = arrivals(kind="ramp", points=[[0, 0], [100, 100]], to_s=150.0, **SHORT)
    first, second = (sum(low <= at_s < low + 50 for at_s in moments(found)) for low in (0, 50))
    assert first == pytest.approx(1250, rel=0.1)
    assert second == pytest.approx(3750, rel=0.06)
    assert len(found) - first - second == pytest.approx(5000, rel=0.05)


def test_curves_of_rates_and_their_lengths(tmp_path):
    """Every window has its own rate and burstiness, and lengths its own probabilities."""
    (tmp_path / "rates.csv").write_text(
        "client,window_start_s,rate_rps,interarrival_cv,family,param1,param2\n"
        "7,0,40,1.0,Gamma,1.0,0.025\n7,100,0,0,,0,0\n7,200,10,3.14,Weibull,0.4,0.03\n8,0,1,1,,0,0\n"
    )
    (tmp_path / "pmf.jsonl").write_text(
        '{"client": 7, "window_start_s": 0, "output_tokens": {"3": 0.75, "9": 0.25}}\n'
        '{"client": 7, "window_start_s": 200, "output_tokens": {"30": 1.0}}\n'
    )
    pmf = {"kind": "pmf", "path": "pmf.jsonl", "key": "output_tokens"}
    spec = {"kind": "rates", "path": "rates.csv", "prompt_tokens": 4, "output_tokens": pmf}
    found = arrivals(tmp_path, **spec, client="7", rate_scale=2.0)
    early = [arrival for arrival in found if arrival.at_s < 100.0]
    late = [arrival for arrival in found if arrival.at_s >= 200.0]
    assert len(early) + len(late) == len(found)
    assert len(early) == pytest.approx(8000, rel=0.05)
    assert len(late) == pytest.approx(2000, rel=0.3)
    assert gap_cv(late) > 2.0 > 1.2 > gap_cv(early)
    assert mean(a.output_tokens for a in early) == pytest.approx(4.5, rel=0.05)
    assert {a.output_tokens for a in late} == {30}
    with pytest.raises(ValueError, match=r"rates.csv:5: another client \(8\) begins; choose one"):
        arrivals(tmp_path, **spec)


def test_lognormal_lengths_have_their_mean_and_their_ends():
    """The mean is that of the numbers drawn, the cut is kept, the median lies below."""
    lengths = {"kind": "lognormal", "mean": 500.0, "cv": 1.0, "max": 4000}
    found = arrivals(kind="poisson", rate_per_s=1.0, requests=8000, prompt_tokens=lengths, output_tokens=1)
    tokens = [arrival.prompt_tokens for arrival in found]
    assert mean(tokens) == pytest.approx(500.0, rel=0.05)
    assert median(tokens) == pytest.approx(500.0 / 2**0.5, rel=0.05)
    assert 1 <= min(tokens) <= max(tokens) <= 4000


def test_lengths_come_in_pairs_from_a_trace(table):
    """Prompt and segment of one row stay together."""
    spec = {"kind": "table", "path": "t.jsonl"}
    found = arrivals(table, kind="poisson", rate_per_s=5.0, requests=200, lengths_from=spec)
    assert {(a.prompt_tokens, a.segment) for a in found} == {
        (10 * at + 10, "chat" if at % 2 else "code") for at in range(10)
    }


def test_a_part_looped_denser_and_stretched(table):
    """The order is: part, loop, load, warp."""
    spec = {"kind": "table", "path": "t.jsonl"}
    part = arrivals(table, **spec, from_s=2.0, to_s=5.0)
    assert [(a.at_s, a.prompt_tokens) for a in part] == [(0.0, 30), (1.0, 40), (2.0, 50)]
    twice = arrivals(table, **spec, requests=2, loop=2)
    assert moments(twice) == [0.0, 1.0, 2.0, 3.0]
    assert [a.prompt_tokens for a in twice] == [10, 20, 10, 20]
    assert moments(arrivals(table, **spec, requests=4, load=2.0)) == [0.0, 0.5, 1.0, 1.5]
    warp = [{"from_s": 1, "to_s": 3, "factor": 2.0}, {"from_s": 5, "to_s": 7, "factor": 0.5}]
    warped = moments(arrivals(table, **spec, time_warp=warp))
    assert warped == [0.0, 1.0, 3.0, 5.0, 6.0, 7.0, 7.5, 8.0, 9.0, 10.0]


def test_segments_by_rule_and_by_weight(table):
    """Rules go first, weights sort the rest, and a rule more moves no other request."""
    spec = {"kind": "poisson", "rate_per_s": 1.0, "requests": 4000, "output_tokens": 5}
    spec["prompt_tokens"] = {"kind": "lognormal", "mean": 100.0}
    weights = {"chat": 3.0, "edit": 1.0}
    plain = arrivals(**spec, segments=weights)
    assert sum(a.segment == "chat" for a in plain) == pytest.approx(3000, rel=0.05)
    ruled = arrivals(
        **spec, segments=weights, segment_rules=[{"segment": "long", "prompt_tokens": [200, 9999]}]
    )
    for before, after in zip(plain, ruled, strict=True):
        assert after.segment == ("long" if before.prompt_tokens >= 200 else before.segment)
    assert {a.segment for a in ruled} == {"long", "chat", "edit"}


def test_a_mix_is_the_merge_of_its_parts(table):
    """In the order of time, every request of every part, and each part has chance of its own."""
    poisson = {"kind": "poisson", "rate_per_s": 3.0, "to_s": 10.0, "segments": {"made": 1.0}} | SHORT
    mixed = arrivals(table, kind="mix", of=[{"kind": "table", "path": "t.jsonl"}, poisson, poisson], load=2.0)
    assert moments(mixed) == sorted(moments(mixed))
    assert sum(a.segment != "made" for a in mixed) == 10
    assert len({a.at_s for a in mixed if a.segment == "made"}) == len(mixed) - 10


def test_the_seed_decides_and_nothing_else():
    """Equal seeds, equal requests; other seeds, others; the lengths do not move the times."""
    lognormal = {"kind": "lognormal", "mean": 50.0}
    spec = {"kind": "gamma", "rate_per_s": 2.0, "cv": 2.0, "requests": 50, "prompt_tokens": lognormal}
    once = arrivals(**spec, output_tokens=lognormal)
    assert once == arrivals(**spec, output_tokens=lognormal)
    assert moments(once) != moments(arrivals(seed=1, **spec, output_tokens=lognormal))
    other = arrivals(**spec, output_tokens=7)
    assert [(a.at_s, a.prompt_tokens) for a in other] == [(a.at_s, a.prompt_tokens) for a in once]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "poisson", "rate_per_s": 1.0} | SHORT, "has no end"),
        ({"kind": "poisson", "rate_per_s": 1.0, "to_s": 9.0}, "either prompt_tokens and output_tokens, or"),
        ({"kind": "ramp", "points": [[0, 1], [0, 2]], "to_s": 9.0} | SHORT, "begin at 0 and ascend"),
        ({"kind": "table", "path": "t.jsonl", "from_s": 5.0, "to_s": 4.0}, "to_s: 4.0, must be above"),
        ({"kind": "table", "path": "t.jsonl", "from_s": 50.0}, "no request to serve"),
        ({"kind": "table", "path": "none.jsonl"}, "no such file"),
        (
            {"kind": "table", "path": "t.jsonl", "time_warp": [{"from_s": 4, "to_s": 3, "factor": 1.0}]},
            "windows are ascending",
        ),
        ({"kind": "table", "path": "t.jsonl", "segments": {f"s{n}": 1.0 for n in range(16)}}, "at most 15"),
        ({"kind": "table", "path": "t.jsonl", "columns": {"promt_tokens": "x"}}, "did you mean 'prompt_tok"),
    ],
)
def test_what_cannot_be_made_is_said(table, spec, said):
    """One line about what is missing or allowed."""
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        arrivals(table, **spec)


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/data")
def test_public_rate_curves_and_lengths():
    """ServeGen: a week of five clients; one hour of the largest, at a hundredth, has the curve's rate."""
    pmf = {"kind": "pmf", "path": "servegen_m-small_length_pmf.jsonl.gz"}
    found = arrivals(
        TRACES,
        kind="rates",
        path="servegen_m-small_top5_clients.csv.gz",
        client="5",
        rate_scale=0.01,
        to_s=3600.0,
        prompt_tokens=pmf | {"key": "input_tokens"},
        output_tokens=pmf | {"key": "output_tokens"},
    )
    assert len(found) / 3600.0 == pytest.approx(3.4, rel=0.15)
    assert 12.0 < mean(a.prompt_tokens for a in found) < 15.0
    total = {"kind": "rates", "path": "servegen_deepseek-r1_total_rate.csv", "rate_scale": 0.01}
    assert arrivals(TRACES, **total, **SHORT)[-1].at_s > 43_000.0
