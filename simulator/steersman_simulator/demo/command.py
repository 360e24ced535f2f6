"""The whole demo: run, evaluate, write the files, print."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from steersman_controller.trace.parquet import convert
from steersman_controller.trace.recording import JOURNAL, PARQUET
from steersman_simulator.demo import console, result, run
from steersman_simulator.demo.live import View, make_view
from steersman_simulator.demo.processes import ChildError
from steersman_simulator.demo.report import TEMPLATE, Summarise, write_report
from steersman_simulator.demo.result import Findings
from steersman_simulator.demo.vllm import console as vllm_console
from steersman_simulator.demo.vllm import result as vllm_result
from steersman_simulator.demo.vllm import run as vllm_run
from steersman_simulator.demo.vllm.program import Program, bundled_model, find_program
from steersman_simulator.demo.vllm.split import split
from steersman_simulator.demo.workload import bundled_workload, read_workload
from steersman_simulator.report.summary import rounded

FAILED = 1
RESULT, REPORT = "result.json", "report.html"
VLLM_TEMPLATE = "vllm.html.j2"


class Demo(NamedTuple):
    """What depends on whose engine is shown."""

    measure: Callable[[Path, View, str], Findings]
    """From the folder to fill, the screen and the time of the start to what was found."""
    template: str
    summarise: Summarise
    show: Callable[[dict[str, Any], Path, Console], None]


def run_demo(
    *,
    workload: Path | None,
    rounds: int | None,
    model: str,
    out: Path | None,
    as_json: bool,
    vllm: Path | None = None,
) -> int:
    """The exit code. Raises ValueError or OSError for bad input, before anything is started."""
    demo = _demo(workload, rounds, model, None if vllm is None else find_program(vllm))
    started = datetime.now(UTC)
    folder = _folder(out, started)
    screen = Console(stderr=True)
    try:
        with make_view(screen) as view:
            findings = demo.measure(folder, view, started.strftime("%Y-%m-%dT%H:%M:%SZ"))
    except (ChildError, ValueError) as error:
        print(f"steersman demo: {error}", file=sys.stderr)
        return FAILED
    _keep_parquet_only(folder)
    found = rounded(findings.result)
    (folder / RESULT).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_report(findings, folder / REPORT, template=demo.template, summarise=demo.summarise)
    if as_json:
        print(json.dumps(found))
    demo.show(found, folder, screen if as_json else Console())
    return FAILED if found["failed_requests"] else 0


def _demo(workload: Path | None, rounds: int | None, model: str, program: Program | None) -> Demo:
    items = bundled_workload() if workload is None else read_workload(workload)
    name = "the bundled workload" if workload is None else workload.name
    model = _model(model)
    if program is not None:
        return _beside_vllm(program, vllm_run.Workload(split(items), name), rounds, model)

    def measure(folder: Path, view: View, started_at: str) -> Findings:
        settings = run.Settings(items=items, workload=name, rounds=rounds, folder=folder, model=model)
        live = run.run_live(settings, view)
        view.stage("evaluating: replaying the recording, simulating the steered arm, drawing")
        return result.evaluate(live, settings, started_at=started_at)

    return Demo(measure, TEMPLATE, console.summary_lines, console.show)


def _beside_vllm(program: Program, workload: vllm_run.Workload, rounds: int | None, model: str) -> Demo:
    served = model or str(bundled_model())

    def measure(folder: Path, view: View, started_at: str) -> Findings:
        settings = vllm_run.Settings(
            program=program,
            workload=workload,
            rounds=rounds or vllm_run.DEFAULT_ROUNDS,
            folder=folder,
            model=served,
        )
        live = vllm_run.run_live(settings, view)
        view.stage("evaluating: replaying the recording, drawing")
        return vllm_result.evaluate(live, settings, started_at=started_at)

    return Demo(measure, VLLM_TEMPLATE, vllm_console.summary_lines, vllm_console.show)


def _folder(out: Path | None, started: datetime) -> Path:
    folder = out if out is not None else Path("runs") / started.strftime("%Y-%m-%dT%H-%M-%SZ")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--out: {folder} exists and is not an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _model(model: str) -> str:
    # A child's working folder is ours, but a path is clearer in its log when it is whole.
    path = Path(model).expanduser()
    if model and path.is_dir():
        return str(path.resolve())
    if model.startswith((".", "/", "~")):
        raise FileNotFoundError(f"--model: no folder {model}; allowed are a model's folder and a hub id")
    return model


def _keep_parquet_only(folder: Path) -> None:
    """The recording as the one file for people; it holds every event of the journal."""
    journal = folder / JOURNAL
    if journal.exists():
        if not (folder / PARQUET).exists():
            convert(journal)
        journal.unlink()
