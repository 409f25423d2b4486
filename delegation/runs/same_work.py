"""A message that asks for what its context works at already, where its caller wants that back and nothing new (MK-5).

Whoever wants it says so with each message. The task that such a message opens keeps a digest of what it asks for, in a
field beside its record; a later one of the same context is compared with those of them that have not ended.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import objects_at
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.runtime.records.message_summary import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.decision import Held
    from passerelle.core.session.thread import ThreadRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.writes import Writes

ASKED: Final = "asked"
"""The field of a task with the digest of what was asked for."""
_CHUNK: Final = 100
_TASKS: Final = "task_"


def digest_words(agent: str, message: JsonObject) -> bytes:
    """Tells what an agent is asked for: words, whatever their case and spaces, and the other parts as they are."""
    others = [part for part in objects_at(message, "parts") if "text" not in part]
    asked = [agent, " ".join(read_text(message).lower().split()), others]
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest().encode()


def read_fingerprint(record: TaskRecord, fields: Mapping[str, bytes]) -> str:
    """The same of a task: as it was kept, else of its objective, which has the first words of its message (MK-30)."""
    kept = fields.get(ASKED)
    said: JsonObject = {"parts": [{"text": record.objective}]}
    return (kept or digest_words(record.kind, said)).decode()


async def find_same(
    writes: Writes, thread: ThreadRecord, agent: str, message: JsonObject
) -> tuple[EntityRef, Held] | None:
    """The task of the thread whose agent was asked for the same and has not ended; None: there is none.

    Raises:
        StoreUnavailable: nobody can tell.
    """
    wanted = digest_words(agent, message)
    names = await writes.log.read_open(thread.session_id)
    refs = [EntityRef(EntityKind.TASK, one) for one in names if one.startswith(_TASKS)]
    for first in range(0, len(refs), _CHUNK):
        for ref, held in (await writes.load(refs[first : first + _CHUNK])).items():
            record = held.record
            if (
                held.fields.get(ASKED) == wanted
                and isinstance(record, TaskRecord)
                and (record.owner, record.thread_id) == (thread.owner, thread.thread_id)
                and record.status not in ENDED
            ):
                return ref, held
    return None
