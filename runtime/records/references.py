"""Tasks that a message refers to, in a form that its agent understands (LT-10).

A task that ran at the same agent is referred to by its id there. Artifacts of any other task are added as parts: their
content if it is small, their address if they have one, and a description if they are too large. A fact of the turn
records what was added, what was left out, and why (EVC-12).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import as_list, objects_at, text_at, texts_at
from passerelle.a2a_mapping.outbound import describe_artifact, quote_artifact
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.facts import NamedArtifact
from passerelle.core.frozen import frozen
from passerelle.core.payloads.context import (
    ContextItem,
    ContextResolved,
    OmittedItem,
    OmittedReason,
)
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.payloads.task import TaskDependencyUpdated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.principal import Principal
    from passerelle.core.task.record import ArtifactRef, TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.ownership import Owned, Ownership

MEMBER: Final = "referenceTaskIds"
"""The member of a message with the references."""
MAX_REFERENCES: Final = 32
"""References in one message: each is a read of the store."""
MAX_CONSUMED: Final = 16
"""Artifacts that a record names as consumed by one message; more than these may be added as parts."""
QUOTED_BYTES: Final = 64 * 1024
"""Total bytes of artifact content added to one message."""
MAX_DESCRIBED: Final = 64
"""Artifacts that one message describes in place of their content."""
MAX_LISTED: Final = 64
"""Items of each kind that the fact of a turn names."""
_READ_BYTES: Final = 4 * 1024 * 1024
"""Limit for the artifacts of one task: if they are larger in total, none of them is read."""
_NAME_CHARS: Final = 128
"""Length at which an unknown reference is cut."""


@frozen
class ResolvedReferences:
    """What a message refers to: agent task ids by facade id, parts to add, and gateway ids of all the tasks.

    ``consumed`` are the artifacts that are added, as named by the tasks that produced them; ``runs`` are the runs that
    produced the tasks' artifacts. ``unknown`` are references to no known task of the caller.
    """

    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: tuple[JsonObject, ...] = ()
    tasks: tuple[str, ...] = ()
    consumed: tuple[ArtifactRef, ...] = ()
    runs: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    standing: Mapping[str, NamedArtifact] = field(default_factory=dict[str, NamedArtifact])
    """The newest artifact by name that one of the tasks produced: a new artifact of that name is its next version."""
    selected: tuple[ContextItem, ...] = ()
    omitted: tuple[OmittedItem, ...] = ()

    def join(self, message: JsonObject) -> JsonObject:
        """The message with the added parts, as policy evaluates it."""
        if not self.parts:
            return message
        return {**message, "parts": as_list([*objects_at(message, "parts"), *self.parts])}

    @property
    def names_any(self) -> bool:
        """Whether the message has references, known or not."""
        return bool(self.tasks or self.unknown)

    def list_edges(self) -> list[TaskDependencyUpdated]:
        """Edges to the source tasks and to the artifacts consumed from them (LT-13, GR-4, GR-8)."""
        edges = [
            TaskDependencyUpdated(f"source:{source}", "source_task", source, "satisfied")
            for source in self.tasks
        ]
        edges += [
            TaskDependencyUpdated(f"source:{run}", "source_attempt", run, "satisfied")
            for run in self.runs
        ]
        edges += [
            TaskDependencyUpdated(
                f"consumed:{one.artifact_id}",
                "consumed_artifact",
                one.artifact_id,
                "satisfied",
                reason=f"version {one.version} of {one.run_id}",
            )
            for one in self.consumed
        ]
        return edges

    def resolve(self, peer: str) -> ContextResolved:
        """The fact that records what ``peer`` receives of them."""
        missing = (OmittedItem("task", name[:_NAME_CHARS], "missing") for name in self.unknown)
        omitted = (*missing, *self.omitted)
        selected = self.selected[:MAX_LISTED]
        more = len(self.selected) + len(omitted) - len(selected) - len(omitted[:MAX_LISTED])
        return ContextResolved(peer, selected, omitted[:MAX_LISTED], more or None)

    def list_facts(self, peer: str) -> list[ContextResolved | WarningRaised]:
        """The same, and a warning if some references are to no known task.

        The warning does not name them: the caller has written them.
        """
        facts: list[ContextResolved | WarningRaised] = [self.resolve(peer)]
        if count := len(self.unknown):
            which = "an unknown task" if count == 1 else f"{count} unknown tasks"
            text = f"the message refers to {which}; the agent gets no reference to it"
            facts.append(WarningRaised("reference_unknown", text))
        return facts


NOTHING: Final = ResolvedReferences()


@dataclass(slots=True)
class _ResolvedContext:
    """Collects what an agent receives about referenced tasks. ``room``: bytes left for artifact contents."""

    room: int = QUOTED_BYTES
    ids: dict[str, str] = field(default_factory=dict[str, str])
    parts: list[JsonObject] = field(default_factory=list["JsonObject"])
    consumed: list[ArtifactRef] = field(default_factory=list["ArtifactRef"])
    selected: list[ContextItem] = field(default_factory=list[ContextItem])
    omitted: list[OmittedItem] = field(default_factory=list[OmittedItem])
    _described: int = 0

    def name(self, record: TaskRecord, facade: str, remote: str) -> None:
        """Adds a task that the agent knows itself."""
        self.ids[facade] = remote
        self.selected.append(ContextItem("task", record.task_id))

    def quote(self, record: TaskRecord, task: JsonObject | None, place: int) -> None:
        """Adds the artifacts of a task of another agent; without ``task``, its content, only their descriptions."""
        self.omitted.append(OmittedItem("history", record.turn_id or record.task_id, "other_peer"))
        contents = {text_at(one, "artifactId"): one for one in objects_at(task or {}, "artifacts")}
        if not record.artifacts:
            self.omitted.append(OmittedItem("task", record.task_id, "other_peer"))
        for artifact in record.artifacts:
            if artifact.direction == "produced":
                content = contents.get(artifact.name_at_peer)
                self._add(artifact, content, place, is_read=task is not None)

    def _add(
        self, artifact: ArtifactRef, content: JsonObject | None, place: int, *, is_read: bool
    ) -> None:
        quoted = None if content is None else quote_artifact(content, place)
        if quoted is not None and (size := _measure(quoted)) <= self.room:
            self.room -= size
            self.parts += quoted
            self.consumed.append(artifact)
            self.selected.append(ContextItem("artifact", artifact.artifact_id, artifact.size))
            return
        reason: OmittedReason = "too_large"
        if quoted is None and is_read:
            reason = "missing" if content is None else "other_peer"
        self.omitted.append(OmittedItem("artifact", artifact.artifact_id, reason))
        if self._described < MAX_DESCRIBED:
            self._described += 1
            self.parts.append(describe_artifact(_list_traits(artifact), place, reason))


@frozen
class References:
    """Resolves the references of messages."""

    ownership: Ownership
    contents: Contents

    async def find(
        self, principal: Principal, agent: str, message: JsonObject
    ) -> ResolvedReferences:
        """What a message to ``agent`` refers to; a message without references costs no read.

        A task that is unknown, another owner's, or of an agent hidden from the caller is left out: all look alike (G3).
        The caller may know it from elsewhere.

        Raises:
            InvalidInput: more than :data:`MAX_REFERENCES`.
        """
        named = list(dict.fromkeys(texts_at(message, MEMBER)))
        if not named:
            return NOTHING
        if len(named) > MAX_REFERENCES:
            raise InvalidInput(f"message.{MEMBER}", f"at most {MAX_REFERENCES} tasks")
        known: dict[str, Owned] = {}
        for facade in named:
            with suppress(NotFound):
                known[facade] = await self._find(principal, facade)
        context = await self._resolve(agent, [*known], [*known.values()]) if known else NOTHING
        return replace(context, unknown=tuple(one for one in named if one not in known))

    async def recall(
        self, record: TaskRecord, agent: str, message: JsonObject
    ) -> ResolvedReferences:
        """What an accepted message refers to, in the form for ``agent``; tasks that are gone are left out."""
        named: list[str] = []
        owned: list[Owned] = []
        for facade in dict.fromkeys(texts_at(message, MEMBER)):
            with suppress(NotFound):
                owned.append(await self.ownership.find_for(record.owner, facade))
                named.append(facade)
        return await self._resolve(agent, named, owned) if named else NOTHING

    async def _resolve(
        self, agent: str, named: list[str], owned: list[Owned]
    ) -> ResolvedReferences:
        context = _ResolvedContext()
        for place, (facade, one) in enumerate(zip(named, owned, strict=True)):
            remote = _find_remote(one.record, agent)
            if remote is not None:
                context.name(one.record, facade, remote)
            else:
                record = await self.contents.name_artifacts(one.record)
                context.quote(record, await self._read(one), place)
        tasks = tuple(dict.fromkeys(one.record.task_id for one in owned))
        produced = (one for each in owned for one in each.record.artifacts)
        runs = dict.fromkeys(one.run_id for one in produced if one.direction == "produced")
        return ResolvedReferences(
            context.ids,
            tuple(context.parts),
            tasks,
            tuple(context.consumed[:MAX_CONSUMED]),
            tuple(runs)[:MAX_CONSUMED],
            standing=list_standing(one.record for one in owned),
            selected=tuple(context.selected),
            omitted=tuple(context.omitted),
        )

    async def _find(self, principal: Principal, facade: str) -> Owned:
        owned = await self.ownership.find(principal, facade, None)
        if not principal.sees(owned.record.agent):
            raise NotFound("task", facade)
        return owned

    async def _read(self, owned: Owned) -> JsonObject | None:
        """The content of a task; None if it has none, or more than ``_READ_BYTES``."""
        record = owned.record
        if not record.artifacts or sum(one.size for one in record.artifacts) > _READ_BYTES:
            return None
        return await self.contents.read_task(record, owned.held.fields)


def list_standing(tasks: Iterable[TaskRecord]) -> dict[str, NamedArtifact]:
    """The artifact with the highest version by name, among those that some tasks produced (LT-17)."""
    standing: dict[str, NamedArtifact] = {}
    for task in tasks:
        for one in task.artifacts:
            known = standing.get(one.name or "")
            if one.name is None or one.direction != "produced":
                continue
            if known is None or known.version < one.version:
                standing[one.name] = NamedArtifact(one.artifact_id, task.task_id, one.version)
    return standing


def _list_traits(artifact: ArtifactRef) -> JsonObject:
    """Describes an artifact without its content; without gateway ids, which mean nothing to the agent."""
    traits: JsonObject = {
        "version": artifact.version,
        "size": artifact.size,
        "sha256": artifact.sha256,
    }
    if artifact.name:
        traits["name"] = artifact.name
    if artifact.media_types:
        traits["mediaTypes"] = [*artifact.media_types]
    return traits


def _find_remote(record: TaskRecord, agent: str) -> str | None:
    """The agent's task id of the newest run at this agent that has one."""
    return next(
        (
            attempt.remote_task_id
            for attempt in reversed(record.attempts)
            if attempt.worker.peer == agent and attempt.remote_task_id is not None
        ),
        None,
    )


def _measure(parts: list[JsonObject]) -> int:
    return len(orjson.dumps(parts))
