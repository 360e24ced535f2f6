"""The whole demo: run, evaluate, write the files, print."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from steersman_controller.trace.parquet import convert
from steersman_controller.trace.recording import JOURNAL, PARQUET
from steersman_simulator.demo import console
from steersman_simulator.demo.live import make_view
from steersman_simulator.demo.processes import ChildError
from steersman_simulator.demo.report import write_report
from steersman_simulator.demo.result import evaluate
from steersman_simulator.demo.run import Settings, run_live
from steersman_simulator.demo.workload import bundled_workload, read_workload
from steersman_simulator.summary import rounded

FAILED = 1
RESULT, REPORT = "result.json", "report.html"


def run_demo(
    *, workload: Path | None, rounds: int | None, model: str, out: Path | None, as_json: bool
) -> int:
    """The exit code. Raises ValueError or OSError for bad input, before anything is started."""
    items = bundled_workload() if workload is None else read_workload(workload)
    model = _model(model)
    started = datetime.now(UTC)
    folder = _folder(out, started)
    name = "the bundled workload" if workload is None else workload.name
    settings = Settings(items=items, workload=name, rounds=rounds, folder=folder, model=model)
    screen = Console(stderr=True)
    try:
        with make_view(screen) as view:
            live = run_live(settings, view)
            view.stage("evaluating: replaying the recording, simulating the steered arm, drawing")
            findings = evaluate(live, settings, started_at=started.strftime("%Y-%m-%dT%H:%M:%SZ"))
    except ChildError as error:
        print(f"steersman demo: {error}", file=sys.stderr)
        return FAILED
    _keep_parquet_only(folder)
    result = rounded(findings.result)
    (folder / RESULT).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_report(findings, folder / REPORT)
    if as_json:
        print(json.dumps(result))
    console.show(result, folder, screen if as_json else Console())
    return FAILED if result["failed_requests"] else 0


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
