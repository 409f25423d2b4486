"""Who carries out which command and who answers which query: one handler for each class, added by the wiring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from passerelle.core.commands import OtherCommand, Query, Result
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject

C = TypeVar("C", bound="OtherCommand")
Q = TypeVar("Q", bound="Query")


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

    def execute(
        self, principal: Principal, command: OtherCommand, idem: str | None
    ) -> Awaitable[Result]:
        """Has the handler of a command carry it out."""
        return self.commands[type(command)](principal, command, idem)

    def read(self, principal: Principal, query: Query) -> Awaitable[JsonObject]:
        """Has the handler of a query answer it."""
        return self.queries[type(query)](principal, query)


def without_key(
    handle: Callable[[Principal, C], Awaitable[Result]],
) -> Callable[[Principal, C, str | None], Awaitable[Result]]:
    """A handler that leaves the idempotency key out."""
    return lambda principal, command, _idem: handle(principal, command)
