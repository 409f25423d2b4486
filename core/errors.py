"""Every error this project raises, in one tree with two branches.

::

    PasserelleError
    ├── CallerError                 the caller's request cannot be served
    │   ├── InvalidInput            a field is missing, malformed or out of bounds
    │   │   ├── MalformedBody       the bytes do not match their content type
    │   │   ├── BadCursor           a cursor text that does not parse
    │   │   ├── InvalidContent      an answer that does not match the approval's schema
    │   │   ├── UnknownOption       an option the approval does not offer
    │   │   └── GraphLimit          an edge that would make a cycle of tasks, or too many of them
    │   ├── TooLarge                over a size limit
    │   │   └── ArtifactTooLarge    an agent's output is over a limit
    │   ├── UnknownMethod           no such operation
    │   ├── VersionNotSupported     a protocol version that is not served
    │   ├── ContentTypeNotSupported a media type that is not served
    │   ├── Unauthenticated         no credential, or an invalid one
    │   │   └── CredentialExpired   an expired credential
    │   ├── Forbidden               the credential lacks the right
    │   ├── Limited                 over a rate, a concurrency, a quota or a budget
    │   ├── NotFound                unknown, or another caller's: both look the same
    │   ├── UnsupportedOperation    the current state does not allow it (a terminal task is frozen)
    │   ├── NotCancelable           the task has ended
    │   ├── WriteConflict           lost the race against another writer
    │   ├── VersionMismatch         the record has changed since it was read
    │   ├── IdempotencyConflict     two different requests with one key
    │   ├── ActionClosed            the approval is answered, expired, cancelled or superseded
    │   ├── StaleAnswer             the answer names an older revision or another digest
    │   ├── StreamGap               a cursor that cannot be honoured exactly
    │   ├── ConfigInvalid           a setting that cannot be used
    │   └── DirectoryInUse          another gateway uses this data directory
    └── RemoteError                 a dependency failed
        ├── StoreUnavailable        the store did not answer, or cannot write
        │   ├── ArchiveDamaged      archived content cannot be read
        │   └── RecordDamaged       a stored record cannot be read
        ├── EngineFailed            the embedded engine cannot be started or kept running
        ├── PeerUnavailable         an agent cannot be reached
        │   └── PeerBusy            it accepts no more requests for now
        ├── PeerRefused             an agent answered with an error
        ├── InvalidAgentResponse    an agent answered with something that is not A2A
        ├── IssuerUnavailable       the keys of an identity provider cannot be fetched
        ├── InstanceFull            this instance has reached its connection limit
        └── Draining                this instance is shutting down

A class has a stable ``code`` and ``retryable``. Each edge (A2A, HTTP, channel, exit status) maps the classes in its
own table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

_SHOWN_KINDS: Final = {"action": "approval"}
"""Kinds whose name in messages differs from the wire name."""

Wrote: TypeAlias = Literal["no", "unknown"]
CallerLimitKind: TypeAlias = Literal["concurrency", "rate_limit", "quota", "budget"]
ClosedState: TypeAlias = Literal["already_resolved", "expired", "cancelled", "superseded"]
StaleReason: TypeAlias = Literal["stale_revision", "digest_mismatch"]
GraphBound: TypeAlias = Literal["cycle", "depth", "width", "size"]
ForbiddenReason: TypeAlias = Literal[
    "asker",
    "self_approval",
    "not_in_audience",
    "device_scope",
    "signature_required",
    "signature_time",
    "bad_signature",
    "device_revoked",
    "not_asker",
    "policy",
    "approval_required",
    "constraint",
    "task_given",
]
"""Possible codes of a :class:`Forbidden` that are more specific than a missing scope."""

_LIMIT_CODES: Final[dict[CallerLimitKind, str]] = {
    "concurrency": "concurrency_limited",
    "rate_limit": "rate_limited",
    "quota": "quota_exceeded",
    "budget": "budget_exceeded",
}


class PasserelleError(Exception):
    """The root: ``str(error)`` is one sentence for people, ``details`` are fields for programs."""

    code: ClassVar[str] = "internal"
    codes: ClassVar[tuple[str, ...]] = ()
    """All values of ``stable_code``, if there are others than ``code``."""
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: str | int | None) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, str | int] = {
            name: value for name, value in details.items() if value is not None
        }

    @property
    def stable_code(self) -> str:
        """The code shown outside; a class that covers several cases refines it."""
        return self.code


class CallerError(PasserelleError):
    """The caller's fault: the same request will fail again."""

    code = "bad_request"


class RemoteError(PasserelleError):
    """The fault of a dependency: the same request may succeed later."""

    code = "unavailable"
    retryable = True

    def __init__(
        self, message: str, *, retry_after_s: int | None = None, **details: str | int | None
    ) -> None:
        super().__init__(message, **details)
        self.retry_after_s = retry_after_s


class InvalidInput(CallerError):
    """A field is missing, malformed or out of bounds; ``field`` is its path, such as ``message.parts[0]``."""

    code = "invalid_input"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}", field=field, reason=reason)
        self.field = field
        self.reason = reason


class MalformedBody(InvalidInput):
    """The bytes are not what their content type says."""

    code = "malformed_body"


class BadCursor(InvalidInput):
    """A cursor text that does not parse; a cursor that parses but does not verify is a gap, not an error."""

    code = "bad_cursor"


class InvalidContent(InvalidInput):
    """An answer whose content does not match the approval's schema."""

    code = "invalid_content"


class UnknownOption(InvalidInput):
    """An answer names an option that the approval does not offer."""

    code = "unknown_option"


class GraphLimit(InvalidInput):
    """An edge that would make a cycle of tasks, or exceed the depth, width or size of their graph."""

    code = "task_graph"
    codes = tuple(f"task_graph_{bound}" for bound in get_args(GraphBound))

    def __init__(self, field: str, limit: GraphBound, reason: str) -> None:
        super().__init__(field, reason)
        self.details["limit"] = limit

    @property
    def stable_code(self) -> str:
        return f"{self.code}_{self.details['limit']}"


class TooLarge(CallerError):
    """Over a size limit."""

    code = "too_large"

    def __init__(self, what: str, limit_bytes: int) -> None:
        super().__init__(
            f"{what} is larger than {limit_bytes} bytes", what=what, limit_bytes=limit_bytes
        )


class ArtifactTooLarge(TooLarge):
    """An agent's output is over a limit."""

    code = "artifact_too_large"


class UnknownMethod(CallerError):
    """No such operation; ``near`` is a similar name."""

    code = "unknown_method"

    def __init__(self, method: str, near: str | None = None) -> None:
        hint = f"; did you mean {near}?" if near else ""
        super().__init__(f"there is no method {method[:80]!r}{hint}", method=method[:80])


class VersionNotSupported(CallerError):
    """A protocol version that is not served here."""

    code = "version_not_supported"

    def __init__(self, asked: str, served: tuple[str, ...], *, unsaid: bool = False) -> None:
        """``unsaid``: the caller named no version, and ``asked`` was assumed."""
        refusal = f"protocol version {asked or 'unset (read as 0.3)'} is not supported"
        if unsaid:
            refusal = (
                f"the header A2A-Version is missing, so {asked} was assumed, which has no such operation: "
                f"send A2A-Version: {served[0]}"
            )
        super().__init__(
            f"{refusal}; served: {', '.join(served)}",
            asked=asked,
            served=", ".join(served),
        )


class ContentTypeNotSupported(CallerError):
    """A request content type, or a content encoding such as ``gzip``, that is not served here."""

    code = "content_type_not_supported"

    def __init__(self, media_type: str, encoding: str = "") -> None:
        named = {"media_type": media_type[:80]}
        if encoding:
            named["encoding"] = encoding[:80]
            super().__init__(
                f"content encoding {encoding[:80]!r} is not supported; send the body uncompressed",
                **named,
            )
        else:
            super().__init__(f"content type {media_type[:80]!r} is not supported", **named)


class Unauthenticated(CallerError):
    """No credential, or an invalid one."""

    code = "unauthenticated"


class CredentialExpired(Unauthenticated):
    """A credential that has expired; the caller can present a newer one."""

    code = "credential_expired"


class Forbidden(CallerError):
    """The credential lacks the right; ``why`` among the details refines the code."""

    code = "forbidden"
    codes = ("forbidden", *get_args(ForbiddenReason))

    def __init__(
        self, message: str, *, why: ForbiddenReason | None = None, **details: str | int | None
    ) -> None:
        super().__init__(message, why=why, **details)

    @property
    def stable_code(self) -> str:
        return str(self.details.get("why", self.code))


class Limited(CallerError):
    """Over a limit of the caller; the same request may succeed after ``retry_after_s``."""

    codes = tuple(_LIMIT_CODES.values())
    retryable = True

    def __init__(self, kind: CallerLimitKind, message: str, retry_after_s: int) -> None:
        super().__init__(message, limit=kind)
        self.kind: CallerLimitKind = kind
        self.retry_after_s = retry_after_s

    @property
    def stable_code(self) -> str:
        return _LIMIT_CODES[self.kind]


class StreamGap(CallerError):
    """A cursor cannot be honoured exactly; the stream never continues past missing events (I8)."""

    code = "gap"

    def __init__(self, stream: str, why: str, top: str | None) -> None:
        super().__init__(
            f"the stream cannot be followed from there: {why}", stream=stream, why=why, top=top
        )


class NotFound(CallerError):
    """Unknown, or another caller's: both look the same, so ids cannot be probed."""

    code = "not_found"

    def __init__(self, kind: str, name: str) -> None:
        said = _SHOWN_KINDS.get(kind, kind)
        # An empty name: it would be a secret that the caller tried.
        which = f"{said} {name[:120]!r}" if name else f"such {said}"
        super().__init__(f"there is no {which}", kind=kind, name=name[:120])
        self.kind = kind


class UnsupportedOperation(CallerError):
    """The current state does not allow the operation; a terminal task is frozen (LT-12)."""

    code = "unsupported_operation"


class NotCancelable(CallerError):
    """The task has ended."""

    code = "not_cancelable"


class WriteConflict(CallerError):
    """Lost the race against other writers on every retry, or the expected version is old."""

    code = "conflict"
    retryable = True


class VersionMismatch(CallerError):
    """The caller read an older version of the record; nothing was changed (CMD-5)."""

    code = "version_mismatch"

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"version {expected} was read, but version {actual} is stored; read it again",
            expected=expected,
            actual=actual,
        )


class IdempotencyConflict(CallerError):
    """Two different requests with one idempotency key."""

    code = "idempotency_conflict"


class ActionClosed(CallerError):
    """The approval is closed; ``winner`` names who closed it and how (I7)."""

    codes = get_args(ClosedState)

    def __init__(self, state: ClosedState, winner: JsonObject) -> None:
        super().__init__(f"the approval is closed: {state.replace('_', ' ')}", state=state)
        self.state: ClosedState = state
        self.winner = winner

    @property
    def stable_code(self) -> str:
        return self.state


class StaleAnswer(CallerError):
    """The answer names an older revision (``stale_revision``) or another digest (``digest_mismatch``)."""

    codes = get_args(StaleReason)

    def __init__(self, why: StaleReason, field: str) -> None:
        super().__init__(f"{field}: the approval has changed since it was read", field=field)
        self.why = why

    @property
    def stable_code(self) -> str:
        return self.why


class ConfigInvalid(CallerError):
    """A setting that cannot be used; ``where`` names file and key."""

    code = "config_invalid"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}", where=where, reason=reason)


class DirectoryInUse(CallerError):
    """Another gateway, or its engine, still has this data directory open."""

    code = "directory_in_use"

    def __init__(self, directory: str, pid: str) -> None:
        super().__init__(
            f"data directory {directory} is in use by process {pid}", directory=directory, pid=pid
        )


class StoreUnavailable(RemoteError):
    """The store did not answer or cannot write.

    ``wrote`` is ``no`` when nothing can have been written, ``unknown`` when the call may have run: then only the same
    operation id may be retried. ``reason`` is for the log and appears in ``str`` only: it may name addresses that
    callers must not see.
    """

    code = "store_unavailable"

    def __init__(self, reason: str, wrote: Wrote, retry_after_s: int = 1) -> None:
        super().__init__("the store is not available", retry_after_s=retry_after_s)
        self.args = (f"the store is not available ({reason})",)
        self.reason = reason
        self.wrote: Wrote = wrote


class ArchiveDamaged(StoreUnavailable):
    """Archived content cannot be read: its object is gone, damaged or not reachable. ``reason`` names it."""

    code = "archive_damaged"

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "no", retry_after_s=30)


class RecordDamaged(StoreUnavailable):
    """A record in the store cannot be read: it is damaged, or of another version. ``reason`` names it."""

    code = "record_damaged"

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "no", retry_after_s=30)
        self.message = "a record in the store cannot be read"
        self.args = (f"{self.message} ({reason})",)


class EngineFailed(RemoteError):
    """The embedded engine cannot be found, started or kept running; ``hint`` is a possible fix."""

    code = "engine_failed"

    def __init__(self, message: str, *, hint: str | None = None, **details: str | None) -> None:
        super().__init__(message, retry_after_s=None, **details)
        self.hint = hint


class PeerUnavailable(RemoteError):
    """An agent cannot be reached, or does not answer in time."""

    code = "peer_unavailable"


class PeerBusy(PeerUnavailable):
    """An agent accepts no more requests for now (429), or a limit holds them back."""

    code = "peer_busy"


class PeerRefused(RemoteError):
    """An agent answered with an error; ``native_code`` is its JSON-RPC code.

    ``http_status`` is set if the answer had only a status; ``given`` are the typed details of its error.
    """

    code = "peer_refused"
    retryable = False

    def __init__(
        self,
        message: str,
        native_code: int,
        http_status: int | None = None,
        given: tuple[JsonObject, ...] = (),
    ) -> None:
        # The code of an answer that is not A2A was chosen here.
        native = native_code if http_status is None else None
        super().__init__(message, native_code=native, http_status=http_status)
        self.native_code = native_code
        self.given = given


class InvalidAgentResponse(RemoteError):
    """An agent answered with something that is not A2A."""

    code = "invalid_agent_response"
    retryable = False


class IssuerUnavailable(RemoteError):
    """The keys of an identity provider cannot be fetched, so its tokens can be neither accepted nor refused."""

    code = "issuer_unavailable"


class InstanceFull(RemoteError):
    """This instance has reached its connection limit; another instance, or this one later, may accept more."""

    code = "instance_full"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class Draining(RemoteError):
    """This instance is shutting down and takes no new work."""

    code = "draining"


def list_codes(kind: type[PasserelleError]) -> tuple[str, ...]:
    """Every code that errors of exactly this class show outside."""
    return kind.codes or (kind.code,)
