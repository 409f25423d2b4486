"""A message names an artifact that several tasks have: the gateway asks the caller which one is meant (LT-19)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, cast

import httpx
import pytest

from passerelle.a2a_mapping.extensions import NAMED, PERMISSION, REFERENCE
from passerelle.core.commands import GetRecord
from passerelle.core.principal import OWNER
from passerelle.core.wire.json import Json
from passerelle.delegation.verification.walk import verify_store
from passerelle.permission_bridge.cases import About
from passerelle.permission_bridge.rules import Rule, make_policy
from passerelle.store.store import Store, StoreSettings
from tests.integration.a2a.rig import OWNER as TOKEN
from tests.integration.a2a.rig import Answer, Rig, run_rig
from tests.integration.a2a.test_references import read_warnings
from tests.support.engine import Server
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
CONTEXT: Final = "boats"
NAME: Final = "result"
"""The artifact name in every script."""


async def draw_two(rig: Rig) -> list[Answer]:
    """Runs two tasks of one context in parallel; each returns an artifact of the same name."""
    rig.peer.hold()
    sending = [
        asyncio.create_task(rig.send(f"report {what}", contextId=CONTEXT))
        for what in ("boat", "ship")
    ]
    await wait_until(lambda: rig.counted() == len(sending), 20, "both are at the agent")
    rig.peer.release_all()
    return [await one for one in sending]


async def await_end(rig: Rig, task: str) -> Answer:
    """Returns a task once it has ended."""
    shown: Answer = {}

    async def has_ended() -> bool:
        nonlocal shown
        shown = await rig.call("GetTask", {"id": task})
        return shown["status"]["state"] in {"TASK_STATE_COMPLETED", "TASK_STATE_CANCELED"}

    await wait_until(has_ended, 20, "the task has ended")
    return shown


async def ask(rig: Rig, *names: str, **members: Json) -> Answer:
    """Sends a message that names artifacts of the context; returns its task."""
    metadata: Json = {NAMED: [*(names or (NAME,))], "urn:example:trip": 1}
    return await rig.send("echo make it red", contextId=CONTEXT, metadata=metadata, **members)


def read_form(task: Answer) -> Answer:
    """Returns the machine-readable form of the question."""
    parts = task["status"]["message"]["parts"]
    (form,) = [part["data"][PERMISSION] for part in parts if "data" in part]
    return cast("Answer", form)


def list_candidates(task: Answer) -> list[Answer]:
    return cast("list[Answer]", read_form(task)["subject"]["content"]["candidates"])


def find_sent(rig: Rig) -> list[Answer]:
    """Returns the messages that the agent received after the question."""
    return [cast("Answer", one) for one in rig.peer.messages if "red" in str(one)]


@pytest.mark.requirement("LT-19", "ID-9")
@pytest.mark.parametrize("by", ["number", "artifact", "task"])
async def test_the_answer_selects_the_artifact_and_the_agent_gets_the_message(
    rig: Rig, tmp_path: Path, by: str
) -> None:
    boat, ship = await draw_two(rig)
    asked = await ask(rig)
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert find_sent(rig) == []
    one, two = list_candidates(asked)
    assert [one["task"], two["task"]] == sorted([boat["id"], ship["id"]])
    text = asked["status"]["message"]["parts"][0]["text"]
    assert all(str(found[name]) in text for found in (one, two) for name in ("artifact", "task"))
    assert f"“{NAME}”" in text
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(asked["id"])))
    assert record["openActions"] == [read_form(asked)["action_id"]]
    said = {"number": "2", "artifact": two["artifact"], "task": f"the one of {two['task']}"}[by]
    done = await rig.send(said, taskId=asked["id"])
    assert (done["id"], done["status"]["state"]) == (asked["id"], "TASK_STATE_COMPLETED")
    (sent,) = find_sent(rig)
    remote = {boat["id"]: "report boat", ship["id"]: "report ship"}[two["task"]]
    (reference,) = sent["referenceTaskIds"]
    assert remote in str(rig.peer.tasks[reference].record)
    own, reference_part = sent["parts"]
    assert own == {"text": "echo make it red"}
    assert reference_part["metadata"] == {REFERENCE: {"artifact": NAME}}
    assert reference_part["data"] == {
        "name": NAME,
        "artifactId": "artifact-1",
        "version": two["version"],
    }
    assert sent["metadata"] == {"urn:example:trip": 1}
    assert not [known for known in (boat["id"], ship["id"], "art_") if known in str(sent)]
    record = cast("Answer", await rig.service.read(OWNER, GetRecord(asked["id"])))
    edges = [edge["target"] for edge in record["relationships"] if edge["kind"] == "source_task"]
    assert edges == [two["task"]]
    assert await read_warnings(rig, asked["id"], "owner-token") == []
    async with await Store.open(StoreSettings(rig.engine.url, tmp_path / "other")) as store:
        assert (await verify_store(store, rebuild=True)).problems == []


@pytest.mark.requirement("LT-19")
async def test_an_answer_that_matches_no_candidate_is_asked_again(rig: Rig) -> None:
    await draw_two(rig)
    asked = await ask(rig)
    again = asked
    for said in ("the blue one", "7", "1 or 2"):
        before = read_form(again)["action_id"]
        again = await rig.send(said, taskId=asked["id"])
        assert again["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert f"“{said}” names none of them" in again["status"]["message"]["parts"][0]["text"]
        assert read_form(again)["action_id"] != before
        assert list_candidates(again) == list_candidates(asked)
    assert find_sent(rig) == []
    # The typed form is an answer as well.
    form = read_form(again)
    typed: Json = {
        "action_id": form["action_id"],
        "rev": form["rev"],
        "digest": form["digest"],
        "decision_id": "d-1",
        "option_id": "answer",
        "content": {"text": "1"},
    }
    message = rig.message("", taskId=asked["id"])
    cast("Answer", message)["message"]["parts"] = [{"data": {PERMISSION: typed}}]
    done = (await rig.call("SendMessage", message))["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(find_sent(rig)) == 1


@pytest.mark.requirement("LT-19")
async def test_streams_end_at_the_question_and_continue_with_the_answer(rig: Rig) -> None:
    await draw_two(rig)
    metadata: Json = {NAMED: [NAME]}
    params = rig.message("echo make it red", contextId=CONTEXT, metadata=metadata)
    events = await rig.collect("SendStreamingMessage", params)
    (asked,) = [event.result["task"] for event in events]
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    more = await rig.collect("SendStreamingMessage", rig.message("1", taskId=asked["id"]))
    assert more[-1].result["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert len(find_sent(rig)) == 1


@pytest.mark.requirement("LT-19", "CMD-15")
async def test_a_task_waiting_for_the_selection_can_be_cancelled(rig: Rig) -> None:
    await draw_two(rig)
    asked = await ask(rig)
    await rig.call("CancelTask", {"id": asked["id"]})
    gone = await await_end(rig, asked["id"])
    assert gone["status"]["state"] == "TASK_STATE_CANCELED"
    error = await rig.refuse("SendMessage", rig.message("1", taskId=asked["id"]))
    assert error["code"] == -32004
    assert find_sent(rig) == []


@pytest.mark.requirement("LT-19")
async def test_an_unambiguous_name_is_not_asked_about(rig: Rig) -> None:
    boat, _ = await draw_two(rig)
    done = await ask(rig, referenceTaskIds=[boat["id"]])
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    (sent,) = find_sent(rig)
    assert len(sent["referenceTaskIds"]) == 1
    # The follow-up created the next version of one of the two: two candidates are left.
    other = await ask(rig)
    assert [one["task"] for one in list_candidates(other)][-1] == done["id"]
    assert len(list_candidates(other)) == 2
    alone = await rig.send("report", contextId="alone")
    metadata: Json = {NAMED: [NAME, "nothing"]}
    done_alone = await rig.send("echo it is red", contextId="alone", metadata=metadata)
    assert done_alone["status"]["state"] == "TASK_STATE_COMPLETED"
    sent = find_sent(rig)[-1]
    (reference,) = sent["referenceTaskIds"]
    assert "report" in str(rig.peer.tasks[reference].record)
    assert alone["id"] not in str(sent)
    assert await read_warnings(rig, done_alone["id"], "owner-token") == [
        "the message names an artifact that no task of its context has; it is sent without the name"
    ]


@pytest.mark.requirement("LT-19")
async def test_another_agent_gets_the_selected_artifact(
    engine_server: Server, tmp_path: Path
) -> None:
    async with (
        ScriptedPeer("scribe") as scribe,
        run_rig(engine_server, tmp_path / "blobs", others=[scribe]) as rig,
    ):
        await draw_two(rig)
        metadata: Json = {NAMED: [NAME]}
        params = rig.message("echo make it red", contextId=CONTEXT, metadata=metadata)
        asked = (await rig.call("SendMessage", params, agent="scribe"))["task"]
        meant = list_candidates(asked)[0]
        answer = rig.message("1", taskId=asked["id"])
        done = (await rig.call("SendMessage", answer, agent="scribe"))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        (sent,) = cast("list[Answer]", scribe.messages)
        assert "referenceTaskIds" not in sent
        quoted = [part for part in sent["parts"] if "reference" in str(part.get("metadata"))]
        source = await rig.call("GetTask", {"id": meant["task"]})
        contents = [part["text"] for one in source["artifacts"] for part in one["parts"]]
        assert [part["text"] for part in quoted if "text" in part] == contents
        record = cast("Answer", await rig.service.read(OWNER, GetRecord(done["id"])))
        kinds = {edge["kind"] for edge in record["relationships"]}
        assert {"source_task", "consumed_artifact"} <= kinds


@pytest.mark.requirement("LT-19")
async def test_a_v03_client_is_asked_in_its_own_form(rig: Rig) -> None:
    await draw_two(rig)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=rig.url, headers=headers, timeout=20) as http:

        async def send(name: str, text: str, **members: object) -> Answer:
            message = {"kind": "message", "role": "user", "messageId": name, **members}
            body = {"message": message | {"parts": [{"kind": "text", "text": text}]}}
            call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": body}
            return cast("Answer", (await http.post("/agents/echo", json=call)).json()["result"])

        named = {NAMED: [NAME]}
        asked = await send("m-1", "echo make it red", contextId=CONTEXT, metadata=named)
        assert asked["status"]["state"] == "input-required"
        kinds = [part["kind"] for part in asked["status"]["message"]["parts"]]
        assert kinds == ["text", "data"]
        done = await send("m-2", "2", taskId=asked["id"])
        assert done["status"]["state"] == "completed"
    assert len(find_sent(rig)) == 1


@pytest.mark.parametrize("names", ["boat", [1], [NAME, ""], [f"n{number}" for number in range(9)]])
async def test_malformed_names_are_refused(rig: Rig, names: Json) -> None:
    metadata: Json = {NAMED: names}
    error = await rig.refuse("SendMessage", rig.message("hello", metadata=metadata))
    assert error["code"] == -32602
    assert error["data"][1]["fieldViolations"][0]["field"].startswith(f"message.metadata.{NAMED}")
    assert rig.counted() == 0


async def test_a_message_to_a_task_cannot_name_artifacts(rig: Rig) -> None:
    task = await rig.send("ask which?")
    metadata: Json = {NAMED: [NAME]}
    error = await rig.refuse("SendMessage", rig.message("b", taskId=task["id"], metadata=metadata))
    assert error["code"] == -32602
    assert error["data"][1]["fieldViolations"][0]["field"] == f"message.metadata.{NAMED}"


async def test_concurrent_answers_count_once(rig: Rig) -> None:
    await draw_two(rig)
    asked = await ask(rig)
    answers = [rig.message(said, taskId=asked["id"]) for said in ("1", "2")]
    given = [
        (await one).json()
        for one in asyncio.as_completed([rig.post("SendMessage", params) for params in answers])
    ]
    assert any("result" in one for one in given)
    await await_end(rig, asked["id"])
    assert len(find_sent(rig)) == 1


def decide(rig: Rig, task: Answer, option: str, name: str) -> Answer:
    """Returns the typed answer to the task's question."""
    form = read_form(task)
    typed: Json = {
        **{key: form[key] for key in ("action_id", "rev", "digest")},
        "decision_id": name,
        "option_id": option,
    }
    params = cast("Answer", rig.message("", taskId=task["id"]))
    params["message"]["parts"] = [{"data": {PERMISSION: typed}}]
    return params


@pytest.mark.requirement("LT-19")
async def test_the_selected_artifact_is_checked_by_the_rules_before_the_send(rig: Rig) -> None:
    await draw_two(rig)
    about: frozenset[About] = frozenset({"delegations"})
    rig.rules[0] = make_policy((Rule("ask-first", "ask", about=about),))
    asked = await ask(rig)
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    # The answer goes only to the gateway, so no rule applies to it.
    gated = await rig.send("1", taskId=asked["id"])
    assert gated["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    shown = read_form(gated)["subject"]["content"]
    assert list_candidates(asked)[0]["task"] in str(shown)
    assert find_sent(rig) == []
    done = (await rig.call("SendMessage", decide(rig, gated, "send", "d-1")))["task"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    (sent,) = find_sent(rig)
    assert len(sent["referenceTaskIds"]) == 1


@pytest.mark.requirement("LT-19")
async def test_declining_all_candidates_ends_the_task(rig: Rig) -> None:
    await draw_two(rig)
    asked = await ask(rig)
    ended = (await rig.call("SendMessage", decide(rig, asked, "cancel", "d-1")))["task"]
    assert ended["status"]["state"] in {"TASK_STATE_CANCELED", "TASK_STATE_REJECTED"}
    assert NAME in str(ended["status"])
    assert find_sent(rig) == []
