"""The queries of docs/operate/tables.md, run unchanged on an export with known results."""

from __future__ import annotations

import re
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, cast

import duckdb
import pytest

from passerelle.cli.store_tables import run_table_export
from tests.integration.exports.test_exports import EVERYTHING, source_of
from tests.integration.exports.test_tables import Known, known
from tests.support.engine import engine_server, started_legs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.core.wire.json import JsonObject

__all__ = ["engine_server", "known", "started_legs"]
pytestmark = pytest.mark.anyio
PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "operate" / "tables.md"
QUERIES: Final = re.findall(
    r"^```sql\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
)
ENDS: Final = {"task.completed", "task.failed", "task.cancelled", "task.timed_out"}


def list_events(known: Known, kind: str) -> Iterator[tuple[JsonObject, Any]]:
    """The events of a type, each with its payload."""
    for some in known.events.values():
        for one in some:
            if one["type"] == kind:
                yield one, one["payload"]


def read_ms(text: object) -> int:
    return round(datetime.fromisoformat(str(text)).timestamp() * 1000)


@pytest.mark.requirement("EXP-4")
async def test_each_documented_query_returns_the_known_result(known: Known, tmp_path: Path) -> None:
    await run_table_export(source_of(known.rig), EVERYTHING, tmp_path / "tables")
    assert len(QUERIES) == 6
    with duckdb.connect() as base:
        base.execute(f"SET file_search_path = '{tmp_path / 'tables'}'")
        costs, slowest, people, failures, days, evaluations = (
            base.execute(query).fetchall() for query in QUERIES
        )
    calls = len([*list_events(known, "cost.recorded")])
    assert costs == [("echo", "EUR", calls, Decimal("0.1") * calls, 0.1, None, None)]

    waits = {
        payload["decision"]["decisionId"]: read_ms(payload["decision"]["decidedAt"])
        for _, payload in list_events(known, "action.resolved")
    }
    asked = {one["actionId"]: one for one, _ in list_events(known, "action.required")}
    decided = {one["actionId"]: one for one, _ in list_events(known, "action.resolved")}
    assert len(waits) == len(decided) == 2
    waited = {
        str(one["taskId"]): read_ms(cast("Any", one)["payload"]["decision"]["decidedAt"])
        - cast("Any", asked[action])["payload"]["request"]["createdMs"]
        for action, one in decided.items()
    }
    started = {one["taskId"]: one for one, _ in list_events(known, "task.started")}
    ended = {one["taskId"]: one for kind in ENDS for one, _ in list_events(known, kind)}
    durations = {
        name: read_ms(one["timestamp"]) - read_ms(started[name]["timestamp"])
        for name, one in ended.items()
        if name in started
    }
    assert {row[0]: row[4] for row in slowest} == durations
    assert [row[4] for row in slowest] == sorted(durations.values(), reverse=True)
    assert {row[0]: row[5] for row in slowest} == {
        name: waited.get(str(name), 0) for name in durations
    }
    assert {row[1:4] for row in slowest} >= {
        ("echo", "ada", "completed"),
        ("echo", "ada", "failed"),
    }

    assert people == [("ada", 2, 1, 1, 0, 0, median(waited.values()))]

    failed = [payload for _, payload in list_events(known, "task.attempt.failed")]
    assert len(failed) == 1
    error = failed[0]["error"]
    assert failures == [("echo", "failed", error["code"], 1, error["message"])]

    by_day = Counter[tuple[date, str]](
        (datetime.fromisoformat(str(one["timestamp"])).date(), str(one["type"]))
        for one in ended.values()
    )
    every_day = sorted({day for day, _ in by_day})
    kinds = ("task.completed", "task.failed", "task.cancelled", "task.timed_out")
    assert days == [
        (day, sum(by_day[day, kind] for kind in kinds), *(by_day[day, kind] for kind in kinds))
        for day in every_day
    ]
    assert sum(row[2] for row in days) >= 5

    evaluated = Counter(
        (payload["decision"], payload["source"])
        for _, payload in list_events(known, "permission.evaluated")
    )
    assert {row[:2]: row[2] for row in evaluations} == evaluated
    assert evaluated
