"""The approval machine: what a question can be told, and what follows.

A question is opened once and closed at most once (I7). Two things are kept apart that other systems mix: the
*resolution*, which is a fact the moment it is stored, and the *return*, which is the long way of that answer to the
peer that waits for it. A person who has decided is done, even while the peer is away.

Resolution. A question is *pending* until the first valid answer, its expiry, or the end of what asked for it. It
then is *allowed*, *rejected*, *answered* (words were wanted, and came), *answered by the caller* (an authorization was
wanted, and its task's own caller wrote to the agent), *expired*, *cancelled* or *superseded*, and nothing moves it
again: whoever comes late learns who closed it and how. The repeat of the very answer that won is no loser: it changes
nothing and is told the same as the first time. A timeout never allows. Who may decide is checked before anything else,
so that a stranger learns nothing.

Return. Where a peer waits, the append that closes the question also owes it the answer: *owed*, then *returning* for
each attempt (stored before anything is sent), then *returned* or *undeliverable*. The latter is visible and can be
tried again; it never reopens the question. ``none`` means that nobody waits for it elsewhere.

Where more than one must agree (``Quorum``), an answer that is not enough is a vote: the question stays *pending* and
its revision as it is, since what is asked has not changed. An audience can be widened in steps, which changes as
little; those who could decide before still can.

Policy may answer in the very append that opens a question (``SettleAction``); then nobody is ever asked.

What nobody but the gateway or a worker of this machine waits for has no return. There an allowed question is *used*
instead, once, right before what it allows is done (``ConsumeAction``): what was allowed is held against what is about
to run, and policy is asked again, since a rule that denies by now outweighs an answer of before.

Presence does not occur. There is no command for a lost connection, a closed app, a drain or a restart, so none of
these can decide (I6). Nor does this file look at a clock: an answer that is too late is refused by the store, which
compares ``not_after_ms`` with its own time, and so gateways with clocks apart agree.

``TABLE`` is the whole of it: for a command, from which state it is allowed and where it may lead. None is a question
that does not exist. Resolution commands read the state, return commands the return state. ``decide`` turns a command
into facts, ``evolve`` folds facts into the record and never raises.
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

Stand: TypeAlias = ActionState | ReturnState

TABLE: Final[dict[type[ActionCommand], dict[Stand | None, frozenset[Stand]]]] = {
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
    """The facts that a command leads to, all for one append; none for the repeat of an answer that counts already.

    Raises:
        NotFound: no such question, or another owner's.
        Forbidden: the credential does not decide.
        ActionClosed: the question is closed; ``winner`` says by whom (I7).
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
    stand = state.return_state if isinstance(command, _RETURNING) else state.state
    if stand not in TABLE[type(command)]:
        raise _refuse(state, command, stand)
    return _decide(state, command, now_ms)


def find_replay(state: ActionRecord | None, answer: AnswerAction) -> ApprovalDecision | None:
    """The recorded decision, if ``answer`` is the repeat of it: same id, principal, option and content."""
    won = state.decision if state is not None else None
    if state is None or won is None or won.source != "answer":
        return None
    named = answer.option_id or won.option_id
    same = (answer.decision_id, answer.who.id, named, answer.content)
    return won if same == (won.decision_id, won.decided_by, won.option_id, won.content) else None


def find_not_after(state: ActionRecord | None, command: ActionCommand) -> int | None:
    """``not_after_ms`` of the append: an answer counts until the question expires, by the store's clock."""
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
    """The record after an event; total. What it does not know, or has folded already, changes nothing."""
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
    """``TABLE`` as Markdown: a diagram and every row of it."""
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


def _name(source: Stand | None) -> str:
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
            return [_go_back(state, command)]
        case _:
            assert_never(command)


def _close(
    state: ActionRecord,
    command: SettleAction | Expire | CancelAction | SupersedeAction,
    now_ms: int,
) -> list[Fact]:
    """Nobody has answered, and nobody can any more."""
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


def _go_back(
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
    state: ActionRecord, command: ActionCommand, stand: Stand
) -> ActionClosed | UnsupportedOperation:
    closed = state.closed_as
    if closed is not None and not isinstance(command, _RETURNING):
        return ActionClosed(closed, state.describe_winner())
    name = type(command).__name__
    done = "delivered again" if isinstance(command, RetryReturn) else f"given {name}"
    return UnsupportedOperation(
        f"an approval that is {state.state}, delivery {DELIVERY_STATES[state.return_state]}, cannot be {done}",
        state=stand,
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
    state: ActionRecord, moved: ActionRecord, told: ChannelPermissionReturned
) -> ActionRecord:
    match told.outcome:
        case ("owed" | "returning" | "returned" | "undeliverable") as outcome if (
            state.return_state,
            outcome,
        ) in _RETURN_MOVES:
            return replace(
                moved,
                return_state=outcome,
                return_attempts=told.attempts,
                return_error=told.reason,
            )
        case _:
            return state
