"""A command service that answers from a script and records its calls, for tests of the edges alone."""

from dataclasses import dataclass, field

from passerelle.core.commands import Command, Query, Result
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject


@dataclass
class ScriptedService:
    """Returns ``result`` or ``view``, or raises ``error``, for every caller."""

    result: Result | None = None
    view: JsonObject = field(default_factory=lambda: {"id": "x"})
    error: Exception | None = None
    asked: list[tuple[Principal, Command | Query, str | None]] = field(
        default_factory=list[tuple[Principal, Command | Query, str | None]]
    )

    async def execute(self, principal: Principal, command: Command, idem: str | None) -> Result:
        self.asked.append((principal, command, idem))
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    async def read(self, principal: Principal, query: Query) -> JsonObject:
        self.asked.append((principal, query, None))
        if self.error is not None:
            raise self.error
        return self.view
