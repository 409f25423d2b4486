"""The registry of handlers: one handler per command class and query class, registered at startup."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from passerelle.core.errors import (
    InvalidInput,
    NotFound,
    UnsupportedOperation,
    VersionMismatch,
)
from passerelle.core.frozen import frozen
from passerelle.runtime.records.idempotency import watch_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.commands import OtherCommand, Query, Result
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject

C = TypeVar("C", bound="OtherCommand")
Q = TypeVar("Q", bound="Query")
_OVERTAKEN: Final = (InvalidInput, NotFound, UnsupportedOperation, VersionMismatch)
"""Errors of a command that a concurrent request has just carried out."""


@frozen
class Handlers:
    """The registry. Messages are not among its commands: see ``control/messages.py``."""

    commands: dict[type, Callable[[Principal, Any, str | None], Awaitable[Result]]] = field(
        default_factory=dict[type, "Callable[[Principal, Any, str | None], Awaitable[Result]]"]
    )
    queries: dict[type, Callable[[Principal, Any], Awaitable[JsonObject]]] = field(
        default_factory=dict[type, "Callable[[Principal, Any], Awaitable[JsonObject]]"]
    )

    def on_command(
        self, kind: type[C], handle: Callable[[Principal, C, str | None], Awaitable[Result]]
    ) -> None:
        """Registers ``handle``, which also gets the caller's idempotency key (CMD-30)."""
        self.commands[kind] = handle

    def on_repeatable(
        self, kind: type[C], handle: Callable[[Principal, C], Awaitable[Result]]
    ) -> None:
        """Registers a command that needs no key: a repeat changes nothing more."""
        self.commands[kind] = without_key(handle)

    def on_query(
        self, kind: type[Q], read: Callable[[Principal, Q], Awaitable[JsonObject]]
    ) -> None:
        """Registers ``read``, which answers from stored state."""
        self.queries[kind] = read

    async def execute(
        self, principal: Principal, command: OtherCommand, idem: str | None
    ) -> Result:
        """Runs the handler of a command.

        A caller without an answer may resend a command with its key. The second handler may look for that key before
        the first one is stored, and then judge the state after it: a task that is already paused cannot be paused. So a
        command that is refused although its key is stored by then is tried once more, and finds the key (CMD-30). Any
        other refusal is final: side effects, such as counting a refused answer, happen once.
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
        """Runs the handler of a query."""
        return self.queries[type(query)](principal, query)


def without_key(
    handle: Callable[[Principal, C], Awaitable[Result]],
) -> Callable[[Principal, C, str | None], Awaitable[Result]]:
    """A handler that ignores the idempotency key."""
    return lambda principal, command, _idem: handle(principal, command)
