"""A credential is revoked while a stream is open: the stream ends with the error of a new request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final, cast

import grpc
import grpc.aio
import pytest
from a2a.types import a2a_pb2 as a2a

from passerelle.core.credentials import Credentials
from passerelle.core.errors import CredentialExpired, IssuerUnavailable, PasserelleError
from passerelle.core.principal import Principal
from passerelle.gateway.a2a.face import FaceSettings
from passerelle.gateway.auth.authenticator import Callers, KnownCallers
from passerelle.gateway.auth.keys import KeyRing
from passerelle.gateway.grpc.face import GrpcFace
from passerelle.gateway.grpc.server import start_grpc
from passerelle.runtime.common.secret import Secret
from tests.integration.a2a.rig import OWNER, Answer, Rig, run_rig
from tests.integration.a2a.test_grpc import LOOPBACK, Wire, read_details, read_frame
from tests.support.clients import make_client
from tests.support.engine import Server as Engine
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
KEY: Final = {"Authorization": "Bearer other-key"}
SILENT: Final = "silent"


@pytest.fixture
async def quick(engine_server: Engine, tmp_path: Path, anyio_backend: str) -> AsyncGenerator[Rig]:
    """A rig that rechecks its callers every 20 ms."""
    async with run_rig(engine_server, tmp_path, FaceSettings(recheck_s=0.02)) as rig:
        yield rig


def revoke(rig: Rig, owner: str = OWNER) -> None:
    """Reloads a configuration without clients."""
    known = cast("KnownCallers", rig.face.parts.authenticator)
    known.callers = Callers(KeyRing((Secret(owner),), []))


async def test_stream_of_a_revoked_key_ends_with_a_typed_error(quick: Rig) -> None:
    params = quick.message(SILENT)
    async with quick.stream("SendStreamingMessage", params, **KEY) as events:
        task = (await anext(events)).result["task"]["id"]
        revoke(quick)
        last = await anext(events)
        assert "UNAUTHENTICATED" in last.data
        assert [event async for event in events] == []
    assert 'outcome="unauthenticated"' in quick.metrics.render().decode()
    assert quick.peer.count("CancelTask") == 0, (
        "who may not see the task any more has not stopped it"
    )
    assert task


async def test_subscription_over_http_and_a_waiting_send_end_as_well(quick: Rig) -> None:
    task = (
        await quick.call(
            "SendMessage", quick.message(SILENT, configuration={"returnImmediately": True})
        )
    )["task"]
    url = f"/agents/echo/tasks/{task['id']}:subscribe"
    async with quick.http.stream("GET", url) as response:
        lines = response.aiter_lines()
        assert "task" in await anext(lines) + await anext(lines) + await anext(lines)
        revoke(quick, owner="another")
        rest = [line async for line in lines if line]
    assert rest[0] == "event: error"
    assert '"status":"UNAUTHENTICATED"' in rest[1]
    assert (await quick.post("SendMessage", quick.message(SILENT))).status_code == 401


async def test_waiting_caller_is_refused_like_a_new_request(quick: Rig) -> None:
    async def send() -> Answer:
        answer = await quick.post("SendMessage", quick.message(SILENT), **KEY)
        assert answer.status_code == 401
        return cast("Answer", answer.json())

    waiting = asyncio.create_task(send())
    await wait_until(lambda: quick.counted() == 1, 15, "the agent has the message")
    revoke(quick)
    assert (await waiting)["error"]["data"][0]["reason"] == "UNAUTHENTICATED"


async def test_stream_survives_an_unavailable_issuer_and_ends_when_the_token_expires(
    quick: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    error: list[PasserelleError] = [IssuerUnavailable("the keys are out of reach")]

    async def authenticate(_self: KnownCallers, shown: Credentials) -> Principal:
        asked.append(str(shown.bearer))
        raise error[0]

    async with quick.stream("SendStreamingMessage", quick.message(SILENT), **KEY) as events:
        await anext(events)
        monkeypatch.setattr(KnownCallers, "authenticate", authenticate)
        await wait_until(lambda: len(asked) > 2, 15, "it was asked again and again")
        error[0] = CredentialExpired("the token has expired")
        assert "the token has expired" in (await anext(events)).data


async def test_grpc_stream_ends_with_the_status_of_the_removed_scope(quick: Rig) -> None:
    face = GrpcFace(quick.face.operations, quick.face.parts, default_agent=None)
    server = await start_grpc(face, LOOPBACK, 0)
    try:
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{server.port}") as channel:
            wire = Wire(quick, channel)
            call = wire.stream("SendStreamingMessage", wire.ask(SILENT), key="other-key")
            await read_frame(call)
            reader = make_client("other", "other-key", "*", scopes=())
            known = cast("KnownCallers", quick.face.parts.authenticator)
            known.callers = Callers(KeyRing((Secret(OWNER),), [reader]))
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await call.read()
            assert ended.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert read_details(ended.value)[0]["reason"] == "PERMISSION_DENIED"
            request = a2a.GetTaskRequest(tenant="echo", id="task_none")
            assert (await wire.refuse("GetTask", request, key="other-key"))[
                0
            ] == "PERMISSION_DENIED"
    finally:
        await server.stop()
