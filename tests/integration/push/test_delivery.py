"""Deliveries: every frame in order and exactly as stored, across failures of the receiver and the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from passerelle.core.batch import EntityKind
from passerelle.core.commands import SetPushConfig
from passerelle.core.principal import OWNER
from passerelle.core.push import PushConfig
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.settings.section import WebhookSettings
from passerelle.protocol.cursor import parse_cursor
from passerelle.runtime.common.secret import Secret
from passerelle.store.replication import ReplicationView
from passerelle.store.retention import Archived, Trimmed
from passerelle.webhooks import job, retries
from passerelle.webhooks.addresses import Address
from passerelle.webhooks.retries import Outcome
from passerelle.webhooks.sender import WebhookSender
from tests.integration.push.rig import Rig, run_rig
from tests.support.engine import Server
from tests.support.resolver import LoopbackResolver
from tests.support.scripted_tasks import Turn
from tests.support.stored_events import rewrite_stream
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import ReceivedRequest, WebhookReceiver

pytestmark = pytest.mark.anyio


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries after milliseconds; the length of the pauses has its own tests."""
    monkeypatch.setattr(retries, "FIRST_PAUSE_MS", 5)


async def frames_of(rig: Rig, task: str) -> list[bytes]:
    """Returns the frames that readers of the task's stream receive."""
    page = await rig.gateway.store.log.read_page(await rig.session_of(task), 0)
    return [
        entry.data[entry.frame[0] : entry.frame[0] + entry.frame[1]]
        for entry in page
        if entry.facade == task and entry.frame
    ]


def last_state(notice: ReceivedRequest) -> str:
    """Returns the state in a notice; "" for one about an artifact."""
    body: dict[str, Any] = notice.body
    (holder,) = body.values()
    return str(holder.get("status", {}).get("state", ""))


async def test_receiver_gets_the_stored_frames_in_order_from_the_first_on(
    rig: Rig,
) -> None:
    task = await rig.begin("chunks 4", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    await rig.until_state(task, "mine", "gone")
    frames = await frames_of(rig, task)
    assert [notice.raw for notice in rig.receiver.at("/hook")] == frames
    assert len(frames) >= 6
    assert "task" in rig.receiver.notices[0].body
    assert last_state(rig.receiver.notices[-1]) == "TASK_STATE_COMPLETED"
    assert len({notice.event_id for notice in rig.receiver.notices}) == len(frames)


@pytest.mark.requirement("CMD-10", "LT-12")
async def test_webhook_of_a_failed_task_gets_nothing_of_its_retry(rig: Rig) -> None:
    async def fail(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status("FAILED", "no index")

    rig.peer.next(fail)
    task = await rig.begin("go", push={"url": f"{rig.receiver.url}/first", "id": "mine"})
    await rig.until_state(task, "mine", "gone")
    delivered = len(rig.receiver.at("/first"))
    rig.peer.hold()
    answer = await rig.http.post(f"/v1/tasks/{task}/retry", json={"reason": "the index is back"})
    assert answer.status_code == 202, answer.text
    again = f"{task}~2"
    await rig.hook(again, "/second", id="mine")
    rig.peer.release_all()
    await rig.until_state(again, "mine", "gone")
    received = rig.receiver.at("/second")
    assert last_state(received[-1]) == "TASK_STATE_COMPLETED"
    assert all(again.encode() in notice.raw for notice in received)
    assert len(rig.receiver.at("/first")) == delivered
    kept = await rig.do("GetTaskPushNotificationConfig", {"taskId": task, "id": "mine"})
    assert kept["url"].endswith("/first")
    assert (await rig.do("GetTask", {"id": task}))["status"]["state"] == "TASK_STATE_FAILED"


@pytest.mark.requirement("LT-7")
async def test_running_task_is_read_followed_listed_cancelled_and_delivered(rig: Rig) -> None:
    """The five ways to use a task, on one running task."""
    task = await rig.held_task()
    await rig.hook(task, id="mine")
    assert (await rig.do("GetTask", {"id": task}))["status"]["state"] in {
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
    }
    listed = (await rig.do("ListTasks", {}))["tasks"]
    assert [one["id"] for one in listed] == [task]
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
    async with rig.http.stream("POST", "/agents/echo", json=body) as answer:
        events = answer.aiter_lines()
        first = [line async for line in _until_data(events)][-1]
        assert f'"id":"{task}"' in first
        await rig.do("CancelTask", {"id": task})
        rest = [line async for line in events if line.startswith("data:")]
    assert "TASK_STATE_CANCELED" in rest[-1]
    await rig.until_state(task, "mine", "gone")
    assert last_state(rig.receiver.notices[-1]) == "TASK_STATE_CANCELED"
    assert (await rig.do("GetTask", {"id": task}))["status"]["state"] == "TASK_STATE_CANCELED"


async def _until_data(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line.startswith("data:"):
            return


async def test_headers_identify_the_delivery_and_carry_the_credentials_of_the_config(
    rig: Rig,
) -> None:
    config: dict[str, Any] = {
        "url": f"{rig.receiver.url}/hook?x=1",
        "id": "my hook",
        "token": "t0ken",
        "authentication": {"scheme": "Bearer", "credentials": "s3cret"},
    }
    await rig.begin("echo hello", push=config)
    (first, *_) = await rig.receiver.until("/hook", 1)
    assert first.headers["Content-Type"] == "application/a2a+json"
    assert first.headers["Authorization"] == "Bearer s3cret"
    assert first.headers["X-A2A-Notification-Token"] == "t0ken"
    config_id, _, event_id = first.headers["X-Passerelle-Delivery"].partition("/")
    assert config_id == "my%20hook"
    assert event_id.startswith("ev_")
    parse_cursor(first.headers["X-Passerelle-Cursor"])
    assert "X-Passerelle-Signature" not in first.headers


async def test_config_set_later_gets_the_frames_after_it(rig: Rig) -> None:
    task = await rig.held_task()
    before = len(await frames_of(rig, task))
    await rig.hook(task, id="mine")
    rig.peer.release_all()
    await rig.until_state(task, "mine", "gone")
    frames = await frames_of(rig, task)
    assert [notice.raw for notice in rig.receiver.at("/hook")] == frames[before:]
    assert 0 < before < len(frames)


def wait(params: JsonObject) -> JsonObject:
    """The configuration of ``params``, for a call that waits."""
    given = cast("JsonObject", params["configuration"])
    return {"configuration": {**given, "returnImmediately": False}}


async def ask_again(turn: Turn) -> None:
    await turn.status("INPUT_REQUIRED", "Which?")


async def test_config_sent_with_a_message_to_a_task_gets_its_answer(rig: Rig) -> None:
    task = await rig.begin("ask Which?")
    await wait_until(lambda: rig.peer.count("SendStreamingMessage") == 1, 15, "the peer was asked")

    async def asked() -> bool:
        found = await rig.do("GetTask", {"id": task})
        return bool(found["status"]["state"] == "TASK_STATE_INPUT_REQUIRED")

    await wait_until(asked, 15, "the peer asks")
    push = {"url": f"{rig.receiver.url}/hook"}
    await rig.do("SendMessage", rig.message("that one", push=push, taskId=task))

    def is_delivered() -> bool:
        taken = rig.receiver.taken("/hook")
        return bool(taken) and last_state(taken[-1]) == "TASK_STATE_COMPLETED"

    await wait_until(is_delivered, 10, "the receiver knows the end")


async def test_config_sent_with_every_message_of_a_task_is_one(rig: Rig) -> None:
    """As the clients of the SDKs send it; the eleventh message would have been refused otherwise."""
    url, task = f"{rig.receiver.url}/hook", ""

    async def send(text: str, **push: Json) -> str:
        rig.peer.next(ask_again)
        said = rig.message(text, push=push, **({"taskId": task} if task else {}))
        found = (await rig.do("SendMessage", {"message": said["message"], **wait(said)}))["task"]
        assert found["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        return str(found["id"])

    for turn in range(12):
        task = await send(f"turn {turn}", url=url, token=f"t-{turn}")
    (config,) = (await rig.do("ListTaskPushNotificationConfigs", {"taskId": task}))["configs"]
    assert (config["url"], config["token"]) == (url, "t-11")
    await send("elsewhere", url=f"{rig.receiver.url}/other")
    assert len((await rig.do("ListTaskPushNotificationConfigs", {"taskId": task}))["configs"]) == 2
    await wait_until(
        lambda: len(rig.receiver.taken("/other")) > 0, 10, "the other receiver is told"
    )
    taken = [one.headers["X-Passerelle-Delivery"] for one in rig.receiver.at("/hook")]
    assert len(taken) == len(set(taken)) > 0
    assert {one.rpartition("/")[0] for one in taken} == {config["id"]}


@pytest.mark.usefixtures("quick")
async def test_order_per_task_holds_under_failures_and_each_event_is_confirmed_once(
    rig: Rig,
) -> None:
    rig.receiver.answer("/hook", 500, 200, 503, 429, 200, 408, 200)
    task = await rig.begin("chunks 4", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    await rig.until_state(task, "mine", "gone")
    taken = rig.receiver.taken("/hook")
    assert [notice.raw for notice in taken] == await frames_of(rig, task)
    everything = [notice.raw for notice in rig.receiver.at("/hook")]
    assert len(everything) == len(taken) + 4
    # A repeat is the failed event, with nothing in between.
    assert [raw for at, raw in enumerate(everything) if raw not in everything[:at]] == [
        notice.raw for notice in taken
    ]
    assert rig.counted("busy") == 4
    sample = rig.gateway.metrics.registry.get_sample_value
    assert (sample("passerelle_delivery_seconds_count", {"kind": "push"}) or 0) >= 4
    assert (sample("passerelle_delivery_seconds_sum", {"kind": "push"}) or 0) > 0


async def test_slow_receiver_delays_only_itself(rig: Rig) -> None:
    rig.receiver.held.add("/slow")
    async with WebhookReceiver() as other:
        task = await rig.begin("chunks 2", push={"url": f"{rig.receiver.url}/slow", "id": "slow"})
        await wait_until(lambda: rig.receiver.waiting == 1, 10, "the slow one waits")
        await rig.begin("chunks 2", push={"url": f"{rig.receiver.url}/same-host"})
        await rig.begin("chunks 2", push={"url": f"{other.url}/other"})
        await rig.receiver.until("/same-host", 4)
        await other.until("/other", 4)
        assert rig.receiver.at("/slow") == []
        rig.receiver.release()
        await rig.until_state(task, "slow", "gone")
        assert len(rig.receiver.at("/slow")) == len(await frames_of(rig, task))


async def test_kill_between_send_and_settle_repeats_one_delivery_with_the_same_event_id(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = rig.gateway.store.targets
    died = asyncio.Event()

    async def die(*_: object, **__: object) -> None:
        died.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(targets, "settle", die)
    task = await rig.begin("chunks 3", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    await asyncio.wait_for(died.wait(), 10)
    assert len(rig.receiver.notices) == 1
    await rig.stop()
    # No gateway may share the loop, which this call blocks: a claim whose reply is read too late hides its row for 10
    # s.
    rig.run_due()
    await rig.start()
    await rig.until_state(task, "mine", "gone")
    frames = await frames_of(rig, task)
    assert [notice.raw for notice in rig.receiver.notices] == [frames[0], *frames]
    first, second = rig.receiver.notices[:2]
    assert first.event_id == second.event_id


async def test_refusals_end_in_a_dead_letter_that_is_retried_from_its_cursor(
    rig: Rig, quick: None
) -> None:
    rig.receiver.answer("/hook", 200, 404, 404, 404)
    task = await rig.begin("chunks 3", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    dead = await rig.until_state(task, "mine", "dead")
    assert dead is not None
    assert (dead.reason, dead.tries, dead.refusals) == ("http_404", 3, 3)
    assert dead.cursor == rig.receiver.notices[0].headers["X-Passerelle-Cursor"]
    assert (await rig.types(task)).count("runtime.warning") == 1
    (listed,) = await rig.deliveries()
    assert (listed["taskId"], listed["configId"], listed["state"]) == (task, "mine", "dead")
    assert listed["reason"] == "http_404"
    assert rig.counted("given_up") == 1
    await retry(rig)
    await rig.until_state(task, "mine", "gone")
    assert [notice.raw for notice in rig.receiver.taken("/hook")] == await frames_of(rig, task)
    assert await rig.deliveries() == []


async def test_receiver_that_answers_gone_is_given_up_at_once(rig: Rig) -> None:
    rig.receiver.answer("/hook", 410)
    task = await rig.begin("chunks 3", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    dead = await rig.until_state(task, "mine", "dead")
    assert dead is not None
    assert (dead.reason, dead.tries) == ("http_410", 1)
    assert len(rig.receiver.notices) == 1


@pytest.mark.usefixtures("quick")
async def test_redirect_is_refused_and_not_followed(rig: Rig) -> None:
    rig.receiver.headers = {"Location": f"{rig.receiver.url}/elsewhere"}
    rig.receiver.answer("/hook", 307, 302, 301)
    task = await rig.begin("chunks 3", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    dead = await rig.until_state(task, "mine", "dead")
    assert dead is not None
    assert dead.reason == "http_301"
    assert rig.receiver.at("/elsewhere") == []


@pytest.mark.usefixtures("quick")
async def test_name_resolving_to_a_private_address_is_refused_on_connect(
    engine_server: Server, tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allow-list has a wildcard and so exempts no name from the address check."""
    sender = partial(WebhookSender, resolver=LoopbackResolver())
    for module in ("assembly", "instance_work"):
        monkeypatch.setattr(f"passerelle.gateway.{module}.WebhookSender", sender)
    webhooks = WebhookSettings(allow=("http://*:*",))
    async with run_rig(engine_server.url, tmp_path, webhooks=webhooks) as rig:
        url = f"http://hooks.example.com:{rig.receiver.url.rpartition(':')[2]}/hook"
        task = await rig.begin("echo x", push={"url": url, "id": "mine"})
        dead = await rig.until_state(task, "mine", "dead")
        assert dead is not None
        assert (dead.reason, dead.refusals) == ("address", 3)
        assert rig.receiver.notices == []


@pytest.mark.usefixtures("quick")
async def test_open_breaker_of_an_origin_is_shared_by_its_targets(rig: Rig) -> None:
    rig.receiver.answer("/a", *[503] * 5)
    task = await rig.begin("chunks 2", push={"url": f"{rig.receiver.url}/a", "id": "mine"})
    await wait_until(lambda: rig.counted("busy") == 5, 10, "the breaker opens")
    other = await rig.begin("chunks 2", push={"url": f"{rig.receiver.url}/b", "id": "other"})
    waiting = await rig.until_state(other, "other", "backoff")
    assert waiting is not None
    assert (waiting.tries, waiting.reason) == (0, "breaker")
    assert rig.receiver.at("/b") == []
    listed = await rig.deliveries()
    assert {one["taskId"] for one in listed} == {task, other}
    paged, token = list[dict[str, Any]](), ""
    for _ in listed:
        page = (
            await rig.http.get("/v1/deliveries", params={"pageSize": 1, "pageToken": token})
        ).json()
        paged += page["deliveries"]
        token = page["nextPageToken"]
    assert ([one["delivery"] for one in paged], token) == ([one["delivery"] for one in listed], "")
    refused = await rig.http.get("/v1/deliveries", params={"pageToken": "nonsense"})
    assert (refused.status_code, refused.json()["field"]) == (400, "pageToken")


async def test_delivery_waits_for_replication_when_there_are_replicas(rig: Rig) -> None:
    nodes = rig.gateway.store.nodes.all
    rig.peer.hold()
    rig.peer.release(1)
    task = await rig.begin("chunks 2", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    await rig.receiver.until("/hook", 1)
    for node in nodes:
        node.replication = ReplicationView(has_replicas=True)
    rig.peer.release_all()
    waiting = await rig.until_state(task, "mine", "backoff")
    assert waiting is not None
    assert (waiting.tries, waiting.reason) == (0, "unconfirmed")
    assert len(rig.receiver.notices) == 1
    for node in nodes:
        node.replication = ReplicationView()
    await rig.until_state(task, "mine", "gone")
    assert [notice.raw for notice in rig.receiver.notices] == await frames_of(rig, task)


@pytest.mark.usefixtures("quick")
async def test_address_no_longer_allowed_is_given_up(rig: Rig) -> None:
    task = await rig.held_task()
    await rig.hook(task, id="mine")
    await rig.restart(webhooks=WebhookSettings(allow=("https://elsewhere.example",)))
    rig.peer.release_all()
    dead = await rig.until_state(task, "mine", "dead")
    assert dead is not None
    assert dead.reason == "address"
    assert rig.receiver.notices == []


@pytest.mark.usefixtures("quick")
async def test_secrets_with_a_lost_key_are_masked_and_nothing_is_sent_without_them(
    rig: Rig,
) -> None:
    task = await rig.held_task()
    await rig.hook(task, id="mine", token="t0ken")
    await rig.restart(secret_key=Secret("11" * 32))
    shown = await rig.do("GetTaskPushNotificationConfig", {"taskId": task, "id": "mine"})
    assert shown["token"] == "***"
    rig.peer.release_all()
    dead = await rig.until_state(task, "mine", "dead")
    assert dead is not None
    assert dead.reason == "secret_key"
    assert rig.receiver.notices == []


async def test_deleted_config_gets_nothing_more(rig: Rig) -> None:
    task = await rig.held_task()
    await rig.hook(task, id="mine")
    await rig.hook(task, "/other", id="other")
    await rig.do("DeleteTaskPushNotificationConfig", {"taskId": task, "id": "mine"})
    rig.peer.release_all()
    await rig.until_state(task, "other", "gone")
    assert rig.receiver.at("/hook") == []
    assert len(rig.receiver.at("/other")) > 0


async def retry(rig: Rig) -> None:
    """Retries the one dead letter."""
    (listed,) = await rig.deliveries()
    answer = await rig.http.post("/v1/deliveries/retry", json={"delivery": listed["delivery"]})
    assert answer.status_code == 202, answer.text


async def test_receiver_far_behind_gets_one_task_instead_of_the_events(rig: Rig) -> None:
    rig.receiver.answer("/hook", 410)
    task = await rig.begin("chunks 150", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    await rig.until_state(task, "mine", "dead")

    async def completed() -> bool:
        found = await rig.do("GetTask", {"id": task})
        return bool(found["status"]["state"] == "TASK_STATE_COMPLETED")

    await wait_until(completed, 20, "the task has ended")
    await retry(rig)
    await rig.until_state(task, "mine", "gone")
    (whole,) = rig.receiver.taken("/hook")
    assert whole.body["task"]["id"] == task
    assert whole.body["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(whole.body["task"]["artifacts"][0]["parts"]) == 150
    assert whole.event_id.startswith("whole.")


async def test_trimmed_stream_gives_a_target_the_task_and_then_the_later_frames(
    rig: Rig,
) -> None:
    rig.receiver.answer("/hook", 410)
    rig.peer.hold()
    rig.peer.release(4)
    task = await rig.begin("chunks 4", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    await rig.until_state(task, "mine", "dead")

    async def shown() -> int:
        return len(await frames_of(rig, task))

    await wait_until(shown, 10, "frames are stored")
    stream = await rig.session_of(task)
    head = await rig.gateway.store.log.read_head(stream)
    assert head is not None
    rewrite_stream(rig.engine_url, stream)
    trimmed = await rig.gateway.store.retention.trim(
        stream.id, head.sequence // 2, Archived("blob:1", "ab" * 32, 1), cap_entries=1
    )
    assert isinstance(trimmed, Trimmed)
    before = await shown()
    await retry(rig)
    (whole,) = await rig.receiver.until("/hook", 1)
    assert whole.body["task"]["id"] == task
    rig.peer.release_all()
    await rig.until_state(task, "mine", "gone")
    _, *rest = rig.receiver.taken("/hook")
    assert [notice.raw for notice in rest] == (await frames_of(rig, task))[-len(rest) :]
    assert len(rest) == len(await frames_of(rig, task)) - before > 0


async def test_message_only_answer_is_delivered_and_leaves_no_target(rig: Rig) -> None:
    params = rig.message("message hi", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    answer = await rig.do("SendMessage", params)
    assert "message" in answer
    (notice,) = await rig.receiver.until("/hook", 1)
    assert notice.body["message"]["parts"] == [{"text": "hi"}]

    async def left() -> bool:
        store = rig.gateway.store
        found = [
            await store.targets.read(await rig.session_of(row)) for row in await _tasks_of(rig)
        ]
        return not any(found)

    await wait_until(left, 10, "no target is left")


async def _tasks_of(rig: Rig) -> list[str]:
    refs = await rig.gateway.store.inspection.list_entities()
    return [ref.id for ref in refs if ref.kind is EntityKind.TASK]


async def test_receiver_of_protocol_0_3_gets_the_task_in_its_form(rig: Rig) -> None:
    task = await rig.held_task()
    config = PushConfig(f"{rig.receiver.url}/hook", "old", dialect="0.3")
    await rig.gateway.parts.service.execute(OWNER, SetPushConfig(task, config, "echo"), None)
    rig.peer.release_all()
    await rig.until_state(task, "old", "gone")
    *earlier, last = rig.receiver.taken("/hook")
    assert all(one.body["status"]["state"] != "completed" for one in earlier), "told once"
    assert last.headers["Content-Type"] == "application/json"
    assert (last.body["kind"], last.body["id"]) == ("task", task)
    assert last.body["status"]["state"] == "completed"
    assert last.body["artifacts"][0]["parts"][0]["kind"] == "text"


@pytest.mark.parametrize("large", [True, False])
async def test_large_requests_to_an_origin_are_sent_one_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    monkeypatch.setattr(job, "LARGE_BYTES", 0 if large else 1_000_000)
    monkeypatch.setattr(job, "_LARGE_AGAIN_MS", 20)
    sending, most = 0, 0
    post = WebhookSender.post

    async def count(
        self: WebhookSender, address: Address, headers: Mapping[str, str], body: bytes
    ) -> Outcome:
        nonlocal sending, most
        is_whole = b'"artifacts"' in body
        sending += is_whole
        most = max(most, sending)
        await asyncio.sleep(0.05)
        try:
            return await post(self, address, headers, body)
        finally:
            sending -= is_whole

    task = await rig.held_task()
    names = ("one", "two", "three", "four")
    for name in names:
        config = PushConfig(f"{rig.receiver.url}/{name}", name, dialect="0.3")
        await rig.gateway.parts.service.execute(OWNER, SetPushConfig(task, config, "echo"), None)
    monkeypatch.setattr(WebhookSender, "post", count)
    rig.peer.release_all()
    for name in names:
        await rig.until_state(task, name, "gone")
        assert rig.receiver.taken(f"/{name}")[-1].body["status"]["state"] == "completed"
    assert (most == 1) is large, most


async def test_operator_sees_every_dead_letter_and_another_caller_none(
    rig: Rig, quick: None
) -> None:
    rig.receiver.answer("/hook", 410)
    other = {"Authorization": "Bearer other-key"}
    params = rig.message("chunks 2", push={"url": f"{rig.receiver.url}/hook", "id": "mine"})
    task = str((await rig.do("SendMessage", params, **other))["task"]["id"])

    async def listed() -> list[dict[str, Any]]:
        return await rig.deliveries()

    (found,) = await wait_until(listed, 10, "the operator sees it")
    assert found["taskId"] == task
    assert [one["taskId"] for one in await rig.deliveries(**other)] == [task]
    rig.receiver.answer("/own", 410)
    await rig.begin("chunks 2", push={"url": f"{rig.receiver.url}/own", "id": "own"})

    async def both() -> bool:
        return len(await rig.deliveries()) == 2

    await wait_until(both, 10, "the operator sees both")
    assert [one["taskId"] for one in await rig.deliveries(**other)] == [task]
    (own,) = [one for one in await rig.deliveries() if one["configId"] == "own"]
    refused = await rig.http.post(
        "/v1/deliveries/retry", json={"delivery": own["delivery"]}, headers=other
    )
    assert refused.status_code == 404
