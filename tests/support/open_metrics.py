"""Parses metrics with a strict reader of the OpenMetrics format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from prometheus_client.core import Metric
from prometheus_client.openmetrics import parser

_parse = cast(
    "Callable[[str], Iterable[Metric]]",
    parser.text_string_to_metric_families,  # pyright: ignore[reportUnknownMemberType] - it has no types
)


def read_families(text: str) -> dict[str, Metric]:
    """The families of a page by name.

    Raises:
        ValueError: the page is not in the format.
    """
    return {one.name: one for one in _parse(text)}
