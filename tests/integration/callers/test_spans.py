"""Spans reach a collector as one tree: caller, request, calls of the agent, the agent's own spans (ENV-8)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.errors import ConfigInvalid
from passerelle.core.wire.trace import read_trace
from passerelle.gateway.span_export import open_spans
from tests.support.collector import Collector
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Rig

pytestmark = pytest.mark.anyio
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
SPAN: Final = "b7ad6b7169203331"
SERVER: Final = 2
CLIENT: Final = 3
CALLER: Final = {"name": "caller"}


@pytest.mark.requirement("ENV-8")
async def test_span_of_a_request_is_on_its_events_and_over_the_call_of_the_agent(rig: Rig) -> None:
    async with Collector() as collector:
        one = await rig.start(clients=[CALLER], spans={"otlp_endpoint": collector.url})
        one.http.headers["traceparent"] = f"00-{TRACE}-{SPAN}-01"
        one.http.headers["tracestate"] = "vendor=1"
        task = (await one.send("caller-key")).json()["result"]["task"]
        await one.call("caller-key", "GetTask", {"id": "task_none"})
        await wait_until(lambda: len(collector.spans) >= 3, 10, "the spans have been sent")
    sent, read = collector.find("SendMessage", SERVER), collector.find("GetTask", SERVER)
    called = collector.find("SendMessage", CLIENT)
    assert {span.trace for span in collector.spans} == {TRACE}
    assert sent.parent == read.parent == SPAN
    assert called.parent == sent.span
    assert (sent.failed, read.failed, called.failed) == (False, True, False)
    assert sent.attributes == {
        "passerelle.agent": "echo",
        "passerelle.outcome": "ok",
        "a2a.operation": "SendMessage",
        "a2a.binding": "JSONRPC",
        "a2a.version": "1.0",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "echo",
    }
    assert read.attributes["error.type"] == read.attributes["passerelle.outcome"]
    assert not {name for name in read.attributes if name.startswith("gen_ai.")}, (
        "no agent was called"
    )
    [asked] = [one for one in rig.peer.requests if one.method == "SendMessage"]
    assert called.attributes == {
        "passerelle.agent": "echo",
        "passerelle.outcome": "answered",
        "a2a.operation": "SendMessage",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "echo",
        "gen_ai.conversation.id": text_at(object_at(asked.params, "message"), "contextId"),
    }
    assert called.attributes["passerelle.outcome"] == "answered"
    [request] = [one for one in rig.peer.requests if one.method == "SendMessage"]
    received = read_trace(request.headers["traceparent"], request.headers["tracestate"])
    assert received is not None
    assert (received.trace_id, received.span_id, received.state) == (TRACE, called.span, "vendor=1")
    [session] = [name for name in rig.list_sessions() if await one.read_session(name)]
    events = await one.read_session(session)
    assert {(event["traceId"], event["spanId"]) for event in events} == {(TRACE, sent.span)}
    assert task["id"]
    assert collector.services == {"passerelle"}


@pytest.mark.requirement("ENV-8")
async def test_request_without_a_trace_begins_one(rig: Rig) -> None:
    async with Collector() as collector:
        one = await rig.start(clients=[CALLER], spans={"otlp_endpoint": collector.url})
        await one.send("caller-key")
        await wait_until(lambda: len(collector.spans) >= 2, 10, "the spans have been sent")
    sent, called = collector.find("SendMessage", SERVER), collector.find("SendMessage", CLIENT)
    assert (sent.parent, called.parent, called.trace) == ("", sent.span, sent.trace)


async def test_unsampled_trace_is_propagated_and_not_exported(
    rig: Rig,
) -> None:
    async with Collector() as collector:
        one = await rig.start(clients=[CALLER], spans={"otlp_endpoint": collector.url})
        one.http.headers["traceparent"] = f"00-{TRACE}-{SPAN}-00"
        await one.send("caller-key")
        del one.http.headers["traceparent"]
        await one.send("caller-key")
        await wait_until(lambda: len(collector.spans) >= 2, 10, "those of the other request came")
    assert TRACE not in {span.trace for span in collector.spans}
    [first, _] = [one for one in rig.peer.requests if one.method == "SendMessage"]
    assert first.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert first.headers["traceparent"].endswith("-00")


async def test_unreachable_collector_delays_no_request(rig: Rig) -> None:
    one = await rig.start(clients=[CALLER], spans={"otlp_endpoint": "http://127.0.0.1:9/v1/traces"})
    assert (await one.send("caller-key")).status_code == 200


async def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, object]", sys.modules), "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigInvalid, match=r"pip install 'passerelle\[otel\]'"):
        async with open_spans("http://127.0.0.1:9"):
            pass
