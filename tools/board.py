"""Draws a Grafana board from the table of metrics in docs/operate/README.md: a panel for each, with its words."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

TABLE: Final = Path(__file__).resolve().parent.parent / "docs" / "operate" / "README.md"
ROW: Final = re.compile(r"^\| `(passerelle_[a-z_]+)` \|([^|]*)\| (.*) \|$", re.MULTILINE)
PARTS: Final = (
    ("Callers", r"requests?_|limit_refusals"),
    ("Agents", r"agent_|peer_|runs_"),
    ("Webhooks", r"deliver"),
    ("Channels", r"channel_"),
    (
        "Store",
        r"append|store_|leases|shards|lost_tails|primaries|replicas|archived|forgotten|verified",
    ),
    ("Process", r""),
)
"""Rows of the board: the first part whose pattern the name begins with (behind ``passerelle_``)."""
_WIDTH: Final = 12
_HEIGHT: Final = 7
_SUM_LABELS: Final = frozenset({"operation", "interface"})
"""Labels that a rate is summed over: with them a panel would have too many lines."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    labels: tuple[str, ...]
    meaning: str


def read_metrics(text: str) -> list[Metric]:
    """The rows of the table in order."""
    return [
        Metric(name, tuple(re.findall(r"[a-z_]+", labels)), meaning)
        for name, labels, meaning in ROW.findall(text)
    ]


def render_board() -> str:
    """The whole text of ``deploy/grafana/passerelle.json``."""
    panels: list[Json] = []
    height = 0
    metrics = read_metrics(TABLE.read_text("utf-8"))
    for title, _ in PARTS:
        panels.append(_make_row(title, len(panels) + 1, height))
        height += 1
        mine = [metric for metric in metrics if find_part(metric) == title]
        for place, metric in enumerate(mine):
            where: JsonObject = {
                "x": place % 2 * _WIDTH,
                "y": height + place // 2 * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            panels.append(_make_panel(metric, len(panels) + 1, where))
        height += (len(mine) + 1) // 2 * _HEIGHT
    return json.dumps(_make_board(panels), indent=2) + "\n"


def find_part(metric: Metric) -> str:
    """The row of the board that a metric belongs to."""
    name = metric.name.removeprefix("passerelle_")
    return next(title for title, pattern in PARTS if re.match(pattern, name))


def make_queries(metric: Metric) -> list[tuple[str, str]]:
    """What is drawn of a metric: expressions with their legends."""
    kept = [label for label in metric.labels if label not in _SUM_LABELS]
    by = ", ".join(["instance", *kept])
    legend = " ".join(f"{{{{{label}}}}}" for label in ["instance", *kept])
    chosen = f'{metric.name}{{instance=~"$instance"}}'
    if metric.name.endswith("_total"):
        return [(f"sum by ({by}) (rate({chosen}[$__rate_interval]))", legend)]
    if _is_spread(metric):
        buckets = chosen.replace(metric.name, f"{metric.name}_bucket")
        inner = f"sum by (le, {by}) (rate({buckets}[$__rate_interval]))"
        return [
            (f"histogram_quantile({q}, {inner})", f"p{q * 100:g} {legend}") for q in (0.5, 0.99)
        ]
    return [(chosen, legend)]


def _is_spread(metric: Metric) -> bool:
    """Whether it is a histogram: times, and how many calls went together; the skew of a clock is a single number."""
    return metric.name.endswith(("_seconds", "_batch_calls")) and "skew" not in metric.name


def _make_panel(metric: Metric, number: int, where: JsonObject) -> JsonObject:
    unit = (
        "s"
        if metric.name.endswith("_seconds")
        else "bytes"
        if metric.name.endswith("_bytes")
        else "percentunit"
        if metric.name.endswith("_share")
        else "ops"
        if metric.name.endswith("_total")
        else "short"
    )
    targets: list[Json] = [
        {"refId": chr(ord("A") + at), "expr": expression, "legendFormat": legend}
        for at, (expression, legend) in enumerate(make_queries(metric))
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.name,
        "description": metric.meaning.replace("\\|", "|"),
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": where,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": targets,
    }


def _make_row(title: str, number: int, height: int) -> JsonObject:
    where: JsonObject = {"x": 0, "y": height, "w": 2 * _WIDTH, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": where,
        "panels": [],
    }


def _make_board(panels: list[Json]) -> JsonObject:
    source: JsonObject = {"name": "source", "type": "datasource", "query": "prometheus"}
    instance: JsonObject = {
        "name": "instance",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": "label_values(passerelle_build_info, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }
    return {
        "uid": "passerelle",
        "title": "Passerelle",
        "description": "Drawn from the table of metrics in docs/operate/README.md; `make generate` writes it.",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [source, instance]},
        "panels": panels,
    }
