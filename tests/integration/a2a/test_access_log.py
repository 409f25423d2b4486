"""The optional access log: one line for each request to an agent, without secrets."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from pathlib import Path

import orjson
import pytest
import structlog

from passerelle.core.wire.json import JsonObject
from passerelle.gateway.a2a.face import FaceSettings
from passerelle.runtime.observability.logs import configure_logs
from tests.integration.a2a.rig import CLIENTS, OWNER, Rig, run_rig
from tests.support.engine import Server

pytestmark = pytest.mark.anyio
TRACE = "0af7651916cd43dd8448eb211c80319c"
WORDS = "the words of a caller"


@pytest.fixture
async def logged(engine_server: Server, tmp_path: Path) -> AsyncGenerator[tuple[Rig, io.StringIO]]:
    """A rig with the access log on, and the captured log."""
    lines = io.StringIO()
    configure_logs("debug", "json", lines)
    settings = FaceSettings(access_log=True)
    async with run_rig(engine_server, tmp_path / "blobs", settings) as rig:
        yield rig, lines


def read_requests(lines: io.StringIO) -> list[JsonObject]:
    entries: list[JsonObject] = [orjson.loads(line) for line in lines.getvalue().splitlines()]
    return [entry for entry in entries if entry["event"] == "a2a.request"]


async def test_each_request_is_a_line_with_its_outcome(logged: tuple[Rig, io.StringIO]) -> None:
    rig, lines = logged
    parent = f"00-{TRACE}-b7ad6b7169203331-01"
    await rig.post("SendMessage", rig.message(WORDS), traceparent=parent)
    await rig.post("GetTask", {"id": "task_nobody"})
    first, second = read_requests(lines)
    assert (first["agent"], first["operation"], first["outcome"]) == ("echo", "SendMessage", "ok")
    assert (first["caller"], first["trace"]) == ("owner", TRACE)
    assert (second["operation"], second["outcome"]) == ("GetTask", "not_found")
    assert all(isinstance(entry["ms"], float) for entry in (first, second))


async def test_no_line_has_a_secret_or_message_content(logged: tuple[Rig, io.StringIO]) -> None:
    rig, lines = logged
    webhook = {"url": "http://127.0.0.1:9/hook", "token": "hook-token-1", "id": "c"}
    for headers in (
        {},
        {"authorization": "Bearer wrong-bearer-1"},
        {"authorization": "Basic d3Jvbmc6YmFzaWM="},
        {"x-api-key": "wrong-key-1"},
        {"x-api-key": "reader-key"},
        {"traceparent": "no trace of secret-1"},
    ):
        await rig.post("SendMessage", rig.message(WORDS), **headers)
        await rig.post("CreateTaskPushNotificationConfig", {"taskId": "t", **webhook}, **headers)
    text = lines.getvalue()
    assert len(read_requests(lines)) == 12
    secrets = [OWNER, "wrong-bearer-1", "d3Jvbmc6YmFzaWM", "wrong-key-1", "reader-key", "secret-1"]
    secrets += ["hook-token-1", WORDS, *(str(client.key_hash) for client in CLIENTS.values())]
    assert [secret for secret in secrets if secret in text] == []


async def test_nothing_is_logged_without_the_setting(rig: Rig) -> None:
    with structlog.testing.capture_logs() as entries:
        await rig.post("SendMessage", rig.message(WORDS))
    assert [entry for entry in entries if entry["event"] == "a2a.request"] == []
