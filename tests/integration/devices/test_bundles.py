"""Many approvals at once: a person gets one bundled push for them, and each stays a separate approval (CHN-6)."""

from typing import cast

import pytest

from passerelle.core.ids import shard_of
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.verification.walk import verify_store
from passerelle.store import keys
from passerelle.store.pushes import HeldPush
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ask, bearer, list_pending, make_answer, say
from tests.integration.devices.test_forwarding import (
    ADA_KEY,
    PushService,
    await_forwarded,
    make_quiet,
    push,
    read_forwarded,
    start,
    subscribe,
)
from tests.support.engine import ask as command
from tests.support.waiting import wait_until

__all__ = ["push"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("unhurried"),
    pytest.mark.requirement("CHN-6"),
]

DUE = f"{{{ADA_KEY[3:5]}}}:due"
BUNDLE = f"bundle:{ADA_KEY}"
LATE = 10**15


async def start_crowded(rig: Rig, push: PushService, **further: object) -> Instance:
    return await start(rig, push.made["origin"], approvals={"pushes_per_minute": 1, **further})


async def ask_many(at: Instance, count: int) -> list[JsonObject]:
    """Opens ``count`` approvals; each is forwarded once before the next."""
    views: list[JsonObject] = []
    for _ in range(count):
        views.append(await ask(at))
        await await_forwarded(at, views[-1])
    return views


def make_bundle_due(rig: Rig, at: Instance) -> None:
    assert command(rig.url, "ZADD", DUE, "XX", "CH", "1", BUNDLE) == 1, "a bundle is pending"
    at.gateway.duties.due.look_again()


async def is_not_due(rig: Rig) -> bool:
    return command(rig.url, "ZSCORE", DUE, BUNDLE) is None


async def read_outcomes(at: Instance, view: JsonObject) -> list[tuple[object, ...]]:
    forwarded = await read_forwarded(at, view)
    return [(one["outcome"], one.get("reason"), one["attempt"]) for one in forwarded]


async def test_approvals_over_the_rate_are_pushed_as_one_bundle(
    rig: Rig, push: PushService
) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    first, *held, last = await ask_many(at, 4)
    assert await read_outcomes(at, first) == [("sent", None, 1)]
    for view in (*held, last):
        assert await read_outcomes(at, view) == [("suppressed", "bundled", 1)]
    assert len(await list_pending(at, "ada")) == 4, "the inbox is not limited"
    # One of them is decided before any push for it.
    assert (await say(at, bearer("ada"), make_answer(last))).status_code == 200
    make_bundle_due(rig, at)
    for view in held:
        await await_forwarded(at, view, 2)
        assert (await read_outcomes(at, view))[1:] == [("sent", "bundled", 1)]
    alone, bundle = await push.read_seen()
    assert cast("JsonObject", alone["message"])["actionId"] == first["actionId"]
    message = cast("JsonObject", bundle["message"])
    listed = cast("list[JsonObject]", message.pop("questions"))
    assert {str(one["actionId"]) for one in listed} == {str(one["actionId"]) for one in held}
    expires_at = min(str(one["expiresAt"]) for one in held)
    assert message == {
        "title": "2 approvals wait for you",
        "count": 2,
        "risk": "medium",
        "expiresAt": expires_at,
    }
    await wait_until(lambda: is_not_due(rig), 10, "no bundle is pending")
    # Each is decided separately, and its end is pushed to the device that shows the bundle.
    assert (await say(at, bearer("ada"), make_answer(held[0]))).json()["outcome"] == "won"

    async def is_taken_off() -> bool:
        ends = [cast("JsonObject", one["message"]) for one in (await push.read_seen())[2:]]
        return any(one.get("actionId") == held[0]["actionId"] for one in ends)

    await wait_until(is_taken_off, 10, "the device learns of the end")
    left = {str(one["actionId"]) for one in await list_pending(at, "ada")}
    assert left == {str(one["actionId"]) for one in (first, held[1])}
    assert not (await verify_store(at.gateway.store)).problems


async def test_a_held_approval_that_is_alone_gets_its_own_push(rig: Rig, push: PushService) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    _, held, gone = await ask_many(at, 3)
    assert (await say(at, bearer("ada"), make_answer(gone))).status_code == 200
    make_bundle_due(rig, at)
    await await_forwarded(at, held, 2)
    assert await read_outcomes(at, held) == [("suppressed", "bundled", 1), ("sent", None, 1)]
    _, own = await push.read_seen()
    assert cast("JsonObject", own["message"])["actionId"] == held["actionId"]


async def test_a_seen_approval_is_left_out_of_the_bundle(rig: Rig, push: PushService) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    _, seen, *others = await ask_many(at, 4)
    path = f"/v1/approvals/{seen['actionId']}/seen"
    assert (await at.http.post(path, json={"rev": 1}, headers=bearer("ada"))).status_code == 200
    make_bundle_due(rig, at)
    for view in others:
        await await_forwarded(at, view, 2)
    await await_forwarded(at, seen, 3)
    assert (await read_outcomes(at, seen))[-1] == ("suppressed", "seen", 1)
    bundle = cast("JsonObject", (await push.read_seen())[1]["message"])
    assert bundle["count"] == len(others)


async def test_a_seen_approval_is_reminded_of_in_a_bundle_too(rig: Rig, push: PushService) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    (view,) = await ask_many(at, 1)
    path = f"/v1/approvals/{view['actionId']}/seen"
    assert (await at.http.post(path, json={"rev": 1}, headers=bearer("ada"))).status_code == 200
    # Reset the rate window, as if the first push were more than a minute ago.
    command(rig.url, "DEL", keys.pushes(shard_of(ADA_KEY), ADA_KEY))
    await at.gateway.store.bundles.defer(ADA_KEY, HeldPush("act_0", "1"), 1, LATE)
    reminder = HeldPush(str(view["actionId"]), "3")
    assert await at.gateway.store.bundles.defer(ADA_KEY, reminder, 1, LATE) is not None
    make_bundle_due(rig, at)
    forwarded = await await_forwarded(at, view, 3)
    assert (forwarded[-1]["outcome"], forwarded[-1]["attempt"]) == ("sent", 3)


async def test_bundle_in_quiet_hours_waits_for_their_end(rig: Rig, push: PushService) -> None:
    at = await start_crowded(rig, push, **make_quiet(20))
    await subscribe(at, push)
    view = (await ask_many(at, 1))[0]
    held = HeldPush(str(view["actionId"]), "1")
    # Held before the quiet hours began, so the rate count did not consider them.
    await at.gateway.store.bundles.defer(ADA_KEY, HeldPush("act_0", "1"), 1, LATE)
    await at.gateway.store.bundles.defer(ADA_KEY, held, 1, LATE)
    make_bundle_due(rig, at)
    await await_forwarded(at, view, 2)
    assert (await read_outcomes(at, view))[-1] == ("suppressed", "quiet", 1)
    assert await push.read_seen() == []
    shard = str(view["actionId"]).partition("_")[2][:2]
    row = f"notify:{view['actionId']}:q"
    assert command(rig.url, "ZSCORE", f"{{{shard}}}:due", row) is not None
    await wait_until(lambda: is_not_due(rig), 10, "no bundle is pending")
