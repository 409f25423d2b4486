"""Checks that content named by facts and records is in the blob store: a backup without it is incomplete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.ids import shard_of
from passerelle.core.payloads.run import COPY
from passerelle.delegation.verification.report import Problem
from passerelle.runtime.records.task_fields import CONTENT, IN_BLOB, IN_PIECES

if TYPE_CHECKING:
    from passerelle.core.ids import Shard
    from passerelle.delegation.verification.stream import SessionReplay
    from passerelle.store.store import Store


async def find_missing_content(store: Store, replay: SessionReplay) -> list[Problem]:
    """Finds content that is missing, or has another length than its fact states. Copies of files may expire."""
    found: list[Problem] = []
    for shard, sha256, size, subject in _list_named(replay):
        if not await _is_there(store, shard, sha256, size):
            detail = f"content {sha256} is missing from the blob store"
            found.append(Problem("content", replay.session, subject, detail))
    return found


def _list_named(replay: SessionReplay) -> list[tuple[Shard, str, int | None, str]]:
    """Shard, hash, length and the id that names it, each hash once."""
    shard = shard_of(replay.session)
    named: dict[str, tuple[Shard, str, int | None, str]] = {}
    for event in replay.events:
        for name, ref in event.fact.refs.items():
            if ref.blob is not None and not name.startswith(COPY):
                subject = event.fact.scope.task_id or event.event_id
                row = (shard, ref.blob, ref.size, subject)
                named.setdefault(ref.blob, row)
    for loaded in replay.stored:
        kept = loaded.fields.get(CONTENT, b"")
        if kept.startswith(IN_BLOB):
            sha256 = kept.removeprefix(IN_BLOB).decode()
            named.setdefault(sha256, (loaded.ref.shard, sha256, None, loaded.ref.id))
        elif kept.startswith(IN_PIECES):
            size, _, sha256 = kept.removeprefix(IN_PIECES).decode().partition(":")
            named.setdefault(sha256, (loaded.ref.shard, sha256, int(size), loaded.ref.id))
    return list(named.values())


async def _is_there(store: Store, shard: Shard, sha256: str, size: int | None) -> bool:
    if not size:
        return await store.blobs.read(shard, sha256, 0, 1) is not None
    end = await store.blobs.read(shard, sha256, size - 1, 2)
    return end is not None and len(end) == 1
