"""A worker as an operator would write it: requests approval over HTTP before each act, waits, and acts once allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import httpx

    from passerelle.core.wire.json import JsonObject


@dataclass
class CommandWorker:
    """Runs commands for a task. ``ran`` are those that were allowed."""

    http: httpx.AsyncClient
    key: str
    task: str
    ran: list[str] = field(default_factory=list[str])

    async def ask(self, command: str, key: str, **more: object) -> JsonObject:
        """Requests approval of a command; returns the open request."""
        body = {
            "taskId": self.task,
            "actionType": "command",
            "subject": {"command": command},
            "dedupeKey": key,
            **more,
        }
        answer = await self.http.post("/v1/approvals", json=body, headers=self._headers())
        assert answer.status_code == 201, answer.text
        return cast("JsonObject", answer.json()["action"])

    async def wait(self, action: JsonObject) -> JsonObject:
        """Waits for the decision; returns the decided request."""

        async def look() -> JsonObject | None:
            path = f"/v1/approvals/{action['actionId']}"
            view = (await self.http.get(path, headers=self._headers())).json()
            return view if view["state"] != "pending" else None

        found = await wait_until(look, 10, "the question is answered")
        assert found is not None
        return found

    async def run(self, action: JsonObject, command: str) -> httpx.Response:
        """Reports that the command is about to run, and runs it if that is allowed."""
        path = f"/v1/approvals/{action['actionId']}/use"
        body = {"subject": {"command": command}}
        answer = await self.http.post(path, json=body, headers=self._headers())
        if answer.status_code == 200:
            self.ran.append(command)
        return answer

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}
