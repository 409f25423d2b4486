"""Many questions at once: a person gets one bundle of them, and each stays a question of its own (CHN-6)."""

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
    make_quiet,
    push,
    read_told,
    start,
    subscribe,
    wait_told,
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
    """So many questions, each once its first attempt is recorded."""
    views: list[JsonObject] = []
    for _ in range(count):
        views.append(await ask(at))
        await wait_told(at, views[-1])
    return views


def bundle_comes_due(rig: Rig, at: Instance) -> None:
    assert command(rig.url, "ZADD", DUE, "XX", "CH", "1", BUNDLE) == 1, "a bundle is owed"
    at.gateway.duties.due.look_again()


async def not_owed(rig: Rig) -> bool:
    return command(rig.url, "ZSCORE", DUE, BUNDLE) is None


async def read_outcomes(at: Instance, view: JsonObject) -> list[tuple[object, ...]]:
    told = await read_told(at, view)
    return [(one["outcome"], one.get("reason"), one["attempt"]) for one in told]


async def test_beyond_the_first_few_questions_a_minute_there_is_one_bundle(
    rig: Rig, push: PushService
) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    first, *held, last = await ask_many(at, 4)
    assert await read_outcomes(at, first) == [("sent", None, 1)]
    for view in (*held, last):
        assert await read_outcomes(at, view) == [("suppressed", "bundled", 1)]
    assert len(await list_pending(at, "ada")) == 4, "inboxes know no crowd"
    # One of them ends before anybody was told of it.
    assert (await say(at, bearer("ada"), make_answer(last))).status_code == 200
    bundle_comes_due(rig, at)
    for view in held:
        await wait_told(at, view, 2)
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
    await wait_until(lambda: not_owed(rig), 10, "nothing is owed any more")
    # Each is answered by itself, and its end is told to the device that shows the bundle.
    assert (await say(at, bearer("ada"), make_answer(held[0]))).json()["outcome"] == "won"

    async def is_taken_off() -> bool:
        ends = [cast("JsonObject", one["message"]) for one in (await push.read_seen())[2:]]
        return any(one.get("actionId") == held[0]["actionId"] for one in ends)

    await wait_until(is_taken_off, 10, "the device learns of the end")
    left = {str(one["actionId"]) for one in await list_pending(at, "ada")}
    assert left == {str(one["actionId"]) for one in (first, held[1])}
    assert not (await verify_store(at.gateway.store)).problems


async def test_held_question_that_is_left_alone_gets_a_push_of_its_own(
    rig: Rig, push: PushService
) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    _, held, gone = await ask_many(at, 3)
    assert (await say(at, bearer("ada"), make_answer(gone))).status_code == 200
    bundle_comes_due(rig, at)
    await wait_told(at, held, 2)
    assert await read_outcomes(at, held) == [("suppressed", "bundled", 1), ("sent", None, 1)]
    _, own = await push.read_seen()
    assert cast("JsonObject", own["message"])["actionId"] == held["actionId"]


async def test_who_has_seen_what_was_held_hears_of_the_rest(rig: Rig, push: PushService) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    _, seen, *others = await ask_many(at, 4)
    path = f"/v1/approvals/{seen['actionId']}/seen"
    assert (await at.http.post(path, json={"rev": 1}, headers=bearer("ada"))).status_code == 200
    bundle_comes_due(rig, at)
    for view in others:
        await wait_told(at, view, 2)
    await wait_told(at, seen, 3)
    assert (await read_outcomes(at, seen))[-1] == ("suppressed", "seen", 1)
    bundle = cast("JsonObject", (await push.read_seen())[1]["message"])
    assert bundle["count"] == len(others)


async def test_who_has_seen_a_question_is_reminded_of_it_in_a_bundle_too(
    rig: Rig, push: PushService
) -> None:
    at = await start_crowded(rig, push)
    await subscribe(at, push)
    (view,) = await ask_many(at, 1)
    path = f"/v1/approvals/{view['actionId']}/seen"
    assert (await at.http.post(path, json={"rev": 1}, headers=bearer("ada"))).status_code == 200
    # Its first push was more than a minute ago, so the reminder is counted anew.
    command(rig.url, "DEL", keys.pushes(shard_of(ADA_KEY), ADA_KEY))
    await at.gateway.store.bundles.defer(ADA_KEY, HeldPush("act_0", "1"), 1, LATE)
    reminder = HeldPush(str(view["actionId"]), "3")
    assert await at.gateway.store.bundles.defer(ADA_KEY, reminder, 1, LATE) is not None
    bundle_comes_due(rig, at)
    told = await wait_told(at, view, 3)
    assert (told[-1]["outcome"], told[-1]["attempt"]) == ("sent", 3)


async def test_bundle_that_falls_into_quiet_hours_waits_for_their_end(
    rig: Rig, push: PushService
) -> None:
    at = await start_crowded(rig, push, **make_quiet(20))
    await subscribe(at, push)
    view = (await ask_many(at, 1))[0]
    held = HeldPush(str(view["actionId"]), "1")
    # Held before the hours began: whoever counted then knew of none.
    await at.gateway.store.bundles.defer(ADA_KEY, HeldPush("act_0", "1"), 1, LATE)
    await at.gateway.store.bundles.defer(ADA_KEY, held, 1, LATE)
    bundle_comes_due(rig, at)
    await wait_told(at, view, 2)
    assert (await read_outcomes(at, view))[-1] == ("suppressed", "quiet", 1)
    assert await push.read_seen() == []
    shard = str(view["actionId"]).partition("_")[2][:2]
    row = f"notify:{view['actionId']}:q"
    assert command(rig.url, "ZSCORE", f"{{{shard}}}:due", row) is not None
    await wait_until(lambda: not_owed(rig), 10, "nothing is owed any more")
