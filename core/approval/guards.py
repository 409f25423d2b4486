"""Checks before an approval opens or an answer counts: each guard raises one typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.approval.audience import is_asking_side, may_decide, may_read
from passerelle.core.approval.response_schema import check_content, check_schema, is_blank
from passerelle.core.errors import (
    Forbidden,
    InvalidContent,
    InvalidInput,
    NotFound,
    StaleAnswer,
    UnknownOption,
    UnsupportedOperation,
)
from passerelle.core.events import check_scope
from passerelle.core.ids import read_shard
from passerelle.core.payloads.approval import Option
from passerelle.core.payloads.device import NEGATIVE, reaches
from passerelle.core.principal import AccessScope, PrincipalKind
from passerelle.core.wire.canonical import canonicalize

if TYPE_CHECKING:
    from passerelle.core.approval.commands import AnswerAction, ConsumeAction, OpenAction
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject

TITLE_LIMIT: Final = 120
COMMENT_LIMIT: Final = 2000
CONTENT_LIMIT_BYTES: Final = 8192
DECISION_ID_LIMIT: Final = 128
MAX_LIFETIME_MS: Final = 30 * 24 * 3_600_000

_WORDS: Final = frozenset({"input", "auth"})
"""Kinds of approvals that a message to the task answers."""
_MESSAGE: Final = Option("message", "Write to the agent", "answer")
"""The implied option of a message to the task that answers an authorization request without an answer option. It is
never offered, since only the owner of the task may write to its agent.
"""
_DECIDERS: Final[frozenset[PrincipalKind]] = frozenset({"person", "service"})


def check_opening(command: OpenAction) -> None:
    """Refuses an approval that no principal could answer, or that would never end.

    Raises:
        InvalidInput: naming the field.
    """
    request = command.request
    if read_shard(request.action_id) is None:
        raise InvalidInput("actionId", "is not an id of this gateway")
    check_scope("permission.requested", command.scope)
    if not 0 < len(request.title) <= TITLE_LIMIT or not request.title.isprintable():
        raise InvalidInput("title", f"must be one line of 1 to {TITLE_LIMIT} characters")
    if not request.owner:
        raise InvalidInput("owner", "an approval needs an owner who can decide")
    if not request.digest:
        raise InvalidInput("digest", "an answer must be bound to a digest")
    if not 0 < request.expires_ms - request.created_ms <= MAX_LIFETIME_MS:
        raise InvalidInput("expiresMs", "must be after createdMs, and within 30 days of it")
    if request.on_timeout == "keep_waiting" and request.kind != "input":
        raise InvalidInput("onTimeout", "keep_waiting is for approvals of kind input")
    _check_options(request)
    _check_audience(request)


def check_audience(record: ActionRecord, answer: AnswerAction) -> None:
    """Only the audience decides, and only as a person or a service with the right scope.

    An agent's credential never decides, whatever its scopes are, nor does the credential that asked. The owner of a
    task may also answer an approval of kind input or auth with a message to the task, as in any A2A conversation
    (ST-6).

    Raises:
        NotFound: the approval does not exist for this principal.
        Forbidden: the credential lacks the scope, or its principal may read but not decide.
    """
    who, request = answer.who, record.request
    if answer.turn_id is None and is_asking_side(record, who):
        raise Forbidden("the asking side never decides its own approval", why="asker")
    if answer.is_host:
        _check_host(record, who)
        return
    if not may_read(record, who):
        raise NotFound("action", request.action_id)
    if request.kind in _WORDS and answer.turn_id is not None and who.key == request.owner:
        return
    if who.kind not in _DECIDERS:
        raise Forbidden(f"a credential of kind {who.kind} never decides", kind=who.kind)
    if AccessScope.DECIDE not in who.scopes:
        raise Forbidden(f"the credential lacks {AccessScope.DECIDE}", scope=AccessScope.DECIDE)
    if not may_decide(record, who):
        is_self = who.id == request.principal and not request.quorum.allow_self
        raise Forbidden(
            "this approval is for others to decide",
            why="self_approval" if is_self else "not_in_audience",
        )


def _check_host(record: ActionRecord, who: Principal) -> None:
    """A host's policy decides for every owner of its tenant what one person may decide; never what needs several."""
    request = record.request
    if who.tenant != request.tenant:
        raise NotFound("action", request.action_id)
    if who.kind not in _DECIDERS or AccessScope.HOST not in who.scopes:
        raise Forbidden(f"the credential lacks {AccessScope.HOST}", scope=AccessScope.HOST)
    if request.quorum.need > 1 or request.audience:
        raise Forbidden("this approval is for others to decide", why="not_in_audience")


def check_right(record: ActionRecord, answer: AnswerAction, option: Option) -> None:
    """Allowing high risk needs a scope of its own. Rejecting never does, nor does a message that answers.

    Raises:
        Forbidden: the credential lacks the scope.
    """
    says_yes = option.kind not in NEGATIVE and answer.turn_id is None and not answer.is_host
    is_high_risk = not reaches("medium", record.request.risk)
    if says_yes and is_high_risk and AccessScope.DECIDE_HIGH not in answer.who.scopes:
        raise Forbidden(
            f"allowing at {record.request.risk} risk requires {AccessScope.DECIDE_HIGH}",
            scope=AccessScope.DECIDE_HIGH,
        )


def check_device(record: ActionRecord, answer: AnswerAction, option: Option) -> None:
    """Checks what the device of an answer may choose, and whether it had to sign.

    A rejection needs no signature: stopping something must not fail for want of a key.

    Raises:
        Forbidden: the rights of the device exclude the option, or a required signature is missing.
    """
    if not answer.rights.allow(option.kind, record.request.risk):
        raise Forbidden("this device may not choose this", why="device_scope")
    if answer.must_sign and answer.signature is None and option.kind not in NEGATIVE:
        raise Forbidden(
            f"allowing at {record.request.risk} risk requires the signature of a device",
            why="signature_required",
        )


def check_binding(record: ActionRecord, answer: AnswerAction) -> None:
    """The answer must be to the current revision and digest.

    Raises:
        StaleAnswer: another revision, or another digest.
        InvalidInput: ``rev`` is not a whole number.
    """
    if isinstance(answer.rev, bool):
        raise InvalidInput("rev", "must be a whole number")
    if answer.rev != record.rev:
        raise StaleAnswer("stale_revision", "rev")
    if answer.digest != record.request.digest:
        raise StaleAnswer("digest_mismatch", "digest")


def check_use(record: ActionRecord, command: ConsumeAction, now_ms: int) -> None:
    """What runs must be what was allowed: once, in time, and not denied by policy now.

    Raises:
        StaleAnswer: another act is about to run.
        UnsupportedOperation: it was used before, it has expired, or policy denies it now.
    """
    if record.request.remote is not None:
        raise UnsupportedOperation(
            "its decision is delivered to an agent, which acts on it", state=record.state
        )
    if command.digest != record.request.digest:
        raise StaleAnswer("digest_mismatch", "digest")
    if record.consumed_at is not None:
        raise UnsupportedOperation("the approval was already used", usedAt=record.consumed_at)
    if now_ms >= record.request.expires_ms:
        raise UnsupportedOperation("the approval has expired", state=record.state)
    if command.evaluation.decision == "deny":
        raise UnsupportedOperation(f"policy now denies it: {command.evaluation.reason}")


def choose_option(record: ActionRecord, answer: AnswerAction) -> Option:
    """The option that an answer names; without a name, the one option that takes content.

    A message of the task's owner answers an authorization request that has no such option.

    Raises:
        UnknownOption: the approval does not offer it.
    """
    if answer.option_id is not None:
        option = record.find_option(answer.option_id)
        if option is None:
            raise UnknownOption("optionId", "is not one of the options")
        return option
    answering = [option for option in record.request.options if option.kind == "answer"]
    if not answering and answer.turn_id is not None and record.request.kind == "auth":
        return _MESSAGE
    if len(answering) != 1 or answer.content is None:
        raise UnknownOption("optionId", "must name one of the options")
    return answering[0]


def check_words(record: ActionRecord, answer: AnswerAction, option: Option) -> None:
    """Checks the other members of an answer: ids, comment, content.

    Raises:
        InvalidInput: the decision id or the comment is out of bounds.
        InvalidContent: the content is missing, blank, not asked for, or does not match the schema.
    """
    if not 0 < len(answer.decision_id) <= DECISION_ID_LIMIT:
        raise InvalidInput("decisionId", f"must have 1 to {DECISION_ID_LIMIT} characters")
    # For a decision named after a turn, the agent is sent the message of that turn.
    names_turn = answer.decision_id.startswith("turn_")
    if names_turn != (answer.turn_id is not None) or answer.turn_id not in {
        None,
        answer.decision_id,
    }:
        raise InvalidInput(
            "decisionId", "only an answer that came as a message may have the id of its turn"
        )
    if names_turn and (option.kind != "answer" or record.request.kind not in _WORDS):
        raise InvalidInput("optionId", "a message can choose only an option of kind answer")
    if answer.comment is not None and len(answer.comment) > COMMENT_LIMIT:
        raise InvalidInput("comment", f"must have at most {COMMENT_LIMIT} characters")
    if option.kind == "answer":
        # A message goes to the agent unchanged, and the agent judges it; the content only shows it.
        if not names_turn:
            _check_content(answer.content, record.request.response_schema)
            _check_size(answer.content)
    elif answer.content is not None:
        raise InvalidContent("content", f"the option {option.option_id} takes none")
    if answer.native is not None:
        _check_size(answer.native)


def _check_content(content: JsonObject | None, schema: JsonObject | None) -> None:
    if content is None or is_blank(content):
        raise InvalidContent("content", "must not be empty")
    if schema is not None:
        check_content(schema, content)


def _check_size(content: JsonObject | None) -> None:
    try:
        size = len(canonicalize(content))
    except InvalidInput as error:
        raise InvalidContent("content", error.reason) from None
    if size > CONTENT_LIMIT_BYTES:
        raise InvalidContent("content", f"has more than {CONTENT_LIMIT_BYTES} bytes")


def _check_audience(request: ApprovalRequest) -> None:
    quorum = request.quorum
    if quorum.need > 1 and request.kind not in {"permission", "confirmation"}:
        raise InvalidInput(
            "quorum", "only approvals of kind permission or confirmation can need several approvers"
        )
    named = {name for step in request.audience for name in step.principals} or {request.principal}
    able = named if quorum.allow_self else named - {request.principal}
    if len(able) < max(quorum.need, 1):
        raise InvalidInput("audience", f"{quorum.need} must agree, and {len(able)} may decide")
    starts = [step.after_ms for step in request.audience]
    if starts != sorted(starts) or starts[:1] not in ([], [0]):
        raise InvalidInput(
            "audience", "the first step must start at 0, and later steps must be in order"
        )


def _check_options(request: ApprovalRequest) -> None:
    names = [option.option_id for option in request.options]
    if not names or len(set(names)) != len(names) or not all(names):
        raise InvalidInput(
            "options", "needs at least one option, each with a distinct, non-empty id"
        )
    wants_words = request.kind in {"input", "auth"}
    for option in request.options:
        if (option.kind == "answer" and not wants_words) or (
            option.kind.startswith("allow_") and wants_words
        ):
            raise InvalidInput(
                "options", f"{option.kind} does not fit an approval of kind {request.kind}"
            )
    if request.response_schema is not None:
        check_schema(request.response_schema)
