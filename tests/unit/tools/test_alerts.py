"""Alerts and board: they speak of metrics that there are, and each alert has its section."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import yaml

from tools.alert_docs import render_rule_tests, render_rules, render_runbook
from tools.alerts import ALERTS
from tools.board import TABLE, make_queries, read_metrics, render_board

ROOT: Final = Path(__file__).parents[3]
HISTOGRAM: Final = re.compile(r"_(bucket|sum|count)$")


def list_metrics() -> set[str]:
    return {metric.name for metric in read_metrics(TABLE.read_text("utf-8"))}


def test_alerts_ask_for_metrics_of_the_table_alone() -> None:
    known = list_metrics()
    for alert in ALERTS:
        asked = set(re.findall(r"\bpasserelle_[a-z_]+", alert.expression))
        assert asked, alert.name
        assert {HISTOGRAM.sub("", name) for name in asked} <= known, alert.name


def test_labels_that_alerts_ask_for_are_those_of_the_metric() -> None:
    labels = {
        metric.name: {*metric.labels, "instance", "job", "le"}
        for metric in read_metrics(TABLE.read_text("utf-8"))
    }
    for alert in ALERTS:
        series = [*alert.fires, *alert.quiet]
        for one in (found for found in series if found.startswith("passerelle_")):
            name, _, inner = one.partition("{")
            named = set(re.findall(r"(\w+)=", inner))
            assert named <= labels[HISTOGRAM.sub("", name)], one


def test_each_alert_links_its_own_section_of_the_runbook() -> None:
    rules = yaml.safe_load(render_rules())["groups"][0]["rules"]
    headings = re.findall(r"^## (.*)$", render_runbook(), re.MULTILINE)
    assert [rule["alert"] for rule in rules] == headings
    assert len({*headings}) == len(headings) > 20
    for rule in rules:
        path, _, heading = rule["annotations"]["runbook"].partition("#")
        assert (ROOT / path).is_file()
        assert heading == rule["alert"].lower()


def test_metrics_that_the_table_recommends_for_alerts_have_one() -> None:
    wanted = {
        metric.name
        for metric in read_metrics(TABLE.read_text("utf-8"))
        if "Alert " in metric.meaning or "is a reason to look" in metric.meaning
    }
    asked = {name for alert in ALERTS for name in re.findall(r"passerelle_\w+", alert.expression)}
    assert wanted
    assert wanted <= asked


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    names = [case["name"] for case in yaml.safe_load(render_rule_tests())["tests"]]
    assert names == [f"{a.name} {what}" for a in ALERTS for what in ("fires", "is quiet")]


def test_the_board_has_a_panel_for_each_metric_of_the_table() -> None:
    panels = json.loads(render_board())["panels"]
    shown = [panel["title"] for panel in panels if panel["type"] == "timeseries"]
    assert sorted(shown) == sorted(list_metrics())
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len({*places}) == len(places)


def test_counters_are_drawn_as_rates_and_histograms_as_quantiles() -> None:
    by_name = {m.name: make_queries(m) for m in read_metrics(TABLE.read_text("utf-8"))}
    ((requests, legend),) = by_name["passerelle_requests_total"]
    assert requests.startswith("sum by (instance, agent, outcome) (rate(passerelle_requests_total{")
    assert legend == "{{instance}} {{agent}} {{outcome}}"
    assert [name for _, name in by_name["passerelle_append_seconds"]] == [
        "p50 {{instance}}",
        "p99 {{instance}}",
    ]
    assert len(by_name["passerelle_store_clock_skew_seconds"]) == 1
