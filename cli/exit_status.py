"""Exit statuses: one table from error classes to exit statuses."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from passerelle.a2a_mapping import errors as a2a_errors
from passerelle.core import errors


class ExitStatus(IntEnum):
    """The statuses that a script can rely on."""

    DONE = 0
    REMOTE = 1
    """A dependency of the gateway failed; a retry may help. Also: a check found faults."""
    CALLER = 2
    """The command or the configuration is invalid."""
    ALREADY_RESOLVED = 3
    CLOSED = 4
    """The approval expired, was cancelled or was replaced."""
    STALE = 5
    """The object has changed since it was read: read it again."""
    FORBIDDEN = 6
    NOT_FOUND = 7
    """It does not exist, or belongs to another caller."""
    FAULT = 70
    """An internal error."""


STATUSES: Final[dict[type[errors.PasserelleError], ExitStatus]] = {
    errors.PasserelleError: ExitStatus.FAULT,
    errors.CallerError: ExitStatus.CALLER,
    errors.InvalidInput: ExitStatus.CALLER,
    errors.MalformedBody: ExitStatus.CALLER,
    a2a_errors.InvalidRequest: ExitStatus.CALLER,
    errors.BadCursor: ExitStatus.CALLER,
    errors.GraphLimit: ExitStatus.CALLER,
    errors.InvalidContent: ExitStatus.CALLER,
    errors.UnknownOption: ExitStatus.CALLER,
    errors.TooLarge: ExitStatus.CALLER,
    errors.ArtifactTooLarge: ExitStatus.CALLER,
    errors.UnknownMethod: ExitStatus.CALLER,
    errors.VersionNotSupported: ExitStatus.CALLER,
    errors.ContentTypeNotSupported: ExitStatus.CALLER,
    errors.Unauthenticated: ExitStatus.FORBIDDEN,
    errors.CredentialExpired: ExitStatus.FORBIDDEN,
    errors.Forbidden: ExitStatus.FORBIDDEN,
    errors.Limited: ExitStatus.REMOTE,
    errors.NotFound: ExitStatus.NOT_FOUND,
    errors.UnsupportedOperation: ExitStatus.CALLER,
    a2a_errors.PushNotificationNotSupported: ExitStatus.CALLER,
    a2a_errors.ExtendedCardNotConfigured: ExitStatus.CALLER,
    a2a_errors.ExtensionRequired: ExitStatus.CALLER,
    errors.NotCancelable: ExitStatus.CALLER,
    errors.WriteConflict: ExitStatus.CALLER,
    errors.VersionMismatch: ExitStatus.STALE,
    errors.IdempotencyConflict: ExitStatus.CALLER,
    errors.ActionClosed: ExitStatus.CLOSED,
    errors.StaleAnswer: ExitStatus.STALE,
    errors.StreamGap: ExitStatus.STALE,
    errors.ConfigInvalid: ExitStatus.CALLER,
    errors.DirectoryInUse: ExitStatus.CALLER,
    errors.RemoteError: ExitStatus.REMOTE,
    errors.StoreUnavailable: ExitStatus.REMOTE,
    errors.ArchiveDamaged: ExitStatus.REMOTE,
    errors.RecordDamaged: ExitStatus.REMOTE,
    errors.EngineFailed: ExitStatus.REMOTE,
    errors.PeerUnavailable: ExitStatus.REMOTE,
    errors.PeerRefused: ExitStatus.REMOTE,
    errors.InvalidAgentResponse: ExitStatus.REMOTE,
    errors.PeerBusy: ExitStatus.REMOTE,
    errors.IssuerUnavailable: ExitStatus.REMOTE,
    errors.InstanceFull: ExitStatus.REMOTE,
    errors.Draining: ExitStatus.REMOTE,
}

HINTS: Final[dict[type[errors.PasserelleError], str]] = {
    errors.ConfigInvalid: "passerelle check CONFIG lists every error of a configuration",
    errors.DirectoryInUse: "stop that process, or use another --data-dir",
    errors.StoreUnavailable: "is the server of redis_url running, writable and within its memory?",
    errors.EngineFailed: "use --redis-url for a server that is already running",
}

_LISTENING: Final = {
    "host": "--host",
    "port": "--port",
    "grpc.port": "--grpc-port",
    "channels.port": "--channel-port",
}
"""Settings that only a start can find unusable, and their flags: ``passerelle check`` does not listen."""

_NO_DISK: Final = "cannot write to disk"
"""``REASONS["MISCONF"]`` of ``store.failures``, whose import would slow each command down."""


def find_hints(error: errors.PasserelleError) -> list[str]:
    """Returns hints on how to fix an error, if there are any."""
    if isinstance(error, errors.EngineFailed) and error.hint is not None:
        return [error.hint]
    if isinstance(error, errors.StoreUnavailable) and error.reason == _NO_DISK:
        return [
            "make room on the disk of the store: that of data_dir, or of the server of redis_url"
        ]
    if isinstance(error, errors.ConfigInvalid):
        where = str(error.details["where"])
        if (flag := _LISTENING.get(where)) is not None:
            variable = f"PASSERELLE_{where.upper().replace('.', '__')}"
            return [f"set another with {flag}, {variable} or {where} in the configuration"]
        if not _names_setting(where):
            return []
    return [HINTS[kind] for kind in HINTS if isinstance(error, kind)]


def _names_setting(where: str) -> bool:
    """Whether it is a setting, of which ``passerelle check`` tells more; not an option, a variable or a file."""
    from passerelle.gateway.settings.model import Settings  # noqa: PLC0415  slow, and only for errors

    return where.rpartition(": ")[2].partition(".")[0] in Settings.model_fields


def find_exit_status(error: errors.PasserelleError) -> ExitStatus:
    """Returns the status of an error; a class without an entry has that of its nearest ancestor."""
    if isinstance(error, errors.ActionClosed) and error.state == "already_resolved":
        return ExitStatus.ALREADY_RESOLVED
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
