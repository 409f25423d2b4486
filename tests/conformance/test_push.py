"""Push notifications: configs, and deliveries (A2A 1.0 sections 3.1.7 to 3.1.10 and 4.3.3)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from tests.conformance import errors
from tests.conformance.callers import Caller, Json, make_params
from tests.conformance.shapes import check_item, find_state
from tests.conformance.site import Site, write
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.anyio

CREATE = "CreateTaskPushNotificationConfig"
GET = "GetTaskPushNotificationConfig"
LIST = "ListTaskPushNotificationConfigs"
DELETE = "DeleteTaskPushNotificationConfig"


@pytest.fixture
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    async with WebhookReceiver() as started:
        yield started


async def create(caller: Caller, task_id: str, url: str, name: str = "mine") -> Json:
    """A stored config."""
    config = {
        "taskId": task_id,
        "id": name,
        "url": url,
        "authentication": {"scheme": "Bearer", "credentials": "secret-of-the-receiver"},
    }
    return (await caller.call(CREATE, config)).said


def list_asked(task_id: str) -> list[tuple[str, Json]]:
    """The reads of the configs of a task."""
    one: Json = {"taskId": task_id, "id": "mine"}
    return [(GET, one), (LIST, {"taskId": task_id}), (DELETE, one)]


@pytest.mark.kit("PUSH-CREATE-001", "PUSH-CREATE-002", "PUSH-GET-001")
async def test_config_is_stored_unchanged(caller: Caller, receiver: WebhookReceiver) -> None:
    for prefix in ("tck-input-required", "tck-complete-task"):
        task = await caller.make_task(write(prefix))
        made = await create(caller, task["id"], f"{receiver.url}/hook")
        assert (made["id"], made["url"]) == ("mine", f"{receiver.url}/hook")
        found = (await caller.call(GET, {"taskId": task["id"], "id": "mine"})).said
        assert found == made


@pytest.mark.kit("PUSH-GET-002")
async def test_missing_config_is_refused(caller: Caller) -> None:
    task = await caller.make_task(write("tck-input-required"))
    answer = await caller.call(GET, {"taskId": task["id"], "id": "no-such-config"})
    assert answer.refusal is not None
    for operation, named in list_asked("no-such-task"):
        missing = await caller.call(operation, named)
        errors.TASK_NOT_FOUND.check(missing.refused, caller.binding)


@pytest.mark.kit("PUSH-LIST-001")
async def test_list_has_every_config_of_the_task(caller: Caller, receiver: WebhookReceiver) -> None:
    task = await caller.make_task(write("tck-input-required"))
    for name in ("first", "second"):
        await create(caller, task["id"], f"{receiver.url}/{name}", name)
    listed = (await caller.call(LIST, {"taskId": task["id"]})).said["configs"]
    assert sorted(config["id"] for config in listed) == ["first", "second"]


@pytest.mark.kit("PUSH-DEL-001", "PUSH-DEL-002")
async def test_deleted_config_is_gone_and_may_be_deleted_again(
    caller: Caller, receiver: WebhookReceiver
) -> None:
    task = await caller.make_task(write("tck-input-required"))
    await create(caller, task["id"], f"{receiver.url}/hook")
    named = {"taskId": task["id"], "id": "mine"}
    for _ in range(2):
        assert (await caller.call(DELETE, named)).refusal is None
    assert (await caller.call(GET, named)).refusal is not None
    assert not (await caller.call(LIST, {"taskId": task["id"]})).said.get("configs")


@pytest.mark.kit("PUSH-DELIVER-001", "PUSH-DELIVER-002", "PUSH-DELIVER-003")
async def test_receiver_gets_the_stream_items_with_its_own_credential(
    caller: Caller, receiver: WebhookReceiver
) -> None:
    config = {
        "id": "inline",
        "url": f"{receiver.url}/hook",
        "authentication": {"scheme": "Bearer", "credentials": "secret-of-the-receiver"},
    }
    message = write("tck-input-required")
    task = await caller.make_task(message, taskPushNotificationConfig=config)
    await caller.make_task(write("tck-complete-task", taskId=task["id"]))
    await wait_until(lambda: _states(receiver)[-1:] == ["TASK_STATE_COMPLETED"], 10, "the end came")
    for notice in receiver.notices:
        assert notice.headers["Authorization"] == "Bearer secret-of-the-receiver"
        check_item(notice.body)


@pytest.mark.kit("PUSH-CREATE-001")
async def test_config_of_another_caller_is_not_found(
    caller: Caller, site: Site, receiver: WebhookReceiver
) -> None:
    task = await caller.make_task(write("tck-input-required"))
    await create(caller, task["id"], f"{receiver.url}/hook")
    async with site.open_caller(caller.binding, "bob") as bob:
        for operation, named in list_asked(task["id"]):
            refused = (await bob.call(operation, named)).refused
            errors.TASK_NOT_FOUND.check(refused, caller.binding)
    assert (await caller.call(GET, {"taskId": task["id"], "id": "mine"})).refusal is None


@pytest.mark.kit("PUSH-CREATE-001")
async def test_forbidden_address_is_refused(caller: Caller) -> None:
    task = await caller.make_task(write("tck-input-required"))
    for url in ("http://169.254.169.254/latest", "ftp://example.com", "nonsense"):
        config = {"taskId": task["id"], "id": "bad", "url": url}
        refused = (await caller.call(CREATE, config)).refused
        errors.INVALID_PARAMS.check(refused, caller.binding)
    inline = make_params(write("x"), taskPushNotificationConfig={"url": "http://10.0.0.1/hook"})
    refused = (await caller.call("SendMessage", inline)).refused
    errors.INVALID_PARAMS.check(refused, caller.binding)


def _states(receiver: WebhookReceiver) -> list[str]:
    return [state for notice in receiver.notices if (state := find_state(notice.body))]
