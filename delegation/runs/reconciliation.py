"""The peer is done and the task is not: the driver stays until nothing is missing, or never will be there (I5).

The last frame of the peer is in the blob store and named by the record, so the peer is not needed any more, and a
driver that takes the run over continues from there.

A task that was made for another one delivers to it before it completes (PO-6). The parent has a record of its own, so
this is an append of its own: it satisfies the edge to the child, and then the child's record notes the delivery. Both
may be done twice without a further effect.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import orjson

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.payloads.task import TaskDependencyUpdated
from passerelle.core.ports.blobs import UPLOADED
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask, RecordDelivery
from passerelle.core.task.completion import NO_PARENT, PARENT, find_missing, is_owed_to_parent
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import HELD, Delivery, Status
from passerelle.delegation.runs.artifacts import (
    MOST_FILES,
    FileCopy,
    find_files,
    keep_copies,
    list_awaited,
    refuse_file,
    wait_for_file,
)
from passerelle.delegation.runs.completion import go_on
from passerelle.delegation.runs.outputs import Fetched, FileGone, FileUnavailable, fetch_upload
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.task.record import ArtifactRef
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.run import Run
    from passerelle.runtime.records.writes import Writes


async def reconcile(active: ActiveRun, withheld: str) -> None:
    """Handles what is missing once; ends the task if nothing is.

    Raises:
        StoreUnavailable: something is unavailable now, or the withheld frame cannot be read.
    """
    await supply(active)
    frame = await read_withheld(active.run, withheld)
    await active.append(lambda draft: go_on(draft, frame))
    if is_owed_to_parent(active.run.record):
        await deliver_to_parent(active)
        await active.append(lambda draft: go_on(draft, frame))


async def supply(active: ActiveRun) -> None:
    """Fetches the files that a task waits for."""
    run = active.run
    if run.is_held():
        return
    for artifact in list_awaited(run.record, run.context.catalogue):
        if run.record.withheld is not None:
            await _copy_files(active, artifact)


async def read_withheld(run: Run, withheld: str) -> JsonObject:
    """The withheld frame.

    Raises:
        StoreUnavailable: it cannot be read now.
    """
    content = await run.blobs.get(run.shard, withheld)
    if content is None:
        raise StoreUnavailable(f"blob {withheld[:12]} is missing", "no")
    return cast("JsonObject", orjson.loads(content))


async def _copy_files(active: ActiveRun, artifact: ArtifactRef) -> None:
    # If copies were switched off meanwhile, their files are not waited for either.
    fetches = active.deps.outputs.fetcher is not None
    urls = find_files(active.run.content or {}, artifact, fetches=fetches)
    if len(urls) > MOST_FILES:
        reason = f"it has more than {MOST_FILES} files"
        await active.append(lambda draft: refuse_file(draft, artifact, reason))
        return
    copies: list[FileCopy] = []
    for url in urls:
        copied = await _copy(active, url)
        match copied:
            case FileCopy():
                copies.append(copied)
            case FileGone(reason=gone):
                await active.append(partial(refuse_file, artifact=artifact, reason=gone))
                return
            case FileUnavailable(reason=away):
                await active.append(partial(wait_for_file, artifact=artifact, reason=away))
                return
    keep_ms = active.deps.outputs.keep_ms
    await active.append(lambda draft: keep_copies(draft, artifact, copies, keep_ms))


async def _copy(active: ActiveRun, url: str) -> FileCopy | FileGone | FileUnavailable:
    redaction = active.deps.outputs.redaction
    fetched = await _fetch(active, url)
    if not isinstance(fetched, Fetched):
        return fetched
    content = redaction.clean_file(fetched.content, fetched.media_type)
    sha256 = await active.run.copies.put(active.run.shard, content)
    return FileCopy(
        url=url,
        sha256=sha256,
        media_type=fetched.media_type,
        size=fetched.size,
        kept=len(content),
        is_cut=fetched.is_cut,
        redacted=redaction.count_marks(content),
    )


async def _fetch(active: ActiveRun, url: str) -> Fetched | FileGone | FileUnavailable:
    if url.startswith(UPLOADED):
        return await fetch_upload(active.run.uploads, active.run.context.peer, url)
    fetcher = active.deps.outputs.fetcher
    return (
        FileGone("files are not fetched any more") if fetcher is None else await fetcher.fetch(url)
    )


async def deliver_to_parent(active: ActiveRun) -> None:
    """Delivers to the parent, if nothing else is missing.

    Raises:
        StoreUnavailable: the parent was not updated, and the task waits.
    """
    record = active.run.record
    if not _is_all_that_is_missing(record):
        return
    delivery = await _satisfy_parent(active.run.writes, record)
    command = RecordDelivery(PARENT, delivery)
    await active.append(lambda draft: draft.add(draft.decide(command)))


def _is_all_that_is_missing(record: TaskRecord) -> bool:
    if record.withheld is None or record.open_actions or record.status in HELD:
        return False
    missing = find_missing(record)
    return record.status is not Status.CANCELLING and missing == NO_PARENT


async def _satisfy_parent(writes: Writes, child: TaskRecord) -> Delivery:
    """Satisfies the edge of the parent; a parent that is gone or archived has no reader."""
    ref = EntityRef(EntityKind.TASK, child.parent_task_id or "")
    parent = (await writes.load_one(ref)).record
    if not isinstance(parent, TaskRecord) or parent.status is Status.ARCHIVED:
        return Delivery.PARENT_MISSING

    def body(decision: Decision) -> AppendOptions:
        now = decision.state(ref)
        if isinstance(now, TaskRecord) and now.status is not Status.ARCHIVED:
            _satisfy(decision, now, child.task_id)
        return AppendOptions()

    await writes.decide(parent.session_id, [ref], body)
    return Delivery.DELIVERED


def _satisfy(decision: Decision, parent: TaskRecord, child: str) -> None:
    for edge in parent.relationships:
        if edge.kind == "child" and edge.target == child and edge.status == "open":
            satisfied = TaskDependencyUpdated(
                edge.edge_id, "child", child, "satisfied", edge.status, "the task is done"
            )
            decision.add(tasks.decide(parent, LinkTask(satisfied)))
