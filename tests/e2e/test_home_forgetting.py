"""Erasure of a person next to a running gateway: devices, grants and rules go; a new person may return."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import httpx
import orjson
import pytest

from tests.e2e.test_forgetting import (
    Person,
    check_store,
    count_changes,
    find_markers,
    find_readable,
    forget,
    has_left_some,
    kill_and_repeat,
    open_site,
)
from tests.integration.devices.asking import asks, make_answer
from tests.integration.devices.test_keys import SUBSCRIPTION
from tests.support.engine_dump import dump_engine
from tests.support.paired_device import PairedDevice
from tests.support.processes import AGENT, Caller, find_engine_url
from tests.support.raw_channel import open_channel
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from passerelle.demo.processes import GatewayProcess

pytestmark = pytest.mark.anyio
ROUNDS = 4
REVOKED = 4504
POLICY = {"grants": {"scope": "owner", "max_uses": 5}}


async def settle(person: Person, token: str) -> PairedDevice:
    """A device with a name and a push endpoint, a grant and a mute, each with a marker."""
    http = person.caller.http
    device = PairedDevice(http)
    await device.pair(token, name=person.mark("device"))
    renamed = await http.patch(
        f"/v1/devices/{device.device_id}", json={"name": person.mark("renamed")}
    )
    assert renamed.is_success, renamed.text
    host = f"{person.mark('push')}.example.com"
    subscription = {**SUBSCRIPTION, "endpoint": f"https://{host}/a"}
    reported = await http.put(
        f"/v1/devices/{device.device_id}/push", json={"subscription": subscription}
    )
    assert reported.is_success, reported.text
    await grant(person, person.mark("grant"), person.mark("why"))
    return device


async def grant(person: Person, title: str, reason: str) -> None:
    """An approval that is answered "always"."""
    subject: Any = {"type": "tool_call", "name": person.mark("tool"), "arguments": {}}
    words = asks("low", f"act_{len(person.markers)}", title=title, subject=subject)
    task = await person.caller.send(words)
    pending = (await person.caller.read("/v1/approvals"))["pending"]
    [option] = [one for one in pending[0]["options"] if one["kind"] == "allow_always"]
    answer = make_answer(pending[0], option["optionId"])
    body = cast("dict[str, Any]", answer) | {"comment": reason}
    action = body.pop("actionId")
    said = await person.caller.http.post(
        f"/v1/approvals/{action}/decision", json=body, headers={"Idempotency-Key": reason}
    )
    assert said.is_success, said.text
    await person.caller.await_end(task["id"])

    async def is_there() -> bool:
        return title in orjson.dumps(await person.caller.read("/v1/grants")).decode()

    await wait_until(is_there, 10, "the grant is written")


async def put_rule(person: Person, read: int) -> None:
    rule = {"name": f"r{read}", "effect": "deny", "when": "action.tool == 'none'"}
    body = {"rules": [{**rule, "reason": person.mark("rule")}]}
    said = await person.caller.http.put("/v1/policy", json=body, headers={"If-Match": f'"{read}"'})
    assert said.is_success, said.text


async def check_closed(gateway: GatewayProcess, folder: Path, token: str, device: str) -> None:
    """Follows with both credentials during the erasure of the owner."""
    async with open_channel(gateway.url) as one, open_channel(gateway.url) as other:
        await one.greet(token, "dev_owner")
        await other.greet(device, "dev_phone")
        await forget(folder, "--owner", "owner", "-y")
        for channel in (one, other):
            assert await channel.read_close() == REVOKED
            assert channel.frames[-1]["code"] == "forgotten"


@pytest.mark.requirement("FGT-4")
async def test_markers_of_an_erased_person_are_gone_and_the_person_returns_as_a_new_one(
    tmp_path: Path,
) -> None:
    async with (
        open_site(tmp_path, "bob", retention={"memory": "5s"}, policy=POLICY) as (gateway, (bob,)),
        httpx.AsyncClient(
            base_url=gateway.url,
            headers={**gateway.authorization, "A2A-Version": "1.0"},
            timeout=20,
        ) as http,
    ):
        owner, devices = Person("owner", Caller(http, AGENT), bob.hook), list[PairedDevice]()
        for number in range(1, ROUNDS + 1):
            for person, token in ((owner, gateway.token), (bob, "bob-key")):
                await person.work()
                device = await settle(person, token)
                devices += [device] if person is owner else []
            await put_rule(owner, number)
        assert len(set(owner.markers)) >= 50
        await wait_until(partial(has_left_some, gateway), 30, "the first sessions have left")
        shown = await read_all(gateway, tmp_path, owner.markers)
        assert set(owner.markers) - shown == set()
        kept = await read_all(gateway, tmp_path, bob.markers)
        counted = await forget(tmp_path, "--owner", "owner", "--dry-run")
        assert f"{ROUNDS} devices, {ROUNDS} grants and 1 edited rule\n" in counted
        assert "the 1 edited rule goes too, for all callers" in counted
        await check_closed(gateway, tmp_path, gateway.token, devices[0].token)
        assert await read_all(gateway, tmp_path / "data", owner.markers) == set()
        assert await read_all(gateway, tmp_path, bob.markers) == kept == set(bob.markers)
        await check_return(owner, bob, devices, gateway)
    await check_store(tmp_path / "data")


async def read_all(gateway: GatewayProcess, folder: Path, markers: list[str]) -> set[str]:
    """The markers that are in the engine, in a file, or in readable sessions."""
    engine = dump_engine(find_engine_url(gateway))
    found = {one for one in markers if one.encode() in engine} | find_markers(folder, markers)
    root = folder if (folder / "data").is_dir() else folder.parent
    return found | (await find_readable(root, markers) if root == folder else set())


async def check_return(
    owner: Person, bob: Person, devices: list[PairedDevice], gateway: GatewayProcess
) -> None:
    """Earlier devices are refused; the person has no data and starts anew."""
    for device in devices:
        refused = await device.get("/v1/approvals")
        assert refused.status_code == 401
        assert "does not belong to a device" in refused.text
    async with open_channel(gateway.url) as channel:
        await channel.greet(gateway.token, "dev_owner")
    assert (await owner.caller.read("/v1/devices"))["devices"] == []
    assert (await owner.caller.read("/v1/grants"))["grants"] == []
    edited = (await owner.caller.read("/v1/policy")).get("edited")
    assert not edited or edited["rules"] == []
    again = await owner.caller.send("hello again")
    assert again["status"]["state"] == "TASK_STATE_COMPLETED"
    await put_rule(owner, 1)
    phone = PairedDevice(owner.caller.http)
    await phone.pair(gateway.token, name="new")
    assert (await phone.get("/v1/approvals")).status_code == 200
    assert len((await bob.caller.read("/v1/devices"))["devices"]) == ROUNDS


@pytest.mark.requirement("FGT-4")
async def test_killed_erasure_of_a_home_is_completed_by_the_next_call(
    tmp_path: Path,
) -> None:
    async with open_site(tmp_path, "ada", "bob", policy=POLICY) as (_, (ada, bob)):
        for person, token in ((ada, "ada-key"), (bob, "bob-key")):
            await settle(person, token)
    changes = await count_changes(tmp_path)
    # The home is erased near the end.
    for step in (changes // 2, changes - 3, changes - 1):
        await kill_and_repeat(tmp_path, f"killed-{step}/data", step, ada.markers)
        kept = await find_readable(tmp_path / f"killed-{step}", bob.markers)
        assert kept == set(bob.markers), step
