"""Push configs: stored by (task, config id), for the owner of the task, with their secrets sealed."""

from __future__ import annotations

from pathlib import Path

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.section import WebhookSettings
from tests.integration.push.rig import Rig, run_rig
from tests.support.engine import Server

pytestmark = pytest.mark.anyio

CREATE = "CreateTaskPushNotificationConfig"
GET = "GetTaskPushNotificationConfig"
LIST = "ListTaskPushNotificationConfigs"
DELETE = "DeleteTaskPushNotificationConfig"
SECRETS = {"token": "t0ken", "authentication": {"scheme": "Bearer", "credentials": "s3cret"}}


async def test_config_is_stored_under_the_given_id_and_read_back_completely(rig: Rig) -> None:
    task = await rig.held_task()
    made = await rig.hook(task, id="mine", **SECRETS)  # type: ignore[arg-type]
    assert made == {"taskId": task, "id": "mine", "url": f"{rig.receiver.url}/hook", **SECRETS}
    assert await rig.do(GET, {"taskId": task, "id": "mine"}) == made
    assert await rig.do(LIST, {"taskId": task}) == {"configs": [made], "nextPageToken": ""}


async def test_secrets_are_sealed_in_the_store(rig: Rig) -> None:
    task = await rig.held_task()
    await rig.hook(task, id="mine", **SECRETS)  # type: ignore[arg-type]
    (loaded,) = await rig.gateway.store.log.load([EntityRef(EntityKind.TASK, task)])
    stored = loaded.fields["pc1:mine"]
    assert b"Bearer" in stored
    assert b"t0ken" not in stored
    assert b"s3cret" not in stored


async def test_config_without_an_id_gets_a_new_one_each_time(rig: Rig) -> None:
    task = await rig.held_task()
    first, second = await rig.hook(task), await rig.hook(task)
    assert first["id"] != second["id"]
    listed = await rig.do(LIST, {"taskId": task})
    assert [one["id"] for one in listed["configs"]] == sorted([first["id"], second["id"]])


async def test_config_set_over_0_3_without_an_id_replaces_that_of_its_url(rig: Rig) -> None:
    task = await rig.held_task()
    older = {"A2A-Version": "0.3"}

    async def put(path: str, token: str) -> str:
        config: JsonObject = {"url": rig.receiver.url + path, "token": token}
        params: JsonObject = {"taskId": task, "pushNotificationConfig": config}
        made = await rig.do("tasks/pushNotificationConfig/set", params, **older)
        return str(made["pushNotificationConfig"]["id"])

    first, other, again = await put("/a", "one"), await put("/b", "two"), await put("/a", "three")
    assert first == again != other
    listed = (await rig.do(LIST, {"taskId": task}))["configs"]
    assert sorted(one["token"] for one in listed) == ["three", "two"]


async def test_repeated_request_creates_no_second_config(rig: Rig) -> None:
    task = await rig.held_task()
    params = {"taskId": task, "url": rig.receiver.url}
    key = {"Idempotency-Key": "once"}
    first, again = [await rig.do(CREATE, dict(params), **key) for _ in range(2)]
    assert first == again
    assert len((await rig.do(LIST, {"taskId": task}))["configs"]) == 1


async def test_same_id_on_two_tasks_is_two_configs(rig: Rig) -> None:
    one, two = await rig.begin("echo a"), await rig.begin("echo b")
    await rig.hook(one, "/one", id="same")
    await rig.hook(two, "/two", id="same")
    assert (await rig.do(GET, {"taskId": one, "id": "same"}))["url"].endswith("/one")
    await rig.do(DELETE, {"taskId": one, "id": "same"})
    assert (await rig.do(GET, {"taskId": two, "id": "same"}))["url"].endswith("/two")


async def test_delete_is_idempotent_and_a_deleted_config_is_not_found(rig: Rig) -> None:
    task = await rig.held_task()
    await rig.hook(task, id="mine")
    for _ in range(2):
        assert await rig.do(DELETE, {"taskId": task, "id": "mine"}) == {}
    assert (await rig.refuse(GET, {"taskId": task, "id": "mine"}))["code"] == -32001
    assert (await rig.do(LIST, {"taskId": task}))["configs"] == []
    assert await rig.target(task, "mine") is None


async def test_eleventh_config_of_a_task_is_refused_and_a_replacement_accepted(rig: Rig) -> None:
    task = await rig.held_task()
    for number in range(10):
        await rig.hook(task, id=f"c{number}")
    error = await rig.refuse(CREATE, {"taskId": task, "url": rig.receiver.url, "id": "c10"})
    assert error["code"] == -32602
    assert "at most 10" in error["message"]
    await rig.hook(task, "/new", id="c3")
    assert (await rig.do(GET, {"taskId": task, "id": "c3"}))["url"].endswith("/new")


async def test_list_is_paged(rig: Rig) -> None:
    task = await rig.held_task()
    for number in range(5):
        await rig.hook(task, id=f"c{number}")
    seen: list[str] = []
    token = ""
    for _ in range(3):
        page = await rig.do(LIST, {"taskId": task, "pageSize": 2, "pageToken": token})
        seen += [config["id"] for config in page["configs"]]
        token = page["nextPageToken"]
    assert seen == [f"c{number}" for number in range(5)]
    assert token == ""


async def test_task_of_another_owner_equals_an_unknown_one(rig: Rig) -> None:
    task = await rig.held_task()
    await rig.hook(task, id="mine")
    stranger = {"Authorization": "Bearer other-key"}
    for method, params in (
        (CREATE, {"taskId": task, "url": rig.receiver.url}),
        (GET, {"taskId": task, "id": "mine"}),
        (LIST, {"taskId": task}),
        (DELETE, {"taskId": task, "id": "mine"}),
    ):
        known = await rig.refuse(method, dict(params), **stranger)
        unknown = await rig.refuse(method, {**params, "taskId": "task_nobody"}, **stranger)
        assert (known["code"], unknown["code"]) == (-32001, -32001)
    assert (await rig.do(GET, {"taskId": task, "id": "mine"}))["id"] == "mine"


async def test_config_on_an_ended_task_is_stored_and_gets_nothing(rig: Rig) -> None:
    done = (await rig.do("SendMessage", {"message": rig.message("echo done")["message"]}))["task"]
    await rig.hook(done["id"], id="late")
    assert (await rig.do(GET, {"taskId": done["id"], "id": "late"}))["id"] == "late"
    assert await rig.target(done["id"], "late") is None
    assert rig.receiver.notices == []


async def test_config_on_an_ended_task_gets_the_final_task_if_configured(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    webhooks = WebhookSettings(allow=("http://127.0.0.1:*",), deliver_final=True)
    async with run_rig(engine_server.url, tmp_path, webhooks=webhooks) as rig:
        params = {"message": rig.message("echo done")["message"]}
        done = (await rig.do("SendMessage", params))["task"]
        await rig.hook(done["id"], id="late")
        (notice,) = await rig.receiver.until("/hook", 1)
        assert notice.body["task"]["id"] == done["id"]
        assert notice.body["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        await rig.until_state(done["id"], "late", "gone")
        assert len(rig.receiver.notices) == 1


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.com/x", "absolute http or https"),
        ("/relative", "absolute http or https"),
        ("http://user:secret@127.0.0.1:1/", "credentials"),
        ("https://example.com/", "not on the allow-list"),
        ("http://localhost:1/", "not on the allow-list"),
        ("http://10.0.0.1/", "not on the allow-list"),
    ],
)
async def test_forbidden_address_is_refused_when_it_is_set(rig: Rig, url: str, why: str) -> None:
    task = await rig.held_task()
    error = await rig.refuse(CREATE, {"taskId": task, "url": url})
    assert error["code"] == -32602
    assert why in error["message"]
    assert "secret" not in str(error)
    inline = rig.message("echo x", push={"url": url})
    sent = rig.peer.count("SendStreamingMessage") + rig.peer.count("SendMessage")
    assert (await rig.refuse("SendMessage", inline))["code"] == -32602
    assert rig.peer.count("SendStreamingMessage") + rig.peer.count("SendMessage") == sent


async def test_without_a_secret_key_push_is_off_with_a_clear_error(
    engine_server: Server, tmp_path: Path, anyio_backend: str
) -> None:
    async with run_rig(engine_server.url, tmp_path, secret_key=None) as rig:
        task = await rig.held_task()
        for method, params in (
            (CREATE, {"taskId": task, "url": rig.receiver.url}),
            (GET, {"taskId": task, "id": "mine"}),
            (LIST, {"taskId": task}),
            (DELETE, {"taskId": task, "id": "mine"}),
        ):
            error = await rig.refuse(method, dict(params))
            assert error["code"] == -32003
            assert "secret_key" in error["message"]
        inline = rig.message("echo x", push={"url": rig.receiver.url})
        assert (await rig.refuse("SendMessage", inline))["code"] == -32003


async def test_config_survives_a_restart(rig: Rig) -> None:
    task = await rig.held_task()
    made = await rig.hook(task, id="mine", **SECRETS)  # type: ignore[arg-type]
    await rig.restart()
    assert await rig.do(GET, {"taskId": task, "id": "mine"}) == made


async def test_http_json_has_the_same_configs(rig: Rig) -> None:
    task = await rig.held_task()
    base = f"/agents/echo/tasks/{task}/pushNotificationConfigs"
    made = await rig.http.post(base, json={"id": "mine", "url": rig.receiver.url})
    assert made.status_code == 200
    assert made.json()["id"] == "mine"
    assert (await rig.http.get(f"{base}/mine")).json() == made.json()
    assert (await rig.http.get(base)).json()["configs"] == [made.json()]
    assert (await rig.http.delete(f"{base}/mine")).status_code == 200
    assert (await rig.http.get(f"{base}/mine")).status_code == 404


async def test_card_shows_whether_push_is_on(rig: Rig) -> None:
    for key, is_on in ((rig.settings.secret_key, True), (None, False)):
        await rig.restart(secret_key=key)
        card = (await rig.http.get("/agents/echo/.well-known/agent-card.json")).json()
        assert card["capabilities"]["pushNotifications"] is is_on
