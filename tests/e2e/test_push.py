"""Push notifications with the installed command: a kill in the middle, dead letters, and a retry of these."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.demo.processes import GatewayProcess
from tests.support.processes import AGENT, open_caller, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.anyio

COMMAND: Final = Path(sys.executable).with_name("passerelle")
WEBHOOKS: Final = {"allow": ["http://127.0.0.1:*"]}


async def ask(gateway: GatewayProcess, *arguments: str) -> str:
    """The output of ``passerelle deliveries`` for a gateway, while the receiver keeps running."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PASSERELLE")}
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "deliveries",
        *arguments,
        "--url",
        gateway.url,
        "--token-env",
        "TOKEN",
        env={**environ, "TOKEN": gateway.token},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complained = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, complained) == (0, b"")
    return printed.decode()


async def test_killed_gateway_resumes_deliveries_at_its_position(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        WebhookReceiver() as receiver,
        run_gateway(tmp_path, {AGENT: peer.url}, webhooks=WEBHOOKS) as gateway,
    ):
        peer.hold()
        peer.release(2)
        async with open_caller(gateway) as caller:
            params = caller.write("chunks 6")
            params["configuration"] = {
                "returnImmediately": True,
                "taskPushNotificationConfig": {"url": f"{receiver.url}/hook"},
            }
            task = (await caller.call("SendMessage", params))["task"]["id"]
        before = await receiver.until("/hook", 2)
        gateway.kill()
        peer.release_all()
        await gateway.start()

        def ended() -> bool:
            last = receiver.notices[-1].body.get("statusUpdate", {})
            return bool(last.get("status", {}).get("state") == "TASK_STATE_COMPLETED")

        await wait_until(ended, 30, "the receiver knows the end")
        seen: dict[str, bytes] = {}
        for notice in receiver.notices:
            # A repeat is the same event, byte for byte.
            assert seen.setdefault(notice.event_id, notice.raw) == notice.raw
        assert len(receiver.notices) - len(seen) <= 1
        assert list(seen)[: len(before)] == [notice.event_id for notice in before]
        async with open_caller(gateway) as caller:
            whole = await caller.get_task(task)
        reported = [
            part["text"]
            for notice in receiver.notices
            for part in notice.body.get("artifactUpdate", {}).get("artifact", {}).get("parts", [])
        ]
        assert "".join(dict.fromkeys(reported)) == "".join(
            part["text"] for part in whole["artifacts"][0]["parts"]
        )


async def test_dead_letter_is_listed_and_retried_by_the_command(tmp_path: Path) -> None:
    async with (
        ScriptedPeer(AGENT) as peer,
        WebhookReceiver() as receiver,
        run_gateway(tmp_path, {AGENT: peer.url}, webhooks=WEBHOOKS) as gateway,
    ):
        receiver.answer("/hook", 410)
        async with open_caller(gateway) as caller:
            params = caller.write("echo hello")
            push: JsonObject = {"id": "mine", "url": f"{receiver.url}/hook"}
            params["configuration"] = {"taskPushNotificationConfig": push}
            await caller.call("SendMessage", params)

        async def is_listed() -> bool:
            return "1 of them given up" in await ask(gateway, "list")

        await wait_until(is_listed, 20, "it is listed")
        table = (await ask(gateway, "list")).splitlines()
        assert table[0].split() == ["STATE", "REASON", "TRIES", "SINCE", "URL", "DELIVERY"]
        assert table[1].split()[:3] == ["dead", "http_410", "1"]
        (listed,) = json.loads(await ask(gateway, "list", "--json"))["deliveries"]
        assert listed["configId"] == "mine"
        retried = await ask(gateway, "retry", listed["delivery"])
        assert retried.endswith("deliveries: 1 retried\n")
        await receiver.until("/hook", 1)

        async def is_clear() -> bool:
            return (await ask(gateway, "list")).startswith("deliveries: 0 failing")

        await wait_until(is_clear, 20, "nothing fails")
