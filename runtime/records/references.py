"""Tasks that a message refers to, told in a way that its agent understands (LT-10).

A task that ran at the same agent goes by the id that it has there. Of any other task the artifacts go along as parts,
if they are small and stand in the task itself; what cannot be told is left out.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import texts_at
from passerelle.a2a_mapping.outbound import quote_artifacts
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.facts import NamedArtifact

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.core.principal import Principal
    from passerelle.core.task.record import ArtifactRef, TaskRecord
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.contents import Contents
    from passerelle.runtime.records.ownership import Owned, Ownership

MEMBER: Final = "referenceTaskIds"
"""Of a message."""
MAX_REFERENCES: Final = 32
"""In one message: each is a read of the store."""
MAX_CONSUMED: Final = 16
"""Artifacts that a record names as consumed by one message; more of them go along."""
QUOTED_BYTES: Final = 64 * 1024
"""Of artifacts that go along with one message, in all."""


@dataclass(frozen=True, slots=True)
class Referred:
    """What a message refers to: ids at its agent by facade id, parts that go along, and our ids of all the tasks.

    ``consumed`` are the artifacts whose parts go along, as the tasks name them that produced them; ``runs`` are those
    that produced what the tasks have. ``unknown`` counts references to no task of the caller that is known here.
    """

    ids: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: tuple[JsonObject, ...] = ()
    tasks: tuple[str, ...] = ()
    consumed: tuple[ArtifactRef, ...] = ()
    runs: tuple[str, ...] = ()
    unknown: int = 0
    standing: Mapping[str, NamedArtifact] = field(default_factory=dict[str, NamedArtifact])
    """By name the newest artifact that one of the tasks produced: what an artifact of that name is a version of."""


NOTHING: Final = Referred()


@dataclass(frozen=True, slots=True)
class References:
    """Finds what messages refer to."""

    ownership: Ownership
    contents: Contents

    async def find(self, principal: Principal, agent: str, message: JsonObject) -> Referred:
        """What a message to ``agent`` refers to; one without references costs nothing.

        A task that is unknown, another's, or of an agent that the caller may not see is left out: all look the same
        (G3). The caller may know it from elsewhere.

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
        told = await self._tell(agent, [*known], [*known.values()]) if known else NOTHING
        return replace(told, unknown=len(named) - len(known))

    async def recall(self, record: TaskRecord, agent: str, message: JsonObject) -> Referred:
        """What an accepted message refers to, told to ``agent`` as well; what is gone by now is left out."""
        named: list[str] = []
        owned: list[Owned] = []
        for facade in dict.fromkeys(texts_at(message, MEMBER)):
            with suppress(NotFound):
                owned.append(await self.ownership.find_for(record.owner, facade))
                named.append(facade)
        return await self._tell(agent, named, owned) if named else NOTHING

    async def _tell(self, agent: str, named: list[str], owned: list[Owned]) -> Referred:
        ids: dict[str, str] = {}
        parts: list[JsonObject] = []
        consumed: list[ArtifactRef] = []
        room = QUOTED_BYTES
        for place, (facade, one) in enumerate(zip(named, owned, strict=True)):
            remote = _find_remote(one.record, agent)
            if remote is not None:
                ids[facade] = remote
                continue
            quoted = await self._quote(one, place, room)
            room -= _measure(quoted) if quoted else 0
            parts += quoted
            consumed += one.record.artifacts if quoted else ()
        tasks = tuple(dict.fromkeys(one.record.task_id for one in owned))
        produced = (one for each in owned for one in each.record.artifacts)
        runs = dict.fromkeys(one.run_id for one in produced if one.direction == "produced")
        return Referred(
            ids,
            tuple(parts),
            tasks,
            tuple(consumed[:MAX_CONSUMED]),
            tuple(runs)[:MAX_CONSUMED],
            standing=list_standing(one.record for one in owned),
        )

    async def _find(self, principal: Principal, facade: str) -> Owned:
        owned = await self.ownership.find(principal, facade, None)
        if not principal.sees(owned.record.agent):
            raise NotFound("task", facade)
        return owned

    async def _quote(self, owned: Owned, place: int, room: int) -> list[JsonObject]:
        record = owned.record
        if not record.artifacts or sum(artifact.size for artifact in record.artifacts) > room:
            return []
        task = await self.contents.read_task(record, owned.held.fields)
        quoted = quote_artifacts(task or {}, place)
        return quoted if quoted and _measure(quoted) <= room else []


def list_standing(tasks: Iterable[TaskRecord]) -> dict[str, NamedArtifact]:
    """By name the artifact of the highest version that some tasks produced (LT-17)."""
    standing: dict[str, NamedArtifact] = {}
    for task in tasks:
        for one in task.artifacts:
            known = standing.get(one.name or "")
            if one.name is None or one.direction != "produced":
                continue
            if known is None or known.version < one.version:
                standing[one.name] = NamedArtifact(one.artifact_id, task.task_id, one.version)
    return standing


def _find_remote(record: TaskRecord, agent: str) -> str | None:
    """The id of the newest run at the agent that has one."""
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
