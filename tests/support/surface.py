"""Reads everything that a caller can read, so that two moments can be compared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httpx
import orjson

from passerelle.core.wire.json import JsonObject

ENDED: Final = frozenset(
    f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
_NEWER: Final = {"A2A-Version": "1.0"}
_PAGES: Final = 3
_SETTLED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Surface:
    """One caller, over A2A in all versions and bindings and over ``/v1``.

    Reads the tasks of each of ``agents``. ``found`` contains the answers as text, by request.
    """

    http: httpx.AsyncClient
    headers: dict[str, str]
    agents: Sequence[str]
    found: dict[str, str] = field(default_factory=dict[str, str])
    going: set[str] = field(default_factory=set[str])
    """Unfinished tasks, with session and thread: their reads may change at any time."""

    async def call(self, agent: str, method: str, params: JsonObject) -> dict[str, Any]:
        """A JSON-RPC call; methods of 0.3 contain a slash."""
        body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = self.headers if "/" in method else {**self.headers, **_NEWER}
        answer = await self.http.post(f"/agents/{agent}", json=body, headers=headers)
        self.found[f"{agent} {method} {params}"] = answer.text
        return cast("dict[str, Any]", _read(answer).get("result", {}))

    async def get(self, path: str, **headers: str) -> dict[str, Any]:
        """A read over HTTP."""
        answer = await self.http.get(path, headers={**self.headers, **headers})
        self.found[path] = f"{answer.status_code} {answer.text}"
        return _read(answer)

    async def read_all(self) -> dict[str, str]:
        """Reads everything."""
        for agent in self.agents:
            await self._read_agent(agent)
        for path in ("", "?state=closed"):
            views = await self.get(f"/v1/approvals{path}")
            for view in (*views.get("pending", []), *views.get("closed", [])):
                for part in ("", "/explain", "/content"):
                    await self.get(f"/v1/approvals/{view['actionId']}{part}")
                await self.get(f"/v1/audit?actionId={view['actionId']}")
        for path in ("tasks", "sessions", "grants", "devices", "deliveries", "notices"):
            await self.get(f"/v1/{path}")
        return self.found

    async def _read_agent(self, agent: str) -> None:
        whole: JsonObject = {"includeArtifacts": True, "historyLength": 50}
        tasks = list[dict[str, Any]]()
        listed = await self.call(agent, "ListTasks", whole)
        tasks += listed["tasks"]
        while token := listed.get("nextPageToken"):
            listed = await self.call(agent, "ListTasks", {**whole, "pageToken": token})
            tasks += listed["tasks"]
        await self.call(agent, "ListTasks", {})
        await self.call(agent, "ListTasks", {"status": "TASK_STATE_COMPLETED", "historyLength": 1})
        small: JsonObject = {"pageSize": 3, "includeArtifacts": True}
        page = await self.call(agent, "ListTasks", small)
        for _ in range(_PAGES):
            if token := page.get("nextPageToken"):
                page = await self.call(agent, "ListTasks", {**small, "pageToken": token})
        for task in tasks:
            await self.read_task(agent, task)

    async def read_task(self, agent: str, task: dict[str, Any]) -> None:
        """Reads a task and the objects that it belongs to."""
        name = task["id"]
        lengths: tuple[JsonObject, ...] = ({}, {"historyLength": 0}, {"historyLength": 2})
        for length in lengths:
            await self.call(agent, "GetTask", {"id": name, **length})
        await self.call(agent, "tasks/get", {"id": name})
        await self.get(f"/agents/{agent}/tasks/{name}?historyLength=1", **_NEWER)
        await self.call(agent, "ListTasks", {"contextId": task["contextId"], "historyLength": 9})
        await self.call(agent, "ListTaskPushNotificationConfigs", {"taskId": name})
        if task["status"]["state"] in ENDED:
            await self.call(agent, "SubscribeToTask", {"id": name})
            await self.call(agent, "tasks/resubscribe", {"id": name})
            await self.call(agent, "CancelTask", {"id": name})
        shown = await self.get(f"/v1/tasks/{name}")
        session, thread = shown["sessionId"], shown["threadId"]
        if task["status"]["state"] not in ENDED:
            self.going.update((name, session, thread))
        for path in ("", "?limit=3", "?limit=3&before=6", "/tasks", "/channels"):
            await self.get(f"/v1/sessions/{session}{path}")
        for path in ("snapshot", "webhooks"):
            await self.get(f"/v1/streams/session:{session}/{path}")
        for path in ("", "/permissions"):
            await self.get(f"/v1/threads/{thread}{path}")
        for scope in (f"sessionId={session}", f"taskId={name}"):
            await self.get(f"/v1/audit?{scope}")
        path = f"/v1/streams/session:{session}/events?wait=0"
        read = await self.get(path)
        for _ in range(_PAGES):
            # The recipient of a transferred task may not read the whole session.
            if "cursor" in read:
                read = await self.get(f"{path}&after={read['cursor']}")


def _read(answer: httpx.Response) -> dict[str, Any]:
    said = answer.headers.get("content-type", "")
    return cast("dict[str, Any]", answer.json()) if "json" in said else {}


async def read_at_rest(
    read: Callable[[], Awaitable[dict[str, str]]], going: Collection[str] = ()
) -> dict[str, str]:
    """Reads repeatedly until two consecutive reads differ only in what is ``going``.

    Raises:
        AssertionError: they keep differing; names the differences.
    """
    deadline, before = time.monotonic() + _SETTLED_S, await read()
    while changed := find_changes(before, after := await read(), going):
        assert time.monotonic() < deadline, f"two reads differ again and again: {changed}"
        before = after
    return after


def find_changes(
    before: dict[str, str], after: dict[str, str], going: Collection[str] = ()
) -> dict[str, tuple[str, str]]:
    """Requests whose answers differ, or that were made at one of the two moments only.

    ``/v1`` also reports that a session has left memory; that is ignored. An answer that names unfinished work may
    change at any time.
    """
    was, now = _leave_out(before, Counter()), _leave_out(after, Counter())
    both = {asked: (was.get(asked, ""), now.get(asked, "")) for asked in was.keys() | now.keys()}
    return {
        asked: (one, other)
        for asked, (one, other) in both.items()
        if one != other and not any(name in f"{asked} {one} {other}" for name in going)
    }


def count_marks(found: dict[str, str]) -> Counter[str]:
    """Number of marks that a session has left memory: in records, lines of lists, and facts."""
    marked = Counter[str]()
    _leave_out(found, marked)
    return marked


def _leave_out(found: dict[str, str], marked: Counter[str]) -> dict[str, str]:
    return {asked: _read_as_kept(asked, answer, marked) for asked, answer in found.items()}


def _read_as_kept(asked: str, answer: str, marked: Counter[str]) -> str:
    """An answer without its marks of the archive, which only ``/v1`` has; ``marked`` counts these."""
    status, _, text = answer.partition(" ")
    if not asked.startswith("/v1/") or "archive" not in text:
        return answer
    found = orjson.loads(text)
    _drop_archive(found, lambda name: marked.update([name]))
    return f"{status} {orjson.dumps(found).decode()}"


def _drop_archive(value: object, count: Callable[[str], None]) -> None:
    """Removes the marks that a session has left memory: its ref, the fact, and the status after it."""
    match value:
        case dict():
            members = cast("dict[str, object]", value)
            ref = members.pop("archive", None)
            if ref is not None:
                count("line" if "recorded" in members else "record")
                assert ref == f"{members['sessionId']}@{_read_sequence(str(ref))}"
            if ref is not None and "recorded" in members:
                assert members["status"] == "archived"
                members["status"] = members["recorded"]
            if (fact := members.pop("archived", None)) is not None:
                count("fact")
                assert cast("JsonObject", fact)["payload"] == {"archive": ref}
            for member in members.values():
                _drop_archive(member, count)
        case list():
            for item in cast("list[object]", value):
                _drop_archive(item, count)
        case _:
            pass


def _read_sequence(ref: str) -> int:
    return int(ref.partition("@")[2])
