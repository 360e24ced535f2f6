"""Page-Hinkley tests that run side by side: has a stream left the level that it was known to have?

One channel sees one stream of standardised residuals against a reference that stays frozen. What the test
must survive is traffic in bursts: residuals whose neighbours resemble each other wander far without any
change. So a residual is divided by the *long-run* deviation of its stream,

    sigma^2 (1 + 2 rho / (1 - phi)),  phi = max(rho, BURST),

where sigma^2 and rho are the variance and lag-1 autocorrelation measured while the reference was made: lag-1
alone would miss slow bursts under much noise, so bursts are taken to fade no faster than `BURST` per step.

A reference made from n steps is itself off by about 1 / sqrt(n) such deviations. The tolerance of the test,
delta, is three times that (never below `TOLERANCE`), and the threshold keeps delta * threshold = `CAUTION`,
on which the rate of false alarms of a Page-Hinkley test depends: about 2 delta^2 exp(-2 CAUTION) per step.

Requests that differ from each other move the mean of the few that are live, for as long as they live, and no
autocorrelation of a short stream tells that from a change. So delta is also at least `WANDER` times the
deviation that this causes, where it is known.
"""

import math

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import BLOCK_STEPS, Array, Counts, Mask
from steersman_controller.compiled import compiled, inlined

BURST = 0.64
"""Lag-1 autocorrelation of real acceptance at its worst (n-gram drafts in code)."""

TOLERANCE = 0.25
CAUTION = 10.0

WANDER = 3.0

LARGEST = 4.0
"""Deviations that one residual may count."""

NEAR_STEPS = 4
"""Residuals further apart than this count as independent: a segment that is only probed is asked rarely."""

FIRST_STEPS = 16
"""Observations before there is a reference."""

LAST_STEPS = 2048
"""Observations behind a reference that is not renewed any more."""

REMEMBERED_STEPS = 400
"""The evidence that a reference is made of remembers no more. What is known better later is by how much it
is off: its residuals get an offset."""

PRIOR_STEPS = 16.0
PRIOR_RHO = 0.3


class WatchState(Struct):
    """Everything by channel; part of a snapshot."""

    seen: Counts
    """Observations since the last alarm."""
    made_of: Counts
    """Observations behind the reference; 0 where there is none."""
    offset: Array
    """Mean of the residuals against the reference, which they are corrected by."""
    deviation: Array
    """Long-run standard deviation of the residuals."""
    alone: Array
    """Standard deviation of one that stands alone."""
    rho: Array
    """Their lag-1 autocorrelation, as last measured."""
    variance: Array
    moments: Array
    """Since the reference was made, of residuals z: number, sum, sum of squares, pairs, sum of products."""
    wander: Array
    """Standard deviation of the mean residual of those that are live, because they differ; 0 if not known."""
    sums: Array
    """[running, least] of [up, down]: the sum of what exceeds the tolerance, and its least value so far."""
    residuals: Array
    """By step of the block."""
    watched: Mask
    near: Mask
    """The same, of the last `NEAR_STEPS` steps."""
    filled: int = 0


class Watch:
    """Channels in a row. `advance` tests; `settle` makes new references count."""

    def __init__(self, prior_variance: Array) -> None:
        channels = len(prior_variance)
        self.prior_variance = prior_variance
        self.state = WatchState(
            seen=np.zeros(channels, np.int64),
            made_of=np.zeros(channels, np.int64),
            offset=np.zeros(channels),
            deviation=np.ones(channels),
            alone=np.ones(channels),
            near=np.zeros((NEAR_STEPS, channels), np.bool_),
            rho=np.zeros(channels),
            variance=np.zeros(channels),
            moments=np.zeros((5, channels)),
            wander=np.zeros(channels),
            sums=np.zeros((2, 2, channels)),
            residuals=np.zeros((BLOCK_STEPS, channels)),
            watched=np.zeros((BLOCK_STEPS, channels), np.bool_),
        )

    def advance(self, residuals: Array, observed: Mask) -> tuple[int, Counts]:
        """Take in a chunk up to its first alarm; how many steps that were, and the channels that raised it.

        Residuals, and whether there is one: ``[step][channel]``.
        """
        state = self.state
        tolerance = np.maximum(TOLERANCE, 3.0 / np.sqrt(np.maximum(state.made_of, 1)))
        tolerance = np.maximum(tolerance, WANDER * state.wander / state.deviation)
        alarmed = np.zeros(len(tolerance), np.bool_)
        assert 0 <= state.filled <= BLOCK_STEPS - len(residuals)
        steps = _advance(
            residuals,
            observed,
            tolerance,
            CAUTION / tolerance,
            state.filled,
            state.seen,
            state.made_of,
            state.offset,
            state.deviation,
            state.alone,
            state.sums,
            state.residuals,
            state.watched,
            state.near,
            alarmed,
        )
        state.filled += steps
        return steps, np.flatnonzero(alarmed)

    def forget(self, channels: Counts) -> None:
        """Begin these channels anew: no reference, nothing seen."""
        state = self.state
        state.seen[channels] = state.made_of[channels] = 0
        state.offset[channels] = 0.0
        state.moments[:, channels] = 0.0
        state.sums[:, :, channels] = 0.0
        state.watched[:, channels] = state.near[:, channels] = False

    def free(self, channels: Counts) -> None:
        """Begin these channels anew for another stream: not even what is usual is known of it."""
        self.forget(channels)
        self.state.variance[channels] = self.state.rho[channels] = self.state.wander[channels] = 0.0
        self.state.deviation[channels] = self.state.alone[channels] = 1.0

    def settle(self) -> Mask:
        """End the block; the channels whose references are to be made anew, now."""
        state = self.state
        renewed = np.zeros(len(state.seen), np.bool_)
        _settle(
            self.prior_variance,
            state.filled,
            state.residuals,
            state.watched,
            state.seen,
            state.made_of,
            state.offset,
            state.deviation,
            state.alone,
            state.rho,
            state.variance,
            state.moments,
            state.sums,
            renewed,
        )
        state.filled = 0
        return renewed

    def long_run_variance(self) -> Array:
        """By channel, in units of what independent drafts would show; 1 where it was not measured."""
        state = self.state
        return np.where(state.variance > 0.0, state.deviation**2, 1.0)


@compiled
def _advance(
    residuals: Array,
    observed: Mask,
    tolerance: Array,
    threshold: Array,
    filled: int,
    seen: Counts,
    made_of: Counts,
    offset: Array,
    deviation: Array,
    alone: Array,
    sums: Array,
    block: Array,
    watched: Mask,
    near: Mask,
    alarmed: Mask,
) -> int:
    """Steps up to the first alarm. All from `seen` on are those of the state; `alarmed` is written."""
    number = len(residuals)
    for step in range(number):
        now, alarm = filled + step, False
        for channel in range(len(tolerance)):
            block[now, channel] = residuals[step, channel] - offset[channel]
            watched[now, channel] = observed[step, channel] and made_of[channel] > 0
            seen[channel] += observed[step, channel]
            if not watched[now, channel]:
                continue
            company = False
            for back in range(1, NEAR_STEPS + 1):
                early = back > step
                company |= near[NEAR_STEPS + step - back, channel] if early else watched[now - back, channel]
            scaled = block[now, channel] / (deviation[channel] if company else alone[channel])
            scaled = min(max(scaled, -LARGEST), LARGEST)
            for side in range(2):
                sums[0, side, channel] += (-scaled if side else scaled) - tolerance[channel]
                sums[1, side, channel] = min(sums[1, side, channel], sums[0, side, channel])
                above = sums[0, side, channel] - sums[1, side, channel]
                alarmed[channel] |= above > threshold[channel]
            alarm |= alarmed[channel]
        if alarm:
            number = step + 1
            break
    for place in range(NEAR_STEPS):
        step = number - NEAR_STEPS + place
        near[place] = near[place + number] if step < 0 else watched[filled + step]
    return number


@compiled
def _settle(
    prior_variance: Array,
    filled: int,
    block: Array,
    watched: Mask,
    seen: Counts,
    made_of: Counts,
    offset: Array,
    deviation: Array,
    alone: Array,
    rho: Array,
    variance: Array,
    moments: Array,
    sums: Array,
    renewed: Mask,
) -> None:
    """Count the block; make new references where there is twice the evidence behind the last one, up to
    `LAST_STEPS`. All from `made_of` on are those of the state; `renewed` is written."""
    for channel in range(len(seen)):
        _measure(filled, block, watched, channel, deviation[channel], moments)
        if seen[channel] >= max(FIRST_STEPS, 2 * made_of[channel]) and made_of[channel] < LAST_STEPS:
            renewed[channel] = made_of[channel] < REMEMBERED_STEPS
            mean = moments[1, channel] / max(moments[0, channel], 1.0)
            known = variance[channel] > 0.0
            found, correlation = _estimated(
                moments[:, channel],
                max(made_of[channel], PRIOR_STEPS) if known else PRIOR_STEPS,
                variance[channel] if known else prior_variance[channel],
                rho[channel] if known else PRIOR_RHO,
                prior_variance[channel],
            )
            long_run = found * (1.0 + 2.0 * correlation / (1.0 - max(correlation, BURST)))
            alone[channel], deviation[channel] = math.sqrt(found), math.sqrt(long_run)
            if moments[0, channel] > 0.0:
                variance[channel], rho[channel] = found, correlation
            offset[channel] = 0.0 if renewed[channel] else offset[channel] + mean
            made_of[channel] = seen[channel]
            moments[:, channel] = 0.0
            sums[:, :, channel] = 0.0
        for side in range(2):
            sums[0, side, channel] -= sums[1, side, channel]
            sums[1, side, channel] = 0.0


@inlined
def _measure(
    filled: int, block: Array, watched: Mask, channel: int, deviation: float, moments: Array
) -> None:
    """Add the moments of a block; a pair is two steps in a row."""
    limit = 4.0 * LARGEST * deviation
    number = total = squares = pairs = products = last = 0.0
    for step in range(filled):
        if not watched[step, channel]:
            continue
        z = min(max(block[step, channel], -limit), limit)
        number += 1.0
        total += z
        squares += z * z
        if step > 0 and watched[step - 1, channel]:
            pairs += 1.0
            products += z * last
        last = z
    moments[0, channel] += number
    moments[1, channel] += total
    moments[2, channel] += squares
    moments[3, channel] += pairs
    moments[4, channel] += products


@inlined
def _estimated(
    moments: Array, behind: float, usual: float, usual_rho: float, prior_variance: float
) -> tuple[float, float]:
    """Variance and autocorrelation, leaning on what was measured before, or at first on what is usual."""
    number, total, squares, pairs, products = moments[0], moments[1], moments[2], moments[3], moments[4]
    mean = total / max(number, 1.0)
    variance = (max(squares - number * mean * mean, 0.0) + behind * usual) / (number + behind)
    # A stream that never moved has not proven that it never will.
    variance = max(variance, 0.25 * prior_variance)
    covariance = products - pairs * mean * mean + behind * usual_rho * usual
    return variance, min(max(covariance / (pairs + behind) / variance, 0.0), 0.95)
