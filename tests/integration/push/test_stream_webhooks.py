"""Webhooks on streams: complete, in order, signed, and never with a hole (CHN-1, EXT-8, I8)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any, Final, cast

import httpx
import orjson
import pytest

from passerelle.core.errors import StoreUnavailable
from passerelle.core.payloads.channel import ChannelMessage
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import OWNER
from passerelle.runtime.records.places import name_home
from passerelle.store import keys
from passerelle.store.targets import Target
from passerelle.webhooks import retries, stream
from tests.integration.push.rig import Rig
from tests.support.engine import ask
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import ReceivedRequest

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("EXT-8")]
SECRET: Final = "whsec_" + base64.b64encode(b"k" * 32).decode()
PATH: Final = "/stream"
OTHER: Final = {"Authorization": "Bearer other-key"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries after milliseconds."""
    monkeypatch.setattr(retries, "FIRST_PAUSE_MS", 5)


class Hook:
    """A webhook on the session of a task, or on the task."""

    def __init__(self, rig: Rig, name: str, session: str) -> None:
        self.rig = rig
        self.name = name
        self.ref = StreamRef(StreamKind.SESSION, session)
        self.path = f"/v1/streams/{name}/webhooks/mine"

    async def set(self, *, status: int = 200, **members: object) -> dict[str, Any]:
        body = {"url": self.rig.receiver.url + PATH, **members}
        response = await self.rig.http.put(self.path, json=body)
        assert response.status_code == status, response.text
        return cast("dict[str, Any]", response.json())

    async def stored(self) -> list[bytes]:
        """Returns the stored envelopes in the plain view of the session."""
        page = await self.rig.gateway.store.log.read_page(self.ref, 0, 1_000)
        return [one.data for one in page if not one.type.startswith("reasoning.")]

    async def target(self) -> Target | None:
        return await self.rig.gateway.store.targets.find(self.ref, f"stream:{self.ref.id}:mine")

    async def until_state(self, state: str) -> None:
        async def look() -> bool:
            target = await self.target()
            return (target.state if target else "gone") == state

        await wait_until(look, 10, f"the webhook is {state}")

    async def until_ended(self) -> None:
        """Waits until the task has ended."""

        async def look() -> bool:
            return any(b'"task.completed"' in one for one in await self.stored())

        await wait_until(look, 10, "the task has ended")

    async def until_whole(self, since: int = 0) -> list[bytes]:
        """Waits until all stored events after the first ``since`` are delivered; returns the delivered ones."""
        await self.until_ended()

        async def look() -> bool:
            return len(read_events(self.rig)) >= len(await self.stored()) - since

        await wait_until(look, 10, "everything has come")
        return read_events(self.rig)

    async def list_channel_facts(self) -> list[dict[str, Any]]:
        """Returns the channel facts in the home session."""
        home = StreamRef(StreamKind.SESSION, name_home(OWNER))
        page = await self.rig.gateway.store.log.read_page(home, 0, 1_000)
        found = [orjson.loads(one.data) for one in page if one.type.startswith("channel.")]
        return [{"type": one["type"], **one["payload"]} for one in found]


async def begin(rig: Rig, *, of_task: bool = False) -> tuple[str, Hook]:
    """Starts a task whose agent waits until it is released."""
    task = await rig.held_task()
    session = (await rig.session_of(task)).id
    return task, Hook(rig, f"task:{task}" if of_task else f"session:{session}", session)


def read_events(rig: Rig) -> list[bytes]:
    """Returns the envelopes of all accepted batches, byte for byte."""
    batches = [one for one in rig.receiver.taken(PATH) if one.body["kind"] == "events"]
    return [orjson.dumps(event) for one in batches for event in one.body["events"]]


def verify(notice: ReceivedRequest, secret: str = SECRET) -> bool:
    """Verifies a notice like a receiver of the standard (Standard Webhooks, v1)."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    stamp = f"{notice.headers['webhook-id']}.{notice.headers['webhook-timestamp']}.".encode()
    mac = hmac.new(key, stamp + notice.raw, hashlib.sha256).digest()
    return notice.headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"


async def test_all_events_are_delivered_in_order_in_signed_consecutive_batches(rig: Rig) -> None:
    _, hook = await begin(rig)
    before = len(await hook.stored())
    answer = await hook.set(secret=SECRET)
    assert "secret" not in answer or answer["secret"] is None
    rig.peer.release_all()
    events = await hook.until_whole(before)
    await hook.until_state("live")
    assert events == (await hook.stored())[before:]
    notices = rig.receiver.taken(PATH)
    assert all(verify(one) for one in notices)
    cursors = [(one.body["from"], one.body["cursor"]) for one in notices]
    assert [since for since, _ in cursors[1:]] == [cursor for _, cursor in cursors[:-1]]
    assert {one.body["stream"] for one in notices} == {hook.name}
    assert len({one.headers["webhook-id"] for one in notices}) == len(notices)
    [connected] = [
        one for one in await hook.list_channel_facts() if one["type"] == "channel.connected"
    ]
    assert (connected["transport"], connected["channelId"]) == ("webhook", answer["channelId"])


async def test_task_webhook_gets_only_its_events_in_bounded_batches(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BATCH_EVENTS", 2)
    task, hook = await begin(rig, of_task=True)
    await hook.set(secret=SECRET)
    rig.peer.release_all()
    await rig.begin("chunks 1")

    def has_ended() -> bool:
        return any(b"task.completed" in one for one in read_events(rig))

    await wait_until(has_ended, 10, "the end of the task has come")
    assert {orjson.loads(one)["taskId"] for one in read_events(rig)} == {task}
    assert {len(one.body["events"]) for one in rig.receiver.taken(PATH)} <= {1, 2}


@pytest.mark.usefixtures("quick")
async def test_failing_receiver_gets_the_rest_again(rig: Rig) -> None:
    _, hook = await begin(rig)
    before = len(await hook.stored())
    await hook.set(secret=SECRET)
    rig.receiver.held.add(PATH)
    rig.peer.release_all()
    await wait_until(lambda: rig.receiver.waiting, 10, "a batch is on its way")
    await hook.until_ended()
    rig.receiver.answer(PATH, 503, 500)
    rig.receiver.release()
    await hook.until_whole(before)
    assert read_events(rig) == (await hook.stored())[before:]


@pytest.mark.usefixtures("quick")
async def test_response_can_acknowledge_a_part_of_the_batch(rig: Rig) -> None:
    _, hook = await begin(rig)
    before = len(await hook.stored())
    await hook.set(secret=SECRET)
    rig.receiver.held.add(PATH)
    rig.peer.release_all()
    await wait_until(lambda: rig.receiver.waiting, 10, "the first batch is on its way")
    await hook.until_ended()
    # The first batch is acknowledged, of the second only its first event, of the third none.
    page = await rig.gateway.store.log.read_page(hook.ref, 0, 1_000)
    rig.receiver.said[PATH].extend(["", "?", '{"ack":"0000000b.1.00000000"}'])
    rig.receiver.release()
    await wait_until(lambda: rig.receiver.at(PATH), 10, "the first batch is taken")
    first = rig.receiver.at(PATH)[0].body
    expected = len(page) - before
    await hook.until_whole(before)
    got = [orjson.loads(one)["sequence"] for one in read_events(rig)]
    assert got[: len(first["events"])] == [one["sequence"] for one in first["events"]]
    assert sorted(set(got)) == [one.sequence for one in page[before:]]
    assert len(set(got)) == expected


@pytest.mark.usefixtures("quick")
async def test_refusing_receiver_is_a_dead_letter_that_is_reported_and_can_be_retried(
    rig: Rig,
) -> None:
    _, hook = await begin(rig)
    before = len(await hook.stored())
    answer = await hook.set(secret=SECRET)
    rig.receiver.answer(PATH, *[403] * retries.MOST_REFUSALS)
    rig.peer.release_all()
    await hook.until_state("dead")
    [message] = [one for one in await hook.list_channel_facts() if one["type"] == "channel.message"]
    assert (message["channelId"], message["direction"]) == (answer["channelId"], "out")
    assert (message["kind"], message["code"]) == ("status", "webhook_given_up")
    [stuck] = await rig.deliveries()
    assert (stuck["state"], stuck["subject"]) == ("dead", hook.name)
    assert await rig.deliveries(**OTHER) == []
    retried = await rig.http.post("/v1/deliveries/retry", json={"delivery": stuck["delivery"]})
    assert retried.status_code == 202
    await hook.until_whole(before)
    assert read_events(rig) == (await hook.stored())[before:]


async def test_receiver_that_answers_gone_is_removed(rig: Rig) -> None:
    _, hook = await begin(rig)
    await hook.set(secret=SECRET)
    rig.receiver.answer(PATH, 410)
    rig.peer.release_all()
    await hook.until_state("gone")

    async def is_reported() -> list[dict[str, Any]]:
        return [
            one for one in await hook.list_channel_facts() if one["type"] == "channel.disconnected"
        ]

    [ended] = await wait_until(is_reported, 15, "its end is reported") or []
    assert ended["reason"] == "refused"
    listed = await rig.http.get(f"/v1/streams/{hook.name}/webhooks")
    assert listed.json() == {"webhooks": []}


async def test_invalid_cursor_is_a_gap_and_then_the_delivery_continues(rig: Rig) -> None:
    _, hook = await begin(rig)
    await hook.set(secret=SECRET)
    assert rig.settings.redis_url is not None
    targets = keys.stream_targets(hook.ref)
    name = f"stream:{hook.ref.id}:mine"
    lost = f"live|*|0|{'0000000b.7.00000000'}|0|0|"
    ask(rig.settings.redis_url.get_secret_value(), "HSET", targets, name, lost)
    rig.peer.release_all()
    await hook.until_state("live")
    gap = (await rig.receiver.until(PATH, 1))[0]
    assert verify(gap)
    assert (gap.body["kind"], gap.body["why"], gap.body["from"]) == (
        "gap", "epoch", "0000000b.7.00000000",
    )  # fmt: skip
    state = await rig.http.get(gap.body["snapshot"])
    assert state.status_code == httpx.codes.OK

    async def has_all() -> bool:
        head, target = await rig.gateway.store.log.read_head(hook.ref), await hook.target()
        assert head is not None
        assert target is not None
        return target.cursor == f"{head.epoch}.{head.sequence}.{head.chain}"

    await wait_until(has_all, 10, "it has gone on")
    batches = [one.body for one in rig.receiver.taken(PATH)]
    assert [one["from"] for one in batches[1:]] == [one["cursor"] for one in batches[:-1]]


@pytest.mark.requirement("SNAP-13")
async def test_webhook_requires_access_to_the_stream_and_an_allowed_address(
    rig: Rig,
) -> None:
    _, hook = await begin(rig)
    url = {"url": rig.receiver.url + PATH}
    for method in ("put", "delete"):
        given = {"json": url} if method == "put" else {}
        answer = await getattr(rig.http, method)(hook.path, headers=OTHER, **given)
        assert answer.status_code == httpx.codes.NOT_FOUND
    answer = await rig.http.get(f"/v1/streams/{hook.name}/webhooks", headers=OTHER)
    assert answer.status_code == httpx.codes.NOT_FOUND
    refused = await hook.set(status=400, url="http://169.254.169.254/latest")
    assert refused["field"] == "url"
    made = await hook.set()
    assert made["secret"].startswith("whsec_")
    assert (await hook.set()).get("secret") is None
    listed = (await rig.http.get(f"/v1/streams/{hook.name}/webhooks")).json()["webhooks"]
    assert [(one["webhookId"], one["state"]) for one in listed] == [("mine", "live")]
    assert made["secret"] not in str(listed)
    summary = (await rig.http.get(f"/v1/sessions/{hook.ref.id}/channels")).json()
    [link] = summary["webhooks"]
    assert (link["channelId"], link["subject"]) == (made["channelId"], hook.name)
    assert link["acknowledged"] == int(listed[0]["cursor"].split(".")[1])
    for number in range(9):
        path = f"/v1/streams/{hook.name}/webhooks/w{number}"
        assert (await rig.http.put(path, json=url)).status_code == httpx.codes.OK
    assert (
        await rig.http.put(f"/v1/streams/{hook.name}/webhooks/more", json=url)
    ).status_code == 400
    assert (await rig.http.delete(hook.path)).status_code == httpx.codes.OK
    assert (await rig.http.delete(hook.path)).status_code == httpx.codes.OK
    await hook.until_state("gone")


class InboxHook(Hook):
    """A webhook on the inbox of the owner."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig, "inbox", name_home(OWNER))
        self.inbox = StreamRef(StreamKind.INBOX, OWNER.key)

    async def target(self) -> Target | None:
        name = f"stream:{self.ref.id}:mine:{OWNER.key}"
        return await self.rig.gateway.store.targets.find(self.inbox, name)

    async def entries(self) -> list[bytes]:
        page = await self.rig.gateway.store.log.read_page(self.inbox, 0, 1_000)
        return [one.data for one in page]

    async def record_messages(self, *texts: str) -> None:
        """Records channel facts, which reach the inbox through the home session."""
        home = self.rig.gateway.parts.links.webhooks.home
        for text in texts:
            await home.record(OWNER, ChannelMessage("ch_a", "status", "out", "word", text))

    async def until_last(self, text: str) -> list[bytes]:
        """Waits until the notice is delivered; returns all delivered events."""
        wanted = orjson.dumps(text)
        await wait_until(
            lambda: any(wanted in one for one in read_events(self.rig)), 20, f"{text} has come"
        )
        return read_events(self.rig)


@pytest.mark.requirement("CHN-1", "EXT-8", "I8")
async def test_inbox_is_delivered_completely_and_in_order_from_the_webhook_on(rig: Rig) -> None:
    hook = InboxHook(rig)
    answer = await hook.set(secret=SECRET)
    assert answer["stream"] == "inbox"
    await hook.record_messages("one", "two")
    await hook.until_last("two")
    await rig.restart()
    await hook.record_messages("three")
    events = await hook.until_last("three")
    stored = await hook.entries()
    begins = stored.index(events[0])
    assert events == stored[begins : begins + len(events)]
    assert all(verify(one) for one in rig.receiver.taken(PATH))
    cursors = [(one.body["from"], one.body["cursor"]) for one in rig.receiver.taken(PATH)]
    assert [since for since, _ in cursors[1:]] == [cursor for _, cursor in cursors[:-1]]
    listed = (await rig.http.get("/v1/streams/inbox/webhooks")).json()["webhooks"]
    assert [(one["webhookId"], one["state"]) for one in listed] == [("mine", "live")]
    summary = await rig.http.get(f"/v1/sessions/{name_home(OWNER)}/channels")
    assert "inbox" in {one["subject"] for one in summary.json()["webhooks"]}
    assert (await rig.http.delete(hook.path)).status_code == 200
    await hook.until_state("gone")
    kinds = [one["type"] for one in await hook.list_channel_facts()]
    assert (kinds[0], kinds[-1]) == ("channel.connected", "channel.disconnected")


async def test_inbox_webhook_interrupted_by_a_crash_is_completed_by_its_row(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = InboxHook(rig)
    webhooks = type(rig.gateway.parts.links.webhooks)

    async def crash(*_: object) -> None:
        raise StoreUnavailable("gone in the middle", "no")

    with monkeypatch.context() as broken:
        broken.setattr(webhooks, "start", crash)
        await hook.set(status=503, secret=SECRET)
        assert await hook.target() is None
    await hook.until_state("live")
    await hook.record_messages("after all")
    await hook.until_last("after all")


@pytest.mark.usefixtures("quick")
async def test_cursor_of_a_rebuilt_inbox_is_a_gap(rig: Rig) -> None:
    hook = InboxHook(rig)
    await hook.set(secret=SECRET)
    await hook.record_messages("one")
    await hook.until_last("one")
    await hook.until_state("live")
    head = keys.head(hook.inbox)
    assert rig.settings.redis_url is not None
    ask(rig.settings.redis_url.get_secret_value(), "HSET", head, "epoch", "0000abcd")
    await hook.record_messages("two")

    def gaps() -> list[dict[str, Any]]:
        return [one.body for one in rig.receiver.taken(PATH) if one.body["kind"] == "gap"]

    await wait_until(gaps, 20, "the gap is delivered")
    assert gaps()[0]["snapshot"] == "/v1/streams/inbox/snapshot"
    assert gaps()[0]["why"] == "epoch"


async def test_caller_without_the_scope_to_read_approvals_gets_no_inbox_webhook(rig: Rig) -> None:
    refused = await rig.http.put(
        "/v1/streams/inbox/webhooks/mine", json={"url": rig.receiver.url + PATH}, headers=OTHER
    )
    assert refused.status_code == 403
