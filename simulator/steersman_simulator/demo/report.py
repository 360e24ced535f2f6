"""`report.html`: one file that opens anywhere, without a network."""

import json
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from steersman_simulator.demo.console import cell, summary_lines
from steersman_simulator.demo.figures import all_figures
from steersman_simulator.demo.result import Findings

TEMPLATE = "report.html.j2"


def write_report(findings: Findings, path: Path) -> None:
    """Write the page; it holds its plots and the whole result."""
    path.write_text(render(findings), encoding="utf-8")


def render(findings: Findings) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("steersman_simulator.demo", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["cell"] = cell
    figures = {name: Markup(text) for name, text in all_figures(findings).items()}  # noqa: S704 - ours
    return environment.get_template(TEMPLATE).render(
        result=findings.result,
        figures=figures,
        summary=summary_lines(findings.result),
        raw=json.dumps(findings.result, indent=1),
    )
