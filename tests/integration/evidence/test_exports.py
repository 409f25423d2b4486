"""Exports of a whole gateway: their contents, where they are referenced, and that equal scopes give equal bundles."""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING, Any, cast

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.core.ids import Shard
from passerelle.core.principal import Principal
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.secret import Secret
from tests.integration.archive.test_archived_reads import open_store
from tests.integration.devices.asking import (
    ADA,
    BOB,
    PEOPLE,
    ask,
    bearer,
    make_answer,
    say,
)
from tests.integration.evidence.exporting import (
    PATHS,
    approve,
    archive_ended,
    export,
    list_scopes,
    refuse,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio
HOME = Shard(0)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HALF = hash_key(Secret("ada-key"))
DORA = {"name": "dora", "kind": "person", "scopes": ["a2a:call", "audit:read"]}
CARL = {"name": "carl", "kind": "person", "scopes": ["a2a:call", "tasks:read"]}


async def read(at: Instance, path: str, who: str = "ada") -> dict[str, Any]:
    answer = await at.http.get(path, headers=bearer(who))
    assert answer.status_code == 200, answer.text
    return cast("dict[str, Any]", answer.json())


async def settle(at: Instance, session: str, task: object) -> int:
    """Waits until the task has completed and its session gets no further events; returns the last sequence."""
    heads: list[int] = []

    async def rests() -> bool:
        shown = await read(at, f"/v1/tasks/{task}")
        heads.append(len(await at.read_session(session)))
        return shown["status"] == "completed" and len(heads) > 3 and len({*heads[-3:]}) == 1

    await wait_until(rests, 20, "the task is completed, and its session rests")
    return heads[-1]


@pytest.mark.requirement("ID-12", "EVC-15", "CMD-20", "CMD-26", "GR-9", "SNAP-8", "TR-18")
async def test_each_export_is_recorded_as_fact_and_edge_and_reference(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    headers = {**bearer("ada"), "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": at.message("hello")}
    sent = await at.http.post("/agents/echo", json=body, headers=headers)
    task = sent.json()["result"]["task"]["id"]
    session = (await read(at, f"/v1/tasks/{task}"))["sessionId"]
    made = {kind: (await export(at, kind, {"taskId": task})).response for kind in PATHS}
    ids = [response["evidenceId"] for response in made.values()]
    facts = [one for one in await at.read_session(session) if one["type"] == "evidence.changed"]
    assert [one["payload"]["evidenceId"] for one in facts] == ids
    assert [one["payload"]["kind"] for one in facts] == [*PATHS]
    assert [one["refs"]["evidence"]["blob"] for one in facts] == [
        response["blob"] for response in made.values()
    ]
    assert (await read(at, f"/v1/tasks/{task}"))["evidenceRefs"] == ids
    assert (await read(at, f"/v1/tasks/{task}/summary"))["evidenceRefs"] == ids
    edges = [one["edge"] for one in (await read(at, f"/v1/tasks/{task}/graph"))["edges"]]
    assert [one["target"] for one in edges if one["kind"] == "evidence"] == ids
    summary = (await read(at, f"/v1/sessions/{session}"))["evidenceSummary"]
    assert [*summary["evidence"], *summary["replays"], *summary["reviews"]] == ids
    assert summary["traces"] == [TRACE]
    assert summary["proofs"] == dict.fromkeys(ids, "whole")
    assert summary["marks"] == {}


@pytest.mark.requirement("SNAP-8")
async def test_session_summary_contains_the_notes_of_a_review(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    task = (await at.send("ada-key", "ask Which one?")).json()["result"]["task"]["id"]
    session = (await read(at, f"/v1/tasks/{task}"))["sessionId"]
    empty = (await read(at, f"/v1/sessions/{session}"))["evidenceSummary"]
    assert empty["marks"]["evidence"]["state"] == "not_applicable"
    review = await export(at, "review", {"sessionId": session})
    summary = (await read(at, f"/v1/sessions/{session}"))["evidenceSummary"]
    notes = summary["notes"][review.response["evidenceId"]]
    assert f"no fact says how task {task} ended" in notes
    assert notes == review.response["notes"]


@pytest.mark.requirement("CMD-20", "CMD-26")
async def test_equal_scope_at_an_equal_sequence_gives_an_equal_hash(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view, _ = await approve(at)
    session = str(view["sessionId"])
    last = await settle(at, session, view["taskId"])
    first = {
        (kind, place): await export(at, kind, scope)
        for kind in PATHS
        for place, scope in enumerate(list_scopes(view))
    }
    stored = len(await at.read_session(session))
    elsewhere = await rig.start(clients=[ADA])
    for (kind, place), bundle in first.items():
        scope = list_scopes(view)[place]
        again_at: list[tuple[Instance, JsonObject]] = [
            (at, {}),
            (at, {"through": last}),
            (elsewhere, {}),
        ]
        for instance, through in again_at:
            again = await export(instance, kind, scope | through)
            assert again.response == {**bundle.response, "repeated": True}
            assert again.content == bundle.content
    assert len(await at.read_session(session)) == stored
    # The two ways to name a turn are the same scope; every other scope has its own id.
    assert len({bundle.response["evidenceId"] for bundle in first.values()}) == 12
    for bundle in first.values():
        assert bundle.response["sha256"] == hashlib.sha256(bundle.lines[0]).hexdigest()
        assert bundle.response["blob"] == hashlib.sha256(bundle.content).hexdigest()


@pytest.mark.requirement("CMD-20")
async def test_export_is_the_same_after_its_session_is_archived(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view, _ = await approve(at)
    session = str(view["sessionId"])
    last = await settle(at, session, view["taskId"])
    before = [await export(at, kind, {"taskId": view["taskId"]}) for kind in PATHS]
    assert session in await archive_ended(rig)
    other = await rig.start(clients=[ADA])
    after = [await export(other, kind, {"taskId": view["taskId"]}) for kind in PATHS]
    assert [one.content for one in after] == [one.content for one in before]
    assert session not in rig.list_sessions()
    # A new export is recorded as a fact, so its session returns to memory.
    fresh = await export(other, "evidence", {"sessionId": session, "through": last})
    assert session in rig.list_sessions()
    assert fresh.response["covers"] == before[0].response["covers"] == last


@pytest.mark.requirement("VAL-10", "CMD-20", "OBJ-10", "PRS-11")
async def test_ids_and_hashes_match_those_of_read_models_and_audit(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view, _ = await approve(at)
    session, task = str(view["sessionId"]), view["taskId"]
    await settle(at, session, task)
    bundle = await export(at, "evidence", {"sessionId": session})
    facts = bundle.list("fact")
    assert facts == (await at.read_session(session))[: len(facts)]
    shown = await read(at, f"/v1/tasks/{task}")
    audited = await read(at, f"/v1/audit?actionId={view['actionId']}")
    entries = bundle.manifest["entries"]
    hashes = {one["id"]: one["sha256"] for one in entries if one["kind"] == "fact"}
    assert audited["facts"]
    for fact in audited["facts"]:
        assert hashes[fact["fact"]["eventId"]] == fact["sha256"]
    assert bundle.manifest["chain"]["epoch"] == audited["proof"]["epoch"]
    for name, known in (
        ("taskId", {str(task)}),
        ("turnId", {shown["turnId"]}),
        ("threadId", {shown["threadId"]}),
        ("runId", {one["runId"] for one in shown["attempts"]}),
        ("actionId", {str(view["actionId"])}),
    ):
        assert {fact[name] for fact in facts if name in fact} == known
    artifacts = {one["artifactId"]: one["sha256"] for one in shown["artifacts"]}
    named = {one["name"]: one["sha256"] for one in bundle.manifest["files"] if one["of"] == "parts"}
    assert named == artifacts


@pytest.mark.requirement("CMD-20")
async def test_replay_contains_inputs_and_no_outputs(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view, _ = await approve(at)
    await settle(at, str(view["sessionId"]), view["taskId"])
    bundle = await export(at, "replay", {"taskId": view["taskId"]})
    facts = {fact["eventId"]: fact for fact in bundle.list("fact")}
    steps = bundle.list("step")
    assert [step["number"] for step in steps] == [*range(1, len(steps) + 1)]
    assert [step["event"] for step in steps] == [*facts]
    acts = [step["act"] for step in steps]
    assert [act for act in acts if act != "judge"] == ["create", "send", "attempt", "ask", "answer"]
    (sent,) = [facts[step["event"]] for step in steps if step["act"] == "send"]
    assert sent["payload"]["message"]["parts"][0]["text"].startswith("ask-data")
    (answered,) = [facts[step["event"]] for step in steps if step["act"] == "answer"]
    assert answered["payload"]["decision"]["optionId"] == "yes"
    assert not [fact for fact in facts.values() if fact["type"].startswith(("run.", "artifact."))]


@pytest.mark.requirement("CMD-26", "ID-15")
async def test_review_states_facts_and_no_verdict_of_its_own(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view, _ = await approve(at)
    await settle(at, str(view["sessionId"]), view["taskId"])
    evidence = await export(at, "evidence", {"taskId": view["taskId"]})
    review = await export(at, "review", {"taskId": view["taskId"]})
    facts = {fact["eventId"]: fact for fact in evidence.list("fact")}
    statements = review.list("statement")
    assert review.manifest["evidence"] == evidence.response["evidenceId"]
    assert statements[0]["evidence"] == evidence.response["evidenceId"]
    for one in statements[1:]:
        (event,) = one["events"]
        assert one["text"].startswith(f"{facts[event]['timestamp']}: ")
        if "recorded is" in one["text"]:
            assert one["text"].endswith(facts[event]["type"])
    assert review.list("question") == []
    for bundle in (evidence, review):
        own = [bundle.manifest, *bundle.list("statement"), *bundle.list("device")]
        assert not [name for one in own for name in one if name in {"status", "verdict", "state"}]


async def test_review_exports_its_evidence_as_well(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    task = (await at.send("ada-key")).json()["result"]["task"]["id"]
    review = await export(at, "review", {"taskId": task})
    kept = (await read(at, f"/v1/tasks/{task}"))["evidenceRefs"]
    assert kept == [review.manifest["evidence"], review.response["evidenceId"]]


@pytest.mark.requirement("CMD-20")
async def test_refused_export_names_the_field_and_writes_nothing(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB, CARL, DORA])
    task = (await at.send("ada-key")).json()["result"]["task"]["id"]
    session = (await read(at, f"/v1/tasks/{task}"))["sessionId"]
    await settle(at, session, task)
    stored = len(await at.read_session(session))
    bad: list[tuple[JsonObject, str]] = [
        ({}, "sessionId"),
        ({"sessionId": session, "taskId": task}, "sessionId"),
        ({"taskId": task, "turnId": "turn_1"}, "turnId"),
        ({"taskId": task, "through": 0}, "through"),
        ({"taskId": task, "through": 1}, "through"),
        ({"sessionId": session, "turnId": "turn_1"}, "through"),
        ({"taskId": task, "form": "pdf"}, "form"),
    ]
    for of, field in bad:
        problem = await refuse(at, of)
        assert problem["status"] == 400, problem
        assert field in problem["detail"], problem
    others: list[JsonObject] = [{"taskId": task}, {"sessionId": session}, {"threadId": "th_none"}]
    for of in others:
        assert (await refuse(at, of, "bob"))["status"] == 404
        assert (await refuse(at, of, "carl"))["status"] == 403
    for who in ("carl", "dora"):
        assert (await refuse(at, {"taskId": task}, who))["status"] == 403
        place = f"/v1/evidence/evd_1?taskId={task}"
        assert (await at.http.get(place, headers=bearer(who))).status_code == 403
    unknown = await at.http.get(f"/v1/evidence/evd_1?sessionId={session}", headers=bearer("ada"))
    assert unknown.status_code == 404
    nowhere = await at.http.get("/v1/evidence/evd_1", headers=bearer("ada"))
    assert (nowhere.status_code, nowhere.json()["detail"]) == (
        400,
        "sessionId: sessionId or taskId is required",
    )
    assert len(await at.read_session(session)) == stored


@pytest.mark.requirement("CMD-20")
async def test_transferred_task_is_exported_only_by_its_new_owner(rig: Rig) -> None:
    at = await rig.start(clients=[{**ADA, "scopes": [*PEOPLE, "tasks:write"]}, BOB])
    kept = (await at.send("ada-key")).json()["result"]["task"]
    session = (await read(at, f"/v1/tasks/{kept['id']}"))["sessionId"]
    made = await at.http.post(
        "/v1/tasks",
        json={"agent": "echo", "objective": "count boats", "sessionId": session},
        headers={**bearer("ada"), "Idempotency-Key": "make"},
    )
    given = made.json()["task"]["taskId"]
    handed = await at.http.post(
        f"/v1/tasks/{given}/give",
        json={"owner": "bob"},
        headers={**bearer("ada"), "Idempotency-Key": "give"},
    )
    assert handed.status_code == 200, handed.text
    named = await at.http.patch(
        f"/v1/sessions/{session}",
        json={"title": "boats"},
        headers={**bearer("ada"), "Idempotency-Key": "name"},
    )
    assert named.status_code == 200, named.text
    before = await export(at, "evidence", {"sessionId": session})
    assert {one.get("taskId") for one in before.list("fact")} == {None, kept["id"]}
    assert before.list("omitted")
    assert (await refuse(at, {"taskId": given}))["status"] == 404
    transferred = await export(at, "evidence", {"taskId": given}, "bob")
    assert {one.get("taskId") for one in transferred.list("fact")} == {given}
    # The owner of the session does not see bob's export.
    summary = (await read(at, f"/v1/sessions/{session}"))["evidenceSummary"]
    assert summary["evidence"] == [before.response["evidenceId"]]
    place = f"/v1/evidence/{transferred.response['evidenceId']}?sessionId={session}"
    assert (await at.http.get(place, headers=bearer("ada"))).status_code == 404
    again = await export(at, "evidence", {"sessionId": session})
    assert given.encode() not in b"".join(again.lines)


@pytest.mark.requirement("CMD-20")
async def test_restricted_credential_exports_only_what_it_may_read(rig: Rig) -> None:
    agents = [{"name": one, "url": rig.peer.url} for one in ("echo", "vault")]
    half = {"name": "ada", "key_hash": HALF, "kind": "person", "scopes": PEOPLE}
    at = await rig.start(clients=[ADA], agents=agents)
    narrow = await rig.start(clients=[{**half, "may_call": ["vault"]}], agents=agents)
    task = (await at.send("ada-key")).json()["result"]["task"]["id"]
    session = (await read(at, f"/v1/tasks/{task}"))["sessionId"]
    bundle = await export(narrow, "evidence", {"sessionId": session})
    assert {one.get("taskId") for one in bundle.list("fact")} == {None}
    whole = await export(at, "evidence", {"sessionId": session})
    assert {one.get("taskId") for one in whole.list("fact")} == {None, task}


@pytest.mark.requirement("EVC-15")
async def test_concurrent_equal_exports_make_one_bundle(rig: Rig) -> None:
    at, other = [await rig.start(clients=[ADA]) for _ in range(2)]
    task = (await at.send("ada-key")).json()["result"]["task"]["id"]
    session = (await read(at, f"/v1/tasks/{task}"))["sessionId"]
    await settle(at, session, task)
    scopes: list[JsonObject] = [{"taskId": task}, {"sessionId": session}]
    made = await asyncio.gather(
        *(export(one, "review", of) for of in scopes for one in (at, other) for _ in range(4))
    )
    assert len({bundle.response["evidenceId"] for bundle in made}) == 2
    facts = [one for one in await at.read_session(session) if one["type"] == "evidence.changed"]
    assert sorted(one["payload"]["kind"] for one in facts) == ["evidence"] * 2 + ["review"] * 2
    report = await verify_store(at.gateway.store, rebuild=True)
    assert report.lines == []


@pytest.mark.requirement("I5", "A2A-11")
async def test_completed_task_names_its_earlier_evidence(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    view = await ask(at)
    session, task = str(view["sessionId"]), view["taskId"]
    early = (await export(at, "evidence", {"taskId": task})).response["evidenceId"]
    answered = await say(at, bearer("ada"), make_answer(view))
    assert answered.status_code == 200, answered.text
    await settle(at, session, task)
    (completed,) = [
        one for one in await at.read_session(session) if one["type"] == "task.completed"
    ]
    assert completed["payload"]["evidence"] == [early]
    late = (await export(at, "evidence", {"taskId": task})).response["evidenceId"]
    assert (await read(at, f"/v1/tasks/{task}"))["evidenceRefs"] == [early, late]


async def test_gateway_that_cannot_create_a_key_serves_and_refuses_exports(rig: Rig) -> None:
    # The path of the temporary key file is taken by a folder, so the key cannot be written.
    (rig.folder / f".evidence-key.{os.getpid()}").mkdir()
    at = await rig.start(clients=[ADA])
    task = (await at.send("ada-key")).json()["result"]["task"]["id"]
    problem = await refuse(at, {"taskId": task})
    assert (problem["status"], problem["code"]) == (409, "unsupported_operation")
    assert "set one under signing" in problem["detail"]
    assert (await read(at, f"/v1/tasks/{task}"))["evidenceRefs"] == []


async def test_key_file_that_others_can_read_stops_the_start(rig: Rig) -> None:
    await rig.start(clients=[ADA])
    (rig.folder / "evidence-key").chmod(0o644)
    with pytest.raises(ConfigInvalid, match="others can read it"):
        await rig.start(clients=[ADA])


@pytest.mark.requirement("FGT-4")
async def test_deleting_an_owner_deletes_the_bundles_of_that_owner(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    blobs = dict[str, list[str]]()
    for who in ("ada", "bob"):
        sent = await at.call(f"{who}-key", "SendMessage", at.message("hello"))
        task = sent.json()["result"]["task"]["id"]
        blobs[who] = [
            (await export(at, kind, {"taskId": task}, who)).response["blob"] for kind in PATHS
        ]

    def list_kept(who: str) -> set[str]:
        return {name for name in blobs[who] for _ in (rig.folder / "blobs").rglob(name)}

    assert [len(list_kept(who)) for who in ("ada", "bob")] == [3, 3]
    async with await open_store(rig) as store:
        await store.forgetting.forget(Principal("ada").key, "operator", store.clock.read_ms(HOME))
    assert list_kept("ada") == set()
    assert list_kept("bob") == set(blobs["bob"])
