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

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import BLOCK_STEPS, Array, Counts, Mask

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
        watched = observed & (state.made_of > 0)
        steps = len(residuals)
        near = np.concatenate([state.near, watched])
        company = near[:steps] | near[1 : steps + 1] | near[2 : steps + 2] | near[3 : steps + 3]
        residuals = residuals - state.offset
        scaled = residuals / np.where(company, state.deviation, state.alone)
        np.minimum(np.maximum(scaled, -LARGEST, out=scaled), LARGEST, out=scaled)
        running = np.empty((2, steps + 1, len(tolerance)))
        running[:, 0] = state.sums[0]
        np.subtract(scaled, tolerance, out=running[0, 1:])
        np.subtract(-scaled, tolerance, out=running[1, 1:])
        running[:, 1:] *= watched
        np.cumsum(running, axis=1, out=running)
        least = np.minimum.accumulate(running[:, 1:], axis=1)
        np.minimum(least, state.sums[1][:, None], out=least)
        above = running[:, 1:] - least
        alarmed = np.zeros(0, np.int64)
        # The threshold is `CAUTION` / tolerance.
        if (above.max(axis=(0, 1), initial=0.0) * tolerance > CAUTION).any():
            hit: Mask = np.asarray((above * tolerance > CAUTION).any(axis=0))
            steps = int(hit.any(axis=1).argmax()) + 1
            alarmed = np.flatnonzero(hit[steps - 1])
        if steps:
            state.sums[0], state.sums[1] = running[:, steps], least[:, steps - 1]
        state.near = near[steps : steps + NEAR_STEPS]
        state.seen += observed[:steps].sum(axis=0)
        more = slice(state.filled, state.filled + steps)
        state.residuals[more], state.watched[more] = residuals[:steps], watched[:steps]
        state.filled += steps
        return steps, alarmed

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
        self._measure()
        due = self._due()
        renewed = due & (state.made_of < REMEMBERED_STEPS)
        if due.any():
            self._estimate(due)
            mean = state.moments[1] / np.maximum(state.moments[0], 1.0)
            state.offset = np.where(renewed, 0.0, np.where(due, state.offset + mean, state.offset))
            state.made_of[due] = state.seen[due]
            state.moments[:, due] = 0.0
            state.sums[:, :, due] = 0.0
        state.sums[0] -= state.sums[1]
        state.sums[1] = 0.0
        state.filled = 0
        return renewed

    def long_run_variance(self) -> Array:
        """By channel, in units of what independent drafts would show; 1 where it was not measured."""
        state = self.state
        return np.where(state.variance > 0.0, state.deviation**2, 1.0)

    def _due(self) -> Mask:
        """Channels with twice the evidence that their reference was made of, up to `LAST_STEPS`."""
        state = self.state
        due = np.maximum(FIRST_STEPS, 2 * state.made_of)
        return (state.seen >= due) & (state.made_of < LAST_STEPS)

    def _measure(self) -> None:
        """Moments of the block; a pair is two steps in a row."""
        state = self.state
        live = np.flatnonzero(state.watched[: state.filled].any(axis=0))
        watched = state.watched[: state.filled, live]
        limit = 4.0 * LARGEST * state.deviation[live]
        z = np.minimum(np.maximum(state.residuals[: state.filled, live], -limit), limit) * watched
        paired = watched[1:] & watched[:-1]
        products = z[1:] * z[:-1]  # where they are no pair, one of them is 0
        terms = (
            watched.sum(axis=0),
            z.sum(axis=0),
            (z * z).sum(axis=0),
            paired.sum(axis=0),
            products.sum(axis=0),
        )
        state.moments[:, live] += np.stack(terms)

    def _estimate(self, renewed: Mask) -> None:
        """Variance and autocorrelation, leaning on what was measured before, or at first on what is usual."""
        state = self.state
        number, total, squares, pairs, products = state.moments
        mean = total / np.maximum(number, 1.0)
        known = state.variance > 0.0
        behind = np.where(known, np.maximum(state.made_of, PRIOR_STEPS), PRIOR_STEPS)
        usual = np.where(known, state.variance, self.prior_variance)
        raw = np.maximum(squares - number * mean * mean, 0.0)
        variance = (raw + behind * usual) / (number + behind)
        # A stream that never moved has not proven that it never will.
        variance = np.maximum(variance, 0.25 * self.prior_variance)
        covariance = products - pairs * mean * mean + behind * np.where(known, state.rho, PRIOR_RHO) * usual
        rho = np.clip(covariance / (pairs + behind) / variance, 0.0, 0.95)
        state.alone = np.where(renewed, np.sqrt(variance), state.alone)
        deviation = np.sqrt(variance * (1.0 + 2.0 * rho / (1.0 - np.maximum(rho, BURST))))
        state.deviation = np.where(renewed, deviation, state.deviation)
        measured = renewed & (number > 0.0)
        state.variance = np.where(measured, variance, state.variance)
        state.rho = np.where(measured, rho, state.rho)
