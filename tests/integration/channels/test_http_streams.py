"""The same streams and cursors without a WebSocket: server-sent events, long polling, snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import orjson
import pytest
from starlette.applications import Starlette

from passerelle.core.errors import PasserelleError
from passerelle.gateway.auth.credentials import READER
from passerelle.gateway.http.problem import answer_error
from passerelle.gateway.http.stream_link import StreamLinks
from passerelle.gateway.http.streams import StreamEdge, make_stream_routes
from passerelle.runtime.limits.gate import StreamSeats
from tests.integration.channels.rig import BOB, Rig, run_app
from tests.integration.channels.test_following import lose_tail
from tests.support.engine import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


@dataclass
class Site:
    rig: Rig
    edge: StreamEdge
    http: httpx.AsyncClient

    async def poll(self, stream: str, after: str | None, wait: int = 0) -> httpx.Response:
        asked = {"wait": str(wait), **({} if after is None else {"after": after})}
        return await self.http.get(f"/v1/streams/{stream}/events", params=asked)


@asynccontextmanager
async def serve_streams(rig: Rig, most: int = 100) -> AsyncGenerator[Site]:
    services = rig.services
    edge = StreamEdge(
        rig.hub, services.states, services.access, services.authenticator,
        READER, services.redeem, lambda: 0.5,
        StreamLinks(services.channels, services.links, services.clock), most,
    )  # fmt: skip
    app = Starlette(
        routes=make_stream_routes(edge), exception_handlers={PasserelleError: answer_error}
    )
    async with (
        run_app(app) as port,
        httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": "Bearer ada-token"},
            trust_env=False,
        ) as http,
    ):
        yield Site(rig, edge, http)
        edge.drain()
        await edge.finish()


@pytest.fixture
async def site(rig: Rig) -> AsyncGenerator[Site]:
    async with serve_streams(rig) as site:
        yield site


@dataclass
class Events:
    """The events of a stream as an EventSource receives them."""

    seen: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])

    async def read(self, response: httpx.Response) -> None:
        kind, cursor = "message", ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("id: "):
                cursor = line.removeprefix("id: ")
            elif line.startswith("data: "):
                self.seen.append((kind, cursor, orjson.loads(line.removeprefix("data: "))))
                kind = "message"

    def ids(self) -> list[str]:
        return [data["eventId"] for kind, _, data in self.seen if kind == "message"]

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.seen]


@asynccontextmanager
async def listen(
    site: Site, stream: str, after: str | None, device: str = ""
) -> AsyncGenerator[Events]:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    events = Events()
    path = f"/v1/streams/{stream}/events" + (f"?device={device}" if device else "")
    async with site.http.stream("GET", path, headers=headers, timeout=20) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        reading = asyncio.create_task(events.read(response))
        yield events
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize(
    ("rest", "field", "reason"),
    [
        ("events?cursor=1.2.3", "cursor", "is not known here"),
        ("events?afer=1.2.3", "afer", "is not known here; did you mean after?"),
        ("snapshot?after=1.2.3", "after", "is not known here"),
    ],
)
async def test_invalid_parameter_is_refused_and_not_read_as_the_beginning(
    site: Site, rest: str, field: str, reason: str
) -> None:
    path = f"/v1/streams/session:{site.rig.make_session()}/{rest}"
    for accepted in ("application/json", "text/event-stream", "application/jsonl"):
        refused = await site.http.get(path, headers={"Accept": accepted})
        assert refused.status_code == 400, refused.text
        assert (refused.json()["field"], refused.json()["reason"]) == (field, reason)
    stranger = {"Authorization": "Bearer nobody"}
    assert (await site.http.get(path, headers=stranger)).status_code == 401


@pytest.mark.requirement("CHN-3", "I3")
async def test_events_continue_after_the_last_event_id_without_a_hole(site: Site) -> None:
    session = site.rig.make_session()
    stream = f"session:{session}"
    ids = await site.rig.append(session, 3)
    async with listen(site, stream, None) as first:
        await wait_until(lambda: first.seen, 15, "the state comes first")
        assert first.kinds() == ["snap"]
        ids += await site.rig.append(session, 2)
        await wait_until(lambda: first.ids() == ids[3:], 15, "what is new follows")
    last = first.seen[-1][1]
    assert last == await site.rig.cursor(session)
    ids += await site.rig.append(session, 4)
    async with listen(site, stream, last) as second:
        await wait_until(lambda: second.ids() == ids[5:], 15, "what was missed, each once")
        ids += await site.rig.append(session, 1)
        await wait_until(lambda: second.ids() == ids[5:], 15, "and what is new")


@pytest.mark.requirement("CHN-4", "I8")
async def test_an_invalid_cursor_is_a_gap_over_sse_and_polling(
    site: Site, engine_server: Server
) -> None:
    session = site.rig.make_session()
    stream = f"session:{session}"
    await site.rig.append(session, 6)
    lost = await site.rig.cursor(session)
    await lose_tail(site.rig, engine_server, session, 2)
    ids = await site.rig.append(session, 3)
    async with listen(site, stream, lost) as events:
        await wait_until(lambda: len(events.seen) == 2, 15, "gap and state")
        ids += await site.rig.append(session, 1)
        await wait_until(lambda: events.ids() == ids[-1:], 15, "then live")
    assert events.kinds() == ["gap", "snap", "message"]
    assert events.seen[0][2]["why"] == "forked"
    refused = await site.poll(stream, lost)
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["why"]) == (410, "gap", "forked")
    assert problem["top"] == await site.rig.cursor(session)


@pytest.mark.requirement("CHN-3")
async def test_pages_are_consecutive_and_an_empty_one_waits(site: Site) -> None:
    session = site.rig.make_session()
    stream = f"session:{session}"
    ids = await site.rig.append(session, 2)
    first = (await site.poll(stream, None)).json()
    assert first["snapshot"]["events"] == ids
    waiting = asyncio.create_task(site.poll(stream, first["cursor"], wait=20))
    await wait_until(lambda: site.rig.hub.streams == 1, 15, "the poll waits")
    ids += await site.rig.append(session, 2)
    page = (await waiting).json()
    assert [event["eventId"] for event in page["events"]] == ids[2 : 2 + len(page["events"])]
    rest = (await site.poll(stream, page["cursor"])).json()
    seen = [event["eventId"] for event in (*page["events"], *rest["events"])]
    assert seen == ids[2:]
    assert (await site.poll(stream, rest["cursor"])).json()["events"] == []


async def test_a_stream_can_be_followed_from_the_cursor_of_its_snapshot(site: Site) -> None:
    session = site.rig.make_session()
    ids = await site.rig.append(session, 2)
    answer = await site.http.get(f"/v1/streams/session:{session}/snapshot")
    state = cast("dict[str, Any]", answer.json())
    assert (state["snapshot"]["events"], state["cursor"]) == (ids, await site.rig.cursor(session))
    assert state["snapshot"]["asOf"] == state["cursor"]


@pytest.mark.parametrize("after", [None, "0000000a.1.00000000"])
async def test_a_stream_of_another_owner_equals_an_unknown_one(
    site: Site, after: str | None
) -> None:
    foreign = site.rig.make_session(BOB)
    await site.rig.append(foreign, 2)
    answers: set[tuple[int, str]] = set()
    for stream in (f"session:{foreign}", "session:se_none", "vault:x"):
        for path in ("events", "snapshot"):
            asked = {} if after is None else {"after": after}
            found = await site.http.get(f"/v1/streams/{stream}/{path}", params=asked)
            answers.add((found.status_code, found.json()["code"]))
    assert answers == {(404, "not_found")}
    bare = await site.http.get(
        f"/v1/streams/session:{foreign}/events", headers={"Authorization": ""}
    )
    assert bare.status_code == 401
    for bad in ({"after": "nonsense"}, {"wait": "26"}, {"wait": "x"}):
        own = site.rig.make_session()
        assert (
            await site.http.get(f"/v1/streams/session:{own}/events", params=bad)
        ).status_code == 400


async def test_a_drain_ends_the_events_and_the_reader_keeps_its_cursor(site: Site) -> None:
    session = site.rig.make_session()
    await site.rig.append(session, 1)
    path = f"/v1/streams/session:{session}/events"
    events = Events()
    headers = {"Accept": "text/event-stream"}
    async with site.http.stream("GET", path, headers=headers, timeout=20) as response:
        reading = asyncio.create_task(events.read(response))
        await wait_until(lambda: events.seen, 15, "the state")
        site.edge.drain()
        await asyncio.wait_for(reading, 15)
    assert events.seen[-1][1] == await site.rig.cursor(session)


async def test_a_full_instance_refuses_with_a_retry_time_and_accepts_later(rig: Rig) -> None:
    async with serve_streams(rig, most=1) as site:
        session = rig.make_session()
        await rig.append(session, 1)
        path, headers = f"/v1/streams/session:{session}/events", {"Accept": "text/event-stream"}
        async with listen(site, f"session:{session}", None) as first:
            await wait_until(lambda: first.seen, 10, "the first is served")
            refused = await site.http.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "instance_full")
            assert refused.headers["retry-after"] == "5"
            assert (await site.poll(f"session:{session}", None)).status_code == 200

        async def is_served() -> bool:
            async with site.http.stream("GET", path, headers=headers, timeout=20) as response:
                return response.status_code == 200

        await wait_until(is_served, 10, "there is room again")


async def test_a_caller_over_its_stream_limit_is_refused_with_a_retry_time(rig: Rig) -> None:
    async with serve_streams(rig) as site:
        site.edge.seats = StreamSeats(1)
        session = rig.make_session()
        await rig.append(session, 1)
        path, headers = f"/v1/streams/session:{session}/events", {"Accept": "text/event-stream"}
        async with listen(site, f"session:{session}", None) as first:
            await wait_until(lambda: first.seen, 10, "the first is served")
            refused = await site.http.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (429, "concurrency_limited")
            assert refused.headers["retry-after"] == "5"
            assert (await site.poll(f"session:{session}", None)).status_code == 200
        await wait_until(lambda: not site.edge.seats.taken, 10, "the seat is free")
