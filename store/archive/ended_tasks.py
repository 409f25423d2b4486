"""How the tasks of a session ended, and at which agents, as far as the records in its frame contain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from passerelle.core.batch import EntityKind
from passerelle.store.replies import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from passerelle.store.archive.frame import SessionFrame


class EndedTask(NamedTuple):
    """The status of a task, and the agents that it is or was assigned to."""

    status: str
    agents: frozenset[str]


def list_tasks(frame: SessionFrame) -> Iterator[EndedTask]:
    """The tasks of a session; the status is empty if the record does not contain it."""
    for ref, flat in frame.hashes.items():
        if ref.kind is EntityKind.TASK:
            words = as_list(flat)
            yield read_task(dict(zip(words[::2], words[1::2], strict=False)).get(b"s", b""))


def find_outcomes(frame: SessionFrame) -> set[str]:
    """How the tasks of a session ended; empty if it has none."""
    return {one.status for one in list_tasks(frame)}


def read_task(snapshot: bytes) -> EndedTask:
    """Status and agents from the record of a task; empty values if it is damaged."""
    try:
        said = cast("dict[str, Any]", orjson.loads(snapshot))
        agents = [run["worker"]["peer"] for run in said.get("attempts", ())]
        agents += [assignee] if (assignee := said.get("assignee")) else []
        return EndedTask(str(said.get("status", "")), frozenset(map(str, agents)))
    except (LookupError, TypeError, AttributeError, ValueError):
        return EndedTask("", frozenset())
