"""The SDK's gRPC client of A2A 0.3: its service is on the same port, and its calls go to the default agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import grpc
import grpc.aio
import pytest
from a2a.client import ClientCallContext
from a2a.compat.v0_3 import a2a_v0_3_pb2 as older
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import TaskNotFoundError

from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from passerelle.peers.grpc.methods import V0_3
from tests.integration.a2a.rig import OWNER, Rig
from tests.integration.a2a.test_v0_3 import ask

pytestmark = pytest.mark.anyio
LOOPBACK: Final = "127.0.0.1"
HEAD: Final = (("authorization", f"Bearer {OWNER}"),)
CONTEXT: Final = ClientCallContext(service_parameters=dict(HEAD))


@pytest.fixture
async def channel(rig: Rig) -> AsyncGenerator[grpc.aio.Channel]:
    face = GrpcFace(rig.face.operations, rig.face.parts, default_agent="echo")
    server = await start_grpc(face, LOOPBACK, 0)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{server.port}") as opened:
        yield opened
    await server.stop()


@pytest.fixture
def client(channel: grpc.aio.Channel) -> CompatGrpcTransport:
    return CompatGrpcTransport(channel, None)


async def test_client_talks_in_turns(client: CompatGrpcTransport) -> None:
    asked = (await client.send_message(ask("ask which?"), context=CONTEXT)).task
    assert asked.status.state == a2a.TaskState.TASK_STATE_INPUT_REQUIRED
    done = (await client.send_message(ask("blue", task_id=asked.id), context=CONTEXT)).task
    assert done.artifacts[0].parts[0].text == "answer: blue"
    assert await client.get_task(a2a.GetTaskRequest(id=done.id), context=CONTEXT) == done
    with pytest.raises(TaskNotFoundError):
        await client.get_task(a2a.GetTaskRequest(id="nothing"), context=CONTEXT)


async def test_client_streams_subscribes_and_cancels(client: CompatGrpcTransport) -> None:
    streamed = client.send_message_streaming(ask("chunks 3"), context=CONTEXT)
    frames = [frame async for frame in streamed]
    assert sum(frame.HasField("artifact_update") for frame in frames) == 3
    assert frames[-1].status_update.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    request = ask("silent")
    request.configuration.return_immediately = True
    request.configuration.accepted_output_modes.append("text/plain")
    open_ = (await client.send_message(request, context=CONTEXT)).task
    subscribed = client.subscribe(a2a.SubscribeToTaskRequest(id=open_.id), context=CONTEXT)
    first = await anext(subscribed)
    assert first.task.id == open_.id
    stopped = await client.cancel_task(a2a.CancelTaskRequest(id=open_.id), context=CONTEXT)
    assert stopped.id == open_.id
    last = [frame async for frame in subscribed][-1]
    assert last.status_update.status.state == a2a.TaskState.TASK_STATE_CANCELED


async def test_card_has_the_form_of_the_protobuf(channel: grpc.aio.Channel) -> None:
    row = V0_3.rows["GetAgentCard"]
    read = channel.unary_unary(
        f"/{V0_3.name}/GetAgentCard",
        request_serializer=row.request.SerializeToString,
        response_deserializer=row.response.FromString,
    )
    card = await read(older.GetAgentCardRequest(), metadata=HEAD)
    assert isinstance(card, older.AgentCard)
    assert card.protocol_version.startswith("0.3")
    kinds = {scheme.WhichOneof("scheme") for scheme in card.security_schemes.values()}
    assert "http_auth_security_scheme" in kinds
    assert None not in kinds
    assert {name for one in card.security for name in one.schemes} == set(card.security_schemes)


async def test_calls_without_a_credential_or_with_another_version_are_refused(
    channel: grpc.aio.Channel,
) -> None:
    row = V0_3.rows["GetTask"]
    read = channel.unary_unary(
        f"/{V0_3.name}/GetTask",
        request_serializer=row.request.SerializeToString,
        response_deserializer=row.response.FromString,
    )
    for head, code in (
        ((), grpc.StatusCode.UNAUTHENTICATED),
        ((*HEAD, ("a2a-version", "1.0")), grpc.StatusCode.FAILED_PRECONDITION),
        ((*HEAD, ("a2a-version", "0.3")), grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await read(older.GetTaskRequest(name="tasks/t"), metadata=head)
        assert failed.value.code() is code
