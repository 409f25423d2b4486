"""The members of an export, by name: a head, legal holds, content, sessions and a summary.

``export.json``, ``holds/<owner>``, then for each shard with sessions ``content/<shard>/<SHA-256>``,
``copies/<shard>/<SHA-256>`` and ``sessions/<shard>/<session>``, and ``summary.json``. A session is a frame as in the
archive, but not sealed; content precedes the first session that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

import orjson

from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, read_shard
from passerelle.core.wire.times import format_ms, parse_ms
from passerelle.store.archive.tombstones import LegalHold
from passerelle.store.keys import SCHEMA

if TYPE_CHECKING:
    from passerelle.store.archive.frame import SessionFrame

FORM: Final = 1
"""Version of the file format; its content has the version of the store, ``SCHEMA``."""
HEAD: Final = "export.json"
SUMMARY: Final = "summary.json"
_OLDEST_SCHEMA: Final = 2
"""The first schema whose sessions can be exported: their entries can still be read."""

PartKind: TypeAlias = Literal["holds", "content", "copies", "sessions"]
_PART: Final = re.compile(
    r"(?:(?P<holds>holds)/(?P<owner>[a-z]{2,5}_[0-9a-z]+)"
    r"|(?P<blobs>content|copies)/(?P<home>[0-3][0-9a-f])/(?P<digest>[0-9a-f]{64})"
    r"|(?P<sessions>sessions)/(?P<shard>[0-3][0-9a-f])/(?P<session>[a-z]{2,5}_[0-9a-z]+))"
)


class ExportPart(NamedTuple):
    """What a member is: its kind, its shard, and the owner, hash or session that names it."""

    kind: PartKind
    shard: Shard
    id: str

    @property
    def member(self) -> str:
        """The name of the member."""
        if self.kind == "holds":
            return f"holds/{self.id}"
        return f"{self.kind}/{self.shard.tag}/{self.id}"


def read_part(member: str) -> ExportPart:
    """The part of a member name.

    Raises:
        InvalidInput: no export has such a member.
    """
    match = _PART.fullmatch(member)
    if match is None:
        raise InvalidInput(member, "is no member of an export that this version knows")
    if match["blobs"]:
        return ExportPart(
            cast("PartKind", match["blobs"]), ALL_SHARDS[int(match["home"], 16)], match["digest"]
        )
    name = match["owner"] or match["session"]
    shard = read_shard(name)
    if shard is None or (match["shard"] or shard.tag) != shard.tag:
        raise InvalidInput(member, f"{name} is no id, or is of another shard")
    return ExportPart("holds" if match["holds"] else "sessions", shard, name)


@frozen
class ExportScope:
    """Which sessions: of an owner, by id, or with the last event in ``[since_ms, until_ms)``; None matches any."""

    owner: str | None = None
    session: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def takes(self, frame: SessionFrame, at_ms: int) -> bool:
        """Whether a session matches; ``at_ms`` is the time of its last event."""
        return (
            self.owner in {None, frame.find_owner()}
            and self.session in {None, frame.session}
            and (self.since_ms is None or self.since_ms <= at_ms)
            and (self.until_ms is None or at_ms < self.until_ms)
        )

    def write(self) -> dict[str, str]:
        """The stored form."""
        times = {"since": self.since_ms, "until": self.until_ms}
        said = {name: format_ms(at_ms) for name, at_ms in times.items() if at_ms is not None}
        names = {"owner": self.owner, "session": self.session}
        return {name: one for name, one in names.items() if one is not None} | said


@frozen
class ExportHead:
    """The first member: the runtime and time of the export, and its scope."""

    runtime_id: str
    version: str
    at_ms: int
    scope: ExportScope = ExportScope()
    schema: int = SCHEMA

    def write(self) -> bytes:
        """The stored form."""
        return orjson.dumps(
            {
                "form": FORM,
                "schema": self.schema,
                "version": self.version,
                "runtimeId": self.runtime_id,
                "at": format_ms(self.at_ms),
                "scope": self.scope.write(),
            },
            option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
        )


def read_head(stored: bytes) -> ExportHead:
    """Reads the first member.

    Raises:
        InvalidInput: it is invalid, or a newer version has written it.
    """
    try:
        said = cast("dict[str, Any]", orjson.loads(stored))
        form, schema, version = int(said["form"]), int(said["schema"]), str(said["version"])
        if form > FORM or schema > SCHEMA:
            reason = (
                f"version {version} has written it, in form {form} and schema {schema}; this one knows {FORM} and "
                f"{SCHEMA}: import it with that version or a newer one"
            )
            raise InvalidInput(HEAD, reason)
        if form < 1 or schema < _OLDEST_SCHEMA:
            raise InvalidInput(HEAD, f"no version has written form {form} and schema {schema}")
        return ExportHead(
            str(said["runtimeId"]), version, parse_ms(said["at"]), ExportScope(), schema
        )
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(HEAD, f"is no head of an export: {error}") from None


@dataclass(slots=True)
class ExportSummary:
    """The totals of an export: sessions, archived ones among them, content, and sessions left out with the reason."""

    sessions: int = 0
    archived: int = 0
    content: int = 0
    holds: int = 0
    left_out: dict[str, str] = field(default_factory=dict[str, str])

    def write(self) -> bytes:
        """The stored form."""
        return orjson.dumps(
            {
                "sessions": self.sessions,
                "archived": self.archived,
                "content": self.content,
                "holds": self.holds,
                "leftOut": self.left_out,
            },
            option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
        )


def write_hold(hold: LegalHold) -> bytes:
    """The stored form of a legal hold."""
    words = {"at": format_ms(hold.at_ms), "by": hold.by, "reason": hold.reason}
    return orjson.dumps(words, option=orjson.OPT_APPEND_NEWLINE)


def read_hold(member: str, stored: bytes) -> LegalHold:
    """Reads a legal hold. Raises InvalidInput if it is invalid."""
    try:
        said = cast("dict[str, Any]", orjson.loads(stored))
        return LegalHold(parse_ms(said["at"]), str(said["by"]), str(said["reason"]))
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(member, f"is no legal hold: {error}") from None
