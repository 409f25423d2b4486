"""The place of a message: the session and the thread of what it names, or new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.commands import SubmitTurn
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.ids import read_shard
from passerelle.core.session.machine import SessionRecord
from passerelle.core.session.thread import ThreadRecord
from passerelle.runtime.records.places import Place, list_places, mint_place

if TYPE_CHECKING:
    from passerelle.core.decision import Held
    from passerelle.core.principal import Principal
    from passerelle.core.task import requests as task_requests
    from passerelle.runtime.records.writes import Writes


async def locate(
    writes: Writes,
    principal: Principal,
    command: SubmitTurn | task_requests.CreateTask,
    idem: str | None,
) -> tuple[Place, dict[EntityRef, Held]]:
    """The place of the message, with its thread and session as stored.

    Raises:
        NotFound: a session or a thread that is named and is not the caller's, or an unknown context where no thread may
            be created.
        InvalidInput: a context that belongs to another session, or to another thread, than the one named (ID-3).
    """
    if command.session_id is not None and read_shard(command.session_id) is None:
        raise NotFound("session", command.session_id)
    if isinstance(command, SubmitTurn) and command.thread_id is not None:
        return await _locate_thread(writes, principal, command, command.thread_id)
    if command.context_id is None:
        _check_may_make(command)
        place = mint_place(principal, writes.ids, idem, command.session_id)
        if command.session_id is None:
            return place, {}
        held = await writes.load([place.session])
        _check_session(held[place.session], principal, command.session_id)
        return place, held
    for place in list_places(principal, command.context_id):
        held = await writes.load([place.thread])
        thread = held[place.thread].record
        if isinstance(thread, ThreadRecord):
            return _name_session(place, thread, command), held
    _check_may_make(command)
    place = list_places(principal, command.context_id)[-1]
    if command.session_id is not None:
        raise InvalidInput("contextId", "a new context in a session is made by the gateway")
    return place, await writes.load([place.thread, place.session])


async def find_thread(writes: Writes, principal: Principal, command: SubmitTurn) -> Held | None:
    """The thread of the context that a message names, at its likelier place; None if it names none."""
    if command.thread_id is not None:
        _, held = await _locate_thread(writes, principal, command, command.thread_id)
        return next(iter(held.values()))
    if command.context_id is None:
        return None
    thread = list_places(principal, command.context_id)[0].thread
    return await writes.load_one(thread)


async def _locate_thread(
    writes: Writes, principal: Principal, command: SubmitTurn, thread_id: str
) -> tuple[Place, dict[EntityRef, Held]]:
    if read_shard(thread_id) is None:
        raise NotFound("thread", thread_id)
    ref = EntityRef(EntityKind.THREAD, thread_id)
    held = await writes.load([ref])
    thread = held[ref].record
    if not isinstance(thread, ThreadRecord) or thread.owner != principal.key:
        raise NotFound("thread", thread_id)
    if command.context_id not in {None, thread.context_id}:
        raise InvalidInput("contextId", "it is not the context of the thread")
    place = Place(ref.shard, thread.context_id, ref, ref)
    return _name_session(place, thread, command), held


def _name_session(
    place: Place, thread: ThreadRecord, command: SubmitTurn | task_requests.CreateTask
) -> Place:
    if command.session_id not in {None, thread.session_id}:
        raise InvalidInput("sessionId", "the context belongs to another session")
    session = EntityRef(EntityKind.SESSION, thread.session_id)
    return Place(place.shard, place.context_id, place.thread, session)


def _check_may_make(command: SubmitTurn | task_requests.CreateTask) -> None:
    """Raises where a message needs a new thread and may not create one."""
    if not isinstance(command, SubmitTurn) or command.makes_thread:
        return
    if command.context_id is None:
        raise InvalidInput("threadId", "is required where no thread is to be made")
    raise NotFound("context", command.context_id)


def _check_session(held: Held, principal: Principal, session_id: str) -> None:
    session = held.record
    if not isinstance(session, SessionRecord) or session.owner != principal.key:
        raise NotFound("session", session_id)
