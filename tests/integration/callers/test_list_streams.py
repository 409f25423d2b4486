"""The streams of a caller's lists: changed rows of tasks and jobs, for several devices and instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import pytest

from passerelle.core.ids import parse_facade, shard_of
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.delegation.verification.walk import verify_store
from passerelle.store import keys
from tests.integration.archive.test_archived_reads import archive_ended
from tests.integration.channels.test_connection import HELLO
from tests.support.engine import ask as ask_engine
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
SCOPES: Final = ["a2a:call", "tasks:read", "tasks:write", "channels:connect"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": SCOPES},
    {"name": "bob", "scopes": SCOPES},
    {"name": "far", "scopes": SCOPES, "may_call": ["another"]},
]
NOTES: Final = keys.head(StreamRef(StreamKind.TASKS, Principal("ada").key))


async def ask(one: Instance, who: str, path: str) -> httpx.Response:
    return await one.http.get(path, headers={"Authorization": f"Bearer {who}-key"})


async def post(one: Instance, who: str, path: str, body: Answer) -> Answer:
    headers = {"Authorization": f"Bearer {who}-key"}
    answer = await one.http.post(path, json=body, headers=headers)
    assert answer.is_success, answer.text
    said: Answer = answer.json()
    return said


async def open_list(one: Instance, stream: str = "tasks", who: str = "ada") -> tuple[str, Answer]:
    """Returns the cursor and the snapshot from which a stream is followed."""
    answer = await ask(one, who, f"/v1/streams/{stream}/snapshot")
    assert answer.is_success, answer.text
    said = answer.json()
    return str(said["cursor"]), said["snapshot"]


async def follow(
    one: Instance,
    cursor: str,
    until: Callable[[list[Answer]], bool],
    stream: str = "tasks",
    who: str = "ada",
) -> tuple[str, list[Answer]]:
    """Follows a stream from ``cursor`` until ``until`` holds; returns the new cursor and the events."""
    found: list[Answer] = []

    async def look() -> bool:
        nonlocal cursor
        path = f"/v1/streams/{stream}/events?after={cursor}&wait=1"
        answer = await ask(one, who, path)
        assert answer.is_success, answer.text
        page = answer.json()
        cursor = page["cursor"]
        found.extend(page["events"])
        return until(found)

    await wait_until(look, 20, "the rows have come")
    return cursor, found


def has(status: str, task: str) -> Callable[[list[Answer]], bool]:
    """Returns a predicate: the last row of the task has this status."""

    def judge(found: list[Answer]) -> bool:
        rows = [one["row"] for one in found if one.get("name") == task and "row" in one]
        return bool(rows) and rows[-1]["status"] == status

    return judge


async def start(one: Instance, text: str, who: str = "ada") -> str:
    """Starts a task and does not wait for its end."""
    answer = await one.send(f"{who}-key", text, returnImmediately=True)
    return str(answer.json()["result"]["task"]["id"])


async def test_reconnecting_device_gets_each_row_once_in_its_current_state(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, state = await open_list(one)
    assert state == {"rows": [], "more": False, "asOf": cursor}
    first = await start(one, "silent")
    phone, _ = await follow(one, cursor, bool)
    others = [await start(one, f"echo {number}") for number in range(5)]
    await one.call("ada-key", "CancelTask", {"id": first})
    _, answers = await follow(
        one, phone, lambda found: all(has("completed", task)(found) for task in others)
    )
    # The other device has seen nothing since the beginning, and reconnects to another instance.
    two = await rig.start(clients=CLIENTS)
    laptop, rows = await follow(two, cursor, has("cancelled", first))
    assert {row["name"] for row in rows} == {first, *others}
    assert len(rows) == len({row["name"] for row in rows}), "each row once"
    listed = (await ask(two, "ada", "/v1/tasks?pageSize=50")).json()["tasks"]
    by_name = {row["name"]: row["row"] for row in rows}
    assert by_name == {task["taskId"]: task for task in listed}
    assert {row["agent"] for row in rows} == {"echo"}
    # Both streams of a list have one order, and both devices have seen the same rows in the end.
    assert laptop == (await open_list(two))[0]
    assert {one["name"] for one in answers} <= by_name.keys()
    assert (await verify_store(one.gateway.store, rebuild=True)).problems == []


async def test_no_notes_are_stored_for_a_list_without_followers(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    first = await start(one, "echo 1")
    await open_list(one, who="bob")

    async def is_listed() -> bool:
        parsed = parse_facade(first)
        assert parsed is not None
        source, target = shard_of(parsed[0]), shard_of(Principal("ada").key)
        return bool(await one.gateway.store.projections.read_taken(source, target))

    await wait_until(is_listed, 20, "the relay has brought the row")
    assert ask_engine(rig.url, "EXISTS", NOTES) == 0
    cursor, state = await open_list(one)
    assert [row["taskId"] for row in state["rows"]] == [first]
    message = (await one.send("ada-key", "message hello")).json()["result"]
    assert "message" in message
    task = await start(one, "echo 2")
    _, rows = await follow(one, cursor, has("completed", task))
    # Rows that the relay had not delivered before may follow as well; a bare Message is in no list.
    assert {row["name"] for row in rows} <= {first, task}


async def test_rows_of_other_owners_are_not_shown(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    mine, _ = await open_list(one)
    other, _ = await open_list(one, who="bob")
    task = await start(one, "echo 1")
    await follow(one, mine, has("completed", task))
    page = (await ask(one, "bob", f"/v1/streams/tasks/events?after={other}")).json()
    assert page["events"] == []
    gap = await ask(one, "bob", f"/v1/streams/tasks/events?after={mine}")
    assert (gap.status_code, gap.json()["why"]) == (410, "epoch")
    key = Principal("ada").key
    answers = {
        (await ask(one, "bob", f"/v1/streams/{name}/events")).content.replace(name.encode(), b"S")
        for name in (f"tasks:{key}", f"jobs:{key}", "tasks:nobody")
    }
    assert len(answers) == 1
    narrow, state = await open_list(one, who="far")
    assert (state["rows"], bool(narrow)) == ([], True)


async def test_rapid_changes_are_merged_into_one_row(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    async with open_channel(str(one.http.base_url).rstrip("/")) as channel:
        await channel.send({**HELLO, "token": "ada-key"})
        await channel.send({"t": "sub", "s": "tasks", "from": "snap"})
        await channel.expect("live", s="tasks")
        task = await start(one, "echo 1")

        def rows() -> list[Any]:
            return [f["d"]["row"] for f in channel.frames if f["t"] == "ev"]

        while not (rows() and rows()[-1]["status"] == "completed"):
            await channel.read_more()
        # Accepted to completed is several changes within less than 250 ms.
        head = await one.gateway.store.log.read_head(
            StreamRef(StreamKind.TASKS, Principal("ada").key)
        )
        assert head is not None
        assert len(rows()) <= head.sequence
        assert rows()[-1]["taskId"] == task
        await channel.send({"t": "ack", "a": {"tasks": str(channel.frames[-1].get("c", ""))}})


async def test_rows_of_jobs_report_their_progress(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, state = await open_list(one, "jobs")
    assert state["rows"] == []
    given = {"title": "batch", "agents": ["echo"], "inputs": [f"echo {n}" for n in range(4)]}
    made = await post(one, "ada", "/v1/jobs", cast("Answer", given))
    job = made["job"]["jobId"]
    _, rows = await follow(one, cursor, has("completed", job), "jobs")
    assert {row["name"] for row in rows} == {job}
    assert rows[-1]["row"]["counts"]["completed"] == 4
    shown = (await ask(one, "ada", f"/v1/jobs/{job}")).json()
    assert rows[-1]["row"] == {name: shown[name] for name in rows[-1]["row"]}
    _, state = await open_list(one, "jobs")
    assert state["rows"] == [rows[-1]["row"]]


async def test_row_shows_that_its_task_was_archived_or_transferred(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, blobs=rig.folder / "blobs")
    cursor, _ = await open_list(one)
    ended, given = await start(one, "echo 1"), await start(one, "silent")
    await follow(one, cursor, has("completed", ended))
    assert await archive_ended(rig) >= 1
    await post(one, "ada", f"/v1/tasks/{given}/give", {"owner": "bob"})

    def is_gone(found: list[Answer]) -> bool:
        return any(row["name"] == given and row.get("gone") for row in found)

    # A list that was not read before: archiving does not change a row.
    two = await rig.start(clients=CLIENTS, blobs=rig.folder / "blobs")
    _, rows = await follow(two, cursor, is_gone)
    last = {row["name"]: row for row in rows}
    record = (await ask(one, "ada", f"/v1/tasks/{ended}")).json()
    assert last[ended]["row"]["archive"] == record["archive"]
    assert "row" not in last[given]


async def test_notes_are_dropped_after_a_long_time_without_followers(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    cursor, _ = await open_list(one)
    task = await start(one, "echo 1")
    await follow(one, cursor, has("completed", task))
    store, owner = one.gateway.store, Principal("ada").key
    now_ms = store.clock.read_ms(shard_of(owner))
    assert await store.inboxes.list_followers([shard_of(owner)]) == [owner]
    assert await store.inboxes.trim_notes(owner, now_ms - 600_000, now_ms) == 0
    await follow(one, cursor, has("completed", task))
    assert await store.inboxes.trim_notes(owner, now_ms + 600_000, now_ms) == 1
    assert ask_engine(rig.url, "EXISTS", NOTES) == 0
    # An instance with a follower learns of it at its next look; another instance at once.
    two = await rig.start(clients=CLIENTS)
    gap = await ask(two, "ada", f"/v1/streams/tasks/events?after={cursor}")
    assert (gap.status_code, gap.json()["why"]) == (410, "epoch")
    _, state = await open_list(one)
    assert [row["taskId"] for row in state["rows"]] == [task]
