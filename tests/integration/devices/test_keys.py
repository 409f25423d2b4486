"""Commands to devices, sent twice with one key: one change, and the same result again (CMD-30)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.integration.callers.rig import Instance, Rig
from tests.support.paired_device import PairedDevice

ADA = {"name": "ada", "kind": "person", "scopes": ["devices:manage", "tasks:read"]}
P256DH = "B" + "A" * 86
SUBSCRIPTION = {
    "endpoint": "https://push.example.com/a",
    "keys": {"p256dh": P256DH, "auth": "A" * 22},
}


async def say(
    at: Instance, key: str, method: str, path: str, body: Mapping[str, object] | None = None
) -> httpx.Response:
    headers = {"Authorization": "Bearer ada-key", "Idempotency-Key": key}
    return await at.http.request(method, f"/v1/devices{path}", json=body, headers=headers)


async def list_acts(at: Instance) -> list[str]:
    events = await at.read_home("ada")
    return [str(event["payload"]["act"]) for event in events if event["type"] == "policy.changed"]


@pytest.mark.requirement("CMD-30")
async def test_every_command_to_a_device_changes_something_once_per_key(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    device = PairedDevice(at.http)
    offer = await say(at, "pair", "POST", "/pair", {"name": "phone"})
    offered: Any = offer.json()
    again: Any = (await say(at, "pair", "POST", "/pair", {"name": "phone"})).json()
    assert (again["repeated"], again["deviceId"]) == (True, offered["deviceId"])
    assert again["code"] is None, "the code is returned once"
    assert await list_acts(at) == ["offered"]
    await device.bring(str(offered["code"]))
    own = f"/{device.device_id}"
    for key, method, path, body, act in (
        ("confirm", "POST", f"{own}/confirm", {"digits": device.digits}, "confirmed"),
        ("rename", "PATCH", own, {"name": "watch"}, "renamed"),
        ("push", "PUT", f"{own}/push", {"subscription": SUBSCRIPTION}, "push_set"),
        ("no-push", "DELETE", f"{own}/push", None, "push_removed"),
        ("revoke", "DELETE", own, None, "revoked"),
    ):
        first = await say(at, key, method, path, body)
        assert first.status_code == 200, first.text
        stored = await list_acts(at)
        assert stored[-1] == act
        second = await say(at, key, method, path, body)
        assert second.status_code == 200, second.text
        assert (first.json()["repeated"], second.json()["repeated"]) == (False, True), act
        assert second.json()["device"] == first.json()["device"]
        assert await list_acts(at) == stored, act


@pytest.mark.requirement("CMD-30")
async def test_a_key_of_a_device_is_bound_to_one_command(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    assert (await say(at, "k", "POST", "/pair", {"name": "phone"})).status_code == 201
    other = await say(at, "k", "POST", "/pair", {"name": "watch"})
    assert other.status_code == 409, other.text
    assert await list_acts(at) == ["offered"]


@pytest.mark.requirement("CMD-30")
async def test_concurrent_equal_commands_are_executed_once(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    device = PairedDevice(at.http)
    await device.bring((await say(at, "p", "POST", "/pair", {"name": "phone"})).json()["code"])
    path, digits = f"/{device.device_id}/confirm", {"digits": device.digits}
    answers = await asyncio.gather(*(say(at, "c", "POST", path, digits) for _ in range(6)))
    assert {answer.status_code for answer in answers} == {200}
    assert (await list_acts(at)).count("confirmed") == 1
