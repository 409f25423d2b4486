"""Own counters and histograms look to Prometheus like those of its library."""

import re

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from passerelle.runtime.observability.counters import IntHistogram, LabeledCounter, LabeledHistogram

BOUNDS = (0.0005, 0.25, 1, 5.0)
SEEN = (("b", 0.3), ("a", 0.25), ("a", 0.0), ("a", 7.0), ("b", 1.0), ("a", 0.2500001))


def show(registry: CollectorRegistry) -> str:
    """The text that is scraped, but for the moments since when there are series."""
    return re.sub(
        r"^(\w+_created\S*) \S+$", r"\1", generate_latest(registry).decode(), flags=re.MULTILINE
    )


def test_series_read_as_those_of_the_client_library() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    tally = LabeledCounter("n", "Things.", ["kind", "end"], ours)
    spread = LabeledHistogram("s", "Times.", ["kind"], BOUNDS, ours)
    plain = LabeledHistogram("p", "All.", (), BOUNDS, ours)
    counter = Counter("n", "Things.", ["kind", "end"], registry=theirs)
    histogram = Histogram("s", "Times.", ["kind"], buckets=BOUNDS, registry=theirs)
    single = Histogram("p", "All.", buckets=BOUNDS, registry=theirs)
    assert show(ours) == show(theirs), "nothing has been counted"
    for kind, seconds in sorted(SEEN):
        tally.counts[kind, "ok"] += 1
        counter.labels(kind, "ok").inc()
        spread.observe(seconds, (kind,))
        histogram.labels(kind).observe(seconds)
        plain.observe(seconds)
        single.observe(seconds)
    assert show(ours) == show(theirs)
    assert 'n_total{end="ok",kind="a"} 4.0' in show(ours)


def test_sizes_read_as_a_histogram_of_each_of_them_however_often_they_are_read() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    sizes = IntHistogram("n", "Calls.", (1, 2, 4), ours)
    histogram = Histogram("n", "Calls.", buckets=(1, 2, 4), registry=theirs)
    assert show(ours) == show(theirs), "nothing has been counted"
    for number in (1, 1, 2, 3, 4, 5, 70, 1):
        sizes.counts[number] += 1
        histogram.observe(number)
        assert show(ours) == show(theirs)


def test_series_have_their_creation_time() -> None:
    registry = CollectorRegistry()
    tally = LabeledCounter("n", "Things.", ["kind"], registry)
    spread = LabeledHistogram("s", "Times.", ["kind"], BOUNDS, registry)
    tally.counts[("a",)] += 1
    spread.observe(1.0, ("a",))
    first = [registry.get_sample_value(name, {"kind": "a"}) for name in ("n_created", "s_created")]
    assert all(value is not None and value > 1e9 for value in first)
    tally.counts[("a",)] += 1
    spread.observe(1.0, ("a",))
    again = [registry.get_sample_value(name, {"kind": "a"}) for name in ("n_created", "s_created")]
    assert again == first
