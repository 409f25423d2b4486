"""A2A over gRPC: the operations of the other bindings, errors as rich statuses, the agent named by tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import grpc
import grpc.aio
import orjson
import pytest
import structlog
from a2a.types import a2a_pb2 as a2a
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from passerelle.peers.grpc.methods import V1
from passerelle.peers.grpc.status import DETAILS_KEY, parse_status
from passerelle.runtime.observability.spans import Spans
from tests.integration.a2a.rig import OWNER, Answer, Rig

pytestmark = pytest.mark.anyio

LOOPBACK: Final = "127.0.0.1"
RESUME: Final = "urn:passerelle:ext:resume:1"


@dataclass
class Wire:
    """A channel to the server, and the metadata of its calls."""

    rig: Rig
    channel: grpc.aio.Channel

    def metadata(self, *, key: str = OWNER, **more: str) -> tuple[tuple[str, str], ...]:
        head = {"authorization": f"Bearer {key}", "a2a-version": "1.0"}
        head |= {name.replace("_", "-"): value for name, value in more.items()}
        return tuple((name, value) for name, value in head.items() if value)

    def ask(self, text: str) -> a2a.SendMessageRequest:
        params = {"tenant": "echo", **self.rig.message(text)}
        return ParseDict(params, a2a.SendMessageRequest())

    async def call(self, method: str, request: Message, **head: str) -> Answer:
        row = V1.rows[method]
        open_call = self.channel.unary_unary(
            f"/{V1.name}/{method}",
            request_serializer=row.request.SerializeToString,
            response_deserializer=row.response.FromString,
        )
        return MessageToDict(await open_call(request, metadata=self.metadata(**head)))

    def stream(
        self, method: str, request: Message, **head: str
    ) -> grpc.aio.UnaryStreamCall[Message, Message]:
        row = V1.rows[method]
        open_call = self.channel.unary_stream(
            f"/{V1.name}/{method}",
            request_serializer=row.request.SerializeToString,
            response_deserializer=row.response.FromString,
        )
        return open_call(request, metadata=self.metadata(**head))

    async def refuse(self, method: str, request: Message, **head: str) -> tuple[str, Any]:
        """Returns the status code and the details of the rich status."""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.call(method, request, **head)
        return failed.value.code().name, read_details(failed.value)

    async def collect(self, method: str, request: Message, **head: str) -> list[Answer]:
        return [MessageToDict(answer) async for answer in self.stream(method, request, **head)]


async def read_frame(call: grpc.aio.UnaryStreamCall[Message, Message]) -> Answer:
    frame = await call.read()
    assert isinstance(frame, a2a.StreamResponse), frame
    return MessageToDict(frame)


def read_details(error: grpc.aio.AioRpcError) -> list[Answer]:
    [packed] = [value for name, value in error.trailing_metadata() if name == DETAILS_KEY]
    assert isinstance(packed, bytes)
    status = parse_status(packed)
    assert status["message"] == error.details()
    assert status["code"] == error.code().value[0]
    return cast("list[Answer]", status["details"])


@pytest.fixture
async def wire(rig: Rig) -> AsyncGenerator[Wire]:
    face = GrpcFace(rig.face.operations, rig.face.parts, default_agent=None)
    server = await start_grpc(face, LOOPBACK, 0)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{server.port}") as channel:
        yield Wire(rig, channel)
    await server.stop()


async def test_all_operations_on_tasks_answer(wire: Wire) -> None:
    sent = (await wire.call("SendMessage", wire.ask("hello")))["task"]
    assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
    task = await wire.call("GetTask", a2a.GetTaskRequest(tenant="echo", id=sent["id"]))
    assert task == sent
    page = await wire.call(
        "ListTasks", a2a.ListTasksRequest(tenant="echo", context_id=sent["contextId"])
    )
    assert [one["id"] for one in page["tasks"]] == [sent["id"]]
    slow = (await wire.call("SendMessage", wire.ask("ask which?")))["task"]
    stopped = await wire.call("CancelTask", a2a.CancelTaskRequest(tenant="echo", id=slow["id"]))
    assert stopped["id"] == slow["id"]


async def test_stream_has_the_frames_of_the_other_bindings(wire: Wire) -> None:
    frames = await wire.collect("SendStreamingMessage", wire.ask("chunks 3"))
    kinds = [next(iter(frame)) for frame in frames]
    assert kinds[0] == "task"
    assert "artifactUpdate" in kinds
    assert frames[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    events = await wire.rig.collect("SendStreamingMessage", wire.rig.message("chunks 3"))
    assert [next(iter(event.result)) for event in events] == kinds


async def test_numbers_stay_integers_on_the_way_to_the_agent(wire: Wire) -> None:
    request = wire.ask("hello")
    request.message.parts.add().data.struct_value.update({"count": 42, "share": 0.5})
    await wire.call("SendMessage", request)
    [received] = wire.rig.peer.messages
    assert b'"count":42,' in orjson.dumps(received["parts"], option=orjson.OPT_SORT_KEYS)


async def test_unknown_and_forbidden_agents_get_the_same_status(wire: Wire) -> None:
    request = wire.ask("hello")
    request.tenant = "nobody"
    unknown = await wire.refuse("SendMessage", request)
    request.tenant = "echo"
    forbidden = await wire.refuse("SendMessage", request, key="narrow-key")
    assert unknown[0] == forbidden[0] == "NOT_FOUND"
    assert str(unknown[1]).replace("nobody", "echo") == str(forbidden[1])


async def test_caller_without_a_key_is_refused_before_anything_is_read(wire: Wire) -> None:
    before = wire.rig.list_keys()
    code, details = await wire.refuse("SendMessage", wire.ask("hello"), key="wrong")
    assert (code, details[0]["reason"]) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
    assert wire.rig.list_keys() == before


async def test_scope_is_checked_as_on_other_edges(wire: Wire) -> None:
    code, _ = await wire.refuse("SendMessage", wire.ask("hello"), key="reader-key")
    assert code == "PERMISSION_DENIED"


@pytest.mark.parametrize("version", ["", "99.0", "0.3"])
async def test_version_in_the_metadata_must_be_that_of_the_service(
    wire: Wire, version: str
) -> None:
    code, details = await wire.refuse("SendMessage", wire.ask("hello"), a2a_version=version)
    assert (code, details[0]["reason"]) == ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
    assert details[0]["domain"] == "a2a-protocol.org"


async def test_request_without_an_agent_names_the_field(wire: Wire) -> None:
    request = wire.ask("hello")
    request.tenant = ""
    code, details = await wire.refuse("SendMessage", request)
    assert code == "INVALID_ARGUMENT"
    assert details[1]["fieldViolations"][0]["field"] == "tenant"


async def test_request_without_a_tenant_goes_to_the_default_agent(rig: Rig) -> None:
    face = GrpcFace(rig.face.operations, rig.face.parts, default_agent="echo")
    server = await start_grpc(face, LOOPBACK, 0)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{server.port}") as channel:
        wire = Wire(rig, channel)
        request = wire.ask("hello")
        request.tenant = ""
        assert (await wire.call("SendMessage", request))["task"]["id"]
    await server.stop()


async def test_task_of_another_caller_is_not_found(wire: Wire) -> None:
    sent = (await wire.call("SendMessage", wire.ask("hello")))["task"]
    request = a2a.GetTaskRequest(tenant="echo", id=sent["id"])
    theirs = await wire.refuse("GetTask", request, key="other-key")
    request.id = sent["id"][:-1] + ("0" if sent["id"][-1] != "0" else "1")
    missing = await wire.refuse("GetTask", request)
    assert theirs[0] == missing[0] == "NOT_FOUND"
    assert theirs[1][0]["reason"] == missing[1][0]["reason"] == "TASK_NOT_FOUND"


async def test_caller_that_leaves_a_stream_does_not_end_the_task(wire: Wire) -> None:
    call = wire.stream("SendStreamingMessage", wire.ask("ask which?"))
    task = (await read_frame(call))["task"]["id"]
    call.cancel()
    again = wire.stream("SubscribeToTask", a2a.SubscribeToTaskRequest(tenant="echo", id=task))
    assert (await read_frame(again))["task"]["id"] == task
    again.cancel()
    got = await wire.call("GetTask", a2a.GetTaskRequest(tenant="echo", id=task))
    assert got["status"]["state"] in {"TASK_STATE_WORKING", "TASK_STATE_INPUT_REQUIRED"}


async def test_reader_resumes_with_a_cursor_in_its_metadata(wire: Wire) -> None:
    whole = await wire.collect("SendStreamingMessage", wire.ask("chunks 3"), a2a_extensions=RESUME)
    task, marks = whole[0]["task"], [next(iter(frame.values())) for frame in whole]
    cursor = marks[1]["metadata"][RESUME]["cursor"]
    rest = await wire.collect(
        "SubscribeToTask",
        a2a.SubscribeToTaskRequest(tenant="echo", id=task["id"]),
        a2a_extensions=RESUME,
        last_event_id=cursor,
    )
    assert rest == whole[2:]


async def test_reader_that_missed_nothing_gets_its_headers_before_the_next_event(
    wire: Wire,
) -> None:
    asked = await wire.call("SendMessage", wire.ask("ask which?"), a2a_extensions=RESUME)
    task = asked["task"]
    cursor = task["metadata"][RESUME]["cursor"]
    request = a2a.SubscribeToTaskRequest(tenant="echo", id=task["id"])
    call = wire.stream("SubscribeToTask", request, a2a_extensions=RESUME, last_event_id=cursor)
    metadata_back = dict(await asyncio.wait_for(call.initial_metadata(), 15))
    assert metadata_back["a2a-stream-resumed"] == "true"
    await wire.call("CancelTask", a2a.CancelTaskRequest(tenant="echo", id=task["id"]))
    assert "CANCELED" in str(await read_frame(call))


async def test_missing_version_is_refused_with_what_to_send_instead(wire: Wire) -> None:
    call = cast("Any", wire.channel).unary_unary(f"/{V1.name}/GetTask")
    headers = tuple(one for one in wire.metadata() if one[0].lower() != "a2a-version")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(a2a.GetTaskRequest(tenant="echo", id="t").SerializeToString(), metadata=headers)
    assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "A2A-Version is missing, so 0.3 was assumed" in (failed.value.details() or "")


async def test_drain_ends_streams_cleanly(wire: Wire) -> None:
    asked = await wire.call("SendMessage", wire.ask("ask which?"))
    request = a2a.SubscribeToTaskRequest(tenant="echo", id=asked["task"]["id"])
    call = wire.stream("SubscribeToTask", request)
    assert "INPUT_REQUIRED" in str(await asyncio.wait_for(read_frame(call), 15))
    await wire.rig.face.drain()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_malformed_bytes_are_refused_as_no_message(wire: Wire) -> None:
    call = cast("Any", wire.channel).unary_unary(f"/{V1.name}/SendMessage")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(b"d", metadata=wire.metadata())
    assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "SendMessageRequest" in (failed.value.details() or "")


async def test_no_secret_is_in_a_status_or_a_log_line(wire: Wire) -> None:
    seen: list[str] = []
    with structlog.testing.capture_logs() as lines:
        for key in ("wrong-key-c41f", "narrow-key", OWNER):
            for tenant in ("echo", "gone", "nobody"):
                request = wire.ask("refuse" if tenant == "echo" else "hello")
                request.tenant = tenant
                try:
                    seen.append(str(await wire.call("SendMessage", request, key=key)))
                except grpc.aio.AioRpcError as error:
                    seen += [str(error), str(error.trailing_metadata())]
    assert len(seen) > 9
    shown = f"{seen} {lines} {wire.rig.metrics.render()!r} {wire.rig.face.parts}"
    assert [key for key in ("wrong-key-c41f", "narrow-key", OWNER) if key in shown] == []


async def test_call_over_grpc_has_a_span_below_its_caller(wire: Wire) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    face = wire.rig.face
    parts = replace(face.parts, spans=Spans(provider.get_tracer("test")))
    server = await start_grpc(GrpcFace(face.operations, parts, default_agent=None), LOOPBACK, 0)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{server.port}") as channel:
        other = Wire(wire.rig, channel)
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        await other.call("SendMessage", other.ask("hello"), traceparent=parent)
    await server.stop()
    [span] = exporter.get_finished_spans()
    assert (span.name, f"{span.parent.span_id:x}" if span.parent else "") == (
        "SendMessage",
        "b7ad6b7169203331",
    )
    assert dict(span.attributes or {})["a2a.binding"] == "GRPC"
    [sent] = wire.rig.peer.requests[-1:]
    assert sent.headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")


async def test_part_of_the_maximum_size_passes(wire: Wire) -> None:
    request = wire.ask("hello")
    request.configuration.history_length = 0  # gRPC clients read 4 MiB by default
    request.message.parts.append(a2a.Part(raw=bytes(12 * 1024 * 1024), filename="scan.pdf"))
    sent = (await wire.call("SendMessage", request))["task"]
    assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
