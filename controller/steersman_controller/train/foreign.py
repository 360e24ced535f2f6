"""Results of `vllm bench serve`, read as step times.

One JSON object a run (`--save-result`, or `--append-result` for one a line). A run at a fixed concurrency
with streaming is one cell: the median inter-token latency is the time of a step, because a step sends one
chunk to each request. K is what `--metadata num_speculative_tokens=...` says, else draft tokens per draft; a
run that counted no drafts ran without a drafter.
"""

from steersman_controller.train.table_file import TableFile, identifier

MARKS = ("max_concurrency", "median_itl_ms")
"""Columns by which such a result is known."""

_DRAFTS, _DRAFTED = "spec_decode_num_drafts", "spec_decode_draft_tokens"

_RENAMED = {
    "batch_size": "max_concurrency",
    "step_ms": "median_itl_ms",
    "throughput_tok_s": "output_throughput",
    "position_survival": "spec_decode_per_position_acceptance_rates",
}


def translated(file: TableFile) -> TableFile:
    """The file with our columns beside its own, where it is such a result; else as it is."""
    if not all(mark in file.names for mark in MARKS) or "batch_size" in file.names:
        return file
    ours = {name: identifier(theirs) for name, theirs in _RENAMED.items() if theirs in file.names}
    drafts, drafted = (
        f"try_cast({identifier(name)} as double)" if name in file.names else "null"
        for name in (_DRAFTS, _DRAFTED)
    )
    said = "num_speculative_tokens"
    given = f"try_cast({identifier(said)} as double)" if said in file.names else "null"
    counted = f"cast(coalesce(round({drafted} / nullif({drafts}, 0)), 0) as varchar)"
    # What is no number stays as it is, and is refused with the row.
    text = f"nullif(trim(cast({identifier(said)} as varchar)), '')" if said in file.names else "null"
    ours["num_draft_tokens"] = f"coalesce({text}, {counted})"
    ours["drafter_loaded"] = f"case when {given} > 0 or {drafts} > 0 then 'true' else 'false' end"
    new = {name: sql for name, sql in ours.items() if name not in file.names}
    file.scan = f"(select {', '.join(f'{sql} as {name}' for name, sql in new.items())}, * from {file.scan})"
    file.names = [*new, *file.names]
    return file
