"""The message that brings the answers of a pause to the agent: the caller's own one, or one in the agent's dialect.

Words of a caller are put into the dialect if the agent takes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from passerelle.a2a_mapping.dialects.pause import DecidedQuestion, derive_message_id
from passerelle.a2a_mapping.dialects.registry import encode, refuses_text
from passerelle.a2a_mapping.members import objects_at, text_at
from passerelle.a2a_mapping.outbound import RemoteAddress, address_message
from passerelle.core.approval.prompt import PeerPrompt, read_answer
from passerelle.delegation.runs.agent_errors import find_turns
from passerelle.runtime.records.task_fields import SendOptions

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.runtime.records.task_fields import TurnInput
    from passerelle.runtime.records.withheld import Withheld


@dataclass(slots=True)
class AnswerMessages:
    """Composes the message for the answered questions of one pause."""

    active: ActiveRun
    _turns: dict[str, TurnInput] = field(default_factory=dict[str, "TurnInput"])
    """Turns that were read: their content never changes."""

    async def open_sealed(self, action: ActionRecord) -> Withheld | None:
        """The sealed content of a message that provides a credential; None if it is not sealed, or gone."""
        run, turn_id, sealed = self.active.run, *await self._find_sealed(action)
        if sealed is None:
            return None
        return await run.contents.withholding.read(run.shard, sealed, turn_id)

    async def forget(self, action: ActionRecord) -> None:
        """Deletes a credential that is not being delivered any more."""
        run, (_, sealed) = self.active.run, await self._find_sealed(action)
        if sealed is not None:
            now_ms = self.active.deps.clock.now_ms()
            await run.contents.withholding.forget(run.shard, sealed, now_ms)

    async def compose(
        self, actions: list[ActionRecord], remote: str, withheld: Withheld | None
    ) -> JsonObject | None:
        """The message to the agent's task ``remote``; None if the agent has no form for an answer: cancel the task."""
        run = self.active.run.record.run
        context = run.remote_context_id if run else None
        own = withheld.message if withheld else await self._find_message(actions)
        if own is not None:
            referred = await self.active.refer(own)
            to = RemoteAddress(
                context_id=context,
                task_id=remote,
                references=referred.ids,
                parts=referred.parts,
            )
            message = address_message(own, to)
            typed = None if withheld else _type_words(own, actions[0], remote, context or "")
            return message if typed is None else {**message, "parts": typed["parts"]}
        replies = [reply for action in actions if (reply := _make_reply(action)) is not None]
        return encode(replies, remote, context or "") if replies else None

    async def find_message_id(self, actions: list[ActionRecord]) -> str:
        """The id of that message, the same for every attempt."""
        own = await self._find_message(actions)
        decided = [action.decision.decision_id for action in actions if action.decision]
        return text_at(own, "messageId") if own else derive_message_id(decided)

    async def read_send_options(self, actions: list[ActionRecord]) -> SendOptions:
        """The options of the message that is the answer; defaults if it came another way."""
        run = self.active.run
        turns = await find_turns(run, actions) or run.record.open_turns
        turn = await self._read_turn(turns[-1]) if turns else None
        return turn.send_options if turn else SendOptions()

    async def _find_message(self, actions: list[ActionRecord]) -> JsonObject | None:
        """The caller's own message, if a message was the answer: then the decision has its turn's id."""
        decision = actions[0].decision
        if len(actions) > 1 or decision is None or not decision.decision_id.startswith("turn_"):
            return None
        turn = await self._read_turn(decision.decision_id)
        return turn.message if turn else None

    async def _find_sealed(self, action: ActionRecord) -> tuple[str, str | None]:
        """The turn that brought the answer, and where its message is sealed, if it is."""
        decision = action.decision
        if decision is None or decision.outcome != "answered_by_caller":
            return "", None
        turn = await self._read_turn(decision.decision_id)
        return decision.decision_id, turn.send_options.sealed if turn else None

    async def _read_turn(self, turn_id: str) -> TurnInput | None:
        """A turn of the task; read from the store once."""
        known, run = self._turns.get(turn_id), self.active.run
        if known is None:
            known = await run.read_turn(turn_id)
            if known is not None:
                self._turns[turn_id] = known
        return known


def _type_words(
    own: JsonObject, action: ActionRecord, remote: str, context: str
) -> JsonObject | None:
    """A message of words alone in the agent's dialect; None if it is sent as it is."""
    parts, reply = objects_at(own, "parts"), _make_reply(action)
    if reply is None or not refuses_text(reply.prompt.dialect):
        return None
    if any("text" not in part for part in parts):
        return None
    words = "\n".join(text_at(part, "text") for part in parts)
    said = replace(reply, answer=replace(reply.answer, text=words, content={"text": words}))
    return encode([said], remote, context)


def _make_reply(action: ActionRecord) -> DecidedQuestion | None:
    decision, pause = action.decision, action.request.remote
    if decision is None or pause is None:
        return None
    prompt = PeerPrompt(
        dialect=pause.dialect,
        occurrence=pause.occurrence,
        native_status=pause.native_status,
        kind=action.request.kind,
        action_type=action.request.action_type,
        options=action.request.options,
        native_id=pause.native_id,
        message_id=pause.message_id,
        subject=action.request.subject,
    )
    chosen = action.find_option(decision.option_id or "")
    return DecidedQuestion(
        prompt, read_answer(decision, chosen), decision.decision_id, decision.native
    )
