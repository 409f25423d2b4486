"""Evaluates a message with rules, hooks and the classifier before it is sent, and returns the message to send.

A hook may change the message. The rules then evaluate both versions, so a hook cannot hide what a rule forbids.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.core.batch import IdempotencyRow
from passerelle.core.errors import Forbidden
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.ids import shard_of
from passerelle.permission_bridge.cases import InboundCall, OutboundDelegation, describe_case
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.runtime.records.blob_overflow import BlobOverflow, write_notes
from passerelle.runtime.records.message_summary import read_text
from passerelle.runtime.records.references import NOTHING
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.decision import Decision
    from passerelle.core.facts import Ref, Scope
    from passerelle.core.ports.blobs import Blobs
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.permission_bridge.cases import Case
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.permission_bridge.hooks.hooks import HookResults
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.references import ResolvedReferences
    from passerelle.runtime.records.writes import Writes

_STRICTNESS: Final = ("allow", "ask", "deny")
_NOTE_MS: Final = 600_000


@frozen
class SendCase:
    """The destination of a message, and the caller. ``agent`` is the one that the caller addressed.

    ``metadata`` is that of the request, which the agent gets beside the message.
    """

    peer: str
    agent: str
    caller: str
    tags: frozenset[str]
    card_hash: str | None
    scope: Scope
    is_call: bool
    """Whether it is the caller's own call: a further attempt is not, unless the gateway chose another agent."""
    metadata: JsonObject = field(default_factory=dict["str", "Json"])

    def make_case(self, message: JsonObject) -> OutboundDelegation:
        """The case that the rules evaluate."""
        args: JsonObject = {
            "text": read_text(message),
            "message": message,
            "metadata": self.metadata,
        }
        return OutboundDelegation(self.peer, self.caller, self.tags, self.card_hash, args)


@frozen
class JudgedSend:
    """All evaluations of one message, and the message to send.

    ``is_other``: it references other tasks, whose content may change before it is sent, or whose names were resolved.
    ``news``: the tasks that names were resolved to.
    """

    evaluations: tuple[Evaluation, ...]
    hook_results: HookResults
    message: JsonObject
    is_other: bool = False
    news: ResolvedReferences = NOTHING

    @property
    def strictest(self) -> Evaluation:
        """The evaluation that decides."""
        return max(self.evaluations, key=lambda one: _STRICTNESS.index(one.decision))

    @property
    def lets_pass(self) -> bool:
        """Whether the message may be sent, and is sent unchanged."""
        return self.strictest.decision == "allow" and self.changed is None

    @property
    def changed(self) -> bytes | None:
        """The message to store, if it differs from what the caller sent."""
        is_other = self.is_other or self.hook_results.message is not None
        return orjson.dumps(self.message) if is_other else None


async def judge_send(
    consulting: PolicyConsultation,
    send: SendCase,
    message: JsonObject,
    mint: Callable[[str], str],
    stored: Ref | None = None,
    *,
    is_withheld: bool = False,
) -> JudgedSend:
    """Evaluates one message; ``stored`` references its entry, if it is stored exactly as given.

    If the message ``is_withheld``, its content is left out of everything recorded.
    """
    rules, now_ms = consulting.find_rules(), consulting.clock.now_ms()
    evaluation_id = mint("eval")
    given = describe_case(send.make_case(message), send.scope, evaluation_id, now_ms)
    results = await consulting.hooks.evaluate(
        "before_delegate", rules, {**given, "message": message}, stored
    )
    if is_withheld:
        results = results.without_content()
    sent = message if results.message is None else results.message
    opinions = await consulting.hooks.classify(rules, {**given, "message": sent})
    facts = PolicyFacts(evaluation_id, is_configured=True, opinions=(*results.verdicts, *opinions))
    found = [_evaluate(send.make_case(sent), facts, now_ms, rules)]
    if sent is not message:
        before = PolicyFacts(mint("eval"), is_configured=True)
        found.append(_evaluate(send.make_case(message), before, now_ms, rules))
    if send.is_call and rules.speaks_about("calls"):
        called = InboundCall(send.caller, send.agent, send.tags)
        found.append(_evaluate(called, PolicyFacts(mint("eval"), may_call=True), now_ms, rules))
    if is_withheld:
        found = [replace(one, case=None) for one in found]
    return JudgedSend(tuple(found), results, sent)


async def note_judgement(writes: Writes, blobs: Blobs, scope: Scope, judged: JudgedSend) -> None:
    """Stores the evaluations of a message in an append of their own.

    Raises:
        StoreUnavailable: whether they are stored is unknown.
    """
    spill, shard = BlobOverflow(), shard_of(scope.session_id)
    facts = write_notes(spill, scope, judged.hook_results.notes)
    facts += [Fact(scope, one.to_payload()) for one in judged.evaluations]
    for blob in spill.blobs:
        await blobs.put(shard, blob)
    key = writes.ids.mint("note", shard)

    def body(decision: Decision) -> AppendOptions:
        decision.add(facts)
        return AppendOptions(idem=IdempotencyRow(key, key, b"", _NOTE_MS))

    await writes.decide(scope.session_id, [], body)


def check_judgement(judged: JudgedSend) -> None:
    """Checks whether a follow-up message may be sent.

    Raises:
        Forbidden: policy denies it, or requires an approval: then it must be sent as a task of its own.
    """
    found = judged.strictest
    if found.decision != "allow":
        denied = found.decision == "deny"
        how = "policy forbids it" if denied else "it needs an approval first"
        raise Forbidden(
            f"the message is not sent: {how}: {found.reason}",
            why="policy" if denied else "approval_required",
        )


def _evaluate(case: Case, facts: PolicyFacts, now_ms: int, rules: Policy) -> Evaluation:
    return replace(evaluate(case, facts, now_ms, rules), case=state_case(case))
