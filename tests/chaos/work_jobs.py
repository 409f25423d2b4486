"""Jobs while gateways are killed: every item ends, after as many attempts as its policy allows (EXT-9)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.chaos.work_agent import AGENT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from random import Random

    from passerelle.core.wire.json import JsonObject
    from tests.chaos.work_site import Answer, WorkSite

ATTEMPTS: Final = 2
_SHARES: Final = (0.15, 0.45, 0.75)
"""Shares of ended items at which a gateway dies."""
_OVER_S: Final = 120.0
_AT_ONCE: Final = 16
_PAGE: Final = 100
_LIVE: Final = frozenset({"created", "running"})
_WORDS: Final = ("work", "work", "work", "work", "work", "work", "work", "flaky", "fail")
_TRIES: Final = {"work": 1, "flaky": 2, "fail": ATTEMPTS}
_ENDS: Final = {"work": "completed", "flaky": "completed", "fail": "failed"}


@dataclass(slots=True)
class JobScene:
    """A batch of items. ``is_stopped``: it is cancelled on the way, right before a gateway dies."""

    site: WorkSite
    draw: Random
    label: str
    items: int
    is_stopped: bool = False
    faults: list[str] = field(default_factory=list[str])
    _words: list[str] = field(default_factory=list[str])
    _job: str = ""

    async def play(self) -> None:
        """Runs from its submission to its end."""
        self._words = [self.draw.choice(_WORDS) for _ in range(self.items)]
        inputs = [f"{word} {self._name(at)} 0.1" for at, word in enumerate(self._words, 1)]
        body: JsonObject = {
            "title": self.label,
            "agents": [AGENT],
            "inputs": [*inputs],
            "concurrency": _AT_ONCE,
            "attempts": ATTEMPTS,
            "mostFailed": self.items,
        }
        made = await self.site.call("POST", "/v1/jobs", body, key=f"{self.label}-submit")
        self._job = str(made["job"]["jobId"])
        for share in _SHARES[: 1 if self.is_stopped else None]:
            await self._await_share(share)
            if self.is_stopped:
                path = f"/v1/jobs/{self._job}/cancel"
                await self.site.call("POST", path, {}, key=f"{self.label}-cancel")
            self.site.strike(self.draw.randrange(2))

        async def is_over() -> bool:
            return (await self._read())["status"] not in _LIVE

        await wait_until(is_over, _OVER_S, f"{self.label} is over")

        async def have_ended() -> bool:
            rows = await self._list_rows()
            return all(row["state"] not in {"waiting", "running"} for row in rows)

        await wait_until(have_ended, _OVER_S, f"every item of {self.label} has ended")

    async def judge(self) -> None:
        """Compares the table of results with the agent's messages."""
        rows = await self._list_rows()
        sent = Counter(self.site.agent.list_labels())
        if [row["item"] for row in rows] != [*range(1, self.items + 1)]:
            self.faults.append(f"{self.label}: its table has {len(rows)} rows")
        for row, word in zip(rows, self._words, strict=False):
            name = self._name(int(row["item"]))
            tries = _TRIES[word]
            text = f"{name} ({word}) is {row['state']} after {row['attempts']}, sent {sent[name]} times"
            if self.is_stopped:
                is_right = row["state"] in {"completed", "failed", "cancelled"}
                if not is_right or sent[name] > tries or row["attempts"] > tries:
                    self.faults.append(text)
            elif (row["state"], row["attempts"], sent[name]) != (_ENDS[word], tries, tries):
                self.faults.append(text)

    def _name(self, item: int) -> str:
        return f"{self.label}-{item}"

    async def _await_share(self, share: float) -> None:
        async def has_come() -> bool:
            counts = (await self._read())["counts"]
            return bool(counts["completed"] + counts["failed"] >= share * self.items)

        await wait_until(has_come, _OVER_S, f"{share:.0%} of {self.label} have ended")

    async def _read(self) -> Answer:
        return await self.site.call("GET", f"/v1/jobs/{self._job}")

    async def _list_rows(self) -> list[Answer]:
        rows: list[Answer] = []
        while len(rows) < self.items:
            path = f"/v1/jobs/{self._job}/results?limit={_PAGE}&after={len(rows)}"
            page = (await self.site.call("GET", path))["items"]
            if not page:
                break
            rows += page
        return rows
