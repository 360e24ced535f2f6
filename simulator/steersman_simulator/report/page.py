"""`report.html` of a simulated run: one file that opens anywhere, without a network."""

import json
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from steersman_simulator.report.run_figures import RunView, run_figures

TEMPLATE = "run.html.j2"

_ROWS = (
    ("TTFT", "ttft", "arrival to first token, queueing included"),
    ("TPOT", "tpot", "time per output token after the first, per request"),
    ("ITL", "itl", "between two deliveries; one holds several tokens where drafts are accepted"),
    ("E2E", "e2el", "arrival to last token"),
    ("Queueing", "queue", "arrival to the first step that reads the prompt"),
)


def templates(package: str) -> Environment:
    """The templates beside a package's modules, and the page that all reports extend."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "."), PackageLoader("steersman_simulator.report", ".")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(path: Path, result: dict[str, Any], view: RunView) -> None:
    """Write the page; it holds its plots and the whole result."""
    path.write_text(render(result, view), encoding="utf-8")


def render(result: dict[str, Any], view: RunView) -> str:
    """The page as text: equal results, equal pages."""
    figures = {name: Markup(text) for name, text in run_figures(view).items()}  # noqa: S704 - ours
    found = [row for row in _ROWS if f"mean_{row[1]}_ms" in result]
    page = templates("steersman_simulator.report").get_template(TEMPLATE)
    return page.render(
        result=result | {"notes": []},
        figures=figures,
        latencies=found,
        summary=_sentences(result),
        raw=json.dumps(result, indent=1, sort_keys=True),
    )


def _sentences(result: dict[str, Any]) -> list[str]:
    lines = [
        f"{result['arrived']} requests arrived: {result['completed']} finished, {result['failed']} were "
        f"rejected, {result['unfinished']} were still running or waiting at the end."
    ]
    if result["left_out"]:
        rows = ", ".join(f"{count} with {reason}" for reason, count in result["left_out"].items())
        lines.append(f"Rows of the workload that could not be served were left out: {rows}.")
    if "slo_attainment" in result:
        lines.append(f"{result['slo_attainment']:.1%} of the finished requests kept the SLO.")
    lines.append(
        f"{result['drafted_tokens']} tokens were drafted and {result['accepted_tokens']} accepted; a step "
        f"brought {result['tokens_per_step']:.2f} tokens to each request."
    )
    return lines
