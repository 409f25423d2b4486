"""A session that has ended, as one byte string: what the engine had of it, byte for byte.

The plain form is a sequence of RESP arrays: session id, each entity (HGETALL), its task list (ZRANGE), its webhook
receivers (HGETALL) and each entry of its stream (XRANGE). Nothing in it is decoded, so reads from the archive return
exactly what the engine returned.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, cast

import hiredis
import orjson

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.frozen import frozen
from passerelle.core.ids import read_shard
from passerelle.core.packed_events import read_scopes
from passerelle.core.principal import Principal
from passerelle.core.wire.times import parse_ms
from passerelle.store.archive.compression import compress, decompress
from passerelle.store.connection import pack_words
from passerelle.store.replies import as_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from passerelle.store.connection import RespValue
    from passerelle.store.stream_entries import EntryRow


MOST_PLAIN_BYTES: Final = 8 * 1024 * 1024
"""A longer session stays in the engine: reading one of its events would read all of it."""
_SESSION: Final = b"session"
_ENTITY: Final = b"entity"
_TASKS: Final = b"tasks"
_TARGETS: Final = b"targets"
_ENTRY: Final = b"entry"
_SCOPE_IDS: Final = re.compile(rb'"(threadId|taskId|actionId)":"([^"\\]+)"')
_KINDS: Final = {
    b"threadId": EntityKind.THREAD,
    b"taskId": EntityKind.TASK,
    b"actionId": EntityKind.ACTION,
}
ARCHIVED_KINDS: Final = frozenset({EntityKind.SESSION, *_KINDS.values()})
"""The kinds of entities that are archived with their session."""


@frozen
class SessionFrame:
    """Replies of the engine."""

    session: str
    hashes: dict[EntityRef, RespValue] = field(default_factory=dict["EntityRef", "RespValue"])
    """Includes the session itself, which is also the head of its stream."""
    entries: list[EntryRow] = field(default_factory=list["EntryRow"])
    tasks: RespValue = field(default_factory=list["RespValue"])
    targets: RespValue = field(default_factory=list["RespValue"])

    def names(self, name: str) -> bool:
        """Whether an id is that of the session or of one of its entities."""
        return any(ref.id == name for ref in self.hashes)

    def find_owner(self) -> str | None:
        """The owner of the session; None if its record does not name one."""
        return read_owner(self.hashes.get(EntityRef(EntityKind.SESSION, self.session)))

    def find_end(self) -> int | None:
        """The time of its last event (ms); None if its head has none."""
        words = as_list(self.hashes.get(EntityRef(EntityKind.SESSION, self.session)) or [])
        at = dict(zip(words[::2], words[1::2], strict=False)).get(b"at")
        return None if at is None else parse_ms(at.decode())


def read_owner(head: RespValue) -> str | None:
    """The owner named by the record of a session, from the hash of the session; None if there is none."""
    words = as_list(head or [])
    return find_owner(dict(zip(words[::2], words[1::2], strict=False)).get(b"s", b""))


def find_owner(record: bytes) -> str | None:
    """The owner named by the record of a session; None if there is none."""
    try:
        owner = cast("object", orjson.loads(record)["owner"])
    except (KeyError, TypeError, orjson.JSONDecodeError):
        return None
    return owner if isinstance(owner, str) and read_shard(owner) is not None else None


def list_entities(session: str, entries: Iterable[EntryRow]) -> list[EntityRef]:
    """The entities that the events of a session belong to, the session first. Some of them may not exist.

    Raises:
        ValueError: an entry is damaged.
    """
    # Most events of a session belong to the same few entities.
    scopes = set[bytes]()
    for _, members in entries:
        scopes.update(_read_old_scopes(members) if members[0] == b"i" else read_scopes(members[3]))
    named = set(_SCOPE_IDS.findall(b"".join(scopes)))
    refs = sorted(EntityRef(_KINDS[kind], name.decode()) for kind, name in named)
    return [EntityRef(EntityKind.SESSION, session), *refs]


def _read_old_scopes(members: list[bytes]) -> list[bytes]:
    """Scopes of an entry of schema 2: the ids precede the payload."""
    envelope = dict(zip(members[::2], members[1::2], strict=True))[b"d"]
    return [envelope.partition(b'"payload":')[0]]


def pack_frame(frame: SessionFrame) -> bytes:
    """The stored form: the plain one, compressed.

    Raises:
        ValueError: the session is too long.
    """
    plain = join_frame(frame)
    if len(plain) > MOST_PLAIN_BYTES:
        message = f"{frame.session} has {len(plain)} bytes, and a frame {MOST_PLAIN_BYTES} at most"
        raise ValueError(message)
    return compress(plain)


def join_frame(frame: SessionFrame) -> bytes:
    """The plain form."""
    parts = [pack_words((_SESSION, frame.session))]
    for ref, flat in frame.hashes.items():
        parts.append(pack_words((_ENTITY, ref.kind, ref.id, *as_list(flat))))
    parts += [
        pack_words((_TASKS, *as_list(frame.tasks))),
        pack_words((_TARGETS, *as_list(frame.targets))),
    ]
    parts += [pack_words((_ENTRY, name, *members)) for name, members in frame.entries]
    return b"".join(parts)


def read_frame(stored: bytes) -> SessionFrame:
    """Reads a stored form.

    Raises:
        ValueError: the bytes are no frame, or are damaged.
    """
    try:
        reader = hiredis.Reader()
        reader.feed(decompress(stored, MOST_PLAIN_BYTES))
        arrays = list[list[bytes]]()
        while (array := reader.gets()) is not False:
            arrays.append(cast("list[bytes]", array))
        return _read_arrays(arrays)
    except (hiredis.HiredisError, LookupError, TypeError, ValueError) as error:
        message = f"no frame: {error}"
        raise ValueError(message) from None


def _read_arrays(arrays: list[list[bytes]]) -> SessionFrame:
    if not arrays or arrays[0][0] != _SESSION:
        message = "it names no session"
        raise ValueError(message)
    session, *rest = arrays
    hashes, entries = dict[EntityRef, "RespValue"](), list["EntryRow"]()
    lists: dict[bytes, RespValue] = {}
    for kind, *words in rest:
        match kind:
            case b"entity":
                ref = EntityRef(EntityKind(words[0].decode()), words[1].decode())
                hashes[ref] = cast("RespValue", words[2:])
            case b"entry":
                entries.append((words[0], words[1:]))
            case b"tasks" | b"targets":
                lists[kind] = cast("RespValue", words)
            case other:
                message = f"{other!r} is no part of one"
                raise ValueError(message)
    name = session[1].decode()
    if EntityRef(EntityKind.SESSION, name) not in hashes:
        message = f"{name} has no head"
        raise ValueError(message)
    return SessionFrame(name, hashes, entries, lists[_TASKS], lists[_TARGETS])


def find_principal(snapshot: bytes) -> Principal | None:
    """The principal named by a record of a session or device list; None if it names none."""
    try:
        said = cast("dict[str, Any]", orjson.loads(snapshot))
        name, tenant = said["principal"], said["tenant"]
    except (LookupError, TypeError, ValueError):
        return None
    if not isinstance(name, str) or not isinstance(tenant, str):
        return None
    return Principal(name, tenant)


def is_home(session: str, snapshot: bytes) -> bool:
    """Whether a session is the home session of the principal that its record names.

    It has what belongs to a caller and to no conversation. It never ends, so it stays in the engine.
    """
    whose = find_principal(snapshot)
    if whose is None or whose.home != read_shard(session):
        return False
    return whose.home_session == session
