"""Every error this project raises, in one tree with two branches.

::

    PasserelleError
    ├── CallerError                 the one who asked did something that cannot be served
    │   ├── InvalidInput            a field is missing, malformed or out of bounds
    │   │   ├── MalformedBody       the bytes are not what their type says
    │   │   ├── BadCursor           a cursor text that does not parse
    │   │   ├── InvalidContent      an answer that does not fit the question
    │   │   ├── UnknownOption       an option the question does not offer
    │   │   └── GraphLimit          an edge that would make a cycle of tasks, or too many of them
    │   ├── TooLarge                over a size limit
    │   │   └── ArtifactTooLarge    what an agent has brought is over a limit of its outputs
    │   ├── UnknownMethod           no such operation
    │   ├── VersionNotSupported     a protocol version that is not served
    │   ├── ContentTypeNotSupported a media type that is not served
    │   ├── Unauthenticated         no credential, or one that does not hold
    │   │   └── CredentialExpired   one that did hold
    │   ├── Forbidden               a credential without the right
    │   ├── Limited                 over a rate, a concurrency, a quota or a budget
    │   ├── NotFound                unknown, or not the caller's: the two look the same
    │   ├── UnsupportedOperation    the state of the thing does not allow it (terminal is frozen)
    │   ├── NotCancelable           a task that has ended
    │   ├── WriteConflict           somebody else changed it first
    │   ├── VersionMismatch         the record is not the one that was read
    │   ├── IdempotencyConflict     one key, two different requests
    │   ├── ActionClosed            the question is answered, expired, cancelled or superseded
    │   ├── StaleAnswer             the answer names an older revision or another digest
    │   ├── StreamGap               a cursor that cannot be honoured exactly
    │   ├── ConfigInvalid           a setting that cannot be used
    │   └── DirectoryInUse          another gateway has this data directory
    └── RemoteError                 something we depend on failed
        ├── StoreUnavailable        the store did not answer, or cannot write
        │   └── ArchiveDamaged      what has left its memory cannot be read
        ├── EngineFailed            the embedded engine cannot be started or kept up
        ├── PeerUnavailable         a peer agent cannot be reached
        │   └── PeerBusy            it takes no more for now
        ├── PeerRefused             a peer answered with an error of its own
        ├── InvalidAgentResponse    a peer answered with something that is not A2A
        ├── IssuerUnavailable       the keys of an identity provider cannot be had
        ├── InstanceFull            this instance has as many connections as it takes
        └── Draining                this instance is shutting down

A class has a stable ``code`` and says whether trying again can help. An edge (A2A, HTTP,
channel, exit status) maps classes in one table of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

_SHOWN_KINDS: Final = {"action": "approval"}
"""How a sentence calls a kind that has another name on the wire."""

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
"""What a :class:`Forbidden` may have as its code where more is known than that the right is missing."""

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
    """What ``stable_code`` may be, where that is not ``code`` alone."""
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
    """The fault of something we depend on: the same request may succeed later."""

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
    """A cursor text that does not parse; a cursor that parses and does not hold is a gap, not an error."""

    code = "bad_cursor"


class InvalidContent(InvalidInput):
    """An answer whose content does not fit the question."""

    code = "invalid_content"


class UnknownOption(InvalidInput):
    """An answer names an option that the question does not offer."""

    code = "unknown_option"


class GraphLimit(InvalidInput):
    """An edge between tasks that would make a cycle, or go beyond the depth, the width or the size of their graph."""

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
    """What an agent has brought is over a limit of its outputs."""

    code = "artifact_too_large"


class UnknownMethod(CallerError):
    """No such operation; ``near`` is the one that may have been meant."""

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
                f"the header A2A-Version is missing, so {asked} was assumed, and it has no such operation: "
                f"send A2A-Version: {served[0]}"
            )
        super().__init__(
            f"{refusal}; served: {', '.join(served)}",
            asked=asked,
            served=", ".join(served),
        )


class ContentTypeNotSupported(CallerError):
    """A request content type that is not served here."""

    code = "content_type_not_supported"

    def __init__(self, media_type: str) -> None:
        super().__init__(
            f"content type {media_type[:80]!r} is not supported", media_type=media_type[:80]
        )


class Unauthenticated(CallerError):
    """No credential, or one that does not hold."""

    code = "unauthenticated"


class CredentialExpired(Unauthenticated):
    """A credential that did hold; the same caller comes back with a newer one."""

    code = "credential_expired"


class Forbidden(CallerError):
    """A credential that does not carry the right; ``why`` among the details refines the code."""

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
    """Over a limit of the caller's; the same request may succeed after ``retry_after_s``."""

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
    """A cursor cannot be honoured exactly: what is left is never given for what follows (I8)."""

    code = "gap"

    def __init__(self, stream: str, why: str, top: str | None) -> None:
        super().__init__(
            f"the stream cannot be followed from there: {why}", stream=stream, why=why, top=top
        )


class NotFound(CallerError):
    """Unknown, or another caller's: the two look the same, so that ids cannot be probed."""

    code = "not_found"

    def __init__(self, kind: str, name: str) -> None:
        said = _SHOWN_KINDS.get(kind, kind)
        # What has no name here is a secret that was tried.
        which = f"{said} {name[:120]!r}" if name else f"such {said}"
        super().__init__(f"there is no {which}", kind=kind, name=name[:120])
        self.kind = kind


class UnsupportedOperation(CallerError):
    """The state of the thing does not allow the operation; a terminal task is frozen (LT-12)."""

    code = "unsupported_operation"


class NotCancelable(CallerError):
    """The task has ended."""

    code = "not_cancelable"


class WriteConflict(CallerError):
    """Somebody else changed it first, again and again, or the expected version is old."""

    code = "conflict"
    retryable = True


class VersionMismatch(CallerError):
    """The caller read an older version of the record; nothing was changed (CMD-5)."""

    code = "version_mismatch"

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(
            f"version {expected} was read, and {actual} is stored; look again",
            expected=expected,
            actual=actual,
        )


class IdempotencyConflict(CallerError):
    """One idempotency key came with two different requests."""

    code = "idempotency_conflict"


class ActionClosed(CallerError):
    """The question is closed; ``winner`` says who closed it and how (I7)."""

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

    ``wrote`` is ``no`` when nothing can have been written, ``unknown`` when the call may have
    run: then only the same operation id may be tried again. ``reason`` is for the log and stands in ``str``
    alone: it may name addresses that callers have no business with.
    """

    code = "store_unavailable"

    def __init__(self, reason: str, wrote: Wrote, retry_after_s: int = 1) -> None:
        super().__init__("the store is not available", retry_after_s=retry_after_s)
        self.args = (f"the store is not available ({reason})",)
        self.reason = reason
        self.wrote: Wrote = wrote


class ArchiveDamaged(StoreUnavailable):
    """What has left the engine cannot be read: its object is gone, damaged, or not reachable. ``reason`` names it."""

    code = "archive_damaged"

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "no", retry_after_s=30)


class EngineFailed(RemoteError):
    """The embedded engine cannot be found, started or kept running; ``hint`` says what helps, where that is known."""

    code = "engine_failed"

    def __init__(self, message: str, *, hint: str | None = None, **details: str | None) -> None:
        super().__init__(message, retry_after_s=None, **details)
        self.hint = hint


class PeerUnavailable(RemoteError):
    """A peer agent cannot be reached, or does not answer in time."""

    code = "peer_unavailable"


class PeerBusy(PeerUnavailable):
    """A peer agent takes no more for now (429), or a limit keeps more from it."""

    code = "peer_busy"


class PeerRefused(RemoteError):
    """A peer answered with an error; ``native_code`` is its JSON-RPC code.

    ``http_status`` is given where it said no more than that; ``given`` are the typed details of its error.
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
        # The code of an answer that is no A2A is our own word for it.
        native = native_code if http_status is None else None
        super().__init__(message, native_code=native, http_status=http_status)
        self.native_code = native_code
        self.given = given


class InvalidAgentResponse(RemoteError):
    """A peer answered with something that is not A2A."""

    code = "invalid_agent_response"
    retryable = False


class IssuerUnavailable(RemoteError):
    """The keys of an identity provider cannot be had, so that its tokens can be neither taken nor refused."""

    code = "issuer_unavailable"


class InstanceFull(RemoteError):
    """This instance has as many connections as it takes; another one, or this one later, may take more."""

    code = "instance_full"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class Draining(RemoteError):
    """This instance is shutting down and takes no new work."""

    code = "draining"


def list_codes(kind: type[PasserelleError]) -> tuple[str, ...]:
    """Every code that errors of exactly this class show outside."""
    return kind.codes or (kind.code,)
