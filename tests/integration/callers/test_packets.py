"""Inputs and results of a session as packets: their form, who reads them, and redelivery after a consumer dies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import httpx
import orjson
import pytest

from passerelle.a2a_mapping.extensions import PROFILE
from passerelle.core.event_chain import start_chain
from passerelle.core.read_models.packets import TEXT_LIMIT
from passerelle.protocol.cursor import Cursor
from tests.integration.archive.test_archived_reads import archive_ended
from tests.integration.callers.test_spending import PRICED
from tests.integration.channels.test_connection import HELLO
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
SCOPES: Final = ["a2a:call", "tasks:read", "tasks:write", "channels:connect"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": SCOPES},
    {"name": "bob", "scopes": SCOPES},
    {"name": "eve", "scopes": ["tasks:oversee"]},
    {"name": "op", "scopes": ["runtime:operate"]},
]
PACKET: Final = {"sequence", "eventId", "type", "id", "createdAt", "payload", "cursor"}
"""The members of a packet: its content, its position, and those by which channel clients identify an event."""


async def ask(one: Instance, who: str, path: str, **headers: str) -> httpx.Response:
    return await one.http.get(path, headers={"Authorization": f"Bearer {who}-key", **headers})


async def send(one: Instance, text: str, **members: object) -> Answer:
    """Returns the result of SendMessage: a Task or a Message."""
    one_more = await one.send("ada-key", text) if not members else None
    if one_more is None:
        params = one.message(text)
        cast("Answer", params["message"]).update({"messageId": f"m-{members}", **members})
        one_more = await one.call("ada-key", "SendMessage", params)
    answer: Answer = one_more.json()["result"]
    return answer


async def find_session(one: Instance, task: str) -> str:
    return str((await ask(one, "ada", f"/v1/tasks/{task}")).json()["sessionId"])


async def read_all(one: Instance, stream: str, who: str = "ada") -> list[Answer]:
    """Returns the stream as JSON lines, from its beginning."""
    said = await ask(one, who, f"/v1/streams/{stream}/events", Accept="application/jsonl")
    assert said.status_code == httpx.codes.OK, said.text
    assert said.headers["content-type"].startswith("application/jsonl")
    return [orjson.loads(line) for line in said.text.splitlines()]


async def read_after(one: Instance, stream: str, cursor: str) -> list[Answer]:
    page = (await ask(one, "ada", f"/v1/streams/{stream}/events?after={cursor}")).json()
    return list(page["events"])


async def test_each_event_is_one_line_to_readers_with_unicode_line_ends(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    text = "echo a\u2028b\u2029c\x85d"
    sent = (await send(one, text))["task"]
    session = await find_session(one, str(sent["id"]))
    (packet,) = await read_all(one, f"inputs:{session}")
    assert packet["payload"]["text"] == text
    headers = {"Authorization": "Bearer ada-key", "Accept": "text/event-stream"}
    epoch = packet["cursor"].partition(".")[0]
    start = Cursor(epoch, 0, start_chain(epoch))
    url = f"/v1/streams/inputs:{session}/events?after={start}"
    async with one.http.stream("GET", url, headers=headers) as events:
        async for line in events.aiter_lines():
            if line.startswith("data: {"):
                assert orjson.loads(line.removeprefix("data: "))["payload"]["text"] == text
                return
    pytest.fail("the stream has the packet")


@pytest.mark.requirement("MK-29", "MK-34")
async def test_inputs_are_packets_with_their_text_and_references(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    first = (await send(one, "echo first"))["task"]
    context, task = first["contextId"], str(first["id"])
    await send(one, "message of no task", contextId=context)
    long = "x" * (TEXT_LIMIT + 5)
    await send(one, f"echo {long}", contextId=context, referenceTaskIds=[task])
    session = await find_session(one, task)
    packets = await read_all(one, f"inputs:{session}")
    assert [set(one) for one in packets] == [PACKET] * 3
    said = [one["payload"] for one in packets]
    assert [one["text"] for one in said[:2]] == ["echo first", "message of no task"]
    assert (said[2]["text"], said[2]["cut"]) == (f"echo {long}"[:TEXT_LIMIT], True)
    assert [one.get("quote") for one in said] == [None, None, [task]]
    for packet in packets:
        payload = packet["payload"]
        assert (packet["id"], packet["createdAt"]) == (payload["id"], payload["createdAt"])
        assert payload["agent"] == "echo"
    assert len({one["id"] for one in packets}) == 3
    for number, packet in enumerate(packets):
        assert await read_after(one, f"inputs:{session}", packet["cursor"]) == packets[number + 1 :]
    state = (await ask(one, "ada", f"/v1/streams/inputs:{session}/snapshot")).json()
    assert state["snapshot"]["packets"] == packets
    assert not state["snapshot"]["more"]


@pytest.mark.requirement("MK-32", "MK-34")
async def test_results_report_how_tasks_ended_and_their_output(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, agent=PRICED)
    done = (await send(one, "echo well done"))["task"]
    context, session = done["contextId"], await find_session(one, str(done["id"]))
    failed = (await send(one, "fail it broke", contextId=context))["task"]
    answer = (await send(one, "message of no task", contextId=context))["message"]
    silent = await one.call(
        "ada-key",
        "SendMessage",
        {
            "message": {
                **cast("Answer", one.message("silent")["message"]),
                "contextId": context,
                "messageId": "s",
            },
            "configuration": {"returnImmediately": True},
        },
    )
    stopped = silent.json()["result"]["task"]["id"]
    await one.call("ada-key", "CancelTask", {"id": stopped})
    stream = f"results:{session}"

    async def are_there() -> list[Answer] | None:
        found = await read_all(one, stream)
        return found if len(found) == 4 else None

    packets = await wait_until(are_there, 20, "four results")
    assert packets is not None
    assert [set(one) for one in packets] == [PACKET] * 4
    well, broke, said, ended = (one["payload"] for one in packets)
    assert (well["taskId"], well["status"], well["ok"]) == (done["id"], "succeeded", True)
    assert well["output"] == "echo well done"
    assert (broke["taskId"], broke["status"], broke["ok"]) == (failed["id"], "failed", False)
    assert broke["output"]
    assert (said["status"], said["output"]) == ("succeeded", answer["parts"][0]["text"])
    assert (ended["taskId"], ended["status"], ended["ok"]) == (stopped, "canceled", False)
    assert "profile" not in well
    for packet in packets:
        result = packet["payload"]
        assert packet["id"] == f"{result['taskId']}.{result['runId']}"
        assert packet["createdAt"] == result["completedAt"]
        assert result["durationMs"] >= 0
        assert result["title"]
        assert "archivePath" not in result
    assert well["usage"] == {"amountMicros": 100_000, "currency": "EUR"}
    shown = (await ask(one, "ada", f"/v1/tasks/{done['id']}/summary")).json()
    assert well["durationMs"] == shown["durationMs"]
    for number, packet in enumerate(packets):
        assert await read_after(one, stream, packet["cursor"]) == packets[number + 1 :]


@pytest.mark.requirement("MK-32")
async def test_result_names_the_requested_tier(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    params = one.message("echo it")
    cast("Answer", params["message"])["metadata"] = {PROFILE: {"tier": "specialist"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    headers = {"Authorization": "Bearer ada-key", "A2A-Extensions": PROFILE}
    said = await one.http.post("/agents/passerelle", json=body, headers=headers)
    task = said.json()["result"]["task"]
    [packet] = await read_all(one, f"results:{await find_session(one, task['id'])}")
    result = packet["payload"]
    # No agent here has the tier, so the task ended without an agent; that is a result as well.
    assert (result["profile"], result["status"], "agent" in result) == (
        "specialist",
        "failed",
        False,
    )


@pytest.mark.requirement("MK-32")
async def test_result_of_an_archived_task_names_its_archive_path(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS, blobs=rig.folder / "blobs")
    task = (await send(one, "echo well done"))["task"]
    session = await find_session(one, str(task["id"]))
    [before] = await read_all(one, f"results:{session}")
    assert await archive_ended(rig) >= 1
    for at in (one, await rig.start(clients=CLIENTS, blobs=rig.folder / "blobs")):
        [after] = await read_all(at, f"results:{session}")
        record = (await ask(at, "ada", f"/v1/tasks/{task['id']}")).json()
        assert after["payload"].pop("archivePath") == record["archive"]
        assert after == before


@pytest.mark.requirement("MK-10")
async def test_task_cancelled_before_its_agent_was_called_has_a_result(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    paused = await one.http.post(
        "/v1/agents/echo/pause", json={}, headers={"Authorization": "Bearer op-key"}
    )
    assert paused.is_success, paused.text
    task = str((await send(one, "echo never"))["task"]["id"])
    session = await find_session(one, task)
    assert await read_all(one, f"results:{session}") == []
    await one.call("ada-key", "CancelTask", {"id": task})
    [packet] = await read_all(one, f"results:{session}")
    assert (packet["payload"]["taskId"], packet["payload"]["status"]) == (task, "canceled")
    assert (packet["id"], packet["payload"]["durationMs"]) == (task, 0)
    assert rig.counted() == 0


async def consume(
    one: Instance, stream: str, count: int, *, acks: int, cursor: str | None = None
) -> list[Answer]:
    """Reads ``count`` packets as a consumer, acknowledges the first ``acks`` of them, and drops the connection."""
    async with open_channel(str(one.http.base_url).rstrip("/")) as channel:
        await channel.send({**HELLO, "token": "ada-key", "device": "manager"})
        subscription: JsonObject = {"t": "sub", "s": stream, "snap": "never"}
        subscription |= {"from": "ack"} if cursor is None else {"c": cursor}
        await channel.send(subscription)
        seen: list[Answer] = []
        while len(seen) < count:
            frame = await channel.read()
            if frame["t"] == "ev":
                seen.append(frame["d"])
        if acks:
            await channel.send({"t": "ack", "a": {stream: seen[acks - 1]["cursor"]}})

            async def is_stored() -> bool:
                answer = await one.http.post(
                    f"/v1/streams/{stream}/reconnect",
                    json={"device": "manager"},
                    headers={"Authorization": "Bearer ada-key"},
                )
                return bool(answer.json()["mode"] == "acked")

            await wait_until(is_stored, 10, "the ack is stored")
        channel.abort()
    return seen


@pytest.mark.requirement("MK-9")
async def test_consumer_that_dies_before_its_ack_gets_the_result_again_and_history_has_it_once(
    rig: Rig,
) -> None:
    one = await rig.start(clients=CLIENTS)
    first = (await send(one, "echo 1"))["task"]
    for number in (2, 3):
        await send(one, f"echo {number}", contextId=first["contextId"])
    session = await find_session(one, str(first["id"]))
    stream = f"results:{session}"
    every = await read_all(one, stream)
    epoch = every[0]["cursor"].partition(".")[0]
    start = str(Cursor(epoch, 0, start_chain(epoch)))
    seen = await consume(one, stream, 2, acks=0, cursor=start)
    assert seen == every[:2]
    seen = await consume(one, stream, 2, acks=1, cursor=start)
    assert seen == every[:2]
    # Another instance, another connection: the consumer resumes after its last ack.
    two = await rig.start(clients=CLIENTS)
    again = await consume(two, stream, 2, acks=2)
    assert again == every[1:]
    assert again[0]["id"] == seen[1]["id"]
    history = (await ask(two, "ada", f"/v1/sessions/{session}?limit=500")).json()["history"]
    ends = [item["taskId"] for item in history["items"] if item["kind"] == "answer"]
    assert sorted(ends) == sorted(one["payload"]["taskId"] for one in every)


@pytest.mark.requirement("MK-14")
@pytest.mark.parametrize("word", ["inputs", "results"])
async def test_consumer_with_an_older_cursor_resumes_after_its_ack(rig: Rig, word: str) -> None:
    one = await rig.start(clients=CLIENTS)
    first = (await send(one, "echo 1"))["task"]
    for number in (2, 3, 4):
        await send(one, f"echo {number}", contextId=first["contextId"])
    session = await find_session(one, str(first["id"]))
    stream = f"{word}:{session}"
    every = await read_all(one, stream)
    old = every[0]["cursor"]
    assert await consume(one, stream, 2, acks=2, cursor=old) == every[1:3]
    two = await rig.start(clients=CLIENTS)
    assert await consume(two, stream, 1, acks=0, cursor=old) == every[3:]
    body = {"device": "manager", "cursor": old}
    headers = {"Authorization": "Bearer ada-key"}
    answer = (
        await two.http.post(f"/v1/streams/{stream}/reconnect", json=body, headers=headers)
    ).json()
    assert answer["events"] == every[3:]
    # The ack of one consumer does not move another's position.
    body = {"device": "other", "cursor": old}
    answer = (
        await two.http.post(f"/v1/streams/{stream}/reconnect", json=body, headers=headers)
    ).json()
    assert answer["events"] == every[1:]


async def test_packets_of_another_owner_equal_those_of_an_unknown_session(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task = (await send(one, "echo 1"))["task"]
    session = await find_session(one, str(task["id"]))
    unknown = f"se_{'0' * 28}"
    for word in ("inputs", "results"):
        for end in ("events", "snapshot"):
            answers = [
                (await ask(one, "bob", f"/v1/streams/{word}:{name}/{end}"))
                for name in (session, unknown)
            ]
            bodies = {
                answer.content.replace(name.encode(), b"S")
                for answer, name in zip(answers, (session, unknown), strict=True)
            }
            assert {answer.status_code for answer in answers} == {404}
            assert len({strip(one) for one in bodies}) == 1
        assert len(await read_all(one, f"{word}:{session}", "eve")) == 1


async def test_webhook_on_packets_is_refused_and_names_the_session_stream(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task = (await send(one, "echo 1"))["task"]
    session = await find_session(one, str(task["id"]))
    said = await one.http.put(
        f"/v1/streams/results:{session}/webhooks/mine",
        json={"url": "https://example.com/hook"},
        headers={"Authorization": "Bearer ada-key"},
    )
    assert said.status_code == httpx.codes.CONFLICT, said.text
    assert "set a webhook on a session" in said.json()["detail"]


async def test_a_session_and_its_packets_are_followed_together(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    task = (await send(one, "echo 1"))["task"]
    session = await find_session(one, str(task["id"]))
    names = [f"{word}:{session}" for word in ("session", "inputs", "results")]
    async with open_channel(str(one.http.base_url).rstrip("/")) as channel:
        await channel.send({**HELLO, "token": "ada-key"})
        for name in names:
            await channel.send({"t": "sub", "s": name, "from": "live"})
        for name in names:
            await channel.expect("live", s=name)
        await channel.send({"t": "unsub", "s": names[0]})
        for number in (2, 3):
            await send(one, f"echo {number}", contextId=task["contextId"])

        def texts(name: str, member: str) -> list[str]:
            events = [f["d"] for f in channel.frames if f["t"] == "ev" and f["s"] == name]
            return [event["payload"][member] for event in events]

        async with asyncio.timeout(20):
            while len(texts(names[2], "output")) < 2 or len(texts(names[1], "text")) < 2:
                await channel.read_more()
        assert texts(names[1], "text") == ["echo 2", "echo 3"]
        assert texts(names[2], "output") == ["echo 2", "echo 3"]


def strip(body: bytes) -> bytes:
    """Removes the request id, which differs in each response."""
    problem = orjson.loads(body)
    problem.pop("requestId", None)
    return orjson.dumps(problem)
