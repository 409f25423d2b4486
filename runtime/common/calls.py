"""Rows of the table of calls, the caller of a call, and their checks: required scopes, idempotency key format."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from passerelle.a2a_mapping.rpc import Method
from passerelle.core.errors import Forbidden, InvalidInput, NotFound
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.commands import Command, Query, TurnSource
    from passerelle.core.principal import AccessScope, Principal
    from passerelle.core.wire.json import JsonObject

IDEMPOTENCY_KEY_LIMIT: Final = 255
KEY_HEADER: Final = "Idempotency-Key"
"""The HTTP header with the key."""


@frozen
class Caller:
    """The principal of a call, the edge it came over, and its idempotency key."""

    principal: Principal
    source: TurnSource
    idem: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None


def _take_params(params: Command | Query, _caller: Caller) -> Command | Query:
    return params


@frozen
class MethodRow:
    """One row. ``result`` None is a read model, whose members are those of the requested record."""

    name: str
    summary: str
    scopes: tuple[AccessScope, ...]
    """One of these is enough."""
    params: type[Any]
    result: type[Any] | None = None
    read: Callable[[Any, Caller], Command | Query] = _take_params
    """Makes the command or query from the params; by default they are the command or query."""
    key_member: str | None = None
    """The member that is used as idempotency key if the request has none."""
    model: type[Any] | None = None
    """The type of a read model that has a form of its own."""
    names_message: bool = False
    """Whether a message without an id gets it from the key."""

    @property
    def changes(self) -> bool:
        """Whether it is a command; a query has no result type."""
        return self.result is not None


def require_scope(principal: Principal, scopes: tuple[AccessScope, ...]) -> None:
    """Raises Forbidden unless the principal has one of the scopes."""
    if principal.scopes.isdisjoint(scopes):
        raise Forbidden(f"the scope {' or '.join(scopes)} is required", scope=scopes[0])


def require_operation(principal: Principal, agent: str, operation: str) -> None:
    """Raises Forbidden unless the grants of the principal allow an A2A operation at an agent that it sees."""
    if principal.operations and not principal.may_use(agent, operation):
        raise Forbidden(f"{operation} of {agent!r} may not be called", operation=operation)


def require_sending(principal: Principal, agent: str) -> None:
    """Raises NotFound for an agent that the principal may not call, and Forbidden if it may not send there."""
    if not principal.may_call(agent):
        raise NotFound("agent", agent)
    require_operation(principal, agent, Method.SEND_MESSAGE)


def name_key(row: MethodRow, caller: Caller, params: JsonObject) -> Caller:
    """The caller with the effective idempotency key of a request.

    Raises:
        InvalidInput: the key is empty or too long.
    """
    named = params.get(row.key_member) if row.key_member and caller.idem is None else None
    if isinstance(named, str) and 0 < len(named) <= IDEMPOTENCY_KEY_LIMIT:
        caller = replace(caller, idem=named)
    check_key(caller.idem)
    return caller


def check_key(key: str | None) -> None:
    """Raises InvalidInput for an idempotency key that is empty or too long; None is valid."""
    if key is None:
        return
    if not 0 < len(key) <= IDEMPOTENCY_KEY_LIMIT or not key.isprintable():
        raise InvalidInput(
            "idempotencyKey", f"is 1 to {IDEMPOTENCY_KEY_LIMIT} printable characters"
        )
