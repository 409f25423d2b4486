"""Answers that end a templated turn at once: the last append is rendered from a template, too.

An answer is templated when it is the agent's first and last reply: a completed Task with a few artifacts of texts and
data, or a bare Message. In a gated turn the message must have been sent unchanged. What callers see is built as for
every answer. The facts about it are the same for every answer of one shape, so samples of them are rendered on the
sample turns (``turn_templates``).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.answer_metadata import SILENT, read_usage, read_words
from passerelle.a2a_mapping.history import complete_history
from passerelle.a2a_mapping.identity import (
    Relabel,
    make_relabel,
    relabel,
    relabel_message,
    relabel_places,
)
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.a2a_mapping.replies import MessageReply, TaskReply, read_reply
from passerelle.a2a_mapping.states import COMPLETED
from passerelle.core.batch import EntityKind, PackedBatch
from passerelle.core.facts import NamedArtifact
from passerelle.core.frozen import frozen
from passerelle.core.ids import ORDINALS
from passerelle.core.mint_log import RecordedIds, mint_together
from passerelle.core.ports.projections import IndexRow
from passerelle.core.session.thread import KEPT_NAMES, ThreadRecord, end_turn
from passerelle.core.wire.generated import make_picker
from passerelle.core.wire.record import change
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.artifacts import DescribedArtifact, describe
from passerelle.delegation.runs.completion import is_silent
from passerelle.delegation.runs.finish import allow_send
from passerelle.delegation.runs.observation import observe
from passerelle.delegation.runs.peer_profile import read_behaviour
from passerelle.delegation.runs.peer_states import read_status_message
from passerelle.delegation.runs.run import Run
from passerelle.delegation.runs.templates import (
    AnswerShape,
    AnswerTemplate,
    ArtifactShape,
    TemplatedAnswer,
    TurnEnd,
    read_passed,
    split_thread,
)
from passerelle.delegation.runs.turn_samples import sample_longer, sample_ms
from passerelle.delegation.runs.turn_templates import TRIES
from passerelle.delegation.runs.turn_values import FREE
from passerelle.runtime.common.clock import StoppedClock
from passerelle.runtime.records.blob_overflow import CAP
from passerelle.runtime.records.writes import compose
from passerelle.store.connection import unpack
from passerelle.store.wire_template import Example, make_wire_template, quote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from passerelle.core.batch import EntityRef
    from passerelle.core.decision import Held
    from passerelle.core.ids import Shard
    from passerelle.core.mint_log import MintRecord
    from passerelle.core.ports.chance import Ids
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.delegation.runs.draft import RunContext
    from passerelle.delegation.runs.peer_profile import SeenBehaviour
    from passerelle.delegation.runs.templates import SampleTurn, TemplatedTurn
    from passerelle.runtime.limits.costs import Price

_MOST_ARTIFACTS: Final = 4
_MOST_PARTS: Final = 4
_SHORT: Final = 24
_MIDDLING: Final = 300
_FRAME_AND_THREAD: Final = 3
"""The frame of an answer, and the thread after it, before and behind a sequence."""
_FIXED: Final = 4
"""How many values of an answer after these have a fixed length: times, and how the gate passed its message."""
_TOUCHED: Final = (EntityKind.TASK, EntityKind.THREAD)
"""Entities that the end of a turn may change."""

_MESSAGE: Final = AnswerShape(is_task=False)


def render_answer(
    run: Run, turn: TemplatedTurn, result: JsonObject, sent_ms: int
) -> Awaitable[bool] | None:
    """Stores the answer to a templated turn, sent at ``sent_ms``; None where the answer is not templated."""
    answer = read_templated(run.context, turn, result)
    if answer is None:
        return None
    writes, context, shard = run.writes, run.context, run.shard
    template = find_template(run, turn, answer.shape, writes.log.shard_epoch(shard))
    if template is None:
        return None
    now_ms = writes.read_ms(shard)
    minted = mint_together(writes.ids, shard, now_ms, template.numbers)
    call = template.wire.render(list_values(turn, answer, template.end, now_ms, minted))
    if call is None:
        return None
    touched = template.pick_touched((context.task, context.thread))
    first_event = f"ev{minted[0]}{template.first_event}"
    window = turn.template.window
    window.note(now_ms - sent_ms)
    packed = PackedBatch(turn.place.session.id, shard, touched, first_event, call, window.within_s)
    row = template.row
    if row is not None:
        row = IndexRow(turn.owner, row.agent, context.task.id, now_ms, row.part)
    return run.append_rendered(turn, template, packed, answer, row)


def read_templated(
    context: RunContext, turn: TemplatedTurn, result: JsonObject
) -> TemplatedAnswer | None:
    """The answer, if it can be templated and is the first of its run."""
    if context.content is not None or context.place is not None:
        return None
    if context.price is not None and not _is_priced_before(context.price, result):
        return None
    if context.redaction.is_on or context.referred:
        return None
    reply = read_reply(result)
    if isinstance(reply, MessageReply) and not context.always_task:
        return _read_message(context, turn, reply.message)
    if isinstance(reply, TaskReply):
        return _read_task(context, turn, reply.task)
    return None


def _is_priced_before(price: Price, result: JsonObject) -> bool:
    """Whether the time of an answer alone determines its cost."""
    holder = object_at(result, "task") or object_at(result, "message")
    return price.is_flat and read_usage(holder) is None


def _read_task(
    context: RunContext, turn: TemplatedTurn, task: JsonObject
) -> TemplatedAnswer | None:
    status, native, native_context = task.get("status"), task.get("id"), task.get("contextId")
    if not isinstance(status, dict) or status.get("state") != COMPLETED:
        return None
    if not isinstance(native, str) or (native_context and native_context != turn.remote_context_id):
        return None
    if native == turn.remote_context_id:
        # One id for two things: which of them is meant is decided by the general code.
        return None
    known = {turn.remote_context_id: context.context_id, native: context.task.id}
    ids = Relabel(context.task.id, context.context_id, known)
    ours = complete_history(relabel_places(task, "Task", ids), context.accepted)
    frame: JsonObject = {"task": ours}
    packed = orjson.dumps(frame)
    if ids.find_in(packed) is not None:
        ids = make_relabel(context.task.id, context.context_id, known)
        ours = complete_history(relabel(task, "Task", ids), context.accepted)
        frame = {"task": ours}
        packed = orjson.dumps(frame)
    described = _describe_all(ours.get("artifacts") or [])
    if len(packed) > CAP or described is None or (not described and is_silent(ours)):
        return None
    if read_words(ours) is not SILENT:
        return None
    text, message_id = read_status_message(ours) if "message" in status else (None, None)
    texts = [native, text or "", message_id or "", f"{len(packed)}"]
    shapes, versions = list[ArtifactShape](), list[tuple[str | None, int]]()
    earlier = {} if turn.known is None else turn.known.record.artifacts
    if len(described) > 1 and len(earlier) + len(described) > KEPT_NAMES:
        return None  # the name of one may replace that of another
    for one in described:
        texts += (one.name_at_peer, one.sha256, f"{len(one.packed)}", one.name or "")
        standing = earlier.get(one.name) if one.name else None
        if standing is not None:
            texts += (f"{standing.version + 1}", standing.artifact_id)
        versions.append((one.name, standing.version + 1 if standing else 1))
        shapes.append((one.media_types, one.parts, one.name is not None, standing is not None))
    shape = AnswerShape(True, text is not None, message_id is not None, tuple(shapes))
    return TemplatedAnswer(shape, frame, packed, tuple(texts), tuple(versions))


def _read_message(
    context: RunContext, turn: TemplatedTurn, message: JsonObject
) -> TemplatedAnswer | None:
    known = {turn.remote_context_id: context.context_id}
    if "taskId" in message and (native := text_at(message, "taskId")):
        known[native] = context.task.id
    if "contextId" in message and (native_context := text_at(message, "contextId")):
        known[native_context] = context.context_id
    ids = Relabel(context.task.id, context.context_id, known)
    frame: JsonObject = {"message": relabel_message(message, ids, relabel_places)}
    packed = orjson.dumps(frame)
    if ids.find_in(packed) is not None:
        ids = make_relabel(context.task.id, context.context_id, known)
        frame = {"message": relabel_message(message, ids)}
        packed = orjson.dumps(frame)
    size = len(packed)
    return TemplatedAnswer(_MESSAGE, frame, packed, (f"{size}",)) if size <= CAP else None


def _describe_all(artifacts: Json) -> list[DescribedArtifact] | None:
    """The records of an answer's artifacts; None where one of them fits no template."""
    if not isinstance(artifacts, list) or len(artifacts) > _MOST_ARTIFACTS:
        return None
    described: list[DescribedArtifact] = []
    for artifact in artifacts:
        if not isinstance(artifact, dict):
            return None
        given = artifact.get("parts") or []
        if not isinstance(given, list) or len(given) > _MOST_PARTS:
            return None
        parts: list[JsonObject] = []
        for part in given:
            if not isinstance(part, dict) or "url" in part:
                return None
            if not ("text" in part or "data" in part):
                return None
            parts.append(part)
        described.append(describe(artifact, parts))
    return described if len(described) <= 1 or _are_told_apart(described) else None


def _are_told_apart(artifacts: Sequence[DescribedArtifact]) -> bool:
    names = {one.name_at_peer for one in artifacts}
    titles = {one.name or number for number, one in enumerate(artifacts)}
    return len(names) == len(titles) == len(artifacts)


def list_values(
    turn: TemplatedTurn, answer: TemplatedAnswer, end: TurnEnd, now_ms: int, minted: Sequence[str]
) -> tuple[bytes, ...]:
    """The values in which answers of a shape differ, as written; minted values come last."""
    at, known = format_ms(now_ms), turn.known
    before, behind, version = b"", b"", ""
    if known is not None:
        artifacts = zip(end.artifacts, answer.versions, strict=True)
        named = [
            (name, NamedArtifact(f"art{minted[0]}{ordinal}", turn.task.id, number))
            for ordinal, (name, number) in artifacts
            if name is not None
        ]
        ended = end_turn(known.record, turn.turn_id, end.outcome, named)
        before, behind = split_thread(ended, at)
        version = f"{known.stamp.version + 1}"
    numbers = [f"{turn.first + place}" for place in end.sequences]
    lasted_ms = max(0, now_ms - turn.began_ms)
    passed = ("", "") if turn.passed is None else (turn.passed.op, turn.passed.at)
    texts = (at, f"{now_ms}", *passed, version, f"{lasted_ms}", *answer.texts, *numbers, *minted)
    return (*turn.values, answer.packed, before, behind, *quote(texts))


def find_template(
    run: Run, turn: TemplatedTurn, shape: AnswerShape, epoch: int
) -> AnswerTemplate | None:
    """The template of an answer, made when its shape is frequent enough."""
    context = run.context
    known = turn.template.answers
    key = (shape, context.peer_tags, context.always_task, context.price, epoch)
    try:
        return known.recall(key)
    except KeyError:
        if not known.is_worth(key):
            return None
    template = _make_form(run, turn, shape, epoch)
    known.keep(key, template)
    return template


def _make_form(
    run: Run, turn: TemplatedTurn, shape: AnswerShape, epoch: int
) -> AnswerTemplate | None:
    """Builds the template from one answer to each of the two samples of the turn."""
    for _ in range(TRIES):
        ids = run.writes.ids
        made = [
            render_sample_answer(run, turn, name_artifacts(one, shape, result, ids), result, epoch)
            for one in turn.template.samples
            for result in (sample_result(shape, ids, one.remote_context_id),)
        ]
        one, other = made
        if one is None or other is None or one.asked != other.asked or one.end != other.end:
            continue
        if {one.shape, other.shape} != {shape}:
            continue
        frame = len(turn.values)
        begin = frame + _FRAME_AND_THREAD + _FIXED
        text_positions = range(begin, begin + one.texts)
        free = FREE.union(range(frame, frame + _FRAME_AND_THREAD), text_positions)
        wire = make_wire_template(one.example, other.example, free)
        if wire is None:
            continue
        return AnswerTemplate(
            wire=wire,
            numbers=one.asked.numbers,
            pick_touched=make_picker([_TOUCHED.index(kind) for kind in one.kinds]),
            end=one.end,
            first_event=one.asked.find("ev"),
            feed=one.feed,
            row=one.row,
            seen=one.seen,
        )
    return None


@frozen
class SampleAnswer:
    """An answer that was decided and not stored."""

    shape: AnswerShape
    asked: MintRecord
    texts: int
    """Number of further texts of any length."""
    end: TurnEnd
    example: Example
    kinds: tuple[EntityKind, ...]
    feed: bool
    row: IndexRow | None
    seen: SeenBehaviour | None


def render_sample_answer(
    run: Run, turn: TemplatedTurn, sample: SampleTurn, result: JsonObject, epoch: int
) -> SampleAnswer | None:
    """Decides an answer to a sample turn with the general code; None where it is not templated. Stores nothing."""
    chance, place = run.writes.ids, sample.place
    now_ms = sample.began_ms + sample_ms(chance)
    ids = RecordedIds(chance, place.shard, now_ms)
    before = sample.render(turn.template)
    settled = sample.decision.settle(sample.op, sample.first)
    task, known = sample.task, sample.known
    held = {ref: settled[ref] for ref in (task, place.thread)}
    thread = held[place.thread]
    if known is not None and isinstance(record := thread.record, ThreadRecord):
        record = change(record, artifacts=known.record.artifacts)
        held[place.thread] = replace(thread, record=record)
    context = replace(
        run.context,
        task=task,
        shard=place.shard,
        thread=place.thread,
        context_id=place.context_id,
        mint=partial(_mint, ids, place.shard),
        accepted=[sample.message],
    )
    answer = read_templated(context, before, result)
    if answer is None:
        return None
    rendered = _copy_run(run, sample, context, held)
    if before.is_gated():
        before = _pass_gate(rendered, before)
    held = rendered.held
    rendered.writes = replace(run.writes, ids=ids, clock=StoppedClock(now_ms), shard_ms=None)
    drafted = rendered.draft(lambda draft: observe(draft, result))
    if drafted is None or drafted[0].spill.blobs or drafted[0].more:
        return None
    draft, terms = drafted
    op = ids.mint("op", place.shard)
    batch, standing = compose(draft.decision, held, terms, op, epoch)
    call = run.writes.log.pack(batch).call
    asked, minted = ids.find_in(call)
    ended = draft.decision.state(place.thread)
    end = TurnEnd(
        artifacts=_list_artifacts(asked),
        sequences=_list_sequences(sample, call),
        outcome=str(ended.last_outcome) if isinstance(ended, ThreadRecord) else "",
    )
    values = list_values(before, answer, end, now_ms, minted)
    return SampleAnswer(
        answer.shape,
        asked,
        2 + len(answer.texts) + len(end.sequences),
        end,
        Example(unpack(call), values),
        tuple(ref.kind for ref in draft.decision.touched),
        standing.feed,
        standing.index[0] if standing.index else None,
        read_behaviour(draft.record.attempts[-1]),
    )


def _copy_run(
    run: Run, sample: SampleTurn, context: RunContext, held: dict[EntityRef, Held]
) -> Run:
    """A run of the sample turn, over the same stores as ``run``."""
    return Run(
        writes=run.writes,
        blobs=run.blobs,
        copies=run.copies,
        uploads=run.uploads,
        contents=run.contents,
        context=context,
        shard=sample.place.shard,
        kept=held,
        driver=sample.driver,
        asks=run.asks,
        post_row=run.post_row,
        list_row=run.list_row,
    )


def _list_artifacts(asked: MintRecord) -> tuple[str, ...]:
    """The ordinals of the minted ids of artifacts."""
    minted = zip(ORDINALS, asked.prefixes, strict=False)
    return tuple(ordinal for ordinal, prefix in minted if prefix == "art")


def _list_sequences(sample: SampleTurn, call: bytes) -> tuple[int, ...]:
    """The events of the turn that the answer names, counted from the first one."""
    numbers = range(len(sample.decision.events))
    return tuple(number for number in numbers if f"{sample.first + number}".encode() in call)


def _pass_gate(run: Run, turn: TemplatedTurn) -> TemplatedTurn:
    """The turn of a sample run after the gate has passed its message; stores nothing."""
    writes, chance = run.writes, run.writes.ids
    run.writes = replace(writes, clock=StoppedClock(sample_ms(chance)), shard_ms=None)
    drafted = run.draft(allow_send)
    if drafted is not None:
        op = chance.mint("op", run.shard)
        run.held = drafted[0].decision.settle(op, sample_ms(chance))
    return change(turn, passed=read_passed(run.held[turn.task]))


def _mint(ids: Ids, shard: Shard, prefix: str) -> str:
    return ids.mint(prefix, shard)


def name_artifacts(
    sample: SampleTurn, shape: AnswerShape, result: JsonObject, ids: Ids
) -> SampleTurn:
    """A sample turn whose context has artifacts, as many as the shape contains."""
    artifacts = objects_at(object_at(result, "task"), "artifacts")
    standing = {
        describe(artifact, objects_at(artifact, "parts")).name or "": NamedArtifact(
            sample_longer(ids, _SHORT), sample_longer(ids, _SHORT), sample_ms(ids)
        )
        for artifact, (_, _, _, exists) in zip(artifacts, shape.artifacts, strict=True)
        if exists
    }
    if sample.known is None or not standing:
        return sample
    record = change(sample.known.record, artifacts=standing)
    return replace(sample, known=change(sample.known, record=record))


def sample_result(shape: AnswerShape, ids: Ids, context: str) -> JsonObject:
    """An answer of that shape, in which every text is unique."""

    def write(length: int) -> str:
        return sample_longer(ids, length)

    message: JsonObject = {"role": "ROLE_AGENT"}
    if shape.says_id or not shape.is_task:
        message["messageId"] = write(_SHORT)
    if shape.says_text or not shape.is_task:
        message["parts"] = [{"text": write(_MIDDLING)}]
    if not shape.is_task:
        return {"message": {**message, "contextId": context}}
    status: JsonObject = {"state": COMPLETED, "message": message}
    artifacts: list[Json] = []
    for types, count, is_named, _ in shape.artifacts:
        parts: list[Json] = [{"text": write(_MIDDLING)} for _ in range(count)]
        for place, media_type in enumerate(types):
            parts[place] = {"text": write(_MIDDLING), "mediaType": media_type}
        named: JsonObject = {"name": write(_SHORT)} if is_named else {}
        artifacts.append({"artifactId": write(_SHORT), **named, "parts": parts})
    return {
        "task": {
            "id": write(_SHORT),
            "contextId": context,
            "status": status,
            "artifacts": artifacts,
        }
    }
