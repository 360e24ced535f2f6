"""`report.html`: one file that opens anywhere, without a network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from steersman_simulator.demo.console import cell, summary_lines
from steersman_simulator.demo.figures import all_figures
from steersman_simulator.demo.result import Findings
from steersman_simulator.report.page import templates

Summarise = Callable[[dict[str, Any]], list[str]]
"""From a result to its findings in sentences."""

TEMPLATE = "report.html.j2"


def write_report(
    findings: Findings, path: Path, *, template: str = TEMPLATE, summarise: Summarise = summary_lines
) -> None:
    """Write the page; it holds its plots and the whole result."""
    path.write_text(render(findings, template=template, summarise=summarise), encoding="utf-8")


def render(findings: Findings, *, template: str = TEMPLATE, summarise: Summarise = summary_lines) -> str:
    """The page as text."""
    environment = templates("steersman_simulator.demo")
    environment.filters["cell"] = cell
    figures = {name: Markup(text) for name, text in all_figures(findings).items()}  # noqa: S704 - ours
    return environment.get_template(template).render(
        result=findings.result,
        figures=figures,
        summary=summarise(findings.result),
        raw=json.dumps(findings.result, indent=1),
    )
