"""Settings of the memory that callers and agents may have the process hold."""

from __future__ import annotations

from pydantic import Field

from passerelle.gateway.settings_section import Section
from passerelle.runtime.memory.machine import LEAST, choose_budget, read_memory


class MemorySettings(Section):
    """One budget for what is in flight: large bodies of requests, answers of agents, and Tasks in another form."""

    budget_bytes: int | None = Field(
        default=None,
        ge=LEAST,
        description="Of one process. Bodies over 1 MiB, answers of agents and events of their streams over 256 KiB "
        "draw on it, and large Tasks that are read in another form than the stored one; one caller or agent has at "
        "most half. Over it a caller gets 429 or 503 with `Retry-After`, and an agent is read later. "
        "Absent: a quarter of the memory of the machine or its control group, at most 1 GiB.",
    )

    def find_budget(self) -> int:
        """The budget in bytes."""
        return self.budget_bytes or choose_budget(read_memory())
