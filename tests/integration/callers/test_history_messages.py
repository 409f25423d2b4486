"""A conversation as messages: sender, text and order, also as a JSON-lines file that can be appended to (MK-33)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import httpx
import orjson
import pytest

from tests.integration.archive.test_archived_reads import archive_ended
from tests.integration.callers.test_packets import ask, find_session, read_after, read_all, send
from tests.integration.callers.test_spending import PRICED
from tests.integration.channels.test_connection import HELLO
from tests.support.raw_channel import open_channel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
SCOPES: Final = ["a2a:call", "tasks:read", "tasks:write", "channels:connect"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": SCOPES},
    {"name": "bob", "scopes": SCOPES},
    {"name": "eve", "scopes": ["tasks:oversee"]},
]
ALWAYS: Final = {"sequence", "eventId", "type", "id", "role", "text", "createdAt", "threadId"}


async def find_thread(one: Instance, task: str) -> str:
    return str((await ask(one, "ada", f"/v1/tasks/{task}")).json()["threadId"])


def merge(path: Path, lines: list[Answer]) -> list[Answer]:
    """Appends the lines that the file lacks; returns all its lines."""
    kept = [orjson.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {one["id"] for one in kept}
    kept += [one for one in lines if one["id"] not in known]
    path.write_text("".join(f"{orjson.dumps(one).decode()}\n" for one in kept))
    return kept


@pytest.mark.requirement("MK-33")
async def test_a_conversation_is_read_as_messages_in_order(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, agent=PRICED)
    first = (await send(one, "echo well done"))["task"]
    context, thread = first["contextId"], await find_thread(one, first["id"])
    said = (await send(one, "message of no task", contextId=context))["message"]
    asked = (await send(one, "ask which boat?", contextId=context))["task"]
    params = one.message("the red one")
    cast("Answer", params["message"]).update({"messageId": "m-9", "taskId": asked["id"]})
    assert (await one.call("ada-key", "SendMessage", params)).is_success
    await send(one, "fail", contextId=context, referenceTaskIds=[first["id"], "task_unknown"])
    lines = await read_all(one, f"messages:{thread}")
    seen = [(each["role"], each["text"]) for each in lines if "an unknown task" not in each["text"]]
    answer = said["parts"][0]["text"]
    assert seen[:6] == [
        ("user", "echo well done"),
        ("assistant", "echo well done"),
        ("user", "message of no task"),
        ("assistant", answer),
        ("user", "ask which boat?"),
        ("assistant", "which boat?"),
    ]
    assert seen[6] == ("user", "the red one")
    assert seen[7][0] == "assistant"
    assert seen[8] == ("user", "fail")
    notices = [each for each in lines if each["role"] == "system"]
    assert any("an unknown task" in each["text"] for each in notices)
    assert all(set(each) >= ALWAYS for each in lines)
    assert {each["threadId"] for each in lines} == {thread}
    assert len({each["id"] for each in lines}) == len(lines)
    by_text = {(each["role"], each["text"]): each for each in lines}
    brought = by_text["assistant", "echo well done"]
    assert brought["usage"] == {"amountMicros": 100_000, "currency": "EUR"}
    summary = (await ask(one, "ada", f"/v1/tasks/{first['id']}/summary")).json()
    assert brought["elapsedMs"] == summary["durationMs"]
    assert by_text["user", "fail"]["quote"] == [first["id"], "task_unknown"]
    assert "quote" not in by_text["user", "echo well done"]
    for number, line in enumerate(lines):
        assert await read_after(one, f"messages:{thread}", line["cursor"]) == lines[number + 1 :]
    state = (await ask(one, "ada", f"/v1/streams/messages:{thread}/snapshot")).json()
    assert state["snapshot"]["messages"] == lines


@pytest.mark.requirement("MK-33")
async def test_a_repeated_message_is_written_once(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, blobs=rig.folder / "blobs")
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": one.message("echo once")}
    headers = {"Authorization": "Bearer ada-key", "Idempotency-Key": "k-1"}
    sent = [await one.http.post("/agents/echo", json=body, headers=headers) for _ in range(2)]
    task, again = (each.json()["result"]["task"] for each in sent)
    assert task["id"] == again["id"]
    thread, path = await find_thread(one, task["id"]), rig.folder / "history.jsonl"
    lines = await read_all(one, f"messages:{thread}")
    assert [each["role"] for each in lines] == ["user", "assistant"]
    assert merge(path, lines) == lines
    await send(one, "echo more", contextId=task["contextId"])
    more = await read_all(one, f"messages:{thread}")
    assert merge(path, more) == more
    assert len(more) == 4
    # An archived conversation has the same messages, also at another instance.
    assert await archive_ended(rig) >= 1
    two = await rig.start(clients=CLIENTS, blobs=rig.folder / "blobs")
    assert merge(path, await read_all(two, f"messages:{thread}")) == more


@pytest.mark.requirement("MK-33")
async def test_messages_of_other_owners_are_not_found(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task = (await send(one, "echo mine"))["task"]
    thread, session = await find_thread(one, task["id"]), await find_session(one, task["id"])
    absent = f"th_{'0' * 28}"
    seen = {
        (await ask(one, "bob", f"/v1/streams/messages:{name}/events")).content.replace(
            name.encode(), b"N"
        )
        for name in (thread, absent, session, "nothing")
    }
    assert len(seen) == 1
    assert b"there is no thread 'N'" in seen.pop()
    overseen = await ask(one, "eve", f"/v1/streams/messages:{thread}/snapshot")
    assert overseen.status_code == httpx.codes.OK
    assert len(overseen.json()["snapshot"]["messages"]) == 2


@pytest.mark.requirement("MK-33")
async def test_messages_are_followed_over_a_channel(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task = (await send(one, "echo first"))["task"]
    stream = f"messages:{await find_thread(one, task['id'])}"
    async with open_channel(str(one.http.base_url).rstrip("/")) as channel:
        await channel.send({**HELLO, "token": "ada-key"})
        await channel.send({"t": "sub", "s": stream, "from": "snap"})
        await channel.expect("live", s=stream)
        await send(one, "echo second", contextId=task["contextId"])

        def said() -> list[str]:
            return [f["d"]["text"] for f in channel.frames if f["t"] == "ev"]

        while len(said()) < 2:
            await channel.read_more()
        assert said() == ["echo second", "echo second"]
