"""Evaluates the text of an answer before it counts: it is sent to an agent like any message.

A chosen option without text is governed as a decision. A message to a task that answers a request was already evaluated
as a message (``follow_ups``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.core.errors import Forbidden
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.permission_bridge.send_judgement import (
    SendCase,
    check_judgement,
    judge_send,
    note_judgement,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.approval.commands import AnswerAction
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.permission_bridge.send_judgement import JudgedSend
    from passerelle.runtime.records.writes import Writes


@frozen
class AnswerTextPolicy:
    """Evaluates answer texts with rules, hooks and the classifier; ``find_tags`` returns the tags of an agent."""

    writes: Writes
    blobs: Blobs
    consulting: PolicyConsultation
    find_tags: Callable[[str], frozenset[str]]

    def concerns(self, question: ActionRecord, answer: AnswerAction) -> bool:
        """Whether the answer sends text to an agent, and policy judges such messages."""
        asks = question.is_open and question.request.origin.asked_by == "peer"
        return asks and bool(_list_parts(answer)) and self.consulting.find_rules().judges_sends

    async def judge(self, question: ActionRecord, answer: AnswerAction) -> None:
        """Evaluates the text, and stores the evaluations.

        Raises:
            Forbidden: policy denies it, a hook requires an approval, or a hook would change the text: what was decided
            must
                be what is sent.
        """
        request, shard = question.request, shard_of(question.scope.session_id)
        peer = request.origin.peer or ""
        send = SendCase(
            peer=peer,
            agent=peer,
            caller=request.principal,
            tags=self.find_tags(peer),
            card_hash=request.origin.card_hash,
            scope=question.scope,
            is_call=False,
        )
        message: JsonObject = {
            "messageId": answer.decision_id,
            "role": ROLE_USER,
            "parts": _list_parts(answer),
        }
        judged = await judge_send(
            self.consulting, send, message, lambda name: self.writes.ids.mint(name, shard)
        )
        if judged.strictest.decision != "allow" or judged.hook_results.notes:
            await note_judgement(self.writes, self.blobs, question.scope, judged)
        if not self._is_content(judged, answer):
            check_judgement(judged)
        if judged.hook_results.message is not None:
            raise Forbidden(
                "the answer is not sent: a hook would change its words; send them as a message to the task",
                why="policy",
            )

    def _is_content(self, judged: JudgedSend, answer: AnswerAction) -> bool:
        """Whether an ``ask`` is satisfied because a person has decided, and no matched rule names other approvers.

        An ``ask`` of a hook, or of a failed hook, is not: it saw content that no approver considered.
        """
        found = judged.strictest
        is_person = answer.who.kind == "person" and not answer.is_host
        named = {one.ref for one in self.consulting.find_rules().rules if one.tier is not None}
        is_asked = any(one.verdict == "ask" for one in judged.hook_results.verdicts)
        return (
            found.decision == "ask" and is_person and not is_asked and named.isdisjoint(found.rules)
        )


def _list_parts(answer: AnswerAction) -> list[Json]:
    """The text of an answer as message parts; empty for an option alone."""
    content = answer.content or {}
    parts: list[Json] = []
    text = content.get("text")
    if isinstance(text, str):
        parts.append({"text": text})
    if rest := {name: said for name, said in content.items() if name != "text" or said != text}:
        parts.append({"data": rest})
    if answer.comment:
        parts.append({"text": answer.comment})
    if answer.native:
        parts.append({"data": answer.native})
    return parts
