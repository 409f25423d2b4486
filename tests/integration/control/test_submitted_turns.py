"""Turns as ``submit_turn`` takes them: where they go, when a thread is made for them, what goes along (CMD-1)."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from passerelle.core.errors import IdempotencyConflict, InvalidInput, NotFound
from passerelle.core.task.status import ENDED
from passerelle.core.wire.json import Json, JsonObject
from tests.integration.control.test_rollback import say
from tests.support.control_client import ControlClient
from tests.support.harness import BOB
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
_OPTIONS: JsonObject = {"acceptedOutputModes": ["text/plain"], "newInSomeLaterVersion": 3}
_METADATA: JsonObject = {"urn:example:trip": {"days": [1, 2]}}


async def submit(control: ControlClient, text: str, idem: str, **params: Json) -> JsonObject:
    answer = await control.do("submit_turn", idem, agent="echo", text=text, **params)
    control.harness.remember(str(answer["sessionId"]))
    return answer


async def wait_for_sends(control: ControlClient, count: int) -> list[JsonObject]:
    """The params of the messages that the agent got, once there are so many."""

    def sends() -> list[JsonObject]:
        asked = control.harness.peer.requests
        return [one.params for one in asked if one.method.startswith("Send")]

    await wait_until(lambda: len(sends()) == count, 10, f"the agent has {count} messages")
    return sends()


@pytest.mark.requirement("CMD-1", "CMD-32")
async def test_options_and_metadata_go_to_the_agent_with_every_kind_of_turn(
    control: ControlClient,
) -> None:
    control.harness.peer.hold()
    first = await submit(control, "echo 1", "k-1", options=_OPTIONS, metadata=_METADATA)
    await wait_for_sends(control, 1)
    queued = await submit(
        control,
        "echo 2",
        "k-2",
        options=_OPTIONS,
        metadata=_METADATA,
        contextId=first["contextId"],
        whenBusy="queue",
    )
    assert (first["state"], queued["state"], queued["position"]) == ("accepted", "queued", 1)
    control.harness.peer.release_all()
    await wait_for_sends(control, 2)
    asked = await submit(control, "ask which?", "k-3")

    async def asks() -> bool:
        return bool((await control.record(str(asked["taskId"]))).open_actions)

    await wait_until(asks, 10, "the agent asks")
    await submit(
        control, "blue", "k-4", taskId=asked["taskId"], options=_OPTIONS, metadata=_METADATA
    )
    sends = await wait_for_sends(control, 4)
    for number in (0, 1, 3):
        assert sends[number]["configuration"] == _OPTIONS, number
        assert sends[number]["metadata"] == _METADATA, number
    assert not {"configuration", "metadata"} & set(sends[2])


@pytest.mark.requirement("CMD-32", "CMD-30")
@pytest.mark.parametrize("member", ["options", "metadata"])
async def test_other_options_under_a_used_key_are_another_request(
    control: ControlClient, member: str
) -> None:
    given: JsonObject = {"acceptedOutputModes": ["text/plain"]}
    first = await submit(control, "echo 1", "k-1", **{member: given})
    assert (await submit(control, "echo 1", "k-1", **{member: given}))["taskId"] == first["taskId"]
    others: list[dict[str, Json]] = [{member: {"acceptedOutputModes": []}}, {}]
    for other in others:
        with pytest.raises(IdempotencyConflict):
            await submit(control, "echo 1", "k-1", **other)
    await wait_for_sends(control, 1)


@pytest.mark.requirement("CMD-32")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"acceptedOutputModes": "text/plain"}, "options.acceptedOutputModes"),
        ({"historyLength": 3}, "options.historyLength"),
        ({"return_immediately": True}, "options.return_immediately"),
        (
            {"taskPushNotificationConfig": {"url": "https://a"}},
            "options.taskPushNotificationConfig",
        ),
    ],
)
async def test_option_that_is_none_of_the_agent_is_named(
    control: ControlClient, options: JsonObject, field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await submit(control, "echo 1", "k-1", options=options)
    assert refused.value.field == field
    assert control.harness.peer.messages == []


@pytest.mark.requirement("CMD-1", "CMD-33")
async def test_turn_goes_into_the_thread_that_it_names(control: ControlClient) -> None:
    (first,) = await say(control, "one")
    second = await submit(control, "two", "k-1", threadId=first.thread_id, create="never")
    assert (second["threadId"], second["contextId"], second["state"]) == (
        first.thread_id,
        first.context_id,
        "accepted",
    )
    both = await submit(
        control, "three", "k-2", threadId=first.thread_id, contextId=first.context_id
    )
    assert both["sessionId"] == first.session_id
    assert (await submit(control, "two", "k-1", threadId=first.thread_id))["repeated"] is True
    with pytest.raises(IdempotencyConflict):
        await submit(control, "two", "k-1", threadId=first.thread_id, contextId=first.context_id)
    for given, error in (
        ({"threadId": first.thread_id, "contextId": "elsewhere"}, InvalidInput),
        ({"threadId": first.thread_id.replace("th_", "th_0")}, NotFound),
        ({"threadId": first.session_id}, NotFound),
    ):
        with pytest.raises(error):
            await submit(control, "two", "k-3", **cast("dict[str, Json]", given))
    with pytest.raises(NotFound):
        await control.do(
            "submit_turn", "k-4", BOB, agent="echo", text="x", threadId=first.thread_id
        )
    sends = await wait_for_sends(control, 3)
    contexts = {str(cast("JsonObject", one["message"])["contextId"]) for one in sends}
    assert len(contexts) == 1


@pytest.mark.requirement("CMD-33")
async def test_message_to_a_task_names_no_other_thread(control: ControlClient) -> None:
    (first,), (other,) = await say(control, "ask which?"), await say(control, "one")
    with pytest.raises(InvalidInput) as refused:
        await submit(control, "blue", "k-1", taskId=first.task_id, threadId=other.thread_id)
    assert refused.value.field == "threadId"
    await submit(control, "blue", "k-2", taskId=first.task_id, threadId=first.thread_id)


@pytest.mark.requirement("CMD-1", "CMD-33")
async def test_thread_is_made_as_the_policy_says(control: ControlClient) -> None:
    with pytest.raises(InvalidInput) as refused:
        await submit(control, "one", "k-1", create="never")
    assert refused.value.field == "threadId"
    with pytest.raises(NotFound):
        await submit(control, "one", "k-1", create="never", contextId="trip")
    first = await submit(control, "one", "k-1", contextId="trip")
    again = await submit(control, "two", "k-2", contextId="trip", create="never")
    assert again["threadId"] == first["threadId"]
    for named in ({"contextId": "trip"}, {"threadId": first["threadId"]}):
        with pytest.raises(InvalidInput) as refused:
            await submit(control, "x", "k-3", create="always", **cast("dict[str, Json]", named))
        assert refused.value.field == "create"
    fresh = await submit(control, "three", "k-4", create="always")
    assert fresh["threadId"] != first["threadId"]
    await wait_for_sends(control, 3)


@pytest.mark.requirement("CMD-33")
async def test_gateway_that_chooses_the_agent_keeps_the_thread_that_is_named(
    control: ControlClient,
) -> None:
    (first,) = await say(control, "one", agent="other")
    answer = await control.do(
        "submit_turn", "k-1", agent="passerelle", text="two", threadId=first.thread_id
    )
    assert answer["contextId"] == first.context_id
    await wait_until(
        lambda: len(control.harness.peers["other"].messages) == 2, 10, "it goes on there"
    )


@pytest.mark.requirement("MK-5")
async def test_the_same_words_lead_to_the_task_that_works_at_them_where_its_caller_wants_that(
    control: ControlClient,
) -> None:
    control.harness.peer.hold()
    first = await submit(control, "echo  Hello\nthere", "k-1", whenSame="return")
    context = first["contextId"]
    same: JsonObject = {"contextId": context, "whenSame": "return"}
    again = await submit(control, " ECHO hello there", "k-2", **same)
    assert again == {**first, "repeated": True}
    elsewhere = await submit(control, "echo hello there", "k-3", whenSame="return")
    anew = await submit(control, "echo hello there", "k-4", contextId=context)
    other = await submit(control, "echo hello", "k-5", **same)
    await wait_for_sends(control, 4)
    tasks = {str(one["taskId"]) for one in (first, elsewhere, anew, other)}
    assert len(tasks) == 4
    control.harness.peer.release_all()
    await wait_until(
        lambda: has_ended(control, str(first["taskId"])), 10, "the first one has ended"
    )
    later = await submit(control, "echo hello there", "k-6", **same)
    assert later["taskId"] not in tasks
    assert not later["repeated"]


@pytest.mark.requirement("MK-30")
async def test_a_task_is_read_with_the_fingerprint_of_what_it_asks_for(
    control: ControlClient,
) -> None:
    profile: JsonObject = {"tier": "specialist"}
    given: JsonObject = {"title": "Sales", "profile": profile, "priority": 3}
    task_id = await control.create("echo the\n sales", **given)
    task = await control.do("get_task", taskId=task_id)
    assert {name: task[name] for name in ("taskId", "title", "objective", "profile", "status")} == {
        "taskId": task_id,
        "title": "Sales",
        "objective": "echo the\n sales",
        "profile": profile,
        "status": "accepted",
    }
    prints = list[Json]()
    turns: list[JsonObject] = [
        {"agent": "echo", "text": "ECHO the sales"},
        {"agent": "echo", "text": "Echo the  sales", "whenSame": "return"},
        {"agent": "other", "text": "echo the sales"},
        {"agent": "echo", "text": "echo the sale"},
    ]
    for number, turn in enumerate(turns):
        sent = await control.do("submit_turn", f"f-{number}", **turn)
        read = await control.do("get_task", taskId=sent["taskId"])
        prints.append(read["fingerprint"])
    assert prints[:2] == [task["fingerprint"]] * 2
    assert len({*map(str, prints)}) == 3
    await control.do("update_task", taskId=task_id, priority=4, title="Figures")
    again = await control.do("get_task", taskId=task_id)
    assert again["fingerprint"] == task["fingerprint"]


@pytest.mark.requirement("MK-5")
async def test_a_task_that_waits_for_its_turn_is_found_as_well_and_one_of_other_files_is_not(
    control: ControlClient,
) -> None:
    control.harness.peer.hold()
    first = await submit(control, "echo 1", "k-1")
    same: JsonObject = {"contextId": first["contextId"], "whenSame": "return"}
    files: list[JsonObject] = [
        {"parts": [{"text": "echo look"}, {"raw": one, "filename": "a.txt"}]}
        for one in ("QQ==", "Qg==")
    ]
    queued = await submit_parts(control, files[0], "k-2", **same, whenBusy="queue")
    assert queued["state"] == "queued"
    assert (await submit_parts(control, files[0], "k-3", **same))["taskId"] == queued["taskId"]
    assert (await submit_parts(control, files[1], "k-4", **same))["taskId"] != queued["taskId"]
    control.harness.peer.release_all()


@pytest.mark.requirement("MK-5")
async def test_the_same_words_to_another_agent_are_other_work(control: ControlClient) -> None:
    control.harness.peer.hold()
    first = await submit(control, "echo hello", "k-1", whenSame="return")
    same: JsonObject = {"contextId": first["contextId"], "whenSame": "return"}
    other = await control.do("submit_turn", "k-2", agent="other", text="echo hello", **same)
    assert (other["repeated"], other["taskId"] == first["taskId"]) == (False, False)
    assert (await submit(control, "echo hello", "k-3", **same))["taskId"] == first["taskId"]
    control.harness.peer.release_all()


async def test_two_of_the_same_words_at_once_open_one_task(control: ControlClient) -> None:
    control.harness.peer.hold()
    context = (await submit(control, "echo 1", "k-0"))["contextId"]
    both = await asyncio.gather(
        *(
            submit(control, "echo twice", f"k-{n}", contextId=context, whenSame="return")
            for n in range(1, 5)
        )
    )
    assert len({str(one["taskId"]) for one in both}) == 1
    assert sorted(bool(one["repeated"]) for one in both) == [False, True, True, True]
    control.harness.peer.release_all()


async def test_a_message_to_a_task_is_no_new_work(control: ControlClient) -> None:
    asked = await submit(control, "ask which?", "k-1")
    with pytest.raises(InvalidInput, match="whenSame"):
        await submit(control, "red", "k-2", taskId=asked["taskId"], whenSame="return")


async def has_ended(control: ControlClient, task_id: str) -> bool:
    return (await control.record(task_id)).status in ENDED


async def submit_parts(
    control: ControlClient, message: JsonObject, idem: str, **params: Json
) -> JsonObject:
    return await control.do("submit_turn", idem, agent="echo", parts=message["parts"], **params)
