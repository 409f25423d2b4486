"""The cost of a tree of tasks: each task once, however many edges lead to it, also when archived."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from passerelle.cli.verbs.task_text import describe_spending
from tests.support.leaving import leave_all
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig
    from tests.support.scripted_tasks import Turn

pytestmark = pytest.mark.anyio
KEY = {"Authorization": "Bearer ada-key"}
PRICE = {"currency": "EUR", "per_million_input_tokens": 1, "per_million_output_tokens": 2}
TOKENS = (1_000, 3_000)
ADA = {"name": "ada", "scopes": ["tasks:read", "tasks:write", "a2a:call"]}
COST = 7_000
"""Of one attempt, in micros."""


async def post(one: Instance, path: str, **body: object) -> dict[str, Any]:
    answer = await one.http.post(path, json=body, headers=KEY)
    assert answer.is_success, answer.text
    return dict(answer.json())


async def read(one: Instance, task_id: str) -> dict[str, Any]:
    answer = await one.http.get(f"/v1/tasks/{task_id}", headers=KEY)
    assert answer.is_success, answer.text
    return dict(answer.json())


async def create(one: Instance, objective: str, **members: object) -> str:
    made = await post(one, "/v1/tasks", agent="echo", objective=objective, **members)
    return str(made["task"]["taskId"])


async def run(one: Instance, task_id: str) -> None:
    await post(one, f"/v1/tasks/{task_id}/start")

    async def has_ended() -> bool:
        return (await read(one, task_id))["status"] in {"completed", "failed"}

    await wait_until(has_ended, 15, "it has ended")


def report_usage(rig: Rig) -> None:
    """The agent reports the usage of each attempt; one attempt fails, and one reports no usage."""

    async def report(turn: Turn) -> None:
        task = await turn.open()
        if "silently" not in turn.text:
            usage: JsonObject = dict(zip(("input_tokens", "output_tokens"), TOKENS, strict=True))
            task.record["metadata"] = {"usage": usage}
            task.show()
        await turn.status("FAILED" if "badly" in turn.text else "COMPLETED", "so it is")

    rig.peer.on("do", report)


def sums(spending: dict[str, Any]) -> tuple[int, int, list[Any], int, int, int]:
    return (
        spending["tasks"],
        spending["attempts"],
        [(one["currency"], one["amountMicros"]) for one in spending["costs"]],
        spending["inputTokens"],
        spending["outputTokens"],
        spending["untold"],
    )


@pytest.mark.requirement("EXT-7", "GR-1")
async def test_sums_over_a_diamond_count_each_task_once_before_and_after_archiving(
    rig: Rig,
) -> None:
    report_usage(rig)
    blobs = str(rig.folder / "blobs")
    one = await rig.start(clients=[ADA], agent={"price": PRICE}, blobs=blobs)
    top = await create(one, "do the whole")
    left, right = [await create(one, f"do a part {n}", parentTaskId=top) for n in range(2)]
    shared = await create(one, "do what both need badly", parentTaskId=left)
    elsewhere = await create(one, "do it in another session")
    for target in (shared, elsewhere):
        await post(one, f"/v1/tasks/{right}/link", kind="child", target=target)
    assert "spending" not in await read(one, top)
    for task_id in (shared, elsewhere, left, right, top):
        await run(one, task_id)
    cost, (given, taken) = COST, TOKENS
    expected = {top: 5, left: 2, right: 3, shared: 1, elsewhere: 1}

    async def look() -> None:
        for task_id, many in expected.items():
            shown_spending = (await read(one, task_id))["spending"]
            own = (1, 1, [("EUR", cost)], given, taken, 0)
            assert sums(shown_spending["own"]) == own
            assert sums(shown_spending["tree"]) == (
                many,
                many,
                [("EUR", cost * many)],
                *_times(many),
                0,
            )
            assert shown_spending["partial"] is False

    def _times(many: int) -> tuple[int, int]:
        return given * many, taken * many

    await look()
    shown = describe_spending((await read(one, top))["spending"])
    assert shown == "0.007 EUR, 1000 + 3000 tokens; with 4 below: 0.035 EUR, 5000 + 15000 tokens"
    assert (
        describe_spending((await read(one, shared))["spending"]) == "0.007 EUR, 1000 + 3000 tokens"
    )
    assert await leave_all(one.settings) >= 2
    assert (await read(one, shared)).get("archive")
    await look()


@pytest.mark.requirement("EXT-7")
async def test_each_attempt_has_its_cost_and_attempts_without_usage_are_counted(
    rig: Rig,
) -> None:
    report_usage(rig)
    one = await rig.start(clients=[ADA], agent={"price": PRICE})
    task_id = await create(one, "do it badly")
    await run(one, task_id)
    await post(one, f"/v1/tasks/{task_id}/retry", reason="once more")

    async def is_retried() -> bool:
        shown_spending = await read(one, f"{task_id}~2")
        return len(shown_spending["attempts"]) == 2 and shown_spending["status"] == "failed"

    await wait_until(is_retried, 15, "the second attempt has failed")
    record = await read(one, f"{task_id}~2")
    costs = [attempt["cost"] for attempt in record["attempts"]]
    assert (
        costs
        == [
            {
                "amountMicros": COST,
                "currency": "EUR",
                "inputTokens": TOKENS[0],
                "outputTokens": TOKENS[1],
            }
        ]
        * 2
    )
    assert sums(record["spending"]["own"])[:3] == (1, 2, [("EUR", 2 * COST)])
    quiet = await create(one, "do it silently")
    await run(one, quiet)
    own = (await read(one, quiet))["spending"]["own"]
    assert (own["attempts"], own["untold"], own["inputTokens"]) == (1, 1, 0)


@pytest.mark.requirement("EXT-7")
async def test_task_of_an_agent_without_a_price_has_no_sums(rig: Rig) -> None:
    report_usage(rig)
    one = await rig.start(clients=[ADA])
    chain = [await create(one, "do it")]
    chain.append(await create(one, "do it", parentTaskId=chain[0]))
    for above, below in pairwise(chain):
        assert (await read(one, below))["parentTaskId"] == above
    await run(one, chain[-1])
    for task_id in chain:
        assert "spending" not in await read(one, task_id)
    assert describe_spending({}) == ""
