"""Histograms of steps, counted in batches elsewhere and shown to Prometheus as they are.

Observing each step of each phase in the client's own histograms costs more than learning from it.
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from steersman_controller.belief.tally import Histogram

Shown = tuple[list[tuple[str, float]], float]
"""Cumulated counts by right edge, and the sum."""


class StepHistograms(Collector):
    """Histograms by engine and phase. `show` replaces, so that a scrape in another thread sees whole ones."""

    def __init__(self, texts: Mapping[str, str], prefix: str) -> None:
        self._texts = texts
        self._prefix = prefix
        self._shown: dict[str, dict[tuple[str, str], Shown]] = {name: {} for name in texts}

    def show(self, name: str, engine: str, histogram: Histogram) -> None:
        """Show all phases of an engine that have a value."""
        shown = self._shown[f"{self._prefix}_{name}"]
        edges = [*map(str, histogram.edges.tolist()), "+Inf"]
        cumulated = histogram.counts.cumsum(axis=1).tolist()
        for phase, counts, total in zip(histogram.phases, cumulated, histogram.sums.tolist(), strict=True):
            if counts[-1]:
                shown[engine, phase] = (list(zip(edges, counts, strict=True)), total)

    def collect(self) -> Iterable[Metric]:
        """What a scrape reads."""
        for name, text in self._texts.items():
            family = HistogramMetricFamily(name, text, labels=["engine", "phase"])
            for labels, (buckets, total) in list(self._shown[name].items()):
                family.add_metric(labels, buckets, total)
            yield family
