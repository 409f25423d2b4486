"""Delivers approval decisions to the agent: check the agent's task, send once, record its reply (CMD-14).

The pure steps are in ``permission_bridge/return_machine.py``; here they are carried out, under the fence of the run.
Before each send the attempt is stored, so that after a crash the peer is polled before anything is sent again.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.dialects.recall import recall
from passerelle.a2a_mapping.dialects.registry import detect
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.states import INTERRUPTED_STATES, TERMINAL_STATES
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import BeginReturn, FailReturn, FinishReturn
from passerelle.core.approval.record import ActionRecord
from passerelle.core.batch import DueChange
from passerelle.core.payloads.run import request
from passerelle.core.payloads.task import TaskCancelRequested
from passerelle.core.peer import Answered, Closed, RefusedByPeer, Unknown
from passerelle.core.task.commands import RequestCancel, SendInput
from passerelle.core.task.machine import TABLE
from passerelle.core.task.status import ENDED
from passerelle.delegation.runs.agent_errors import (
    ON_ITS_WAY,
    end_after_error,
    find_turns,
    refuse_answer,
    rejects_input,
)
from passerelle.delegation.runs.answer_messages import AnswerMessages
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.liveness import note_break, note_left
from passerelle.delegation.runs.peer_calls import cancel_task
from passerelle.delegation.runs.repeated_questions import ask_again
from passerelle.delegation.runs.results import apply_results
from passerelle.permission_bridge.answers.action_rows import LOOK_AGAIN_MS
from passerelle.permission_bridge.return_machine import (
    REFUSED,
    Gone,
    LookAgain,
    Returned,
    RunningOn,
    SendReturn,
    StillWaiting,
    TaskOver,
    TurnedDown,
    Undeliverable,
    Unreachable,
    WaitUntil,
    back_off,
    choose_step,
    judge_sending,
    read_attempts,
)
from passerelle.runtime.common.carried import adding_extensions
from passerelle.runtime.records.task_fields import SendOptions
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.commands import ActionCommand
    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.permission_bridge.return_machine import TaskSighting

_TASK_NOT_FOUND: Final = -32001
_MESSAGE: Final = "message"
"""In place of a state for a bare Message, which has none."""
_SHOWN_HISTORY: Final = 10
"""Requested history length; agents of LangGraph refuse a larger one."""


async def return_answers(active: ActiveRun) -> bool:
    """Takes one step for every pending answer; returns whether something was done.

    Raises:
        RunMovedError: another instance drives the run now.
        StoreUnavailable: the step is retried later.
    """
    done = False
    missing = [ref for ref in map(find_action, active.pending.owed) if ref not in active.run.held]
    if missing:
        active.run.held |= await active.run.writes.load(missing)
    groups = _list_groups(active)
    put_off = active.pending.put_off
    for settled in put_off.keys() - {group[0] for group in groups}:
        del put_off[settled]
    for group in groups:
        if put_off.get(group[0], 0) <= active.deps.clock.now_ms():
            put_off.pop(group[0], None)
            done = await PauseAnswers(active, group).go() or done
    return done


def _list_groups(active: ActiveRun) -> list[tuple[str, ...]]:
    """The pending answers of a run, grouped by pause: one message has to answer all questions of a pause.

    A pause with an open question has nothing pending yet.
    """
    pauses: dict[str, list[ActionRecord]] = {}
    for held in active.run.held.values():
        record = held.record
        if isinstance(record, ActionRecord):
            name = record.request.group_id or record.request.action_id
            pauses.setdefault(name, []).append(record)
    groups: list[tuple[str, ...]] = []
    for records in pauses.values():
        owed = sorted(one.request.action_id for one in records if one.return_state in ON_ITS_WAY)
        if owed and not any(one.is_open for one in records):
            groups.append(tuple(owed))
    return groups


@dataclass(slots=True)
class PauseAnswers:
    """The delivery of the answers of one pause; ``action_ids`` are its answered questions, at least one."""

    active: ActiveRun
    action_ids: tuple[str, ...]
    _messages: AnswerMessages = field(init=False)
    _is_over: bool = False
    """Whether the agent is finished with the last message."""

    def __post_init__(self) -> None:
        self._messages = AnswerMessages(self.active)

    @property
    def actions(self) -> list[ActionRecord]:
        """The questions whose answers are being delivered, as the driver holds them."""
        held = self.active.run.held
        found = [held[ref].record for ref in map(find_action, self.action_ids) if ref in held]
        return [
            one for one in found if isinstance(one, ActionRecord) and one.return_state in ON_ITS_WAY
        ]

    async def go(self) -> bool:
        """Takes one step; returns whether something was done."""
        actions = self.actions
        moved = bool(actions) and await self._step(actions)
        if moved and not self.actions:
            await self._messages.forget(actions[0])
        return moved

    async def _step(self, actions: list[ActionRecord]) -> bool:
        remote = self._remote()
        if remote is None or self.active.run.record.status in ENDED:
            await self._append_command(FailReturn("peer_terminal"))
            return True
        if any(action.cancels_task for action in actions):
            return await self._cancel(actions)
        sight = await self._check_task(actions, remote)
        now_ms = self.active.deps.clock.now_ms()
        untaken = self.action_ids[0] in self.active.pending.untaken
        attempts = read_attempts(_find_last(actions), untaken=untaken)
        attempts = replace(attempts, last_ms=self.active.find_written_ms(attempts.last_ms))
        doubt_ms = round(self.active.timeouts.doubt_s * 1000)
        step = choose_step(sight, attempts, now_ms, doubt_ms)
        match step:
            case SendReturn():
                await self._send(actions, remote)
            case Returned(native_status=native):
                await self._begin([one for one in actions if one.return_state == "owed"])
                await self._append_command(FinishReturn(native))
            case Undeliverable(reason=reason):
                await self._append_command(FailReturn(reason))
            case WaitUntil(at_ms=at_ms):
                await self._postpone(at_ms)
                return False
            case _:
                assert_never(step)
        return True

    def _remote(self) -> str | None:
        run = self.active.run.record.run
        return run.remote_task_id if run else None

    async def _check_task(self, actions: list[ActionRecord], remote: str) -> TaskSighting:
        outcome = await self.active.peer.get(remote, history_length=_SHOWN_HISTORY)
        if isinstance(outcome, RefusedByPeer) and outcome.code == _TASK_NOT_FOUND:
            return Gone()
        if not isinstance(outcome, Answered):
            return Unreachable()
        task = outcome.result
        state = text_at(object_at(task, "status"), "state")
        seen = self._is_in(
            objects_at(task, "history"), await self._messages.find_message_id(actions)
        )
        if state in TERMINAL_STATES:
            return TaskOver(state, seen)
        if state not in INTERRUPTED_STATES:
            if self._waits_on(actions, state, seen=seen):
                return StillWaiting(same=True, native_status=state, has_message=seen)
            return RunningOn(state, seen)
        asked = [one.request.remote for one in actions if one.request.remote]
        # A question without an id is known by its words, and those are stored without what was redacted.
        read = self.active.deps.outputs.redaction.clean({"task": task})
        shown = {
            prompt.occurrence for prompt in detect(self.active.peer.name, object_at(read, "task"))
        }
        shown |= recall(task, asked)
        same = any(one.occurrence in shown for one in asked)
        return StillWaiting(same, state, seen)

    def _waits_on(self, actions: list[ActionRecord], state: str, *, seen: bool | None) -> bool:
        """Whether the peer waits for these answers in a state in which it has refused others.

        Once one of them may have reached it, only its history proves that it has not.
        """
        run = self.active.run.record.run
        is_first = _find_last(actions).return_attempts == 0
        return run is not None and run.waits_on == state and (is_first or seen is False)

    def _is_in(self, history: list[JsonObject], mine: str) -> bool | None:
        """Whether the peer has the message. If a caller used one id several times, it must have each of them (G1)."""
        if not history:
            return None
        ours = sum(text_at(one, "messageId") == mine for one in self.active.run.context.accepted)
        return sum(text_at(one, "messageId") == mine for one in history) >= max(ours, 1)

    async def _send(self, actions: list[ActionRecord], remote: str) -> None:
        withheld = await self._messages.open_sealed(actions[0])
        if withheld is None and actions[0].state == "answered_by_caller":
            await self._append_command(FailReturn(f"{REFUSED}: its content is not stored any more"))
            return
        message = await self._messages.compose(actions, remote, withheld)
        if message is None:
            await self._cancel(actions)
            return
        await self.active.wait_for_lease()
        send_options = await self._messages.read_send_options(actions)
        streams = self._is_streamed(send_options)
        if not await self._begin(
            actions, message_id=text_at(message, "messageId"), streams=streams
        ):
            return
        self.active.pending.untaken.discard(self.action_ids[0])
        await self.active.wait_until_sendable()
        attempts = _find_last(actions).return_attempts + 1
        with adding_extensions(send_options.extensions):
            options = withheld.options if withheld else send_options.options
            params: JsonObject = {**options, "message": message}
            sent, state = await self._exchange(params, remote, streams=streams)
        judged = judge_sending(sent, state, attempts, self.active.deps.clock.now_ms())
        match judged:
            case Returned(native_status=native):
                if self.actions:
                    await self._append_command(FinishReturn(native))
                if self._is_over:
                    await ask_again(self.active, self.action_ids, remote)
            case TurnedDown(outcome=outcome):
                await refuse_answer(self.active, self.action_ids, remote, outcome)
            case LookAgain(at_ms=at_ms, untaken=untaken):
                if untaken:
                    self.active.pending.untaken.add(self.action_ids[0])
                await self._postpone(at_ms)
            case _:
                assert_never(judged)

    def _is_streamed(self, send_options: SendOptions) -> bool:
        """Whether the answer is sent as a stream: for a caller that streams, to an agent that supports it.

        All others get it unary. The task is known, so subscribing or polling brings everything that follows.
        """
        card = self.active.peer.peek()
        return card is not None and card.streaming and send_options.streams

    async def _cancel(self, actions: list[ActionRecord]) -> bool:
        """Sends CancelTask in place of a message; a peer that was not reached gets it again."""
        if not await self._begin(actions, _make_cancel(actions)):
            return True
        if await cancel_task(self.active):
            await self._append_command(FinishReturn("cancel requested"))
            return True
        attempts = _find_last(actions).return_attempts + 1
        await self._postpone(self.active.deps.clock.now_ms() + back_off(attempts))
        return False

    async def _begin(
        self,
        seen: list[ActionRecord],
        cancel: TaskCancelRequested | None = None,
        message_id: str = "",
        *,
        streams: bool = False,
    ) -> bool:
        """Stores the attempt with the message to send, or with the cancel that the answer stands for.

        Returns False when another process began a delivery after ``seen``, so two never send the same decision.
        """
        began = False

        def begin(draft: DecisionDraft) -> None:
            nonlocal began
            now = [draft.decision.state(find_action(one.request.action_id)) for one in seen]
            actions = [one for one in now if isinstance(one, ActionRecord)]
            began = list(map(_read_progress, actions)) == list(map(_read_progress, seen))
            for action in actions if began else ():
                draft.add(approval.decide(action, BeginReturn(), draft.decision.now_ms))
            if began and message_id:
                _record_intent(draft, message_id, streams=streams)
            if began and cancel is not None and draft.record.status in TABLE[RequestCancel]:
                draft.add(draft.decide(RequestCancel(cancel)))

        await self.active.run.append(begin, self._settle)
        return began

    async def _exchange(
        self, params: JsonObject, remote: str, *, streams: bool
    ) -> tuple[PeerOutcome, str | None]:
        """Sends the answer and handles the reply; returns the outcome with the state in it."""
        self.active.left_ms = 0
        if not streams:
            outcome = await self.active.send(params)
            state = _native_status(outcome)
            if isinstance(outcome, Answered):
                # Its reply and the delivery are one append.
                await apply_results(self.active, [outcome.result], after=self._finish(state))
                self.active.was_answered = True
                note_left(self.active, params, outcome)
                self._is_over = state == _MESSAGE or state in INTERRUPTED_STATES
            return outcome, state
        return await self._follow(params, remote)

    def _finish(self, state: str | None) -> Callable[[DecisionDraft], None]:
        """A callback that records the delivery after the peer's reply; then nothing is pending for the answers."""

        def finish(draft: DecisionDraft) -> None:
            self._add(draft, FinishReturn(state or "unknown"))
            draft.due.extend(self._settle(draft).due)

        return finish

    async def _follow(self, params: JsonObject, remote: str) -> tuple[PeerOutcome, str | None]:
        """Sends the answer as a stream: the first frame proves the delivery, the rest belongs to the run.

        The outcome of an answer is empty; its state is returned separately.
        """
        first: tuple[PeerOutcome, str | None] | None = None
        last: StreamOutcome = Closed()
        async with aclosing(self.active.stream(params)) as stream:
            async for outcome in stream:
                if not isinstance(outcome, Answered):
                    last = outcome
                    break
                last = Answered({})
                first = first or (last, _native_status(outcome))
                await apply_results(self.active, [outcome.result])
                del outcome  # an idle stream would keep it in memory
                if self.active.run.has_ended() or self.active.run.is_parked():
                    break
        self._is_over = first is not None and isinstance(last, Closed)
        if first is not None and isinstance(last, RefusedByPeer):
            if rejects_input(last):
                return last, None
            await end_after_error(
                self.active, last, await find_turns(self.active.run, self.actions)
            )
        elif not isinstance(last, Answered | RefusedByPeer):
            if self._is_over:
                note_left(self.active, params, last)
            await note_break(self.active)
        if first is not None:
            return first
        return await self._judge_silence(remote) if isinstance(last, Closed) else (last, None)

    async def _judge_silence(self, remote: str) -> tuple[PeerOutcome, str | None]:
        """The outcome of a stream without a frame: it ended in good order, so an agent that waits is finished with it.

        Agents of the a2a-sdk do not always store a message without consequences.
        """
        sight = await self._check_task(self.actions, remote)
        if isinstance(sight, StillWaiting):
            self._is_over = True
            return Answered({}), sight.native_status
        return Unknown("the stream ended before a frame came"), None

    async def _append_command(self, command: ActionCommand) -> None:
        await self.active.run.append(lambda draft: self._add(draft, command), self._settle)

    def _add(self, draft: DecisionDraft, command: ActionCommand) -> None:
        for ref in map(find_action, self.action_ids):
            action = draft.decision.state(ref)
            if isinstance(action, ActionRecord) and action.return_state in ON_ITS_WAY:
                draft.add(approval.decide(action, command, draft.decision.now_ms))

    def _settle(self, draft: DecisionDraft) -> AppendOptions:
        return AppendOptions(
            due=tuple(
                DueChange(
                    f"return:{action_id}",
                    draft.decision.now_ms + LOOK_AGAIN_MS
                    if _is_on_its_way(draft.decision.state(find_action(action_id)))
                    else None,
                )
                for action_id in self.action_ids
            )
        )

    async def _postpone(self, at_ms: int) -> None:
        self.active.pending.put_off[self.action_ids[0]] = at_ms
        due = tuple(DueChange(f"return:{action}", at_ms) for action in self.action_ids)
        await self.active.run.append(lambda _draft: None, lambda _draft: AppendOptions(due=due))


def _record_intent(draft: DecisionDraft, message_id: str, *, streams: bool) -> None:
    """Records that an answer to a question is an exchange of its own (EVC-6)."""
    if draft.record.run is not None and draft.record.status in TABLE[SendInput]:
        requested = request(draft.context.peer, "streaming" if streams else "unary", message_id)
        draft.add(draft.decide(SendInput(requested)))


def _is_on_its_way(action: object) -> bool:
    return isinstance(action, ActionRecord) and action.return_state in ON_ITS_WAY


def _read_progress(action: ActionRecord) -> tuple[str, int]:
    """How far the delivery of an answer is."""
    return action.return_state, action.return_attempts


def _find_last(actions: list[ActionRecord]) -> ActionRecord:
    """The action with the latest attempt: they are sent together, but one may have been sent alone before."""
    return max(actions, key=lambda action: (action.return_attempts, action.updated_at))


def _make_cancel(actions: list[ActionRecord]) -> TaskCancelRequested:
    """The intent to cancel, which is a fact before any agent is called (CMD-9)."""
    answer = next(action for action in actions if action.cancels_task)
    by_time = answer.state == "expired"
    decided_by = answer.decision.decided_by if answer.decision else ""
    return TaskCancelRequested(
        actor=decided_by,
        source="policy" if by_time else "user",
        propagation="active_run",
        reason="a question was not answered in time" if by_time else "the answer to a question",
    )


def _native_status(outcome: PeerOutcome) -> str | None:
    if not isinstance(outcome, Answered):
        return None
    for name in ("task", "statusUpdate"):
        state = text_at(object_at(object_at(outcome.result, name), "status"), "state")
        if state:
            return state
    return _MESSAGE if "message" in outcome.result else "TASK_STATE_WORKING"
