"""The tree of errors: two branches, stable codes, and a drawing that agrees with it."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest

from passerelle.core import errors
from passerelle.core.errors import (
    ActionClosed,
    CallerError,
    CallerLimitKind,
    ClosedState,
    InvalidInput,
    Limited,
    NotFound,
    PasserelleError,
    PeerRefused,
    RemoteError,
    StaleAnswer,
    StoreUnavailable,
    WriteConflict,
)

CLOSED: tuple[ClosedState, ...] = ("already_resolved", "expired", "cancelled", "superseded")


def family(kind: type[PasserelleError]) -> Iterator[type[PasserelleError]]:
    for child in kind.__subclasses__():
        yield child
        yield from family(child)


ALL = tuple(
    kind for kind in dict.fromkeys(family(PasserelleError)) if kind.__module__ == errors.__name__
)
REFINED = (ActionClosed, Limited, StaleAnswer)
"""Their code depends on the case."""


def drawn() -> dict[str, str]:
    """Class to parent, as the module docstring draws it."""
    parents: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^(?P<branch>[ │├└─]*)(?P<name>PasserelleError$|(?<=─ )[A-Z]\w+)", line)
        if not found:
            continue
        depth = len(found["branch"])
        while path and path[-1][0] >= depth:
            path.pop()
        if path:
            parents[found["name"]] = path[-1][1]
        path.append((depth, found["name"]))
    return parents


def test_the_drawn_tree_is_the_tree() -> None:
    assert drawn() == {kind.__name__: (kind.__base__ or object).__name__ for kind in ALL}


def test_every_error_is_on_exactly_one_branch() -> None:
    for kind in ALL:
        assert issubclass(kind, CallerError) is not issubclass(kind, RemoteError)


def test_no_two_classes_share_a_code() -> None:
    own = [kind.code for kind in ALL if kind not in REFINED]
    cases = [ActionClosed(state, {}).stable_code for state in CLOSED]
    cases += [StaleAnswer("stale_revision", "rev").stable_code]
    cases += [Limited(kind, "no", 1).stable_code for kind in get_args(CallerLimitKind)]
    cases += [StaleAnswer("digest_mismatch", "digest").stable_code]
    shared = [
        code for code, times in Counter([*own, *cases, PasserelleError.code]).items() if times > 1
    ]
    assert shared == []
    assert all(re.fullmatch(r"[a-z][a-z_]+", code) for code in [*own, *cases])


def test_codes_never_change_because_callers_match_on_them() -> None:
    assert {kind.__name__: kind.code for kind in ALL if kind not in REFINED} == {
        "CallerError": "bad_request",
        "InvalidInput": "invalid_input",
        "MalformedBody": "malformed_body",
        "BadCursor": "bad_cursor",
        "InvalidContent": "invalid_content",
        "UnknownOption": "unknown_option",
        "GraphLimit": "task_graph",
        "TooLarge": "too_large",
        "ArtifactTooLarge": "artifact_too_large",
        "UnknownMethod": "unknown_method",
        "VersionNotSupported": "version_not_supported",
        "ContentTypeNotSupported": "content_type_not_supported",
        "Unauthenticated": "unauthenticated",
        "CredentialExpired": "credential_expired",
        "StreamGap": "gap",
        "Forbidden": "forbidden",
        "NotFound": "not_found",
        "UnsupportedOperation": "unsupported_operation",
        "NotCancelable": "not_cancelable",
        "WriteConflict": "conflict",
        "VersionMismatch": "version_mismatch",
        "IdempotencyConflict": "idempotency_conflict",
        "ConfigInvalid": "config_invalid",
        "DirectoryInUse": "directory_in_use",
        "RemoteError": "unavailable",
        "StoreUnavailable": "store_unavailable",
        "ArchiveDamaged": "archive_damaged",
        "RecordDamaged": "record_damaged",
        "EngineFailed": "engine_failed",
        "PeerUnavailable": "peer_unavailable",
        "PeerBusy": "peer_busy",
        "PeerRefused": "peer_refused",
        "InvalidAgentResponse": "invalid_agent_response",
        "IssuerUnavailable": "issuer_unavailable",
        "Draining": "draining",
        "InstanceFull": "instance_full",
    }


def test_a_caller_error_does_not_ask_for_the_same_again_and_a_remote_one_may() -> None:
    assert {kind for kind in ALL if issubclass(kind, CallerError) and kind.retryable} == {
        WriteConflict,
        Limited,
    }
    hopeless = {
        kind.__name__ for kind in ALL if issubclass(kind, RemoteError) and not kind.retryable
    }
    assert hopeless == {"PeerRefused", "InvalidAgentResponse"}


def test_details_are_fields_and_leave_out_what_is_unknown() -> None:
    refused = InvalidInput("message.parts[0]", "empty")
    assert refused.details == {"field": "message.parts[0]", "reason": "empty"}
    assert str(refused) == refused.message == "message.parts[0]: empty"
    assert PasserelleError("x", known=0, unknown=None).details == {"known": 0}


@pytest.mark.requirement("I7")
def test_a_closed_action_names_its_winner() -> None:
    late = ActionClosed("already_resolved", {"decidedBy": "alice"})
    assert late.winner == {"decidedBy": "alice"}
    assert late.stable_code == "already_resolved"


def test_store_errors_state_whether_something_was_written() -> None:
    assert StoreUnavailable("timeout", "unknown").wrote == "unknown"
    assert StoreUnavailable("full", "no", 5).retry_after_s == 5


def test_a_peers_own_code_is_kept() -> None:
    assert PeerRefused("no", -32004).details == {"native_code": -32004}


def test_caller_reads_that_the_store_is_away_and_not_where_it_is() -> None:
    error = StoreUnavailable("connection failed: 10.0.0.5:6379", "no")
    assert "10.0.0.5" in str(error)
    assert "10.0.0.5" not in f"{error.message} {error.details}"


def test_not_found_names_the_object_unless_its_name_is_a_secret() -> None:
    assert str(NotFound("task", "task_1")) == "there is no task 'task_1'"
    assert str(NotFound("code", "")) == "there is no such code"
