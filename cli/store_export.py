"""``passerelle store export``: ended sessions, from the engine and the archive, in one file."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from passerelle.cli.store_forget import OwnerName
from passerelle.cli.verify import read_since
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.frozen import frozen
from passerelle.core.ids import parse_facade, read_shard
from passerelle.core.machine import read_loaded
from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.display import format_count
from passerelle.gateway.store_setup import reach_store
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.common.version import VERSION
from passerelle.store.exports.form import ExportHead, ExportScope
from passerelle.store.exports.member_file import MemberWriter
from passerelle.store.exports.session_names import open_names

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from passerelle.gateway.settings.model import Settings
    from passerelle.store.exports.form import ExportSummary
    from passerelle.store.store import Store

_PART: Final = ".part"
"""Suffix of a file that is still being written."""
_NOT_ENCRYPTED: Final = (
    "not encrypted, so that any gateway can import it: anyone with the file can read it, and "
    "deletions do not apply to it"
)


@frozen
class ExportRequest:
    """The scope of an export. ``task`` is a facade id and selects the whole session of the task."""

    scope: ExportScope
    task: str | None = None


@frozen
class ExportFlags:
    """The flags of the scope; times have the form of ``passerelle verify --since``."""

    everything: bool
    owner: str | None
    tenant: str
    session: str | None
    task: str | None
    since: str | None
    until: str | None

    def read(self) -> ExportRequest:
        """Returns the request.

        Raises:
            InvalidInput: no scope, or flags that exclude each other.
        """
        single = [one for one in (self.session, self.task) if one is not None]
        is_limited = any(one is not None for one in (self.owner, self.since, self.until))
        if self.everything + bool(single) + is_limited > 1 or len(single) > 1:
            raise InvalidInput("scope", "--all, --session and --task exclude all other flags")
        if not (self.everything or single or is_limited):
            reason = "give --all, --owner, --session, --task, --since or --until"
            raise InvalidInput("scope", reason)
        now_ms = SystemClock().now_ms()
        scope = ExportScope(
            None if self.owner is None else OwnerName(self.owner, self.tenant).key,
            self.session,
            None if self.since is None else read_since(self.since, now_ms),
            None if self.until is None else read_since(self.until, now_ms, "until"),
        )
        return ExportRequest(scope, self.task)


async def run_export(settings: Settings, request: ExportRequest, file: Path) -> list[str]:
    """Writes the export, also while a gateway runs; returns a report.

    ``file`` appears once it is complete. A killed export leaves ``<file>.part``, which no import accepts.

    Raises:
        InvalidInput: ``file`` exists or cannot be written; ``session`` or ``task`` is no id, or has not ended.
        NotFound: there is no such session or task.
        EngineFailed, StoreUnavailable: the store cannot be opened or read.
    """
    _refuse_present(file)
    async with reach_store(settings) as store:
        scope = await find_scope(store, request)
        head = ExportHead(store.runtime_id, VERSION, store.clock.now_ms(), scope)
        with _write_whole(file) as members, open_names(file.parent) as names:
            summary = await store.exporter.export(head, members, names)
            if scope.session is not None and not summary.sessions:
                raise refuse(scope.session, summary.left_out.get(scope.session))
    return [*_describe(file, summary)]


async def find_scope(store: Store, request: ExportRequest) -> ExportScope:
    """Resolves the scope of a request, with the session of its task.

    Raises:
        InvalidInput: ``session`` or ``task`` is no id.
        NotFound: there is no such task.
        StoreUnavailable: the store cannot be read.
    """
    scope = request.scope
    if request.task is not None:
        return ExportScope(session=await _find_session(store, request.task))
    if scope.session is not None and read_shard(scope.session) is None:
        raise InvalidInput("session", f"{scope.session!r} is no id of a session")
    return scope


async def _find_session(store: Store, task: str) -> str:
    parsed = parse_facade(task)
    if parsed is None:
        raise InvalidInput("task", f"{task!r} is no id of a task")
    [loaded] = await store.log.load([EntityRef(EntityKind.TASK, parsed[0])])
    record = read_loaded(loaded)
    if not isinstance(record, TaskRecord):
        raise NotFound("task", task)
    return record.session_id


def _refuse_present(file: Path) -> None:
    if file.exists():
        raise InvalidInput("file", f"{file} exists already")


def refuse(session: str, reason: str | None) -> InvalidInput | NotFound:
    """Returns the error for an export of one session that was left out (``reason``) or does not exist."""
    return NotFound("session", session) if reason is None else InvalidInput("session", reason)


@contextmanager
def _write_whole(file: Path) -> Generator[MemberWriter]:
    """Yields the writer of a file that appears under its name once it is complete and synced."""
    fresh = file.with_name(file.name + _PART)
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with (
                os.fdopen(descriptor, "wb") as written,
                tempfile.TemporaryFile(dir=fresh.parent) as lines,
            ):
                yield MemberWriter(written, lines)
                written.flush()
                os.fsync(descriptor)
            fresh.rename(file)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidInput("file", f"{file}: {error.strerror or error}") from None


def _describe(file: Path, summary: ExportSummary) -> Iterator[str]:
    yield (
        f"exported: {format_count(summary.sessions, 'session')}, {summary.archived:,} of them from the archive, "
        f"{format_count(summary.content, 'content')}, {format_count(summary.holds, 'legal hold')}; "
        f"{format_count(file.stat().st_size, 'byte')} in {file}"
    )
    for session, reason in sorted(summary.left_out.items()):
        yield f"left out: {session}: {reason}"
    yield _NOT_ENCRYPTED
