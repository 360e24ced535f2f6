"""The console script. Each part contributes its verbs through the entry-point group `steersman.verbs`.

A dotted name makes a group: ``policy.push`` is `steersman policy push`. So the command line imports
no part above this one, and a part that is not installed costs its own verbs only.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import Annotated, Any

import typer

ENTRY_POINTS = "steersman.verbs"

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

HELP = "Steers speculative decoding in LLM serving: learns what it costs and brings, and chooses K."
EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, refused or out of time; "
    "2 wrong usage or unusable input (one line on standard error says what); 130 interrupted. "
    "With --json exactly one JSON object goes to standard output."
)
_GROUP_HELP = {
    "bench": "Measure a promise.",
    "doctor": "Whether an engine is steered, and why not.",
    "engine": "The torch engine.",
    "policy": "The policies of a running sidecar.",
    "trace": "Recordings.",
}


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """The exit code of one command. Input errors become one line on standard error."""
    try:
        result = application(entry_points(group=ENTRY_POINTS))(
            args=list(args), prog_name="steersman", standalone_mode=False
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:
        line = _one_line(error)
        if line is None or os.environ.get("STEERSMAN_TRACEBACK"):
            raise
        print(f"steersman: {line}", file=sys.stderr)
        if "--json" in args:
            print(json.dumps({"error": line, "version": version("steersman")}))
        return USAGE
    return result if isinstance(result, int) else OK


def application(verbs: Sequence[EntryPoint] | Any) -> typer.Typer:
    """The command line made of these entry points."""
    root = _group(HELP, epilog=EXIT_CODES)
    root.callback()(_root)
    groups: dict[str, typer.Typer] = {}
    for point in sorted(verbs, key=lambda point: point.name):
        *path, name = point.name.split(".")
        group = root
        for depth, word in enumerate(path, start=1):
            key = ".".join(path[:depth])
            if key not in groups:
                groups[key] = _group(_GROUP_HELP.get(key, ""))
                group.add_typer(groups[key], name=word)
            group = groups[key]
        group.command(name)(_verb(point))
    return root


def _group(text: str, epilog: str | None = None) -> typer.Typer:
    # Plain help: rich would cost a quarter of the time that --help may take.
    return typer.Typer(
        help=text,
        epilog=epilog,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def _verb(point: EntryPoint) -> Callable[..., Any]:
    try:
        loaded: Callable[..., Any] = point.load()
    except (ImportError, AttributeError) as error:
        return _missing(point, error)
    return loaded


def _missing(point: EntryPoint, error: Exception) -> Callable[..., Any]:
    reason = " ".join(str(error).split())

    def missing() -> None:
        raise ValueError(f"{point.name.replace('.', ' ')}: not available here ({reason})")

    missing.__doc__ = f"Not available here: {reason}."
    return missing


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"steersman {version('steersman')}")
        raise typer.Exit(OK)


def _root(
    _: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    pass


def _one_line(error: Exception) -> str | None:
    """What to tell the user about an error of his input; None for a bug of ours."""
    usage = getattr(error, "format_message", None)  # click's and typer's own errors
    if usage is not None:
        text = str(usage())
    elif isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    elif isinstance(error, ValueError | OSError):
        text = str(error)
    else:
        return None
    return " ".join(text.split())
