"""A client that is removed from the configuration gets nothing more, also where nothing asks for its credential."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.integration.devices.asking import asks, bearer, list_pending
from tests.integration.devices.test_forwarding import PushService, await_forwarded, push, subscribe
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

__all__ = ["push"]

pytestmark = pytest.mark.anyio

SCOPES = [
    "a2a:call",
    "tasks:read",
    "approvals:read",
    "approvals:decide",
    "devices:manage",
    "channels:connect",
]
ADA: dict[str, object] = {"name": "ada", "kind": "person", "scopes": SCOPES}
BOB: dict[str, object] = {
    **ADA,
    "name": "bob",
    "scopes": [*SCOPES, "runtime:operate", "tasks:operate"],
}
RULE = {
    "name": "both",
    "about": ["asks"],
    "effect": "ask",
    "approvers": {"who": ["ada", "bob"]},
}


@asynccontextmanager
async def run(
    rig: Rig, *clients: dict[str, object], allow: tuple[str, ...] = ("http://127.0.0.1:*",)
) -> AsyncGenerator[Instance]:
    """A gateway with these clients, over the same store as the one before."""
    async with AsyncExitStack() as stack:
        yield await replace(rig, stack=stack).start(
            clients=[*clients],
            webhooks={"allow": [*allow]},
            policy={"rules": [RULE]},
        )


async def ask(one: Instance, number: int) -> JsonObject:
    """Bob's agent asks; the approvers are Ada and Bob."""
    known = [each["actionId"] for each in await list_pending(one, "bob")]
    await one.send("bob-key", asks("low", f"act_{number}"), returnImmediately=True)

    async def find() -> list[JsonObject]:
        return [each for each in await list_pending(one, "bob") if each["actionId"] not in known]

    [view] = await wait_until(find, 20, "the approval is in the inbox of the approvers")
    return view


@pytest.mark.parametrize("left", [None, {**ADA, "scopes": ["a2a:call"]}])
async def test_webhook_of_a_client_without_rights_gets_nothing_more(
    rig: Rig, left: dict[str, object] | None
) -> None:
    async with WebhookReceiver() as receiver:
        async with run(rig, ADA, BOB) as one:
            for who in ("ada", "bob"):
                path, body = "/v1/streams/inbox/webhooks/mine", {"url": f"{receiver.url}/{who}"}
                put = await one.http.put(path, json=body, headers=bearer(who))
                assert put.is_success, put.text
            await ask(one, 1)
            await wait_until(lambda: len(receiver.at("/ada")) > 0, 20, "Ada's webhook gets it")
            await wait_until(lambda: len(receiver.at("/bob")) > 0, 20, "Bob's webhook gets it")
        hers, his = len(receiver.at("/ada")), len(receiver.at("/bob"))
        async with run(rig, BOB, *([left] if left else [])) as one:
            await ask(one, 2)
            await wait_until(lambda: len(receiver.at("/bob")) > his, 20, "Bob's webhook gets it")

            async def find_given_up() -> list[str]:
                listed = await one.http.get("/v1/deliveries", headers=bearer("bob"))
                return [each["delivery"] for each in listed.json()["deliveries"]]

            [given_up] = await wait_until(find_given_up, 20, "the delivery is given up")
            assert len(receiver.at("/ada")) == hers
        async with run(rig, ADA, BOB) as one:
            again = {"delivery": given_up}
            tried = await one.http.post("/v1/deliveries/retry", json=again, headers=bearer("bob"))
            assert tried.is_success, tried.text
            await wait_until(lambda: len(receiver.at("/ada")) > hers, 20, "nothing was lost")


async def test_device_of_a_client_without_rights_gets_no_push(rig: Rig, push: PushService) -> None:
    allowed = ("http://127.0.0.1:*", push.made["origin"])
    async with run(rig, ADA, BOB, allow=allowed) as one:
        await subscribe(one, push)
        await subscribe(one, push, "bob")
        assert await count_pushes(one, await ask(one, 1)) == 2
    async with run(rig, BOB, allow=allowed) as one:
        assert await count_pushes(one, await ask(one, 2)) == 1
        assert len(await push.read_seen()) == 3


async def count_pushes(one: Instance, view: JsonObject) -> int:
    """How many pushes about an approval were sent at first."""
    said = await await_forwarded(one, view)
    return sum(each["outcome"] == "sent" for each in said)


@pytest.mark.parametrize("left", [None, {**ADA, "scopes": ["approvals:read"]}])
async def test_notification_of_a_task_of_a_client_without_rights_is_not_sent(
    rig: Rig, left: dict[str, object] | None
) -> None:
    async with WebhookReceiver() as receiver:
        push = {"url": f"{receiver.url}/ada"}
        async with run(rig, ADA, BOB) as one:
            sent = await one.send(
                "ada-key", "silent", returnImmediately=True, taskPushNotificationConfig=push
            )
            task = sent.json()["result"]["task"]["id"]
            await wait_until(lambda: receiver.at("/ada"), 20, "the webhook gets the first events")
        before = len(receiver.at("/ada"))
        async with run(rig, BOB, *([left] if left else [])) as one:
            stopped = await one.http.post(
                f"/v1/tasks/{task}/cancel", json={}, headers=bearer("bob")
            )
            assert stopped.is_success, stopped.text

            async def find_given_up() -> list[object]:
                listed = await one.http.get("/v1/deliveries", headers=bearer("bob"))
                return list(listed.json()["deliveries"])

            await wait_until(find_given_up, 20, "the delivery is given up")
            assert len(receiver.at("/ada")) == before
