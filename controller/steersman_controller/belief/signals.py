"""What is known about a request before its draft is verified: is it worth it, and what did a trim hide?

For every segment and signal drafts are counted by bin and position: offered, verified, and accepted up to
there. Two things follow.

- *Whether it pays.* Before a step is learned from, each of its verified positions is predicted twice: by the
  segment's survival there, and by that of the bin. The difference of their log losses is summed over some
  steps at a time, since neighbours resemble each other; and a signal is shown only where the mean of these
  sums is above 0 by three of its standard errors. A bin costs evidence, so a signal that says nothing loses.
- *What a trim hides.* Where drafts are cut by a signal, late positions are verified for the likelier drafts
  only, and accepted / reached comes out too high there. Within a bin that choice is (nearly) chance, so

      P(accepted up to j) = sum over bins of P(bin | offered j) accepted(bin, j) / verified(bin, j):

  post-stratification, which is weighting each verified draft by 1 / P(verified | bin, j). Bins of which
  nothing was verified that far are carried on from what is known of them.

Forgetting happens where the belief settles, by the steps since it last did; and predictions are made from the
tables of that moment. So nothing depends on how reports are cut into chunks.
"""

import numpy as np
from msgspec import Struct

from steersman_controller.belief.arrays import Array, Counts, Mask, add_at
from steersman_controller.belief.columns import Columns
from steersman_controller.belief.signal_rows import SIGNALS, SignalRows
from steersman_controller.compiled import compiled
from steersman_policies.messages import Signal
from steersman_policies.units import MAX_SEGMENTS, SIGNAL_BINS
from steersman_policies.view import SignalBelief

KEEP = 0.998
"""Kept of the counts of a segment per step that told something of them."""

STRENGTH = 8.0
"""Drafts that the coarser estimate of a bin counts for at each position."""

BATCH_STEPS = 64
"""Steps that are compared as one; a block of the belief may make it more."""

KEEP_BATCH = 0.98
FEWEST_BATCHES = 10
ENOUGH_BATCHES = (1.0 - KEEP_BATCH**FEWEST_BATCHES) / (1.0 - KEEP_BATCH) - 1e-9
"""The faded number of the first so many batches."""

ERRORS = 3.0

STATE, CONFIDENCE = range(len(SIGNALS))
OFFERED, VERIFIED, ACCEPTED = range(3)


class SignalsState(Struct):
    """Part of a snapshot."""

    drafts: Array
    """[offered, verified, accepted][signal][segment][bin][position]"""
    advantage: Array
    """[accepted, refused], then like `drafts`: log of the probability by bin over that by position alone, as
    of the last time that the belief settled."""
    steps: Counts
    """[signal][segment]: that told something, since then."""
    pending: Array
    """[nats, verified positions, steps][signal][segment] of the batch that is under way."""
    batches: Array
    """[number, nats, positions, nats^2, nats x positions, positions^2][signal][segment], faded sums."""


class Signals:
    """Learns from chunks of steps. Only `learn`, `doubt`, `free` and `settle` change what is believed."""

    def __init__(self, k_max: int) -> None:
        self.k_max = k_max
        shape = (len(SIGNALS), MAX_SEGMENTS)
        self.state = SignalsState(
            drafts=np.zeros((3, *shape, SIGNAL_BINS, k_max)),
            advantage=np.zeros((2, *shape, SIGNAL_BINS, k_max)),
            steps=np.zeros(shape, np.int64),
            pending=np.zeros((3, *shape)),
            batches=np.zeros((6, *shape)),
        )

    def learn(self, chunk: Columns, rows: Counts) -> None:
        """Learn from a chunk; `rows`: the segment of each group."""
        if not len(chunk.signals.group):
            return
        state, found = self.state, _teaching(chunk)
        row = found.signal * MAX_SEGMENTS + rows[found.group]
        at = (row * SIGNAL_BINS + found.bin) * self.k_max + found.position - 1
        _, verified, accepted = found.drafts
        accepting, refusing = state.advantage.reshape(2, -1)[:, at]
        nats = accepted * accepting + (verified - accepted) * refusing
        for sums, terms in zip(state.pending, (nats, verified), strict=False):
            add_at(sums, row, terms)
        for sums, terms in zip(state.drafts, found.drafts, strict=True):
            add_at(sums, at, terms)
        told = np.zeros((chunk.steps, state.steps.size), np.bool_)
        told[chunk.step[found.group], row] = True
        steps = told.sum(axis=0).reshape(state.steps.shape)
        state.steps += steps
        state.pending[2] += steps

    def settle(self) -> None:
        """Make what was learned count in predictions, and forget a little."""
        state = self.state
        if not state.steps.any():
            return
        self._compare()
        by_bin, by_position = survivals(state.drafts), _by_position(state.drafts)[:, :, None]
        state.advantage[0] = np.log(by_bin / by_position)
        state.advantage[1] = np.log((1.0 - by_bin) / (1.0 - by_position))
        state.drafts *= np.power(KEEP, state.steps)[:, :, None, None]
        state.steps[:] = 0

    def doubt(self, rows: Counts, keep: float) -> None:
        """Forget all but this fraction of what was seen of these segments."""
        self.state.drafts[:, :, rows] *= keep

    def free(self, row: int) -> None:
        """Forget a segment."""
        state = self.state
        for kept in (state.drafts, state.advantage, state.pending, state.batches):
            kept[:, :, row] = 0.0
        state.steps[:, row] = 0

    def gains(self) -> tuple[Array, Array]:
        """[signal][segment]: nats that a verified position is predicted better, and the standard error."""
        _, nats, positions, *squares = self.state.batches
        some = np.maximum(positions, 1e-300)
        mean = nats / some
        left = squares[0] - 2.0 * mean * squares[1] + mean * mean * squares[2]
        return mean, np.sqrt(np.maximum(left, 0.0)) / some

    def beliefs(self) -> dict[int, dict[Signal, SignalBelief]]:
        """By segment, the signals that pay there."""
        found: dict[int, dict[Signal, SignalBelief]] = {}
        enough = self.state.batches[0] >= ENOUGH_BATCHES
        if not enough.any():
            return found
        mean, error = self.gains()
        pays = enough & (mean > ERRORS * error)
        if not pays.any():
            return found
        rows = np.flatnonzero(pays.any(axis=0))
        by_bin = survivals(self.state.drafts[:, :, rows])
        for signal, index in np.argwhere(pays[:, rows]).tolist():
            row = int(rows[index])
            offered = self.state.drafts[OFFERED, signal, row, :, 0]
            found.setdefault(row, {})[SIGNALS[signal]] = SignalBelief(
                share=tuple((offered / offered.sum()).tolist()),
                survival=tuple(map(tuple, by_bin[signal, index].tolist())),
                gain_nats=float(mean[signal, row]),
                gain_error_nats=float(error[signal, row]),
            )
        return found

    def untrimmed(self, acceptance: Array, drafted_share: Array) -> tuple[Array, Array]:
        """Acceptance and drafted share by segment and position as they would be had nothing been trimmed.

        Given are those of what was verified; where nothing was trimmed they are what is returned.
        """
        cut = np.flatnonzero(_trimmed(self.state.drafts))
        if not len(cut):
            return acceptance, drafted_share
        drafts = self.state.drafts[:, :, cut]
        offered, verified, _ = drafts.sum(axis=3)
        missing = (offered - verified).sum(axis=2)
        acceptance, drafted_share = acceptance.copy(), drafted_share.copy()
        by_bin = survivals(drafts)
        for index, row in enumerate(cut.tolist()):
            signal = int(missing[:, index].argmax())
            known = offered[signal, index] > 0.0
            survival = (drafts[OFFERED, signal, index] * by_bin[signal, index]).sum(axis=0)[known]
            survival = np.concatenate([[1.0], survival / offered[signal, index, known]])
            acceptance[row, known] = np.minimum(survival[1:] / survival[:-1], 1.0)
            kept = verified[signal, index] / np.maximum(offered[signal, index], 1e-300)
            shares = np.where(kept > 0.0, drafted_share[row] / np.maximum(kept, 1e-300), 1.0)
            drafted_share[row] = np.minimum.accumulate(np.minimum(shares, 1.0))
        return acceptance, drafted_share

    def _compare(self) -> None:
        """End the batches that are long enough."""
        state = self.state
        nats, positions, steps = state.pending
        full = steps >= BATCH_STEPS
        if not full.any():
            return
        terms = np.stack(
            [np.ones_like(nats), nats, positions, nats * nats, nats * positions, positions * positions]
        )
        keep = np.array([KEEP_BATCH] * 3 + [KEEP_BATCH**2] * 3)[:, None, None]
        state.batches = np.where(full, keep * state.batches + terms, state.batches)
        state.pending[:, full] = 0.0


@compiled
def _trimmed(drafts: Array) -> Mask:
    """By segment, whether something that was offered was not verified."""
    _, signals, segments, bins, positions = drafts.shape
    found = np.zeros(segments, np.bool_)
    for segment in range(segments):
        offered, missing = 0.0, 0.0
        for signal in range(signals):
            for bin_ in range(bins):
                for position in range(positions):
                    number = drafts[OFFERED, signal, segment, bin_, position]
                    offered += number
                    missing += number - drafts[VERIFIED, signal, segment, bin_, position]
        found[segment] = missing > 1e-9 * offered
    return found


def survivals(drafts: Array) -> Array:
    """P(accepted up to a position | offered there, bin): [signal][segment][bin][position].

    Each leans on a coarser estimate, which is all that is left where nothing was verified.
    """
    _, verified, accepted = drafts
    out = np.empty_like(accepted)
    out[STATE] = _by_state(verified[STATE], accepted[STATE])
    prior = _calibrated(verified[CONFIDENCE].sum(axis=2), accepted[CONFIDENCE].sum(axis=2))
    out[CONFIDENCE] = (accepted[CONFIDENCE] + STRENGTH * prior[:, :, None]) / (
        verified[CONFIDENCE] + STRENGTH
    )
    return np.asarray(np.clip(out, 1e-6, 1.0 - 1e-6))


def _by_state(verified: Array, accepted: Array) -> Array:
    """[segment][bin][position]; leans on the same bin one position before and what comes between in all."""
    out = np.empty_like(accepted)
    before, reached = np.ones(out.shape[:2]), verified[:, :, :1].sum(axis=1)
    for j in range(out.shape[2]):
        here, kept = verified[:, :, j], accepted[:, :, j]
        if j:
            among = here / np.maximum(verified[:, :, j - 1], 1e-300)
            reached = (accepted[:, :, j - 1] * among).sum(axis=1, keepdims=True)
        hazard = np.minimum((kept.sum(axis=1, keepdims=True) + 1.0) / (reached + 2.0), 1.0)
        before = out[:, :, j] = (kept + STRENGTH * before * hazard) / (here + STRENGTH)
    return out


def _calibrated(verified: Array, accepted: Array) -> Array:
    """Survival by [segment][bin] of the confidence as a line in its log-odds (Platt 1999), by least squares.

    A probability of the draft so far means much the same at every position. Until there is evidence it is
    taken at its word.
    """
    odds = np.arange(SIGNAL_BINS) - (SIGNAL_BINS - 1) / 2.0
    kept, lost = accepted + 0.5, verified - accepted + 0.5
    weight = np.where(verified > 0.0, kept * lost / (verified + 1.0), 0.0)
    off = np.log(kept / lost) - odds
    w, wx, wxx, wy, wxy = (
        (weight * term).sum(axis=1) for term in (np.ones_like(odds), odds, odds * odds, off, off * odds)
    )
    w, wxx = w + STRENGTH, wxx + STRENGTH
    slope = (w * wxy - wx * wy) / (w * wxx - wx * wx)
    level = (wy - slope * wx) / w
    return np.asarray(1.0 / (1.0 + np.exp(-(level[:, None] + (1.0 + slope[:, None]) * odds))))


def _by_position(drafts: Array) -> Array:
    """The same without the bin: [signal][segment][position]."""
    _, verified, accepted = drafts.sum(axis=3)
    return np.asarray(np.clip((accepted + 0.5) / (verified + 1.0), 1e-6, 1.0 - 1e-6))


def _teaching(chunk: Columns) -> SignalRows:
    """The rows of groups that teach."""
    found = chunk.signals
    taught = chunk.teaches[found.group] > 0.0
    if taught.all():
        return found
    return SignalRows(
        found.group[taught],
        found.signal[taught],
        found.bin[taught],
        found.position[taught],
        found.drafts[:, taught],
    )
