"""Draws alert rules for Prometheus, their tests for promtool, and the runbook, from the table of alerts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import yaml

from tools.alerts import ALERTS, Alert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import Json, JsonObject

RULES_FILE: Final = "passerelle.rules.yaml"
RUNBOOK: Final = "docs/operate/runbook.md"
NOW_M: Final = 30
"""The minute at which a case is looked at, of an alert that holds no longer."""
_DRAWN: Final = "# Drawn from tools/alerts.yaml; `make generate` writes it.\n"
_INTRODUCTION: Final = """# Runbook

One section per alert of [passerelle.rules.yaml](../../deploy/prometheus/passerelle.rules.yaml). Generated from
`tools/alerts.yaml` by `make generate`. [Monitoring](watching.md) describes the installation of rules and board, and
[Metrics](README.md#metrics) each metric.
"""


def render_rules() -> str:
    """The whole text of ``deploy/prometheus/passerelle.rules.yaml``."""
    rules: list[Json] = [_compose_rule(alert) for alert in ALERTS]
    return _DRAWN + _dump({"groups": [{"name": "passerelle", "rules": rules}]})


def render_rule_tests() -> str:
    """The whole text of ``deploy/prometheus/passerelle.tests.yaml``."""
    tests: list[Json] = [case for alert in ALERTS for case in _compose_cases(alert)]
    return _DRAWN + _dump({"rule_files": [RULES_FILE], "evaluation_interval": "1m", "tests": tests})


def render_runbook() -> str:
    """The whole text of ``docs/operate/runbook.md``."""
    return "\n".join([_INTRODUCTION, *(line for alert in ALERTS for line in _describe(alert))])


def _compose_rule(alert: Alert) -> JsonObject:
    lasts: JsonObject = {} if alert.hold == "0m" else {"for": alert.hold}
    return {
        "alert": alert.name,
        "expr": alert.expression,
        **lasts,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "runbook": f"{RUNBOOK}#{alert.name.lower()}",
        },
    }


def _compose_cases(alert: Alert) -> Iterator[JsonObject]:
    """It fires; it does not before it has held for long enough; and it does not in the quiet case."""
    annotations = _compose_rule(alert)["annotations"]
    labels: JsonObject = {**alert.labels, "severity": alert.severity}
    fires: Json = [{"exp_labels": labels, "exp_annotations": annotations}]
    held = int(alert.hold.removesuffix("m"))
    now = max(NOW_M, held + 1)
    looks: list[tuple[int, Json]] = [(now, fires)]
    if held:
        looks.insert(0, (held - 1, []))
    yield _compose_case(f"{alert.name} fires", alert, alert.fires, looks)
    yield _compose_case(f"{alert.name} is quiet", alert, alert.quiet, [(now, [])])


def _compose_case(
    name: str, alert: Alert, series: dict[str, str], looks: list[tuple[int, Json]]
) -> JsonObject:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": alert.name, "exp_alerts": expected}
            for minute, expected in looks
        ],
    }


def _describe(alert: Alert) -> Iterator[str]:
    yield from (f"## {alert.name}", "", f"{alert.summary}. *{alert.severity.capitalize()}.*", "")
    lasts = "" if alert.hold == "0m" else f" for {alert.hold}"
    yield from ("```text", f"{alert.expression}{lasts}", "```", "", alert.means, "")
    yield from (f"{number}. {step}" for number, step in enumerate(alert.do, 1))
    yield ""


def _dump(document: JsonObject) -> str:
    text: str = yaml.safe_dump(document, sort_keys=False, width=140, allow_unicode=True)
    return text
