"""Requests get their segment from the plan's tree, and report what evidence the next tree needs."""

from pathlib import Path

import msgspec
from link_world import PLAN, Bench
from tiny_models import drain, engine_of, submit, target_of

from steersman_engine.steering import Launch
from steersman_policies.messages import Lease, RequestReport, StepReport
from steersman_policies.prompt_statistics import statistics_of
from steersman_policies.segment_tree import SegmentTree
from steersman_policies.segmenter import Segmenter

TREE = SegmentTree((3, -1, -1), (0.25, 0.0, 0.0), (1, -1, -1), (2, -1, -1), ("", "tree/1", "tree/2"))
PLAIN, COPIES = list(range(3, 33)), [7, 8, 9, 10] * 8


def test_requests_are_sorted_by_the_plans_tree(tmp_path: Path) -> None:
    """Each gets the K of its leaf, a tag goes before the tree, and a new plan moves nobody."""
    bench = Bench(tmp_path)
    bench.turn()
    plan = msgspec.structs.replace(
        PLAN,
        segmenter=Segmenter(1, (), TREE),
        proposal_length={"unknown": ((1,),), "tree/1": ((0,),), "tree/2": ((2,),)},
    )
    assert bench.link.executor.adopt(plan).applied
    bench.link.executor.renew(Lease(plan.plan_id, 60.0), bench.clock())
    engine = engine_of(target_of(), bench.link)
    requests = [submit(engine, PLAIN), submit(engine, COPIES), submit(engine, COPIES, segment="chat")]
    engine.step()
    assert [request.segment for request in requests] == ["tree/1", "tree/2", "chat"]
    other = msgspec.structs.replace(plan, plan_id=plan.plan_id + 1, segmenter=Segmenter(2))
    assert bench.link.executor.adopt(other).applied
    drain(engine)
    assert [request.segment for request in requests] == ["tree/1", "tree/2", "chat"]
    records = bench.turn()
    groups = [group for step in records if isinstance(step, StepReport) for group in step.groups]
    assert {group.segment for group in groups} == {"tree/1", "tree/2", "chat"}
    assert {group.commanded_k for group in groups if group.segment == "tree/1"} == {0}
    reports = {r.segment: r for r in records if isinstance(r, RequestReport)}
    assert reports["tree/2"].statistics == statistics_of(COPIES, max_output_tokens=24, temperature=0.0)
    assert bench.counters()["refused.segment"] == 0


def test_a_report_counts_the_decided_drafts(tmp_path: Path) -> None:
    """Reached and steps with a draft are those of the request's rows, whatever K was."""
    bench = Bench(tmp_path)
    kept: list[RequestReport] = []
    launch = Launch(4)
    launch.finished = kept.append  # type: ignore[method-assign]
    rows = []
    launch.record = rows.append  # type: ignore[method-assign]
    engine = engine_of(target_of(), launch)
    submit(engine, COPIES, max_tokens=60, segment="a")
    drain(engine)
    drafts = [(d, a) for row in rows for d, a in zip(row.drafted, row.accepted, strict=True) if d]
    assert drafts
    assert kept[0].steps_drafted == len(drafts)
    assert kept[0].reached == sum(min(d, a + 1) for d, a in drafts)
    assert kept[0].accepted == sum(a for _, a in drafts) <= kept[0].reached <= kept[0].drafted
    bench.link.close()
