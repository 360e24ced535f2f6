"""V9: acceptance by position is conditional, everywhere it is read."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from steersman_controller.train.survival import Survival, parse_survival, read_acceptance, tokens_per_step
from steersman_policies.executor import mix
from steersman_policies.view import SegmentBelief
from steersman_simulator.acceptance.segments import SegmentTruth, segment_table
from steersman_simulator.validate.check import Asked, Check, Figure, mean_of, three_sigma

HAZARDS = (0.92, 0.68, 0.38)
"""GLM-4.5-Air's own drafter on GPQA (papers 4.2)."""

CONDITIONAL = 1.0 + 0.92 + 0.92 * 0.68 + 0.92 * 0.68 * 0.38
"""2.78."""

MARGINAL = 1.0 + 0.92 + 0.68 + 0.38
"""2.98: what the same numbers mean where they are shares of all drafts."""

DRAWN_TOKENS = 1_000_000


def figures(asked: Asked) -> list[Figure]:
    """Only the drafts have chance in them."""
    return list(_figures(mix(asked.seed, 9)))


def _figures(key: int) -> Iterator[Figure]:
    belief = SegmentBelief("chat", 1.0, 1e6, 1.0, HAZARDS, HAZARDS, (1.0,) * 3)
    yield Figure("tokens a policy expects of K = 3", CONDITIONAL, 1.0 + belief.gains()[3], 1e-12)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "acceptance.csv"
        rows = [f"chat,{j},{a}" for j, a in enumerate(HAZARDS, start=1)]
        file.write_text("\n".join(["segment,position,acceptance", *rows]), encoding="utf-8")
        read = read_acceptance(file)["chat"]
    yield Figure("tokens of a file of acceptance by position", CONDITIONAL, tokens_per_step(read, 3), 1e-12)
    marginal = Survival({3: [parse_survival("0.92 0.68 0.38", 3, "V9")]})
    yield Figure("tokens of a column `position_survival`", MARGINAL, marginal.tokens_per_step(3), 1e-12)
    table = segment_table(SegmentTruth(1.0, 0.0, (1.0,), HAZARDS), DRAWN_TOKENS, key)
    drawn = 1.0 + np.minimum(table.accepted, 3)
    yield from three_sigma([mean_of("tokens of the drafts that the simulator makes", CONDITIONAL, drawn)])
    yield Figure("as published, to two digits", 2.78, 1.0 + belief.gains()[3], 0.005)


CHECK = Check(
    "V9",
    "acceptance by position",
    "0.92, 0.68, 0.38 make 2.78 tokens a step in belief, files and drafts; 2.98 where they are survivals",
    "exact; drafts 3 sigma",
    figures,
)
