"""Files that an agent names by URL: the task completes only after they are copied (I5, A2A-11, EXT-10)."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final, cast

import pytest

from passerelle.core.commands import GetOutput, GetTaskModel, TurnAccepted
from passerelle.core.errors import NotFound, PasserelleError, UnsupportedOperation
from passerelle.core.events import Event
from passerelle.core.facts import Ref
from passerelle.core.ids import shard_of
from passerelle.core.payloads.run import (
    ArtifactChanged,
    OutputExpired,
    OutputRedacted,
    OutputTruncated,
)
from passerelle.core.task.record import KEPT_ARTIFACTS
from passerelle.core.task.requests import CompleteTask
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.section import OutputSettings, read_output_terms
from tests.support.file_server import File, FileServer
from tests.support.harness import ADA, BOB, Harness
from tests.support.scripted_tasks import Turn, TurnScript

if TYPE_CHECKING:
    from passerelle.core.commands import WaitMode

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7 the report"
HOUR_MS = 3_600_000


@pytest.fixture
async def file_server(harness: Harness) -> AsyncGenerator[FileServer]:
    """Serves the agent's files; the gateway fetches them from here."""
    async with FileServer() as server:
        allow(harness, server)
        yield server
        await harness.outputs.close()


def allow(harness: Harness, server: FileServer, **members: object) -> None:
    """Sets output terms that allow files of this server."""
    given = {"fetch": True, "allow": [server.url], **members}
    harness.outputs.reload(read_output_terms(OutputSettings.model_validate(given)))


def send_files(*urls: str) -> TurnScript:
    """An agent that sends one artifact with these files, and completes."""

    async def work(turn: Turn) -> None:
        task = await turn.open()
        task.artifact([{"url": url, "mediaType": "application/pdf"} for url in urls])
        await turn.status("COMPLETED")

    return work


async def begin(harness: Harness, *urls: str) -> TurnAccepted:
    harness.peer.next(send_files(*urls))
    return await harness.send("the report, please", wait="stream")


def copies_of(events: list[Event]) -> list[Ref]:
    return [
        ref
        for event in events
        if isinstance(event.fact.payload, ArtifactChanged)
        for name, ref in event.fact.refs.items()
        if name.startswith("copy.")
    ]


async def read(harness: Harness, accepted: TurnAccepted, sha256: str) -> JsonObject:
    return await harness.service.read(ADA, GetOutput(accepted.facade, sha256))


@pytest.mark.requirement("A2A-11", "I5", "ENV-10", "ATT-6")
async def test_task_completes_when_its_file_is_copied(
    harness: Harness, file_server: FileServer
) -> None:
    file_server.files["/r.pdf"] = File(PDF, "application/pdf")
    accepted = await begin(harness, f"{file_server.url}/r.pdf?key=secret")
    frames = await harness.watch(accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    events = await harness.events(accepted)
    (copy,) = copies_of(events)
    assert copy.blob == hashlib.sha256(PDF).hexdigest()
    assert (copy.url, copy.media_type) == (f"{file_server.url}/r.pdf", "application/pdf")
    stored = [event.fact.payload for event in events if event.type == "artifact.changed"]
    assert [cast("ArtifactChanged", one).stored for one in stored] == [False, True]
    assert (record.artifact_count, len(record.artifacts)) == (1, 1)
    output = await read(harness, accepted, copy.blob or "")
    assert base64.b64decode(str(output["content"])) == PDF
    assert (output["state"], output["mediaType"]) == ("here", "application/pdf")
    assert "key=secret" in str(frames), "the part is not changed"
    model = await harness.service.read(ADA, GetTaskModel(accepted.facade, "artifacts"))
    (shown,) = cast("list[JsonObject]", model["artifacts"])
    (version,) = cast("list[JsonObject]", shown["versions"])
    assert (version["version"], version["stored"]) == (1, True)


@pytest.mark.requirement("A2A-11", "I5", "AP-4", "ST-8", "CF-7")
async def test_task_waits_for_a_file_that_is_temporarily_unavailable(
    harness: Harness, file_server: FileServer
) -> None:
    file_server.files["/r.pdf"] = File(status=503)
    accepted = await begin(harness, f"{file_server.url}/r.pdf")
    record = await harness.until(accepted, Status.WAITING_RESOURCE)
    assert "HTTP 503" in str(record.status_reason)
    assert "task.completed" not in await harness.types(accepted)
    await harness.restart()
    (remote,) = harness.peer.tasks.values()
    remote.forgotten = True
    await harness.adopt(accepted)
    file_server.files["/r.pdf"] = File(PDF)
    await harness.until(accepted, Status.COMPLETED)
    assert len(copies_of(await harness.events(accepted))) == 1
    waits = [one for one in await harness.types(accepted) if one == "task.waiting"]
    assert len(waits) == 1
    assert await harness.resources(accepted) == ["file"]


@pytest.mark.requirement("A2A-11", "AP-4")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/gone.pdf", "HTTP 404"),
        ("/elsewhere", "not on the allow-list"),
        ("/round", "too many redirects"),
    ],
)
async def test_task_whose_file_is_permanently_unavailable_fails_with_the_reason(
    harness: Harness, file_server: FileServer, path: str, reason: str
) -> None:
    file_server.files["/elsewhere"] = File(
        status=302, location="http://169.254.169.254/latest/meta-data"
    )
    file_server.files["/round"] = File(status=302, location="/round")
    accepted = await begin(harness, f"{file_server.url}{path}")
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert (record.last_error.code, reason in record.last_error.message) == (
        "artifact_unavailable",
        True,
    )
    assert "task.completed" not in await harness.types(accepted)


async def test_redirect_to_an_allowed_address_is_followed(
    harness: Harness, file_server: FileServer
) -> None:
    file_server.files["/r"] = File(status=307, location="/r.pdf")
    file_server.files["/r.pdf"] = File(PDF)
    accepted = await begin(harness, f"{file_server.url}/r")
    await harness.until(accepted, Status.COMPLETED)
    (copy,) = copies_of(await harness.events(accepted))
    assert copy.size == len(PDF)


async def test_private_address_that_is_not_allowed_gets_no_request(
    harness: Harness, file_server: FileServer
) -> None:
    harness.outputs.reload(read_output_terms(OutputSettings(fetch=True)))
    accepted = await begin(harness, f"{file_server.url}/r.pdf")
    await harness.until(accepted, Status.FAILED)
    assert file_server.asked == {}


@pytest.mark.requirement("EXT-10")
async def test_file_over_the_limit_is_truncated_and_recorded(
    harness: Harness, file_server: FileServer
) -> None:
    allow(harness, file_server, max_bytes=1_024)
    file_server.files["/r.pdf"] = File(b"x" * 5_000)
    accepted = await begin(harness, f"{file_server.url}/r.pdf")
    await harness.until(accepted, Status.COMPLETED)
    events = await harness.events(accepted)
    (cut,) = [e.fact.payload for e in events if isinstance(e.fact.payload, OutputTruncated)]
    assert (cut.size, cut.kept) == (5_000, 1_024)
    (copy,) = copies_of(events)
    output = await read(harness, accepted, copy.blob or "")
    assert base64.b64decode(str(output["content"])) == b"x" * 1_024


@pytest.mark.requirement("EXT-10", "ENV-10")
async def test_expired_copy_is_reported_to_readers(
    harness: Harness, file_server: FileServer
) -> None:
    allow(harness, file_server, keep="1h")
    file_server.files["/r.pdf"] = File(PDF)
    accepted = await begin(harness, f"{file_server.url}/r.pdf")
    await harness.until(accepted, Status.COMPLETED)
    (copy,) = copies_of(await harness.events(accepted))
    await harness.run_due("output", accepted.task_id, after_ms=HOUR_MS + 1)
    (expired,) = [
        event.fact.payload
        for event in await harness.events(accepted)
        if isinstance(event.fact.payload, OutputExpired)
    ]
    assert expired.sha256 == copy.blob
    output = await read(harness, accepted, expired.sha256)
    assert (output["state"], "content" in output) == ("expired", False)
    assert "r.pdf" in str((await harness.read(accepted))["artifacts"])
    assert f"output:{accepted.task_id}" not in await harness.due(accepted.task_id)


async def test_copy_shared_with_a_later_task_outlives_the_first_task(
    harness: Harness, file_server: FileServer
) -> None:
    allow(harness, file_server, keep="1h")
    file_server.files["/r.pdf"] = File(PDF)
    first = await begin(harness, f"{file_server.url}/r.pdf")
    await harness.until(first, Status.COMPLETED)
    (copy,) = copies_of(await harness.events(first))
    shard = shard_of(first.task_id)
    again = await harness.store.copies.put(shard, PDF)
    assert again == copy.blob
    await harness.run_due("output", first.task_id, after_ms=1)
    assert await harness.store.copies.get(shard, copy.blob or "") == PDF


async def test_cancel_does_not_wait_for_a_file(harness: Harness, file_server: FileServer) -> None:
    file_server.files["/r.pdf"] = File(status=503)
    accepted = await begin(harness, f"{file_server.url}/r.pdf")
    await harness.until(accepted, Status.WAITING_RESOURCE)
    await harness.cancel(accepted)
    await harness.until(accepted, Status.CANCELLED)


async def test_files_are_not_copied_unless_configured(
    harness: Harness, file_server: FileServer
) -> None:
    harness.outputs.reload(read_output_terms(OutputSettings()))
    accepted = await begin(harness, f"{file_server.url}/r.pdf")
    record = await harness.until(accepted, Status.COMPLETED)
    assert record.artifacts[0].stored
    assert file_server.asked == {}


@pytest.mark.requirement("ENV-10")
async def test_output_is_read_by_its_owner_and_in_parts(harness: Harness) -> None:
    accepted = await harness.send("big")
    await harness.await_answer(accepted)
    (artifact,) = (await harness.record(accepted)).artifacts
    assert artifact.blob is not None
    whole = await harness.store.blobs.get(shard_of(accepted.task_id), artifact.blob)
    part = await harness.service.read(ADA, GetOutput(accepted.facade, artifact.blob, 10, 20))
    assert whole is not None
    assert base64.b64decode(str(part["content"])) == whole[10:30]
    assert (part["size"], part["name"]) == (len(whole), "artifact")
    with pytest.raises(NotFound):
        await harness.service.read(BOB, GetOutput(accepted.facade, artifact.blob))
    with pytest.raises(NotFound):
        await harness.service.read(ADA, GetOutput(accepted.facade, "0" * 64))


@pytest.mark.requirement("EXT-10")
@pytest.mark.parametrize("media_type", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("wait", ["unary", "stream"])
async def test_redacted_pattern_is_removed_before_anything_is_stored(
    harness: Harness, file_server: FileServer, wait: str, media_type: str
) -> None:
    allow(harness, file_server, redact=[{"name": "aws-key", "pattern": "AKIA[A-Z0-9]{8}"}])
    key = "AKIA12345678"
    file_server.files["/notes.txt"] = File(f"the key is {key}".encode(), media_type)
    raw = base64.b64encode(f"{key} in a file".encode()).decode()

    async def work(turn: Turn) -> None:
        task = await turn.open()
        await turn.status("WORKING", f"using {key} and {key}")
        task.artifact([{"text": f"key: {key}"}, {"data": {"key": [key]}}], artifact_id="a-1")
        task.artifact([{"raw": raw, "mediaType": media_type}], artifact_id="a-3")
        task.artifact([{"url": f"{file_server.url}/notes.txt"}], artifact_id="a-2")
        await turn.status("COMPLETED")

    harness.peer.next(work)
    accepted = await harness.send("go", wait="stream" if wait == "stream" else "unary")
    await harness.await_answer(accepted)
    await harness.until(accepted, Status.COMPLETED)
    entries = await harness.entries(accepted.session_id)
    assert not any(one in entry.data for entry in entries for one in (key.encode(), raw.encode()))
    task = str(await harness.read(accepted))
    assert key not in task
    assert raw not in task
    assert "key: [redacted: aws-key]" in task
    events = await harness.events(accepted)
    redactions = [e.fact.payload for e in events if isinstance(e.fact.payload, OutputRedacted)]
    assert {one.rule for one in redactions} == {"aws-key"}
    assert sum(one.count for one in redactions) == 6
    (copy,) = copies_of(events)
    output = await read(harness, accepted, copy.blob or "")
    assert base64.b64decode(str(output["content"])) == b"the key is [redacted: aws-key]"
    assert harness.peer.texts == ["go"]


SECRET: Final = "project nightfall"


async def refuse_at_once(turn: Turn) -> None:
    await turn.refuse(-32602, f"not a word about {SECRET} here")


async def fail_while_working(turn: Turn) -> None:
    await turn.status("WORKING", "on it")
    await turn.refuse(-32603, f"not a word about {SECRET} here")


async def write_nonsense(turn: Turn) -> None:
    await turn.tell({"surprise": SECRET, SECRET: [SECRET]})


async def ask_and_refuse(turn: Turn) -> None:
    if turn.task is not None:
        await turn.refuse(-32602, f"not a word about {SECRET} here")
        return
    await turn.status("INPUT_REQUIRED", "Which key?")


@pytest.mark.requirement("ENV-11", "A2A-12")
@pytest.mark.parametrize("wait", ["unary", "stream"])
@pytest.mark.parametrize(
    "work", [refuse_at_once, fail_while_working, write_nonsense, ask_and_refuse]
)
async def test_redacted_pattern_is_removed_from_refusals_of_an_agent(
    harness: Harness, file_server: FileServer, wait: WaitMode, work: TurnScript
) -> None:
    allow(harness, file_server, redact=[{"name": "project", "pattern": "project [a-z]+"}])
    harness.peer.next(work, work)
    accepted = last = await harness.send("go", wait=wait)
    outcomes: list[object] = []
    if work is ask_and_refuse:
        await harness.until(accepted, Status.WAITING_INPUT)
        last = await harness.send("this one", wait=wait, task=accepted.facade)
    try:
        outcomes.append(await harness.await_answer(last))
    except PasserelleError as refused:
        outcomes += [refused.message, refused.details]
    if work is not ask_and_refuse:
        await harness.until(accepted, Status.FAILED)
    outcomes.append(await harness.record(accepted))
    entries = await harness.entries(accepted.session_id)
    assert SECRET not in str(outcomes)
    assert SECRET not in str(entries)
    if work is not write_nonsense:
        assert "not a word about [redacted: project] here" in str(entries)


async def test_invalid_redaction_patterns_are_refused() -> None:
    for pattern in ("(", ""):
        with pytest.raises(ValueError, match="pattern"):
            OutputSettings.model_validate({"redact": [{"name": "x", "pattern": pattern}]})


@pytest.mark.requirement("PO-8", "PO-9")
async def test_long_status_is_stored_by_reference_with_a_preview(
    harness: Harness,
) -> None:
    words = "and so on " * 3_000

    async def work(turn: Turn) -> None:
        await turn.status("WORKING", words)
        await turn.status("COMPLETED")

    harness.peer.next(work)
    accepted = await harness.send("go on", wait="stream")
    await harness.watch(accepted)
    (ref,) = [
        event.fact.refs["output"]
        for event in await harness.events(accepted)
        if event.type == "output.spilled"
    ]
    assert ref.preview == words[:200]
    part = await harness.service.read(ADA, GetOutput(accepted.facade, ref.blob or "", 0, 1 << 20))
    assert words in base64.b64decode(str(part["content"])).decode()
    entries = await harness.entries(accepted.session_id)
    assert max(len(entry.data) for entry in entries) < 20 * 1024


def send_texts_and_files(number: int, *urls: str) -> TurnScript:
    """An agent that sends ``number`` text artifacts, then one artifact per file, and completes."""

    async def work(turn: Turn) -> None:
        task = await turn.open()
        for count in range(number):
            task.artifact([{"text": f"part {count}"}], artifact_id=f"text {count}")
        for count, url in enumerate(urls):
            task.artifact([{"url": url}], artifact_id=f"file {count}")
        await turn.status("COMPLETED")

    return work


@pytest.mark.requirement("A2A-11", "I5")
@pytest.mark.parametrize("texts", [KEPT_ARTIFACTS - 1, KEPT_ARTIFACTS, 60])
async def test_missing_file_fails_the_task_after_any_number_of_artifacts(
    harness: Harness, file_server: FileServer, texts: int
) -> None:
    harness.peer.next(send_texts_and_files(texts, file_server.url + "/gone.pdf"))
    accepted = await harness.send("go", wait="stream")
    record = await harness.until(accepted, Status.FAILED)
    assert record.last_error is not None
    assert record.last_error.code == "artifact_unavailable"
    assert record.artifact_count == texts + 1
    changed = [e.fact.payload for e in await harness.events(accepted)]
    artifacts = [one for one in changed if isinstance(one, ArtifactChanged)]
    assert [one.stored for one in artifacts if one.name_at_peer == "file 0"] == [False]


@pytest.mark.requirement("A2A-11", "I5", "AP-4")
@pytest.mark.parametrize("restarts", [False, True])
async def test_files_after_the_sixteenth_artifact_are_copied_before_completion(
    harness: Harness, file_server: FileServer, *, restarts: bool
) -> None:
    urls = [f"{file_server.url}/{count}.pdf" for count in range(5)]
    for count in range(5):
        file_server.files[f"/{count}.pdf"] = File(PDF + b"%d" % count, "application/pdf")
    file_server.files["/3.pdf"] = File(status=503)
    harness.peer.next(send_texts_and_files(KEPT_ARTIFACTS - 1, *urls))
    accepted = await harness.send("go", wait="stream")
    record = await harness.until(accepted, Status.WAITING_RESOURCE)
    assert (record.awaited or 0) >= 1
    with pytest.raises(UnsupportedOperation, match="not stored"):
        await harness.service.execute(ADA, CompleteTask(accepted.facade), None)
    file_server.files["/3.pdf"] = File(PDF + b"3", "application/pdf")
    if restarts:
        await harness.restart()
        allow(harness, file_server)
        await harness.adopt(accepted)
    record = await harness.until(accepted, Status.COMPLETED)
    assert (record.awaited, record.artifact_count) == (None, KEPT_ARTIFACTS + 4)
    copies = {one.blob for one in copies_of(await harness.events(accepted))}
    assert copies == {hashlib.sha256(PDF + b"%d" % count).hexdigest() for count in range(5)}
