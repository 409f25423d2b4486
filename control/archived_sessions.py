"""Reads the session behind an archive ref: its records and facts, in memory or in the archive (TEV-17)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import orjson

from passerelle.channels.views import read_task
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import NotFound
from passerelle.core.frozen import frozen
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.session import ArchiveContent
from passerelle.core.read_models.task import show_record
from passerelle.core.session.archived import ArchiveRef
from passerelle.core.wire.codec import to_wire
from passerelle.delegation.runs.same_work import read_fingerprint
from passerelle.runtime.records.ownership import find_hidden

if TYPE_CHECKING:
    from passerelle.control.read_models import Models
    from passerelle.core.commands import GetArchived
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject


@frozen
class ArchivedSessions:
    """Reads archived sessions for their owners."""

    models: Models

    async def read(self, principal: Principal, query: GetArchived) -> JsonObject:
        """A page of the session that a ref names.

        Raises:
            InvalidInput: an invalid ref.
            NotFound: no such session of the caller, or it has fewer events: all look the same.
        """
        ref = ArchiveRef.read(query.ref)
        session, head, archive = await self.models.find_session(principal, ref.session_id)
        if head.sequence < ref.sequence:
            raise NotFound("ref", query.ref)
        stream = StreamRef(StreamKind.SESSION, ref.session_id)
        limit = min(query.limit, max(ref.sequence - query.after, 0))
        page = await self.models.writes.log.read_page(stream, query.after, limit)
        events = [one for one in page if one.sequence <= ref.sequence]
        last = events[-1].sequence if events else ref.sequence
        hidden = await find_hidden(
            self.models.writes, principal, (read_task(one.data) for one in events)
        )
        events = [one for one in events if read_task(one.data) not in hidden]
        # The first page has the tasks; later pages have only facts.
        named = [] if query.after else (await self.models.load_tasks(principal, ref.session_id))[0]
        whole = [await self.models.contents.name_artifacts(one) for one in named]
        refs = [EntityRef(EntityKind.TASK, one.task_id) for one in whole]
        held = await self.models.writes.load(refs)
        return to_wire(
            ArchiveContent(
                ref=query.ref,
                session_id=session.session_id,
                sequence=ref.sequence,
                in_memory=archive is None,
                tasks=tuple(
                    {
                        **to_wire(show_record(one)),
                        "fingerprint": read_fingerprint(one, held[at].fields),
                    }
                    for at, one in zip(refs, whole, strict=True)
                ),
                events=tuple(cast("JsonObject", orjson.loads(one.data)) for one in events),
                after=last if last < ref.sequence else None,
            )
        )
