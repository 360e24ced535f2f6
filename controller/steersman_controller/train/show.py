"""What `steersman train` says while it works and when it is done."""

from pathlib import Path
from typing import Any

import msgspec

from steersman_controller.train.card import card_lines, percent
from steersman_controller.train.run import Trained


def result_of(trained: Trained, out: Path | None) -> dict[str, Any]:
    """The JSON object: figures over all groups first, then the groups, without their grids."""
    found: dict[str, Any] = {"out": None if out is None else str(out), "warning": trained.warning}
    if trained.bundle is not None:
        manifest = trained.bundle.manifest
        found |= manifest.figures
        found["rows"] = sum(evidence.rows for evidence in manifest.evidence)
        found["cells"] = sum(card.cells for card in manifest.groups)
        found["by"] = list(manifest.by)
        found["groups"] = [_group(card) for card in manifest.groups]
        found["segments"] = msgspec.to_builtins(manifest.segments)
        found["choice"] = msgspec.to_builtins(manifest.choice)
        found["tables_sha256"] = manifest.tables_sha256
    if trained.prior:
        found["prior"] = trained.prior
    return found


def result_lines(trained: Trained, out: Path | None) -> list[str]:
    """The same for people."""
    lines = [] if trained.bundle is None else card_lines(trained.bundle)
    if trained.prior:
        lines += ["", f"prior: {trained.prior['device_source']}"]
        lines += [f"  operator times: {name}" for name in trained.prior["operator_files"]]
        lines.append(
            f"  one request, 1,024 tokens of context: {trained.prior['one_request_ms']:.2f} ms a step"
        )
        for name, figures in trained.prior.get("tpot", {}).items():
            every, unseen = figures["all"], figures["unseen_batch_sizes"]
            by = ", ".join(f"TP{d} {percent(f['mape'])}" for d, f in figures["by_tensor_parallel"].items())
            lines.append(
                f"  {name} against {every['rows']} measured deployments, TPOT error {percent(every['mape'])} "
                f"({by}); corrected on other batch sizes {percent(unseen['mape'])}"
            )
    return [*lines, *([f"written: {out}"] if out else [])]


def _group(card: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(card)
    return {key: value for key, value in plain.items() if not key.endswith("_grid") and "grid_" not in key}
