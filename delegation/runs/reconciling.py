"""The peer is done and the task is not: its driver stays until what is missing has come, or never will (I5).

What the peer said last stands in the blob store and in the record, so the peer is not needed any more, and whoever
takes the run up goes on from there.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import orjson

from passerelle.core import task as tasks
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ports.uploads import UPLOADED
from passerelle.delegation.runs.artifacts import list_awaited
from passerelle.delegation.runs.completion import go_on
from passerelle.delegation.runs.files import (
    MOST_FILES,
    Copy,
    find_files,
    keep_copies,
    refuse_file,
    wait_for_file,
)
from passerelle.delegation.runs.handing_over import hand_over
from passerelle.delegation.runs.outputs.fetcher import Away, Fetched, Gone
from passerelle.delegation.runs.outputs.uploads import fetch_upload

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.core.task_record import ArtifactRef
    from passerelle.delegation.runs.driver import Driver
    from passerelle.delegation.runs.run import Run


async def reconcile(driver: Driver, withheld: str) -> None:
    """One look at what is missing; ends the task if nothing is.

    Raises:
        StoreUnavailable: what is missing cannot be had now, or the frame that was kept back not be read.
    """
    await supply(driver)
    frame = await read_withheld(driver.run, withheld)
    await driver.patiently(lambda step: go_on(step, frame))
    if tasks.is_owed_to_parent(driver.run.record):
        await hand_over(driver)
        await driver.patiently(lambda step: go_on(step, frame))


async def supply(driver: Driver) -> None:
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


async def _copy_files(driver: Driver, artifact: ArtifactRef) -> None:
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
            case Gone(reason=gone):
                await driver.patiently(partial(refuse_file, artifact=artifact, reason=gone))
                return
            case Away(reason=away):
                await driver.patiently(partial(wait_for_file, artifact=artifact, reason=away))
                return
    keep_ms = driver.means.outputs.keep_ms
    await driver.patiently(lambda step: keep_copies(step, artifact, copies, keep_ms))


async def _copy(driver: Driver, url: str) -> Copy | Gone | Away:
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


async def _fetch(driver: Driver, url: str) -> Fetched | Gone | Away:
    if url.startswith(UPLOADED):
        return await fetch_upload(driver.run.uploads, driver.run.sight.peer, url)
    fetcher = driver.means.outputs.fetcher
    return Gone("files are not fetched any more") if fetcher is None else await fetcher.fetch(url)
