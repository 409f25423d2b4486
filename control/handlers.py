"""Who carries out which command and who answers which query: one handler for each class, added by the wiring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.runtime.records.idempotency import watch_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.commands import OtherCommand, Query, Result
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject

C = TypeVar("C", bound="OtherCommand")
Q = TypeVar("Q", bound="Query")
_OVERTAKEN: Final = (InvalidInput, NotFound, UnsupportedOperation, VersionMismatch)
"""How a command is refused that somebody has just carried out."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The registry. A message is no command of it: see ``control/messages.py``."""

    commands: dict[type, Callable[[Principal, Any, str | None], Awaitable[Result]]] = field(
        default_factory=dict[type, "Callable[[Principal, Any, str | None], Awaitable[Result]]"]
    )
    queries: dict[type, Callable[[Principal, Any], Awaitable[JsonObject]]] = field(
        default_factory=dict[type, "Callable[[Principal, Any], Awaitable[JsonObject]]"]
    )

    def on_command(
        self, kind: type[C], handle: Callable[[Principal, C, str | None], Awaitable[Result]]
    ) -> None:
        """``handle`` takes the idempotency key of the caller as well (CMD-30)."""
        self.commands[kind] = handle

    def on_repeatable(
        self, kind: type[C], handle: Callable[[Principal, C], Awaitable[Result]]
    ) -> None:
        """The same for a command that needs no key: carried out twice it changes nothing more."""
        self.commands[kind] = without_key(handle)

    def on_query(
        self, kind: type[Q], read: Callable[[Principal, Q], Awaitable[JsonObject]]
    ) -> None:
        """``read`` answers from stored state."""
        self.queries[kind] = read

    async def execute(
        self, principal: Principal, command: OtherCommand, idem: str | None
    ) -> Result:
        """Has the handler of a command carry it out.

        A caller that has no answer yet may send a command again under its key. The handler of the second one may have
        looked for that key before the first one is stored, and judge what it asks for behind it: a task that is paused
        cannot be paused. So what is refused under a key that is stored by then is tried once more, and finds the key
        (CMD-30). Any other refusal stands: what it has left behind, as the count of a refused answer, is left once.
        """
        handle = self.commands[type(command)]
        if idem is None:
            return await handle(principal, command, None)
        with watch_keys() as look:
            try:
                return await handle(principal, command, idem)
            except _OVERTAKEN:
                if not await look.is_stored():
                    raise
        return await handle(principal, command, idem)

    def read(self, principal: Principal, query: Query) -> Awaitable[JsonObject]:
        """Has the handler of a query answer it."""
        return self.queries[type(query)](principal, query)


def without_key(
    handle: Callable[[Principal, C], Awaitable[Result]],
) -> Callable[[Principal, C, str | None], Awaitable[Result]]:
    """A handler that leaves the idempotency key out."""
    return lambda principal, command, _idem: handle(principal, command)
