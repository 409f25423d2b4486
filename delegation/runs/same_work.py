"""Finds a running task of the context for the same request, if the caller prefers it to a new one (MK-5).

The caller states that with each message. The task that such a message opens stores a digest of the request, in a
separate field of its hash; later messages of the context are compared with the tasks that have not ended.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import objects_at
from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.chunks import in_chunks
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
"""The field of a task with the digest of its request."""
_CHUNK: Final = 100
_TASKS: Final = "task_"


def digest_words(agent: str, message: JsonObject) -> bytes:
    """A digest of a request to an agent: the text, without case and extra spaces, and the other parts unchanged."""
    others = [part for part in objects_at(message, "parts") if "text" not in part]
    asked = [agent, " ".join(read_text(message).lower().split()), others]
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest().encode()


def read_fingerprint(record: TaskRecord, fields: Mapping[str, bytes]) -> str:
    """The digest of a task: the stored one, else that of its objective, the first words of its message (MK-30)."""
    kept = fields.get(ASKED)
    message: JsonObject = {"parts": [{"text": record.objective}]}
    return (kept or digest_words(record.kind, message)).decode()


async def find_same(
    writes: Writes, thread: ThreadRecord, agent: str, message: JsonObject
) -> tuple[EntityRef, Held] | None:
    """The task of the thread with the same request to the agent that has not ended; None: there is none.

    Raises:
        StoreUnavailable: the tasks cannot be read.
    """
    wanted = digest_words(agent, message)
    names = await writes.log.read_open(thread.session_id)
    refs = [EntityRef(EntityKind.TASK, one) for one in names if one.startswith(_TASKS)]
    for part in in_chunks(refs, _CHUNK):
        for ref, held in (await writes.load(part)).items():
            record = held.record
            if (
                held.fields.get(ASKED) == wanted
                and isinstance(record, TaskRecord)
                and (record.owner, record.thread_id) == (thread.owner, thread.thread_id)
                and record.status not in ENDED
            ):
                return ref, held
    return None
