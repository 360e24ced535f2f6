"""What a run is summed up to while it goes on: latencies, goodput, drafts, and its time axis."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_steps import made_step

from steersman_policies.messages import RequestReport
from steersman_simulator.report.requests import RequestWriter, unfinished_line
from steersman_simulator.report.tally import RequestTally, Slo, StepTally, vllm_speculation
from steersman_simulator.report.timeline import MAX_BINS, Timeline, coarse
from steersman_simulator.workload.arrival import Arrival


def request(number, ttft_s, tpot_s, output_tokens=9, segment="chat"):
    e2e_s = ttft_s + tpot_s * (output_tokens - 1)
    return RequestReport(number, segment, 0.0, 30, output_tokens, 0.0, ttft_s, tpot_s, e2e_s, 4, 0, 0, "stop")


def test_goodput_counts_requests_that_keep_everything():
    """A single token has no TPOT to miss; the limit itself is kept; what is not asked cannot be missed."""
    tally = RequestTally(Slo(ttft_s=0.5, tpot_s=0.1))
    for number, (ttft_s, tpot_s) in enumerate([(0.5, 0.1), (0.6, 0.01), (0.1, 0.2)]):
        tally.add(request(number, ttft_s, tpot_s, segment="chat" if number else "edit"))
    tally.add(request(3, 0.2, 0.0, output_tokens=1))
    found = tally.metrics(2.0)
    assert (found["slo_attainment"], found["request_goodput"]) == (0.5, 1.0)
    assert found["slo_attainment_by_segment"] == {"chat": pytest.approx(1 / 3), "edit": 1.0}
    assert "slo_attainment" not in RequestTally().metrics(2.0)
    assert len(tally.seconds["tpot"]) == 3


def test_inter_token_latency_per_token_divides_a_delivery():
    """A delivery of three tokens after 0.3 s is one gap, or three of 0.1 s."""
    tally = RequestTally()
    tally.add(request(0, 0.1, 0.1), [(1.0, 1), (1.3, 3), (1.4, 1)])
    assert list(tally.gaps["itl"]) == pytest.approx([0.3, 0.1])
    assert list(tally.gaps["itl_per_token"]) == pytest.approx([0.1] * 4)


def test_vllm_keys_about_drafts_have_its_definitions():
    """Rate in per cent, length with the bonus token, acceptance by position over all drafts."""
    tally = StepTally()
    tally.add(made_step(0.0, 0.1, 3, k=4).report)  # three drafts of 4, 1 accepted each
    tally.add(made_step(0.1, 0.1, 2).report)  # not drafted
    found = vllm_speculation(tally.segments.values())
    assert found["spec_decode_num_drafts"] == 3
    assert found["spec_decode_acceptance_rate"] == pytest.approx(25.0)
    assert found["spec_decode_acceptance_length"] == 2.0
    assert found["spec_decode_per_position_acceptance_rates"] == [1.0, 0.0, 0.0, 0.0]
    assert vllm_speculation([]) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=60))
def test_the_time_axis_keeps_every_step_however_long_it_gets(moments):
    """Bins are bounded, and merging loses no token and moves no step to another place."""
    line = Timeline()
    for at_s in sorted(moments):
        line.add(made_step(at_s, 0.01, 2, k=3).report)
    assert len(line.bins) <= MAX_BINS
    assert sum(each.committed_tokens for each in line.bins) == 2 * len(moments)
    for number, each in enumerate(line.bins):
        inside = sum(number <= at_s / line.width_s < number + 1 for at_s in moments)
        assert each.steps == inside
    assert {k for k in line.k_by_segment()["chat"] if k is not None} == {3.0}
    assert len(coarse(line.k_by_segment()["chat"], 20)) <= 20


def test_lines_come_in_order_of_arrival_whoever_ends_first(tmp_path):
    """A line waits for those before it, and no longer."""
    writer = RequestWriter(tmp_path / "r.jsonl")
    lines = [unfinished_line(n, Arrival(float(n), "chat", 5, 5), "running", "") for n in range(4)]
    for number in (2, 0, 3):
        writer.write(number, lines[number])
    assert set(writer._held) == {2, 3}
    writer.write(1, lines[1])
    writer.close()
    found = [line.split(b'"')[3] for line in (tmp_path / "r.jsonl").read_bytes().splitlines()]
    assert found == [b"0", b"1", b"2", b"3"]
