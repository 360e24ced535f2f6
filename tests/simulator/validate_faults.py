"""What every test of a check does: run it small, and with a fault planted in our code."""

from steersman_simulator.validate.check import Asked, Check, Figure


def outside(check: Check, **asked: object) -> list[Figure]:
    """The figures that do not hold; there must be some to begin with."""
    figures = list(check.figures(Asked(**asked)))  # type: ignore[arg-type]
    assert figures
    return [figure for figure in figures if not figure.holds]
