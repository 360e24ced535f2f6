"""Range-checked scalar types of the data contracts.

msgspec enforces the ranges when a message is decoded, which also refuses NaN and the infinities.
"""

from typing import Annotated

from msgspec import Meta

K_LIMIT = 64
"""No engine is asked for a longer proposal than this."""

MAX_SEGMENTS = 16
"""At most this many segments are live at once, `UNKNOWN_SEGMENT` included."""

UNKNOWN_SEGMENT = "unknown"
"""Where a request goes that carries no tag and matches no rule."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
ProposalLength = Annotated[int, Meta(ge=0, le=K_LIMIT)]
SIGNAL_BINS = 10
"""Bins of whatever is known about a request before its draft is verified."""

SignalBin = Annotated[int, Meta(ge=0, lt=SIGNAL_BINS)]
Position = Annotated[int, Meta(ge=1, le=K_LIMIT)]
"""Of a draft token in its draft."""

Name = Annotated[str, Meta(max_length=256)]
SEGMENT_PATTERN = r"^[A-Za-z0-9_.:/-]{1,64}$"
Segment = Annotated[str, Meta(pattern=SEGMENT_PATTERN)]
"""A workload class. A name, never prompt text: the pattern leaves no room for any."""

TaggedSegment = Annotated[str, Meta(min_length=1, max_length=64)]
"""A segment in a step's report, which holds many: `codec` checks the pattern, once per name."""
