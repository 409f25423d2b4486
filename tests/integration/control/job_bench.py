"""Jobs of a desk, whose rows are handled as the due loop does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from passerelle.core.ids import Shard, shard_of
from passerelle.core.ports.due import DueRow
from passerelle.core.wire.json import Json, JsonObject
from tests.support.control_client import ControlClient
from tests.support.harness import Harness
from tests.support.waiting import wait_until


async def keep(_shard: Shard, _row: DueRow) -> bool:
    return False


@dataclass(frozen=True)
class Bench:
    """The jobs of a desk."""

    control: ControlClient

    @property
    def harness(self) -> Harness:
        return self.control.harness

    async def make(self, inputs: list[str], **members: Json) -> str:
        given: dict[str, Json] = {"title": "batch", "agents": ["echo"], "inputs": [*inputs]}
        answer: Any = await self.control.do("submit_job", None, **{**given, **members})
        job = str(answer["job"]["jobId"])
        self.harness.remember(job)
        return job

    async def show(self, job: str) -> Any:  # noqa: ANN401  JSON
        return await self.control.do("get_job", jobId=job)

    async def table(self, job: str, **members: Json) -> list[Any]:
        answer: Any = await self.control.do("get_job_results", None, jobId=job, **members)
        return list(answer["items"])

    async def pages(self, job: str, size: int) -> list[Any]:
        """The same, page by page."""
        found, token = list[Any](), ""
        while True:
            answer: Any = await self.control.do(
                "get_job_results", None, jobId=job, pageSize=size, pageToken=token
            )
            found += answer["items"]
            token = answer["nextPageToken"]
            if not token:
                return found

    async def visit(self, job: str) -> None:
        """Has the row of the job handled, as the due loop does."""
        member = f"job:{job}"
        token = (await self.harness.due(job)).get(member)
        if token is not None:
            row, now_ms = DueRow(member, token), self.harness.clock.now_ms()
            await self.harness.parts.schedules.items.on_due(shard_of(job), row, now_ms, keep)

    async def finish(self, job: str) -> Any:  # noqa: ANN401  JSON
        """The job once it is over."""

        async def look() -> JsonObject | None:
            await self.visit(job)
            shown = await self.show(job)
            return shown if shown["status"] not in {"created", "running"} else None

        return await wait_until(look, 30, "the job is over")

    async def types(self, job: str) -> Counter[str]:
        return Counter(entry.type for entry in await self.harness.entries(job))
