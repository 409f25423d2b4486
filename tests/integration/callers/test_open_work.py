"""Metrics of open work: how many tasks and approvals, the age of the oldest, and how fast approvals are decided."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from passerelle.gateway.open_work import OpenWork
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.observability.metrics import Metrics
from tests.integration.callers.test_counting import read
from tests.integration.callers.test_oversight import get
from tests.integration.callers.test_overview import look, open_overviews, send, until_open
from tests.support.engine import ask
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.callers.rig import Rig

pytestmark = pytest.mark.anyio
PERSON: Final = ["a2a:call", "tasks:read", "approvals:read", "approvals:decide"]
_SILENT_MS: Final = 4_500
"""In ms: the store does not respond for longer than a scrape waits."""
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": PERSON, "kind": "person"},
    {"name": "eve", "scopes": ["tasks:oversee"]},
]


async def test_open_tasks_and_questions_are_in_the_metrics(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    await send(one, "ada", "silent")
    await send(one, "ada", "ask which boat")
    await until_open(one, {"queued": 1, "waiting_input": 1})

    async def is_asked() -> bool:
        return int((await look(one))["approvals"]["open"]) == 1

    await wait_until(is_asked, 20, "the question is in the inbox")
    seen = await read(one)
    assert seen["passerelle_open_tasks", "queued"] == 1
    assert seen["passerelle_open_tasks", "waiting_input"] == 1
    assert seen["passerelle_open_tasks", "uncounted"] == 0
    assert seen["passerelle_open_approvals",] == 1
    assert 0 <= seen["passerelle_oldest_waiting_task_seconds",] < 60
    assert 0 <= seen["passerelle_oldest_approval_seconds",] < 60
    assert seen["passerelle_failing_webhooks",] == 0
    assert seen["passerelle_oldest_failing_webhook_seconds",] == 0


async def test_a_repeated_answer_is_timed_once(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    await send(one, "ada", "ask which boat")

    async def find() -> dict[str, object] | None:
        listed = (await get(one, "ada", "/v1/approvals")).json()["pending"]
        return dict(listed[0]) if listed else None

    question = await wait_until(find, 20, "there is a question")
    assert question is not None
    body = {
        "rev": question["rev"],
        "digest": question["digest"],
        "decisionId": "dec_1",
        "optionId": "reply",
        "content": {"text": "the red one"},
    }
    headers = {"Authorization": "Bearer ada-key", "Idempotency-Key": "one"}
    path = f"/v1/approvals/{question['actionId']}/decision"
    for _ in range(2):
        answered = await one.http.post(path, json=body, headers=headers)
        assert answered.status_code == httpx.codes.OK, answered.text
    wrong = await one.http.post("/v1/turns", json={"agent": "echo"}, headers=headers)
    assert wrong.status_code == httpx.codes.BAD_REQUEST
    seen = await read(one)
    times = [value for name, value in seen.items() if name[0].endswith("decision_seconds_count")]
    assert times == [1]
    assert seen["passerelle_v1_requests_total", "respond_action", "ok"] == 2
    assert seen["passerelle_v1_requests_total", "submit_turn", "invalid_input"] == 1
    assert not any(name[0].endswith("_created") for name in seen)


async def test_open_work_is_not_reported_while_the_store_is_unavailable(
    rig: Rig, tmp_path: Path
) -> None:
    one = await rig.start(clients=CLIENTS)
    await send(one, "ada", "silent")
    await until_open(one, {"queued": 1})
    overviews = await open_overviews(rig, tmp_path, Counter())
    metrics = Metrics()
    work = OpenWork(overviews, metrics, SystemClock())
    await work.refresh()
    assert metrics.registry.get_sample_value("passerelle_open_tasks", {"status": "queued"}) == 1
    later = OpenWork(await open_overviews(rig, tmp_path, Counter()), metrics, SystemClock())
    ask(rig.url, "CLIENT", "PAUSE", str(_SILENT_MS), "ALL")
    await later.refresh()
    assert metrics.registry.get_sample_value("passerelle_open_tasks", {"status": "queued"}) is None
    value = metrics.registry.get_sample_value("passerelle_open_approvals")
    assert value is not None
    assert math.isnan(value)
