"""Before a message is sent to an agent, the policy judges it: rules, hooks, the classifier, a person.

If only the defaults apply, a run has no gate and nothing here is called. Otherwise the append that begins the run
marks it as *gated* (``Attempt.gated``): nothing is sent yet, whatever happens to its driver. The driver consults all
of them, and one append holds their results and what follows:

* *allow*: the intent to send, as for every send,
* *ask*: a question to the task's owner; the task waits (``waiting_permission``), which callers read,
* *deny*: the run and its task end, rejected.

A hook may change the message. The rules then judge both versions, since no hook makes harmless what a rule forbids.
The changed one is stored as ``updated_input``: it is what the question is about, and what is sent. A message that
refers to other tasks is stored in the same way, with the content added from them, and is sent as it was judged.

An answer that allows is used by the append that holds the intent: the digest of the message about to be sent must be
the one that was allowed, and policy is evaluated again. The id of the question derives from the run, so a driver that
takes the run over finds it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.dialects.presentation import list_request_parts
from passerelle.a2a_mapping.members import texts_at
from passerelle.a2a_mapping.states import AUTH_REQUIRED
from passerelle.core.agent_name import ROUTER
from passerelle.core.approval import machine as approval
from passerelle.core.approval.commands import ConsumeAction, OpenAction
from passerelle.core.approval.record import ActionRecord
from passerelle.core.errors import CallerError, StoreUnavailable
from passerelle.core.events import Fact
from passerelle.core.facts import Ref
from passerelle.core.ids import derive_id
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.task import machine as tasks
from passerelle.core.task.commands import LinkTask, WaitFor
from passerelle.core.task.status import Status
from passerelle.core.wire.record import change
from passerelle.delegation.runs.choices import resolve_names
from passerelle.delegation.runs.draft import find_action
from passerelle.delegation.runs.finish import allow_send, refuse_send, show_gateway_status
from passerelle.delegation.runs.own_questions import await_closing, make_asking
from passerelle.delegation.runs.templates import read_passed
from passerelle.permission_bridge.answers.action_rows import open_rows
from passerelle.permission_bridge.delegations import (
    add_request,
    digest_use,
    find_whole_message,
    make_delegation_request,
)
from passerelle.permission_bridge.policy import PolicyFacts, evaluate
from passerelle.permission_bridge.send_judgement import SendCase, judge_send
from passerelle.runtime.records.blob_overflow import keep_subject, write_notes
from passerelle.runtime.records.references import NOTHING

if TYPE_CHECKING:
    from passerelle.core.payloads.approval import ApprovalRequest
    from passerelle.core.task.record import TaskRecord
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.active_run import ActiveRun
    from passerelle.delegation.runs.draft import DecisionDraft
    from passerelle.permission_bridge.send_judgement import JudgedSend
    from passerelle.runtime.records.references import ResolvedReferences

FIRST_REVISION: Final = 1

_GOES_ON: Final = (
    "Nothing is sent to the agent before the approval is decided. The stream of this message ends here; "
    "SubscribeToTask streams what follows and, with the cursor of this event, what came in between."
)


async def pass_gate(active: ActiveRun, *, is_new: bool) -> bool:
    """Whether the message may be sent: then the intent to send it is stored. False: the run or its task has ended.

    ``is_new``: the run was just begun, so no question can be open.

    Raises:
        StoreUnavailable: nothing is known to be written.
    """
    if is_new or not await _has_asked(active):
        judged = await _judge(active)
        if judged is None:
            return False
        decision = judged.strictest.decision
        await _append(active, judged)
        if decision != "ask":
            return decision == "allow"
    return await _await_answer(active)


async def _append(active: ActiveRun, judged: JudgedSend) -> None:
    """Stores the judgement. A rendered turn with an unchanged message stays one, so its answer can be rendered."""
    turn, version = active.run.templated, 0

    def store(draft: DecisionDraft) -> None:
        nonlocal turn, version
        turn, version = active.run.templated, draft.decision.version(active.run.context.task)
        _store(draft, active, judged)

    await active.append(store)
    task = active.run.held[active.run.context.task]
    # Where this append was found to be stored already, another writer may have written since.
    if turn is not None and judged.lets_pass and task.stamp.version == version + 1:
        active.run.templated = change(turn, passed=read_passed(task))


async def _has_asked(active: ActiveRun) -> bool:
    ref = find_action(name_question(active))
    return isinstance((await active.run.writes.load_one(ref)).record, ActionRecord)


async def find_passed(active: ActiveRun, *, is_new: bool = False) -> JsonObject | None:
    """The message as it may be sent, after the gate; None where it may not."""
    while True:
        try:
            return await active.find_message() if await pass_gate(active, is_new=is_new) else None
        except StoreUnavailable as error:
            is_new = False
            await active.hold(error)


def name_question(active: ActiveRun) -> str:
    """The id of the question that a gated run waits for."""
    run = active.run.record.attempts[-1]
    return derive_id("act", active.run.shard, "gate", run.run_id)


async def _judge(active: ActiveRun) -> JudgedSend | None:
    """Consults rules and hooks about the message; None where the message is not available any more."""
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
    stored = None if refers or is_named else _find_entry(active.run.record)
    judged = await judge_send(
        active.deps.consulting, send, referred.join(message), active.run.context.mint, stored
    )
    # References by the caller itself were recorded when the message came.
    news = referred if is_named else NOTHING
    return replace(judged, is_other=refers or is_named, news=news)


def _find_entry(record: TaskRecord) -> Ref | None:
    """The stream entry of the run's message; None where it is composed of several, or was changed."""
    run = record.run
    if run is None or run.updated_input is not None or len(record.inputs) != 1:
        return None
    return Ref(sequence=record.inputs[0])


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
        metadata=active.find_metadata(),
    )


def _store(draft: DecisionDraft, active: ActiveRun, judged: JudgedSend) -> None:
    if draft.record.run is None or not draft.record.run.gated:
        return
    scope = tasks.scope_of(draft.record)
    changed = draft.spill.keep(judged.changed).blob if judged.changed is not None else None
    _note_references(draft, judged.news)
    draft.add(write_notes(draft.spill, scope, judged.hook_results.notes))
    draft.add([Fact(scope, one.to_payload()) for one in judged.evaluations])
    match judged.strictest.decision:
        case "allow":
            allow_send(draft, changed)
        case "ask":
            _ask(draft, active, judged, changed)
        case "deny":
            refuse_send(draft, f"policy denies the message: {judged.strictest.reason}")


def _note_references(draft: DecisionDraft, referred: ResolvedReferences) -> None:
    """Records the tasks that names of the message refer to, and what is sent in their place."""
    if not referred.names_any:
        return
    scope = tasks.scope_of(draft.record)
    draft.add([Fact(scope, one) for one in referred.list_facts(draft.context.peer)])
    for edge in referred.list_edges():
        if not any(one.edge_id == edge.edge_id for one in draft.record.relationships):
            draft.add(draft.decide(LinkTask(edge)))


def _ask(draft: DecisionDraft, active: ActiveRun, judged: JudgedSend, changed: str | None) -> None:
    now_ms, rules = draft.decision.now_ms, active.deps.consulting.find_rules()
    asking = make_asking(draft, name_question(active))
    asked = (one.rules for one in judged.evaluations if one.decision == "ask")
    tier = rules.find_tier(chain.from_iterable(asked), judged.strictest.risk)
    asking = replace(asking, tier=tier)
    asked_about = add_request(judged.message, active.find_metadata())
    request = make_delegation_request(asked_about, asking, judged.strictest, now_ms)
    draft.decision.introduce(find_action(request.action_id))
    whole = find_whole_message(asked_about, request.subject)
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
    show_gateway_status(draft, draft.decide(WaitFor(waiting)), AUTH_REQUIRED, parts)


async def _await_answer(active: ActiveRun) -> bool:
    """Waits for the answer and uses it; an expired question is a refusal."""
    action = await await_closing(active, name_question(active))
    return action is not None and await _use(active, action.request)


async def _use(active: ActiveRun, request: ApprovalRequest) -> bool:
    """Sends what was allowed, if the message is unchanged and policy still allows it."""
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
            reason = decision.comment if decision and decision.comment else action.state
            refuse_send(draft, f"sending the message was not approved: {reason}")
            return
        facts = PolicyFacts(draft.context.mint("eval"), is_configured=True)
        found = evaluate(
            _describe(active).make_case(message),
            facts,
            draft.decision.now_ms,
            active.deps.consulting.find_rules(),
        )
        sent = add_request(message, active.find_metadata())
        digest = digest_use(request, make_asking(draft, request.action_id), sent)
        try:
            used = approval.decide(
                action, ConsumeAction(found.to_payload(), digest), draft.decision.now_ms
            )
        except CallerError as refusal:
            draft.note(found.to_payload())
            refuse_send(draft, f"the approval of the message cannot be used: {refusal.message}")
            return
        draft.add(used)
        allow_send(draft)
        went = True

    await active.append(use)
    return went
