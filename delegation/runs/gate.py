"""Before a message goes to an agent, the policy judges it: rules, hooks, the classifier, a person.

Where only the defaults apply, a run has no gate and nothing here is called. Else the append that begins the run says
that it is *gated* (``Attempt.gated``): nothing is sent yet, whatever happens to its driver. The driver consults all of
them, and one append holds what they said and what follows from it:

* *allow*: the intent to send, as for every send,
* *ask*: a question to the task's owner; the task waits (``waiting_permission``), and callers read that,
* *deny*: the run and its task end, rejected.

A hook may change the message. The rules judge both versions then, since no hook makes harmless what a rule forbids, and
the changed one is kept behind ``updated_input``: it is what is asked about, and what is sent. A message that refers to
other tasks is kept in the same way, with what it takes along from them, and goes as it was judged.

An answer that allows is used by the append that holds the intent: the digest of the message that is about to go must be
the one that was allowed, and policy is evaluated again. The id of the question derives from the run, so a driver that
takes the run over finds it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.dialects.presentation import list_request_parts
from passerelle.a2a_mapping.inbound import ROLE_USER
from passerelle.a2a_mapping.members import texts_at
from passerelle.a2a_mapping.states import AUTH_REQUIRED
from passerelle.core.agent_name import ROUTER
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import ConsumeAction, OpenAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import CallerError, StoreUnavailable
from passerelle.core.events import Fact
from passerelle.core.ids import derive_id
from passerelle.core.payloads.run import request
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import EndWait, LinkTask, SendInput, WaitFor
from passerelle.core.task.status import WAITING, Status
from passerelle.delegation.runs.choices import resolve_names
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.finish import confirm_cancel, refuse_send, show_own
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.cases import InboundCall, OutboundDelegation, describe_case
from passerelle.permission_bridge.delegations import (
    digest_use,
    find_whole_message,
    make_delegation_request,
)
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.recorded_cases import state_case
from passerelle.permission_bridge.requests import Asking
from passerelle.runtime.records.blob_overflow import keep_subject, write_notes
from passerelle.runtime.records.message_summary import read_text
from passerelle.runtime.records.references import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.facts import Scope
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.permission_bridge.cases import Case
    from passerelle.permission_bridge.hooks.consultation import PolicyConsultation
    from passerelle.permission_bridge.hooks.hooks import HookResults
    from passerelle.permission_bridge.policy import Evaluation
    from passerelle.permission_bridge.rules import Policy
    from passerelle.runtime.records.references import Referred

FIRST_REVISION: Final = 1

_GOES_ON: Final = (
    "Nothing is sent to the agent before somebody has decided. The stream of a message ends here; "
    "SubscribeToTask shows what comes, and with the cursor of this event also what came meanwhile."
)
_STRICTNESS: Final = ("allow", "ask", "deny")
_PLACES: Final = ("contextId", "taskId")


async def pass_gate(active: ActiveRun) -> bool:
    """Whether the message may go: then the intent to send it is stored. False: the run or its task has ended.

    Raises:
        StoreUnavailable: nothing is known to be written.
    """
    run = active.run
    ref = find_action(name_question(active))
    action = (await run.writes.load([ref]))[ref].record
    if not isinstance(action, ActionRecord):
        judged = await _judge(active)
        if judged is None:
            return False
        decision = judged.strictest.decision
        await active.append(lambda draft: _store(draft, active, judged))
        if decision != "ask":
            return decision == "allow"
    return await _await_answer(active)


async def find_passed(active: ActiveRun) -> JsonObject | None:
    """The message as it may be sent, by all who have a say in it; None where it may not."""
    while True:
        try:
            return await active.find_message() if await pass_gate(active) else None
        except StoreUnavailable as error:
            await active.hold(error)


def name_question(active: ActiveRun) -> str:
    """The id of the question that a gated run waits for."""
    run = active.run.record.attempts[-1]
    return derive_id("act", active.run.shard, "gate", run.run_id)


async def _judge(active: ActiveRun) -> JudgedSend | None:
    """Hears everybody about the message; None where it is not known any more."""
    message, run = await active.find_message(), active.run.record.run
    if message is None or run is None:
        return None
    given, message = message, await resolve_names(active, message)
    if message is None:
        return None
    send = _describe(active)
    refers = bool(texts_at(message, "referenceTaskIds"))
    is_named = message is not given
    referred = await active.refer(message) if refers else NOTHING
    whole = referred.join(message)
    judged = await judge_send(active.deps.consulting, send, whole, active.run.context.mint)
    # What the caller refers to itself was told when the message came.
    news = referred if is_named else NOTHING
    return replace(judged, is_other=refers or is_named, news=news)


def _describe(active: ActiveRun) -> SendCase:
    record, context = active.run.record, active.run.context
    run = record.attempts[-1]
    return SendCase(
        peer=context.peer,
        agent=record.agent,
        caller=record.scope.principal,
        tags=context.peer_tags,
        card_hash=run.worker.card_hash,
        scope=tasks.scope_of(record),
        is_call=run.ordinal == 1 or record.kind == ROUTER,
    )


def _store(draft: DecisionDraft, active: ActiveRun, judged: JudgedSend) -> None:
    if draft.record.run is None or not draft.record.run.gated:
        return
    scope = tasks.scope_of(draft.record)
    changed = draft.spill.keep(judged.changed).blob if judged.changed is not None else None
    _note_references(draft, judged.news)
    draft.add(write_notes(draft.spill, scope, judged.heard.notes))
    draft.add([Fact(scope, one.to_payload()) for one in judged.evaluations])
    match judged.strictest.decision:
        case "allow":
            _intend(draft, changed)
        case "ask":
            _ask(draft, active, judged, changed)
        case "deny":
            refuse_send(draft, f"policy does not let it be sent: {judged.strictest.reason}")


def _note_references(draft: DecisionDraft, referred: Referred) -> None:
    """Says which tasks names of the message have turned out to mean, and what goes along in their place."""
    if not referred.names_any:
        return
    scope = tasks.scope_of(draft.record)
    draft.add([Fact(scope, one) for one in referred.list_facts(draft.context.peer)])
    for edge in referred.list_edges():
        if not any(one.edge_id == edge.edge_id for one in draft.record.relationships):
            draft.add(draft.tell(LinkTask(edge)))


def _intend(draft: DecisionDraft, changed: str | None = None) -> None:
    run = draft.record.run
    if run is None:
        return
    if draft.record.status in WAITING:
        draft.add(draft.tell(EndWait("it may be sent")))
    requested = request(draft.context.peer, run.delivery_mechanism, run.message_id, changed)
    draft.add(draft.tell(SendInput(requested)))


def _ask(draft: DecisionDraft, active: ActiveRun, judged: JudgedSend, changed: str | None) -> None:
    now_ms, rules = draft.decision.now_ms, active.deps.consulting.find_rules()
    asking = _make_asking(draft, name_question(active))
    asked = (one.rules for one in judged.evaluations if one.decision == "ask")
    tier = rules.find_tier(chain.from_iterable(asked), judged.strictest.risk)
    asking = replace(asking, tier=tier)
    request = make_delegation_request(judged.message, asking, judged.strictest, now_ms)
    draft.decision.introduce(find_action(request.action_id))
    whole = find_whole_message(judged.message, request.subject)
    opening = approval.decide(None, OpenAction(request, asking.scope), now_ms)
    draft.add(keep_subject(draft.spill, opening, whole))
    draft.due.extend(open_rows(request))
    waiting = TaskWaiting(
        waiting_for="permission",
        status=Status.WAITING_PERMISSION,
        reason=request.title,
        action_ids=(request.action_id,),
        updated_input=changed,
        send_options=active.options,
    )
    parts: list[Json] = [*list_request_parts(request, FIRST_REVISION), {"text": _GOES_ON}]
    show_own(draft, draft.tell(WaitFor(waiting)), AUTH_REQUIRED, parts)


def _make_asking(draft: DecisionDraft, action_id: str) -> Asking:
    record = draft.record
    return Asking(
        action_id=action_id,
        owner=record.owner,
        tenant=record.scope.tenant,
        principal=record.scope.principal,
        peer=draft.context.peer,
        scope=tasks.scope_of(record),
        card_hash=record.run.worker.card_hash if record.run else None,
    )


async def _await_answer(active: ActiveRun) -> bool:
    """Waits for the answer, however long it takes, and uses it; a time that is over is a no."""
    ref = find_action(name_question(active))
    while True:
        held = await active.run.writes.load([ref])
        action = held[ref].record
        if active.run.has_ended() or not isinstance(action, ActionRecord):
            return False
        if active.run.record.status is Status.CANCELLING:
            await confirm_cancel(active, "it was stopped before the agent had it")
            return False
        if not (action.is_open or active.run.is_held()):
            break
        try:
            await active.rest(active.timeouts.look_s)
        except StoreUnavailable as error:
            await active.hold(error)
    active.run.held |= held
    return await _use(active, action.request)


async def _use(active: ActiveRun, request: ApprovalRequest) -> bool:
    """Sends what was allowed, if it is what was allowed, and if nothing speaks against it by now."""
    message = await active.find_message()
    if message is None:
        return False
    went = False

    def use(draft: DecisionDraft) -> None:
        nonlocal went
        went = False
        action = draft.decision.state(find_action(request.action_id))
        if draft.record.run is None or not isinstance(action, ActionRecord):
            return
        decision = action.decision
        if action.state != "allowed" or decision is None:
            said = decision.comment if decision and decision.comment else action.state
            refuse_send(draft, f"it may not be sent: {said}")
            return
        facts = PolicyFacts(draft.context.mint("eval"), is_configured=True)
        found = evaluate(
            _describe(active).make_case(message),
            facts,
            draft.decision.now_ms,
            active.deps.consulting.find_rules(),
        )
        digest = digest_use(request, _make_asking(draft, request.action_id), message)
        try:
            used = approval.decide(
                action, ConsumeAction(found.to_payload(), digest), draft.decision.now_ms
            )
        except CallerError as refusal:
            draft.note(found.to_payload())
            refuse_send(draft, f"it was allowed, and may not be sent: {refusal.message}")
            return
        draft.add(used)
        _intend(draft)
        went = True

    await active.append(use)
    return went


@dataclass(frozen=True, slots=True)
class SendCase:
    """Where a message is to go, and in whose work. ``agent`` is the one that the caller asked."""

    peer: str
    agent: str
    caller: str
    tags: frozenset[str]
    card_hash: str | None
    scope: Scope
    is_call: bool
    """Whether it is the caller's call of the agent: a further attempt is none, unless the gateway chose another one."""

    def make_case(self, message: JsonObject) -> OutboundDelegation:
        """What the rules are asked."""
        args: JsonObject = {"text": read_text(message), "message": message}
        return OutboundDelegation(self.peer, self.caller, self.tags, self.card_hash, args)


@dataclass(frozen=True, slots=True)
class JudgedSend:
    """What everybody said about one message, and the message as it may go.

    ``is_other``: it names other tasks, and what stands there may be another thing when it goes, or names became tasks.
    ``news``: the tasks that names have turned out to mean.
    """

    evaluations: tuple[Evaluation, ...]
    heard: HookResults
    message: JsonObject
    is_other: bool = False
    news: Referred = NOTHING

    @property
    def strictest(self) -> Evaluation:
        """The one that counts."""
        return max(self.evaluations, key=lambda one: _STRICTNESS.index(one.decision))

    @property
    def changed(self) -> bytes | None:
        """The message as it is kept, where what the caller sent does not say it any more."""
        is_other = self.is_other or self.heard.message is not None
        return orjson.dumps(self.message) if is_other else None


async def judge_send(
    consulting: PolicyConsultation, send: SendCase, message: JsonObject, mint: Callable[[str], str]
) -> JudgedSend:
    """What everybody says to one message."""
    rules, now_ms = consulting.find_rules(), consulting.clock.now_ms()
    evaluation_id = mint("eval")
    given = describe_case(send.make_case(message), send.scope, evaluation_id, now_ms)
    heard = await consulting.hooks.hear("before_delegate", rules, {**given, "message": message})
    sent = message if heard.message is None else _adopt(heard.message, message)
    opinions = await consulting.hooks.classify(rules, {**given, "message": sent})
    facts = PolicyFacts(evaluation_id, is_configured=True, heard=(*heard.said, *opinions))
    found = [_evaluate(send.make_case(sent), facts, now_ms, rules)]
    if sent is not message:
        before = PolicyFacts(mint("eval"), is_configured=True)
        found.append(_evaluate(send.make_case(message), before, now_ms, rules))
    if send.is_call and rules.speaks_about("calls"):
        called = InboundCall(send.caller, send.agent, send.tags)
        found.append(_evaluate(called, PolicyFacts(mint("eval"), may_call=True), now_ms, rules))
    return JudgedSend(tuple(found), heard, sent)


def _evaluate(case: Case, facts: PolicyFacts, now_ms: int, rules: Policy) -> Evaluation:
    return replace(evaluate(case, facts, now_ms, rules), case=state_case(case))


def _adopt(changed: JsonObject, before: JsonObject) -> JsonObject:
    """What a hook made of the message; whose it is and where it belongs is not the hook's to say."""
    kept: JsonObject = {name: before[name] for name in ("messageId", *_PLACES) if name in before}
    bare = {name: one for name, one in changed.items() if name not in _PLACES}
    return {**bare, "role": before.get("role", ROLE_USER), **kept}
