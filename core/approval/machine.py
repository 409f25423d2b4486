"""The approval machine: its commands, and the facts that they lead to.

An approval is opened once and closed at most once (I7). The machine keeps two things apart that other systems mix. The
*resolution* is a fact as soon as it is stored. The *return* is the delivery of that decision to the agent that waits
for it. A person who has decided is done, even while the agent is away.

Resolution. An approval is *pending* until the first valid answer, its expiry, or the end of what asked for it. Then it
is *allowed*, *rejected*, *answered* (words were asked for and given), *answered by the caller* (an authorization was
asked for, and the owner of the task wrote to the agent), *expired*, *cancelled* or *superseded*, and nothing changes it
again. A late answer gets who closed it and how. A repeat of the winning answer changes nothing and gets the same result
as the first one. A timeout never allows. The machine checks who may decide before anything else, so a caller without
the right learns nothing.

Return. Where an agent waits, the append that closes the approval also sets the return to *owed*. It becomes *returning*
for each attempt (stored before anything is sent), then *returned* or *undeliverable*. An undeliverable decision is
visible and can be retried; it never reopens the approval. ``none``: no agent waits for it.

Where several must agree (``Quorum``), an answer that is not enough is a vote: the approval stays *pending* at the same
revision, since the request has not changed. Widening the audience does not change the revision either; earlier
approvers keep their right.

Policy may answer in the append that opens an approval (``SettleAction``); then no approver is asked.

An approval that only the gateway or a local worker waits for has no return. Instead it is *used* once, right before the
allowed act runs (``ConsumeAction``). The machine compares the act with what was allowed, and policy is evaluated again:
a rule that denies now outweighs an earlier answer.

Presence plays no role. There is no command for a lost connection, a closed app, a drain or a restart, so none of these
can decide (I6). Nor does this module read a clock: the store refuses a late answer by comparing ``not_after_ms`` with
its own time, so gateways with different clocks agree.

``TABLE`` lists every transition: for a command, the states it is allowed in and the states it may lead to. None means
that the approval does not exist. Resolution commands read the state, return commands read the return state. ``decide``
turns a command into facts; ``evolve`` folds facts into the record and never raises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from passerelle.core.approval.commands import (
    ActionCommand,
    AnswerAction,
    BeginReturn,
    CancelAction,
    ConsumeAction,
    Escalate,
    Expire,
    FailReturn,
    FinishReturn,
    FurtherCommand,
    OpenAction,
    RetryReturn,
    SeeAction,
    SettleAction,
    SupersedeAction,
    WithdrawVotes,
)
from passerelle.core.approval.facts import (
    OUTCOMES,
    decide_alone,
    record_answer,
    record_closing,
    record_escalation,
    record_opening,
    record_return,
    record_seen,
    record_use,
    settle,
)
from passerelle.core.approval.guards import (
    check_audience,
    check_binding,
    check_device,
    check_opening,
    check_right,
    check_use,
    check_words,
    choose_option,
)
from passerelle.core.approval.record import (
    DELIVERY_STATES,
    SCHEMA,
    ActionRecord,
    ActionState,
    ReturnState,
)
from passerelle.core.approval.votes import (
    closes,
    fold_vote,
    is_cast,
    make_vote,
    record_vote,
    withdraw,
)
from passerelle.core.errors import (
    ActionClosed,
    InvalidInput,
    NotFound,
    StaleAnswer,
    UnsupportedOperation,
)
from passerelle.core.payloads.approval import (
    ActionRequired,
    ActionResolved,
    ChannelPermissionForwarded,
    ChannelPermissionReturned,
    PermissionEvaluated,
)
from passerelle.core.policy.grant import name_grant

if TYPE_CHECKING:
    from passerelle.core.events import Event, Fact
    from passerelle.core.payloads.approval import ApprovalDecision

__all__ = [
    "TABLE",
    "ActionRecord",
    "decide",
    "evolve",
    "find_not_after",
    "find_replay",
    "folds_action",
    "render_table",
]

AnyState: TypeAlias = ActionState | ReturnState

TABLE: Final[dict[type[ActionCommand], dict[AnyState | None, frozenset[AnyState]]]] = {
    OpenAction: {None: frozenset({"pending"})},
    AnswerAction: {"pending": frozenset({*OUTCOMES.values(), "answered_by_caller", "pending"})},
    WithdrawVotes: {"pending": frozenset({"pending"})},
    SeeAction: {"pending": frozenset({"pending"})},
    Escalate: {"pending": frozenset({"pending"})},
    SettleAction: {"pending": frozenset({"allowed", "rejected", "cancelled"})},
    ConsumeAction: {"allowed": frozenset({"allowed"})},
    Expire: {"pending": frozenset({"expired"})},
    CancelAction: {"pending": frozenset({"cancelled"})},
    SupersedeAction: {"pending": frozenset({"superseded"})},
    BeginReturn: {"owed": frozenset({"returning"}), "returning": frozenset({"returning"})},
    FinishReturn: {"returning": frozenset({"returned"})},
    FailReturn: {
        "owed": frozenset({"undeliverable"}),
        "returning": frozenset({"undeliverable"}),
    },
    RetryReturn: {"undeliverable": frozenset({"owed"})},
}

_RETURNING: Final = (BeginReturn, FinishReturn, FailReturn, RetryReturn)
_RETURN_MOVES: Final = frozenset(
    (source, target)
    for command in _RETURNING
    for source, targets in TABLE[command].items()
    for target in targets
)


def decide(state: ActionRecord | None, command: ActionCommand, now_ms: int) -> list[Fact]:
    """The facts of a command, all for one append; none for a repeat of the winning answer.

    Raises:
        NotFound: the approval does not exist, or not for this principal.
        Forbidden: the credential may not decide.
        ActionClosed: the approval is closed; ``winner`` names who closed it (I7).
        StaleAnswer: the answer was to another revision or digest.
        UnknownOption, InvalidContent, InvalidInput: naming the field.
        UnsupportedOperation: the state does not allow the command, or it is too early to expire.
    """
    if isinstance(command, OpenAction):
        if state is not None:
            raise InvalidInput("actionId", "the approval is pending already")
        check_opening(command)
        return record_opening(command.scope, command.request)
    if state is None:
        raise NotFound("action", "")
    if isinstance(command, AnswerAction):
        check_audience(state, command)
        if find_replay(state, command) is not None:
            return []
    current = state.return_state if isinstance(command, _RETURNING) else state.state
    if current not in TABLE[type(command)]:
        raise _refuse(state, command, current)
    return _decide(state, command, now_ms)


def find_replay(state: ActionRecord | None, answer: AnswerAction) -> ApprovalDecision | None:
    """The recorded decision, if ``answer`` repeats it: same id, principal, option and content."""
    won = state.decision if state is not None else None
    if state is None or won is None or won.source != "answer":
        return None
    named = answer.option_id or won.option_id
    same = (answer.decision_id, answer.who.id, named, answer.content)
    return won if same == (won.decision_id, won.decided_by, won.option_id, won.content) else None


def find_not_after(state: ActionRecord | None, command: ActionCommand) -> int | None:
    """``not_after_ms`` of the append: an answer counts until the approval expires by the store's clock."""
    return (
        state.request.expires_ms
        if state is not None and isinstance(command, AnswerAction)
        else None
    )


FOLDED: Final[frozenset[type]] = frozenset(
    {
        ActionRequired,
        ActionResolved,
        ChannelPermissionForwarded,
        ChannelPermissionReturned,
        PermissionEvaluated,
    }
)


def folds_action(event: Event) -> bool:
    """Whether the event can change the record of the action that its scope names."""
    payload = event.fact.payload
    if isinstance(payload, PermissionEvaluated):
        return payload.consumes
    if isinstance(payload, ChannelPermissionReturned):
        return payload.direction == "delivery" or payload.vote is not None
    if isinstance(payload, ChannelPermissionForwarded):
        return payload.step is not None or payload.outcome == "seen"
    return type(payload) in FOLDED


def evolve(state: ActionRecord | None, event: Event) -> ActionRecord | None:
    """The record after an event. Total: an unknown or already folded event changes nothing."""
    payload = event.fact.payload
    if state is None:
        return _start(payload, event) if isinstance(payload, ActionRequired) else None
    if event.fact.scope.action_id != state.request.action_id:
        return state
    if state.last_seq > 0 and event.sequence <= state.last_seq:
        return state
    moved = replace(state, updated_at=event.timestamp, last_seq=event.sequence)
    match payload:
        case ActionResolved(decision=decision) if state.is_open:
            return replace(
                moved,
                state=decision.outcome,
                rev=state.rev + 1,
                decision=decision,
                superseded_by=payload.superseded_by,
                return_state="owed" if payload.returns else "none",
            )
        case PermissionEvaluated(consumes=True):
            return replace(moved, consumed_at=event.timestamp)
        case ChannelPermissionReturned(direction="delivery"):
            return _fold_return(state, moved, payload)
        case ChannelPermissionReturned(vote=vote) if vote is not None and state.is_open:
            return replace(moved, votes=fold_vote(state.votes, payload))
        case ChannelPermissionForwarded(outcome="seen", principal=str(who)) if state.is_open:
            return replace(moved, seen=(*state.seen, who) if who not in state.seen else state.seen)
        case ChannelPermissionForwarded(step=step) if step is not None and state.is_open:
            return replace(moved, step=max(state.step, step))
        case _:
            return state


def render_table() -> str:
    """``TABLE`` as Markdown: a diagram and all rows."""
    arrows = [
        f"    {_name(source)} --> {target} : {command.__name__}"
        for command, rows in TABLE.items()
        for source, targets in rows.items()
        for target in sorted(targets)
    ]
    rows_text = [
        f"| {command.__name__} | {source or 'none yet'} | {', '.join(sorted(targets))} |"
        for command, rows in TABLE.items()
        for source, targets in rows.items()
    ]
    return "\n".join(
        [
            "```mermaid",
            "stateDiagram-v2",
            *arrows,
            "```",
            "",
            "| command | from | to |",
            "| --- | --- | --- |",
            *rows_text,
            "",
        ]
    )


def _name(source: AnyState | None) -> str:
    return "[*]" if source is None else source


def _decide(
    state: ActionRecord,
    command: FurtherCommand,
    now_ms: int,
) -> list[Fact]:
    match command:
        case AnswerAction():
            return _answer(state, command, now_ms)
        case WithdrawVotes():
            return withdraw(state, command)
        case SeeAction(who=who, rev=rev):
            if rev != state.rev:
                raise StaleAnswer("stale_revision", "rev")
            return [] if who.id in state.seen else [record_seen(state, who)]
        case Escalate(step=step):
            return [record_escalation(state, step)]
        case ConsumeAction():
            check_use(state, command, now_ms)
            return [record_use(state, command)]
        case SettleAction() | Expire() | CancelAction() | SupersedeAction():
            return _close(state, command, now_ms)
        case BeginReturn() | FinishReturn() | FailReturn() | RetryReturn():
            return [_record_return_step(state, command)]
        case _:
            assert_never(command)


def _close(
    state: ActionRecord,
    command: SettleAction | Expire | CancelAction | SupersedeAction,
    now_ms: int,
) -> list[Fact]:
    """Closes an approval without an answer."""
    match command:
        case SettleAction():
            return record_closing(state, settle(state, command, now_ms))
        case Expire(at_ms=at_ms):
            now_ms = now_ms if at_ms is None else at_ms
            if now_ms < state.request.expires_ms:
                raise UnsupportedOperation("the approval has not expired", state=state.state)
            return record_closing(
                state, decide_alone(state, "expired", "timeout", "timeout", now_ms)
            )
        case CancelAction(cause=cause):
            return record_closing(state, decide_alone(state, "cancelled", cause, "system", now_ms))
        case SupersedeAction(by=by):
            decision = decide_alone(state, "superseded", "superseded", "system", now_ms)
            return record_closing(state, decision, by)
        case _:
            assert_never(command)


def _record_return_step(
    state: ActionRecord, command: BeginReturn | FinishReturn | FailReturn | RetryReturn
) -> Fact:
    match command:
        case BeginReturn():
            return record_return(state, "returning")
        case FinishReturn(native_status=native_status):
            return record_return(state, "returned", native_status=native_status)
        case FailReturn(reason=reason):
            return record_return(state, "undeliverable", reason=reason)
        case RetryReturn():
            return record_return(state, "owed")
        case _:
            assert_never(command)


def _refuse(
    state: ActionRecord, command: ActionCommand, current: AnyState
) -> ActionClosed | UnsupportedOperation:
    closed = state.closed_as
    if closed is not None and not isinstance(command, _RETURNING):
        return ActionClosed(closed, state.describe_winner())
    name = type(command).__name__
    done = "delivered again" if isinstance(command, RetryReturn) else f"given {name}"
    return UnsupportedOperation(
        f"an approval that is {state.state}, delivery {DELIVERY_STATES[state.return_state]}, cannot be {done}",
        state=current,
        command=name,
    )


def _answer(state: ActionRecord, answer: AnswerAction, now_ms: int) -> list[Fact]:
    check_binding(state, answer)
    option = choose_option(state, answer)
    check_words(state, answer, option)
    check_right(state, answer, option)
    check_device(state, answer, option)
    if state.request.quorum.need > 1:
        vote = make_vote(answer, option, now_ms)
        if not closes(state, vote, answer.void):
            return [] if is_cast(state, vote) else [record_vote(state, vote)]
    decision = record_answer(state, answer, option, now_ms)
    if option.grant is not None and decision.outcome == "allowed":
        written = name_grant(state.request.action_id, state.request.owner)
        decision = replace(decision, grant_id=written)
    return record_closing(state, decision)


def _start(payload: ActionRequired, event: Event) -> ActionRecord:
    return ActionRecord(
        schema=SCHEMA,
        request=payload.request,
        scope=replace(event.fact.scope, action_id=payload.request.action_id),
        state="pending",
        rev=1,
        updated_at=event.timestamp,
        first_seq=event.sequence,
        last_seq=event.sequence,
    )


def _fold_return(
    state: ActionRecord, moved: ActionRecord, returned: ChannelPermissionReturned
) -> ActionRecord:
    match returned.outcome:
        case ("owed" | "returning" | "returned" | "undeliverable") as outcome if (
            state.return_state,
            outcome,
        ) in _RETURN_MOVES:
            return replace(
                moved,
                return_state=outcome,
                return_attempts=returned.attempts,
                return_error=returned.reason,
            )
        case _:
            return state
