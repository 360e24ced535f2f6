"""`steersman replay`. Light: everything heavy is imported inside the function."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def replay(
    trace: Annotated[Path, typer.Option(help="A recording: journal, Parquet, or the folder that holds it.")],
    policy: Annotated[
        list[str], typer.Option(help="A policy to ask about, as name or name:param=value,...; many at will.")
    ],
    engine: Annotated[str, typer.Option(help="The recorded engine; by default the first with steps.")] = "",
    under: Annotated[
        str, typer.Option(help="Score only steps that were recorded under these policies, as a,b.")
    ] = "",
    allow_model: Annotated[
        bool,
        typer.Option("--allow-model", help="Take the model's word for a K that exploration hardly reached."),
    ] = False,
    draws: Annotated[int, typer.Option(min=200, max=100_000, help="Resamples behind an interval.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Chance of the resamples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json, report.html, ratio.png.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> int:
    """Estimate from a recording the step goodput that an engine would have had under other policies.

    The real controller and executor decide again on the recorded telemetry. Smaller K are exact, larger ones
    need a recording with exploration. Exit code 2 where one cannot be estimated. Says nothing of queueing.
    """
    from steersman_controller.progress import progress_on
    from steersman_simulator.replay import show
    from steersman_simulator.replay.result import Settings
    from steersman_simulator.replay.run import replay_policies
    from steersman_simulator.report.show import encode_result

    settings = Settings(
        trace=trace,
        policies=tuple(_choice(text) for text in policy),
        engine_id=engine,
        under=tuple(word.strip() for word in under.split(",") if word.strip()),
        allow_model=allow_model,
        draws=draws,
        seed=seed,
    )
    if out is not None:
        show.prepare(out)
    with progress_on(sys.stderr) as progress:
        result = replay_policies(settings, progress)
    if out is not None:
        show.write(out, result)
    if json_output:
        print(encode_result(result).decode())
    else:
        show.show(result)
    return 2 if result["refused"] else 0


def _choice(text: str) -> tuple[str, dict[str, Any]]:
    """A policy and its parameters.

    >>> _choice("fixed:k=2,explore=0.05")
    ('fixed', {'k': '2', 'explore': '0.05'})
    """
    name, _, rest = text.partition(":")
    params: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not (key.strip() and equals):
            raise ValueError(f"--policy {text!r}: {pair!r} is not of the form name=value")
        params[key.strip()] = value.strip()
    return name.strip(), params
