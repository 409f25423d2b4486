"""A person mutes an agent: pushes wait, what is grave comes, and nothing is answered by it (CHN-6)."""

import asyncio
from typing import cast

import httpx
import pytest

from passerelle.core.ids import shard_of
from passerelle.core.ports.due import DueRow
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.verification.walk import verify_store
from passerelle.runtime.common.clock import SystemClock
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ask, bearer, list_pending, make_answer, read, say
from tests.integration.devices.test_forwarding import (
    PushService,
    make_quiet,
    push,
    read_told,
    run_due,
    start,
    subscribe,
    wait_told,
)
from tests.support.engine import ask as command
from tests.support.raw_channel import RawChannel, open_channel

__all__ = ["push"]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("unhurried"),
    pytest.mark.requirement("CHN-6"),
]

HOUR_MIN = 60
_WITHIN_S = 30


async def mute(at: Instance, who: str = "ada", **body: int) -> httpx.Response:
    return await at.http.put("/v1/mutes/echo", json=body, headers=bearer(who))


async def list_mutes(at: Instance, who: str = "ada") -> list[JsonObject]:
    answer = await at.http.get("/v1/mutes", headers=bearer(who))
    assert answer.status_code == 200, answer.text
    return cast("list[JsonObject]", answer.json()["mutes"])


def find_calm_over(rig: Rig, view: JsonObject, row: str = "q") -> float | None:
    """When a question comes up again that a time of calm has held, in ms; None where it does not."""
    shard = str(view["actionId"]).partition("_")[2][:2]
    due = command(rig.url, "ZSCORE", f"{{{shard}}}:due", f"notify:{view['actionId']}:{row}")
    return cast("float | None", due)


def count_minutes(until: object) -> float:
    return (parse_ms(str(until)) - SystemClock().now_ms()) / 60_000


async def test_pushes_for_a_muted_agent_wait_for_the_end_unless_it_is_grave(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    muted = await mute(at, minutes=20)
    assert muted.status_code == 200, muted.text
    assert 19 < count_minutes(muted.json()["until"]) <= 20
    assert await list_mutes(at) == [muted.json()]
    assert await list_mutes(at, "bob") == [], "whoever mutes mutes for themselves"
    view = await ask(at)
    (told,) = await wait_told(at, view)
    assert (told["outcome"], told["reason"]) == ("suppressed", "muted")
    assert await push.read_seen() == []
    grave = await ask(at, "high")
    (told,) = await wait_told(at, grave)
    assert told["outcome"] == "sent"
    # What was held comes when the mute ends, of which this takes the rest away.
    row = f"notify:{view['actionId']}:q"
    due_ms = find_calm_over(rig, view)
    assert due_ms is not None
    assert abs(due_ms - parse_ms(muted.json()["until"])) < 1
    ended = await at.http.delete("/v1/mutes/echo", headers=bearer("ada"))
    assert (ended.status_code, ended.json()) == (200, {"peer": "echo", "until": None})
    assert await list_mutes(at) == []
    run_due(rig, view, row)
    at.gateway.duties.due.look_again()
    *_, last = await wait_told(at, view, 2)
    assert (last["outcome"], last["attempt"]) == ("sent", 4)
    (told,) = await wait_told(at, await ask(at))
    assert told["outcome"] == "sent"


@pytest.mark.parametrize(("risk", "minutes"), [("low", HOUR_MIN + 1), ("medium", 8 * HOUR_MIN)])
async def test_what_expires_before_its_mute_ends_is_held_too(
    rig: Rig, push: PushService, risk: str, minutes: int
) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    muted = await mute(at, minutes=minutes)
    view = await ask(at, risk)
    assert parse_ms(str(view["expiresAt"])) <= parse_ms(muted.json()["until"])
    (told,) = await wait_told(at, view)
    assert (told["outcome"], told["reason"]) == ("suppressed", "muted")
    assert await push.read_seen() == []
    # Nothing is owed for its end: by then there is no question.
    assert find_calm_over(rig, view) is None
    assert [one["actionId"] for one in await list_pending(at, "ada")] == [view["actionId"]]


async def test_store_whose_clock_is_ahead_is_not_asked_again_and_again(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(20))
    await subscribe(at, push)
    view = await ask(at)
    (told,) = await wait_told(at, view)
    assert told["reason"] == "quiet"
    assert (await mute(at, minutes=20)).status_code == 200
    # The shard of the question thinks that all is over. That of the person knows of a mute still.
    name = f"notify:{view['actionId']}:"
    shard, ahead_ms = shard_of(str(view["actionId"])), SystemClock().now_ms() + 30 * 60_000
    due_ms = find_calm_over(rig, view)
    assert due_ms is not None
    handle = at.gateway.duties.due.handlers["notify"]
    await handle(shard, DueRow(f"{name}q", f"{due_ms:.0f}"), ahead_ms)
    (_, told) = await read_told(at, view)
    assert told["reason"] == "muted"
    again_ms = ahead_ms + 1_000
    assert find_calm_over(rig, view, "q1") == again_ms, (
        "not at once, or it would come due without a pause"
    )
    # By its time no hours are quiet, whatever the gateway's clock says.
    await at.http.delete("/v1/mutes/echo", headers=bearer("ada"))
    await handle(shard, DueRow(f"{name}q1", f"{again_ms}"), again_ms)
    *_, told = await read_told(at, view)
    assert (told["outcome"], told["attempt"]) == ("sent", 4)
    assert find_calm_over(rig, view, "q2") is None


async def test_a_mute_holds_what_expires_after_quiet_hours_but_within_it(
    rig: Rig, push: PushService
) -> None:
    at = await start(rig, push.made["origin"], approvals=make_quiet(10))
    await subscribe(at, push)
    assert (await mute(at, minutes=HOUR_MIN + 1)).status_code == 200
    (told,) = await wait_told(at, await ask(at, "low"))
    assert (told["outcome"], told["reason"]) == ("suppressed", "muted")
    assert await push.read_seen() == []


async def test_a_mute_answers_nothing_and_hides_nothing(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    assert (await mute(at)).status_code == 200
    async with open_channel(str(at.http.base_url).rstrip("/")) as desk:
        await desk.greet("ada-key")
        await desk.send({"t": "sub", "id": "1", "s": "inbox"})
        await desk.expect("live")
        view = await ask(at)
        await hear(desk, view)
    assert [one["actionId"] for one in await list_pending(at, "ada")] == [view["actionId"]]
    now = await read(at, "ada", view["actionId"])
    assert (now["state"], now["rev"], now["expiresAt"]) == ("pending", 1, view["expiresAt"])
    assert not (await verify_store(at.gateway.store)).problems


async def test_a_no_can_mute_the_agent_for_an_hour(rig: Rig, push: PushService) -> None:
    at = await start(rig, push.made["origin"])
    await subscribe(at, push)
    view = await ask(at)
    answer = {**make_answer(view, "no"), "muteMinutes": HOUR_MIN}
    for outcome in ("won", "replayed"):
        said = await say(at, bearer("ada"), answer)
        assert said.json()["outcome"] == outcome, said.text
        (muted,) = await list_mutes(at)
        assert muted["peer"] == "echo"
        assert HOUR_MIN - 1 < count_minutes(muted["until"]) <= HOUR_MIN
    assert (await read(at, "ada", view["actionId"]))["state"] == "rejected"
    # Whoever lost has muted nobody.
    lost = await say(at, bearer("ada"), {**make_answer(view), "muteMinutes": 1})
    assert lost.status_code == 409
    (muted,) = await list_mutes(at)
    assert count_minutes(muted["until"]) > HOUR_MIN - 1


async def hear(desk: RawChannel, view: JsonObject) -> None:
    """Over open links a question comes as ever, among what else there is to tell."""

    def is_shown() -> bool:
        events = [frame["d"] for frame in desk.frames if frame["t"] == "ev"]
        asked = [event for event in events if event["type"] == "action.required"]
        return view["actionId"] in [event["actionId"] for event in asked]

    async with asyncio.timeout(_WITHIN_S):
        while not is_shown():
            await desk.read_more()


async def test_an_endless_mute_is_refused(rig: Rig) -> None:
    at = await start(rig)
    for minutes in (0, 481):
        refused = await mute(at, minutes=minutes)
        assert refused.status_code == 400
    assert await list_mutes(at) == []
