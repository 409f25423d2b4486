"""The peer is done and the task is not: its driver stays until what is missing has come, or never will (I5).

What the peer said last stands in the blob store and in the record, so the peer is not needed any more, and whoever
takes the run up goes on from there.

What a task brought is handed over to the task that it was made for, before it completes (I5, PO-6).

The parent stands in a record of its own, so this is an append of its own: the edge to the child is satisfied there, and
then the child's record says that it was delivered. Both may be done twice, and are then one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import orjson

from passerelle.core import task as tasks
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.ports.uploads import UPLOADED
from passerelle.core.status import HELD, Delivery, Status
from passerelle.core.task_commands import LinkTask, RecordDelivery
from passerelle.core.task_record import TaskRecord
from passerelle.delegation.runs.artifacts import (
    MOST_FILES,
    Copy,
    find_files,
    keep_copies,
    list_awaited,
    refuse_file,
    wait_for_file,
)
from passerelle.delegation.runs.completion import go_on
from passerelle.delegation.runs.outputs import Fetched, FileAway, FileGone, fetch_upload
from passerelle.runtime.records.writes import Terms

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.json import JsonObject
    from passerelle.core.task_record import ArtifactRef
    from passerelle.delegation.runs.driver import ActiveRun
    from passerelle.delegation.runs.run import Run
    from passerelle.runtime.records.writes import Writes


async def reconcile(driver: ActiveRun, withheld: str) -> None:
    """One look at what is missing; ends the task if nothing is.

    Raises:
        StoreUnavailable: what is missing cannot be had now, or the frame that was kept back not be read.
    """
    await supply(driver)
    frame = await read_withheld(driver.run, withheld)
    await driver.patiently(lambda step: go_on(step, frame))
    if tasks.is_owed_to_parent(driver.run.record):
        await deliver_to_parent(driver)
        await driver.patiently(lambda step: go_on(step, frame))


async def supply(driver: ActiveRun) -> None:
    """Fetches the files that a task waits for."""
    run = driver.run
    if run.is_held():
        return
    for artifact in list_awaited(run.record, run.sight.catalogue):
        if run.record.withheld is not None:
            await _copy_files(driver, artifact)


async def read_withheld(run: Run, withheld: str) -> JsonObject:
    """The frame that was kept back.

    Raises:
        StoreUnavailable: it cannot be read now.
    """
    content = await run.blobs.get(run.shard, withheld)
    if content is None:
        raise StoreUnavailable(f"blob {withheld[:12]} is missing", "no")
    return cast("JsonObject", orjson.loads(content))


async def _copy_files(driver: ActiveRun, artifact: ArtifactRef) -> None:
    # What nobody wants fetched any more is not waited for either.
    fetches = driver.means.outputs.fetcher is not None
    urls = find_files(driver.run.content or {}, artifact, fetches=fetches)
    if len(urls) > MOST_FILES:
        reason = f"it has more than {MOST_FILES} files"
        await driver.patiently(lambda step: refuse_file(step, artifact, reason))
        return
    copies: list[Copy] = []
    for url in urls:
        copied = await _copy(driver, url)
        match copied:
            case Copy():
                copies.append(copied)
            case FileGone(reason=gone):
                await driver.patiently(partial(refuse_file, artifact=artifact, reason=gone))
                return
            case FileAway(reason=away):
                await driver.patiently(partial(wait_for_file, artifact=artifact, reason=away))
                return
    keep_ms = driver.means.outputs.keep_ms
    await driver.patiently(lambda step: keep_copies(step, artifact, copies, keep_ms))


async def _copy(driver: ActiveRun, url: str) -> Copy | FileGone | FileAway:
    redaction = driver.means.outputs.redaction
    fetched = await _fetch(driver, url)
    if not isinstance(fetched, Fetched):
        return fetched
    content = redaction.clean_file(fetched.content, fetched.media_type)
    sha256 = await driver.run.copies.put(driver.run.shard, content)
    return Copy(
        url=url,
        sha256=sha256,
        media_type=fetched.media_type,
        size=fetched.size,
        kept=len(content),
        is_cut=fetched.is_cut,
        redacted=redaction.count_marks(content),
    )


async def _fetch(driver: ActiveRun, url: str) -> Fetched | FileGone | FileAway:
    if url.startswith(UPLOADED):
        return await fetch_upload(driver.run.uploads, driver.run.sight.peer, url)
    fetcher = driver.means.outputs.fetcher
    return (
        FileGone("files are not fetched any more") if fetcher is None else await fetcher.fetch(url)
    )


async def deliver_to_parent(driver: ActiveRun) -> None:
    """Tells the parent, if that is all that is missing.

    Raises:
        StoreUnavailable: the parent could not be told, and the task waits.
    """
    record = driver.run.record
    if not _is_all_that_is_missing(record):
        return
    delivery = await _tell(driver.run.writes, record)
    command = RecordDelivery(tasks.PARENT, delivery)
    await driver.patiently(lambda step: step.add(step.tell(command)))


def _is_all_that_is_missing(record: TaskRecord) -> bool:
    if record.withheld is None or record.open_actions or record.status in HELD:
        return False
    missing = tasks.find_missing(record)
    return record.status is not Status.CANCELLING and missing == tasks.NO_PARENT


async def _tell(writes: Writes, child: TaskRecord) -> Delivery:
    """Satisfies the edge of the parent; one that is gone or put away has nobody to read it."""
    ref = EntityRef(EntityKind.TASK, child.parent_task_id or "")
    parent = (await writes.load([ref]))[ref].record
    if not isinstance(parent, TaskRecord) or parent.status is Status.ARCHIVED:
        return Delivery.PARENT_MISSING

    def body(decision: Decision) -> Terms:
        now = decision.state(ref)
        if isinstance(now, TaskRecord) and now.status is not Status.ARCHIVED:
            _satisfy(decision, now, child.task_id)
        return Terms()

    await writes.decide(parent.session_id, [ref], body)
    return Delivery.DELIVERED


def _satisfy(decision: Decision, parent: TaskRecord, child: str) -> None:
    for edge in parent.relationships:
        if edge.kind == "child" and edge.target == child and edge.status == "open":
            satisfied = TaskDependencyUpdated(
                edge.edge_id, "child", child, "satisfied", edge.status, "the task is done"
            )
            decision.add(tasks.decide(parent, LinkTask(satisfied)))
