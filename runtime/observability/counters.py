"""Counters and histograms for the request path: plain numbers, converted to Prometheus metrics only on a scrape.

Those of the client library take a lock and several calls for each update; a request makes a dozen.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, Exemplar, HistogramMetricFamily
from prometheus_client.registry import Collector

from passerelle.runtime.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

LabelValues: TypeAlias = tuple[str, ...]
_CLOCK: Final = SystemClock()


class LabeledCounts(dict[LabelValues, int]):
    """A number for each set of labels, and its creation time."""

    def __init__(self) -> None:
        super().__init__()
        self.since: Final[dict[LabelValues, float]] = {}

    def __missing__(self, labels: LabelValues) -> int:
        self.since[labels] = _CLOCK.now_ms() / 1000
        return 0


class LabeledCounter(Collector):
    """A counter. Callers write ``counter.counts[labels] += 1``, without a function call."""

    def __init__(
        self, name: str, about: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self.counts: Final = LabeledCounts()
        self._name, self._about, self._labels = name, about, labels
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The metric family for Prometheus."""
        family = CounterMetricFamily(self._name, self._about, labels=self._labels)
        for labels, count in sorted(self.counts.items()):
            family.add_metric(labels, count, self.counts.since[labels])
        yield family


class _Series:
    __slots__ = ("counts", "exemplars", "since", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.exemplars = dict[int, Exemplar]()
        self.total = 0.0
        self.since = _CLOCK.now_ms() / 1000


class _ByLabels(dict[LabelValues, _Series]):
    """Series by labels, created on first use."""

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self._buckets = buckets

    def __missing__(self, labels: LabelValues) -> _Series:
        series = self[labels] = _Series(self._buckets)
        return series


class LabeledHistogram(Collector):
    """A histogram; each bucket includes its upper bound, and one more counts values above the last bound."""

    def __init__(
        self,
        name: str,
        about: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._bounds = tuple(bounds)
        self._names = [*(str(float(bound)) for bound in bounds), "+Inf"]
        self._series = _ByLabels(len(self._bounds) + 1)
        if not labels:
            self._series[()] = _Series(len(self._bounds) + 1)
        registry.register(self)

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds of the buckets; one more bucket has the values above the last."""
        return self._bounds

    def read(self) -> Iterator[tuple[LabelValues, tuple[int, ...]]]:
        """The labels of each series with its bucket counts."""
        for labels, series in self._series.items():
            yield labels, tuple(series.counts)

    def observe(self, value: float, labels: LabelValues = (), trace_id: str = "") -> None:
        """Counts one value; ``labels`` in the order of their names.

        The newest trace id of each bucket is its exemplar: as a label it would create unbounded series.
        """
        series, place = self._series[labels], bisect_left(self._bounds, value)
        series.counts[place] += 1
        series.total += value
        if trace_id:
            at_s = _CLOCK.now_ms() / 1000
            series.exemplars[place] = Exemplar({"trace_id": trace_id}, value, at_s)

    def collect(self) -> Iterator[Metric]:
        """The metric family for Prometheus, with cumulative buckets."""
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        for labels, series in sorted(self._series.items()):
            counts = zip(self._names, accumulate(series.counts), strict=True)
            exemplars = series.exemplars
            buckets = [
                (name, count, exemplars[place]) if place in exemplars else (name, count)
                for place, (name, count) in enumerate(counts)
            ]
            family.add_metric(labels, buckets, series.total)
            named = dict(zip(self._labels, labels, strict=True))
            family.add_sample(f"{self._name}_created", named, series.since)
        yield family


class IntHistogram(LabeledHistogram):
    """A histogram of few distinct integers. Callers write ``histogram.counts[number] += 1``."""

    def __init__(
        self, name: str, about: str, bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self.counts: Final = Counter[int]()
        super().__init__(name, about, (), bounds, registry)

    def collect(self) -> Iterator[Metric]:
        """The metric family for Prometheus."""
        series = self._series[()]
        series.counts, series.total = [0] * len(series.counts), 0.0
        for number, times in self.counts.items():
            series.counts[bisect_left(self._bounds, number)] += times
            series.total += number * times
        yield from super().collect()
