"""Pairing and revoking a device over HTTP (CHN-8)."""

import asyncio
from typing import cast

import orjson
import pytest
import websockets

from passerelle.core.payloads.device import KeyAlgorithm
from passerelle.core.session.device import CODE_MS
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemClock
from tests.integration.callers.rig import Instance, Rig
from tests.support.paired_device import Keys, PairedDevice

ADA = {
    "name": "ada",
    "kind": "person",
    "scopes": ["approvals:read", "approvals:decide", "channels:connect", "devices:manage"],
}
BEARER = {"Authorization": "Bearer ada-key"}


class LateClock:
    """A clock at which every current code has expired."""

    def now_ms(self) -> int:
        return SystemClock().now_ms() + CODE_MS + 1


async def start(rig: Rig, **settings: object) -> Instance:
    return await rig.start(
        clients=[ADA, {"name": "bot", "kind": "agent", "scopes": ["devices:manage"]}], **settings
    )


async def offer(at: Instance, **said: object) -> str:
    answer = await at.http.post("/v1/devices/pair", json={"name": "phone", **said}, headers=BEARER)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["code"])


async def listed(at: Instance) -> list[dict[str, object]]:
    return cast(
        "list[dict[str, object]]",
        (await at.http.get("/v1/devices", headers=BEARER)).json()["devices"],
    )


@pytest.mark.requirement("CHN-8")
@pytest.mark.parametrize("algorithm", ["Ed25519", "ES256"])
async def test_a_device_is_trusted_after_its_digits_are_confirmed(
    rig: Rig, algorithm: KeyAlgorithm
) -> None:
    at = await start(rig)
    device = PairedDevice(at.http, Keys(algorithm))
    await device.bring(await offer(at))
    assert (await device.get("/v1/approvals")).status_code == 401
    (seen,) = await listed(at)
    assert (seen["state"], seen["digits"], seen["name"]) == ("proven", device.digits, "phone")
    wrong = "000000" if device.digits != "000000" else "111111"
    path = f"/v1/devices/{device.device_id}/confirm"
    assert (await at.http.post(path, json={"digits": wrong}, headers=BEARER)).status_code == 400
    assert (
        await at.http.post(path, json={"digits": device.digits}, headers=BEARER)
    ).status_code == 200
    assert (await device.get("/v1/approvals")).status_code == 200
    (seen,) = await listed(at)
    assert (seen["state"], seen["confirmedBy"]) == ("active", "ada")
    assert "digits" not in seen
    acts = [
        event["payload"]["act"]
        for event in await at.read_home("ada")
        if event["type"] == "policy.changed"
    ]
    assert acts == ["offered", "claimed", "proven", "confirmed"]
    assert not (await verify_store(at.gateway.store)).problems


async def test_a_code_counts_once_even_for_concurrent_claims(rig: Rig) -> None:
    at = await start(rig)
    code = await offer(at)
    answers = await asyncio.gather(*(PairedDevice(at.http).claim(code) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7


async def test_an_unknown_code_and_an_expired_one_get_the_same_answer(rig: Rig) -> None:
    at = await start(rig)
    code = await offer(at)
    strange = await PairedDevice(at.http).claim(f"{code[:-4]}0000")
    broken = await PairedDevice(at.http).claim("nonsense")
    at.gateway.parts.writes.clock, at.gateway.parts.writes.shard_ms = LateClock(), None
    over = await PairedDevice(at.http).claim(code)
    assert strange.status_code == broken.status_code == over.status_code == 404
    assert strange.json()["detail"] == over.json()["detail"]


async def test_a_key_that_did_not_sign_is_refused_and_gets_nothing(rig: Rig) -> None:
    at = await start(rig)
    code = await offer(at)
    device, thief = PairedDevice(at.http), PairedDevice(at.http)
    claimed = (await device.claim(code)).json()
    assert (await thief.prove(code, claimed)).status_code == 401
    assert (await device.prove(code, claimed)).status_code == 200
    # The proof uses the code up: there is no second token for it.
    assert (await device.prove(code, claimed)).status_code == 409


async def test_scopes_of_a_device_are_limited_to_the_granted_and_its_principals(
    rig: Rig,
) -> None:
    at = await start(rig)
    refused = await at.http.post(
        "/v1/devices/pair", json={"name": "x", "scopes": ["runtime:operate"]}, headers=BEARER
    )
    assert (refused.status_code, refused.json()["scope"]) == (403, "runtime:operate")
    device = PairedDevice(at.http)
    await device.pair("ada-key", scopes=["approvals:read"])
    assert (await device.get("/v1/approvals")).status_code == 200
    assert (await device.get("/v1/tasks")).status_code == 403
    offered = await at.http.post("/v1/devices/pair", json={"name": "y"}, headers=device.headers)
    assert offered.status_code == 403


async def test_a_device_with_the_scope_confirms_another_device(rig: Rig) -> None:
    at = await start(rig)
    first = PairedDevice(at.http)
    await first.pair("ada-key", scopes=["approvals:read", "devices:manage"])
    second = PairedDevice(at.http)
    await second.pair(first.token, "watch", scopes=["approvals:read"])
    names = {str(one["name"]): one["confirmedBy"] for one in await listed(at)}
    assert names == {"phone": "ada", "watch": f"ada ({first.device_id})"}


async def test_an_agent_has_no_devices(rig: Rig) -> None:
    at = await start(rig)
    headers = {"Authorization": "Bearer bot-key"}
    assert (
        await at.http.post("/v1/devices/pair", json={"name": "x"}, headers=headers)
    ).status_code == 403


@pytest.mark.requirement("CHN-8")
async def test_a_revoked_device_is_refused_at_once_and_its_socket_closed(rig: Rig) -> None:
    at = await start(rig)
    device = PairedDevice(at.http)
    await device.pair("ada-key")
    url = str(at.http.base_url).replace("http", "ws", 1) + "/v1/channel"
    async with websockets.connect(
        url, subprotocols=[websockets.Subprotocol("passerelle.v1+json")]
    ) as socket:
        hello = {
            "t": "hello",
            "v": 1,
            "device": "anything",
            "role": "device",
            "token": device.token,
        }
        await socket.send(orjson.dumps(hello).decode())
        assert orjson.loads(await socket.recv())["t"] == "welcome"
        gone = await at.http.delete(f"/v1/devices/{device.device_id}", headers=BEARER)
        assert gone.status_code == 200
        assert gone.json()["decisions"] == []
        await asyncio.wait_for(socket.wait_closed(), 15)
        assert socket.close_code == 4504
    assert (await device.get("/v1/approvals")).status_code == 401
    again = await at.http.delete(f"/v1/devices/{device.device_id}", headers=BEARER)
    assert again.status_code == 409


async def test_a_device_is_renamed_and_one_of_another_owner_is_unknown(rig: Rig) -> None:
    at = await start(rig)
    device = PairedDevice(at.http)
    await device.pair("ada-key")
    path = f"/v1/devices/{device.device_id}"
    assert (await at.http.patch(path, json={"name": "desk"}, headers=BEARER)).json()["device"][
        "name"
    ] == "desk"
    assert (await at.http.patch(path, json={"name": "a\nb"}, headers=BEARER)).status_code == 400
    other = await at.http.patch(
        path.replace("dev_", "dev_x"), json={"name": "desk"}, headers=BEARER
    )
    assert other.status_code == 404
