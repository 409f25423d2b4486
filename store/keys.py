"""Every key and hint channel in the store: one function each, all placed by a shard's hash tag.

A key starts with ``{xx}``, the tag of its shard, so that everything one script touches shares a slot. If a key belongs
to one of our ids, the caller passes the shard read from that id.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import ALL_SHARDS, Shard, read_shard
from passerelle.core.ports.log import LISTS, StreamKind
from passerelle.core.ports.projections import PARTS

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ClosingState
    from passerelle.core.ports.log import StreamRef
    from passerelle.core.ports.projections import IndexPart

SCHEMA: Final = 3
"""Version of all stored data: it changes with each form, and an instance refuses a store with a newer one."""

_ENTITY_PREFIXES: Final[dict[EntityKind, str]] = {
    EntityKind.SESSION: "s",
    EntityKind.THREAD: "th",
    EntityKind.TASK: "t",
    EntityKind.ACTION: "a",
    EntityKind.DEVICES: "dv",
    EntityKind.GRANTS: "g",
    EntityKind.RULES: "ru",
}
_HEADS: Final = {StreamKind.INBOX: "inh", **dict.fromkeys(LISTS, "rwh")}
"""Prefixes of the heads of streams other than sessions."""
_ENTRIES: Final = {StreamKind.INBOX: "in", **dict.fromkeys(LISTS, "rw")}
OF_OWNERS: Final = frozenset(_HEADS)
"""Streams that the relay keeps for an owner, and that are never archived."""
_TAGS: Final = tuple(f"{{{shard.tag}}}" for shard in ALL_SHARDS)
_KINDS: Final = {prefix: kind for kind, prefix in _ENTITY_PREFIXES.items()}
_ENTITY: Final = re.compile(rf"\{{([0-3][0-9a-f])\}}:({'|'.join(_KINDS)}):(.+)")

_OWNER_LIST: Final = re.compile(r"\{[0-3][0-9a-f]\}:idx:([a-z]{2,5}_[0-9a-z]+):(.*):([a-z]+)")
_OPEN: Final = re.compile(r"\{[0-3][0-9a-f]\}:open:(.+)")
_INBOX: Final = re.compile(r"\{[0-3][0-9a-f]\}:ino:(.+)")


def entity(ref: EntityRef) -> str:
    """HASH v, s, op and fields of its own. A session's is also the head of its stream."""
    return _key(ref.shard, _ENTITY_PREFIXES[ref.kind], ref.id)


def entity_in(shard: Shard, ref: EntityRef) -> str:
    """``entity`` with a known shard."""
    return f"{_TAGS[shard.number]}:{_ENTITY_PREFIXES[ref.kind]}:{ref.id}"


def session_head(shard: Shard, session: str) -> str:
    """``head`` of a session with a known shard."""
    return f"{_TAGS[shard.number]}:s:{session}"


def session_keys(shard: Shard, session: str) -> list[str]:
    """``head``, ``entries``, ``session_open``, ``session_tasks`` and ``stream_targets`` of a session, in this order."""
    tag = _TAGS[shard.number]
    return [f"{tag}:{part}:{session}" for part in ("s", "e", "open", "ts", "tg")]


EVERY_SESSION: Final = "{[0-3][0-9a-f]}:s:*"
"""SCAN pattern for the head of each session."""
EVERY_RESULT: Final = "{[0-3][0-9a-f]}:idem:*"
"""SCAN pattern for results of commands by their idempotency keys."""
EVERY_CALLBACK: Final = "{[0-3][0-9a-f]}:cb:*"
"""SCAN pattern for callbacks of runs."""
EVERY_INBOX: Final = "{[0-3][0-9a-f]}:inh:*"
"""SCAN pattern for inboxes."""
EVERY_NOTED_LIST: Final = "{[0-3][0-9a-f]}:rwh:*"
"""SCAN pattern for notes of an owner's lists."""


def read_entity(key: str) -> EntityRef | None:
    """The entity whose hash a key names; None for every other key."""
    match = _ENTITY.fullmatch(key)
    if match is None or read_shard(match[3]) != Shard(int(match[1], 16)):
        return None
    return EntityRef(_KINDS[match[2]], match[3])


def head(stream: StreamRef) -> str:
    """HASH epoch, seq, chain, first, bytes, archive; of an inbox also ordered: ``inbox_order`` is complete up to it.

    Of notes of lists also followed: when they were last requested, in ms.
    """
    prefix = _HEADS.get(stream.kind, "s")
    return _key(stream.shard, prefix, stream.id)


def entries(stream: StreamRef) -> str:
    """STREAM, an entry for each append: id ``<sequence of its last event>-0``, p (chain before its first), d (events).

    Entries of schema 2 have one event each: i, k, p, d (its envelope), w (its frame), t (its facade id).
    """
    prefix = _ENTRIES.get(stream.kind, "e")
    return _key(stream.shard, prefix, stream.id)


def stream_hints(stream: StreamRef) -> str:
    """Hint channel of a stream."""
    kind = _ENTRIES.get(stream.kind, "s")
    return _key(stream.shard, "h", f"{kind}:{stream.id}")


def stream_deltas(stream: StreamRef) -> str:
    """Channel of text deltas of a session; losing them is allowed."""
    return _key(stream.shard, "vol", stream.id)


def stream_acks(stream: StreamRef) -> str:
    """HASH device -> ``generation|cursor|seen ms``."""
    return _key(stream.shard, "ack", stream.id)


def stream_targets(stream: StreamRef) -> str:
    """HASH target -> ``state|filter|tries|cursor|since|refusals|reason``."""
    prefix = _ENTRIES.get(stream.kind)
    return _key(stream.shard, "tg" if prefix is None else f"tg:{prefix}", stream.id)


def session_open(shard: Shard, session: str) -> str:
    """ZSET open task or action -> first sequence that must stay."""
    return _key(shard, "open", session)


def read_open_session(key: str) -> str | None:
    """The session of a key of open entities; None for every other key."""
    match = _OPEN.fullmatch(key)
    return None if match is None else match[1]


def session_tasks(shard: Shard, session: str) -> str:
    """ZSET facade id -> last status time in ms."""
    return _key(shard, "ts", session)


def inbox_open(shard: Shard, principal: str) -> str:
    """HASH open action -> the view copied when it opened."""
    return _key(shard, "ino", principal)


def inbox_order(shard: Shard, principal: str) -> str:
    """ZSET open action -> when it was opened, in ms."""
    return _key(shard, "inz", principal)


def inbox_closed(shard: Shard, principal: str, state: ClosingState) -> str:
    """ZSET action that ended in this state -> when, in ms."""
    return _key(shard, "inc", principal, state)


def owner_index(shard: Shard, principal: str, agent: str, part: IndexPart) -> str:
    """ZSET facade id -> last status time in ms, of the tasks of one owner at one agent in this part."""
    return _key(shard, "idx", principal, agent, part)


def every_part_of(shard: Shard, principal: str, agent: str) -> list[str]:
    """The lists of one owner's tasks at one agent, one for each part."""
    return [owner_index(shard, principal, agent, part) for part in PARTS]


def listed_tasks(shard: Shard) -> str:
    """ZSET ``<owner> <agent>`` of each task list -> time of the last row carried to it; ``~``: the set is complete."""
    return _key(shard, "ol")


EVERY_LIST: Final = "*}:idx:*"
"""SCAN pattern for each list of every owner."""


def every_key_of(shard: Shard) -> str:
    """SCAN pattern for each key of a shard."""
    return f"{_TAGS[shard.number]}:*"


def every_list_of(shard: Shard, principal: str) -> str:
    """SCAN pattern for each list of an owner."""
    return f"{_TAGS[shard.number]}:idx:{principal}:*"


class OwnerList(NamedTuple):
    """The list that ``owner_index`` names."""

    owner: str
    agent: str
    part: IndexPart


def read_owner_list(key: str) -> OwnerList | None:
    """The list of a key; None for every other key."""
    match = _OWNER_LIST.fullmatch(key)
    return None if match is None else OwnerList(match[1], match[2], cast("IndexPart", match[3]))


def read_inbox_owner(key: str) -> str | None:
    """The owner of a key of pending approvals; None for every other key."""
    match = _INBOX.fullmatch(key)
    return None if match is None else match[1]


def pushes(shard: Shard, principal: str) -> str:
    """ZSET approval -> when a push about it was sent to the person, ms; of the last minute, and expires with it."""
    return _key(shard, "psh", principal)


def held(shard: Shard, principal: str) -> str:
    """ZSET ``<approval> <attempt>`` -> when the person's next bundle includes it, ms. Expires after every approval."""
    return _key(shard, "hld", principal)


def mutes(shard: Shard, principal: str) -> str:
    """ZSET agent -> until when the person wants no pushes for it, ms. Expires with the last of them."""
    return _key(shard, "mut", principal)


def idempotency(shard: Shard, key: str) -> str:
    """STRING digest, then result; expires."""
    return _key(shard, "idem", key)


def due(shard: Shard) -> str:
    """ZSET ``kind:entity:n`` -> ms of the server's clock."""
    return _key(shard, "due")


def stuck(shard: Shard) -> str:
    """ZSET ``<stream> <target>`` -> ms since when its deliveries fail: targets that can be listed and retried."""
    return _key(shard, "stuck")


def callback(shard: Shard, run: str) -> str:
    """STRING task, hash of the nonce, hash of the token; expires with the use of the run."""
    return _key(shard, "cb", run)


def own(shard: Shard, instance: str) -> str:
    """HASH until, inc, gone, seen, rest, ``r:<run>`` and ``c:<channel>``.

    ``seen`` is the shard epoch since which the instance has compared what it drives with this set. ``rest`` exists in a
    resting lease (nothing is driven, so its end is not renewed): the length of the lease in ms, for the wake-up.
    """
    return _key(shard, "own", instance)


def lessees(shard: Shard) -> str:
    """SET the instances that have a lease here: their rows of ``due`` are claimed before all others."""
    return _key(shard, "les")


def duty(shard: Shard) -> str:
    """HASH owner, inc, until. It is also free once its owner has not announced itself for a while."""
    return _key(shard, "duty")


def feed(shard: Shard) -> str:
    """STREAM s session, f first, t last, e shard epoch: what relays tail."""
    return _key(shard, "feed")


MARK: Final = "mark:"
"""Prefix of the fields of ``meta`` with the positions of feed consumers."""


def meta(shard: Shard) -> str:
    """HASH epoch, ``mark:<consumer>``, dropped, ``taken:<shard>``, segments, merge, watched.

    Of shard 0 also runtime, schema, place.

    ``dropped`` is the feed id below which the feed has no rows any more; ``taken:<shard>`` the mark that another shard
    had for the rows of this one when the relay last saw it, and the epoch of that shard, ``<mark> <epoch>``.
    ``segments`` is the highest number of an archive segment, ``merge`` a segment being merged from several; ``place``
    the SHA-256 of a file in the archive. ``watched`` are the tenants whose lists are followed,
    ``<key>=<epoch of the stream of their changes> …``.
    """
    return _key(shard, "meta")


def marks(shard: Shard) -> str:
    """HASH source shard -> ``<epoch>.<feed id>``: what a projection's target shard has applied.

    ``<source shard>~`` is the highest feed id of earlier epochs: rows up to it may be sent again. ``<source shard>+``
    is the same for notes of tenants.
    """
    return _key(shard, "hw")


@lru_cache(8192)
def locators(shard: Shard, bucket: int) -> str:
    """HASH hash of an id -> the position of its session in the archive (``archive/locator.py``)."""
    return _key(shard, "al", f"{bucket:02x}")


def segments(shard: Shard) -> str:
    """ZSET ``<SHA-256> <bytes> <shard of the object>`` of a segment -> its number, which is never reused."""
    return _key(shard, "sg")


def segment_notes(shard: Shard) -> str:
    """ZSET ``<SHA-256> <bytes> <shard>`` of a segment that no shard names (yet) -> since when (ms)."""
    return _key(shard, "sgold")


def merged_numbers(shard: Shard) -> str:
    """HASH number of a merged segment -> ``<number of the segment with its frames> <shift>``."""
    return _key(shard, "sgm")


def segment_copies(shard: Shard) -> str:
    """HASH SHA-256 of a segment here -> copies of its frames, ``<SHA-256> <bytes> <shift>,…``."""
    return _key(shard, "sgc")


def owner_keys(shard: Shard) -> str:
    """HASH owner -> id of the data key of its archived sessions; id -> that key, sealed (``archive/owner_keys.py``)."""
    return _key(shard, "dk")


def tombstones(shard: Shard) -> str:
    """HASH id of a data key -> what was forgotten with it; owner -> that id, while forgetting is in progress."""
    return _key(shard, "fg")


def holds(shard: Shard) -> str:
    """HASH owner -> since when, by whom and why its data is held. The same in each shard."""
    return _key(shard, "lh")


def forgotten_sessions(shard: Shard) -> str:
    """HASH id of a tombstone -> when and by whom; while in progress, ``<id> <n>`` -> the traces of a session."""
    return _key(shard, "fs")


def erasures(shard: Shard, sha256: str) -> str:
    """HASH offset in a segment here -> the tombstone of the frame; expires within a week."""
    return _key(shard, "er", sha256)


def gone(shard: Shard, digest: str) -> str:
    """STRING for a recently forgotten session, by a digest of its id; expires."""
    return _key(shard, "gone", digest)


def limits(shard: Shard, name: str) -> str:
    """HASH ``s:<instance>`` -> ``slots|until``, ``m:<meter>`` -> what is left or used of it; expires."""
    return _key(shard, "lim", name)


def habits(shard: Shard, peer: str, card: str) -> str:
    """SET observed behaviour of an agent with this card; expires."""
    return _key(shard, "hab", f"{peer}:{card}")


def instances() -> str:
    """ZSET instance -> last seen in ms; one for the whole runtime."""
    return _key(Shard(0), "inst")


def agent_report(shard: Shard, instance: str) -> str:
    """STRING an instance's recent observations of its agents, JSON by agent; expires within a minute."""
    return _key(shard, "hr", instance)


def channel(shard: Shard, channel_id: str) -> str:
    """HASH s, gen, instance, live, seen; per kind n total, t delivered, w when, o pending. Expires 30 days unseen."""
    return _key(shard, "c", channel_id)


def presence(shard: Shard, principal: str) -> str:
    """HASH channel -> ``until|generation|word`` of the present devices. Expires within a minute."""
    return _key(shard, "pres", principal)


def ticket(shard: Shard, name: str) -> str:
    """STRING the sealed value of a ticket; expires within a minute, and is taken once."""
    return _key(shard, "tk", name)


def agent(shard: Shard, name: str) -> str:
    """HASH gen, card, ``l:<link>`` -> ``<instance> <gen> <until ms>``; expires 30 days after the agent was seen."""
    return _key(shard, "ag", name)


def agent_waiting(shard: Shard, name: str) -> str:
    """ZSET tasks that wait for an agent that dials in; expires a day after the last of them."""
    return _key(shard, "agw", name)


def queue(shard: Shard, agent: str) -> list[str]:
    """The tasks that wait for an agent: four keys, which exist while any task waits.

    ZSET ``<caller> <order> <task>``, sorted by its text; ZSET caller with a waiting task -> its next turn; ZSET the
    same of callers served recently; HASH task -> its member of the first, and "" -> the turn served last.
    """
    return [_key(shard, part, agent) for part in ("qw", "qn", "qr", "qi")]


def agent_uploads(shard: Shard, name: str) -> str:
    """HASH SHA-256 of content that an agent has uploaded -> ``<ms> <bytes> <media type>``; expires in a month."""
    return _key(shard, "agb", name)


def agent_hints(shard: Shard, name: str) -> str:
    """Hint channel of an agent that dials in."""
    return _key(shard, "h", "ag", name)


def instance_hints(shard: Shard, name: str) -> str:
    """Hint channel of an instance: which of its runs it should check."""
    return _key(shard, "h", "i", name)


def rule_hints(shard: Shard, home: str) -> str:
    """Hint channel for the rules stored with a home session."""
    return _key(shard, "h", "ru", home)


def probe(shard: Shard) -> str:
    """STRING of the write probe; expires quickly."""
    return _key(shard, "probe")


def push_key() -> str:
    """STRING the key pair of this runtime for push services, sealed."""
    return _key(Shard(0), "vapid")


def owner_token() -> str:
    """HASH generation -> the owner token of this runtime, sealed; the highest generation is valid."""
    return _key(Shard(0), "owner")


def owner_hints() -> str:
    """Hint channel for a new owner token."""
    return _key(Shard(0), "h", "owner")


def runtime() -> str:
    """STRING the id of this runtime, set once."""
    return _key(Shard(0), "runtime")


def shard_hints(shard: Shard) -> str:
    """Hint channel for a new shard epoch."""
    return _key(shard, "h", "shard")


def link_hints(shard: Shard, principal: str) -> str:
    """Hint channel for the device links of a principal."""
    return _key(shard, "h", "l", principal)


def links(shard: Shard, principal: str) -> str:
    """ZSET of the channels of a principal's last hellos, each by its time (microseconds)."""
    return _key(shard, "lk", principal)


KINDS: Final[dict[str, tuple[str, ...]]] = {
    "history": ("e",),
    "sessions": ("s", "ts", "open"),
    "threads": ("th",),
    "tasks": ("t",),
    "approvals": ("a",),
    "archive": ("al", "sg", "sgm", "sgc", "sgold", "dk", "fg", "lh", "fs", "er", "gone"),
    "inboxes": ("in", "inh", "ino", "inz", "inc"),
    "lists of tasks": ("idx", "ol", "rw", "rwh"),
    "devices and channels": ("dv", "ack", "lk", "c", "pres", "tk", "psh", "hld", "mut", "vapid"),
    "grants and rules": ("g", "ru"),
    "webhooks": ("tg", "stuck", "cb"),
    "idempotency": ("idem",),
    "limits": ("lim",),
    "agents": ("ag", "agw", "agb", "hab", "hr", "qw", "qn", "qr", "qi"),
    "tasks that agents share": ("kt", "ke", "ki"),
    "instances and duties": (
        *("own", "les", "duty", "due", "feed", "meta", "hw", "inst"),
        *("probe", "runtime", "owner"),
    ),
}
"""Key purposes, as operators know them, with the prefixes of their keys after the tag."""
_PARTS: Final = re.compile(r"\{[0-3][0-9a-f]\}:([a-z]+)(?::(.+))?", re.DOTALL)


def read_parts(key: str) -> tuple[str, str]:
    """The prefix of a key after its tag, and the rest; empty texts for a foreign key."""
    match = _PARTS.fullmatch(key)
    return ("", "") if match is None else (match[1], match[2] or "")


PERMANENT: Final = re.compile(
    r"\{[0-3][0-9a-f]\}:"
    r"(?:(?:s|e|th|t|a|dv|g|ru|open|ts|tg|tg:in|in|inh|ino|inz|rw|rwh):[a-z]{2,5}_[0-9a-z]+"
    r"|inc:[a-z]{2,5}_[0-9a-z]+:[a-z_]+"
    r"|idx:[a-z]{2,5}_[0-9a-z]+:[^:]*:[a-z]+"
    r"|(?:qw|qn|qr|qi):(?:thread:)?[^:]+"
    r"|(?:kt|ke|ki):[A-Za-z0-9_-]+:.+|own:[A-Za-z0-9_-]+|al:[0-7][0-9a-f]"
    r"|ol|due|les|stuck|feed|meta|hw|sg|sgm|sgc|sgold|dk|fg|lh|fs|inst|runtime|vapid|owner)"
)
"""Matches every key that may live without an expiry."""


def _key(shard: Shard, *parts: str) -> str:
    return ":".join((_TAGS[shard.number], *parts))
