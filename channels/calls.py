"""Carries out a client's call, and maps errors to frames.

An error becomes the ``err`` of its call, the ``error`` of a stream that cannot be followed, or the end of the
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from passerelle.a2a_mapping.envelopes import find_retry
from passerelle.core.errors import (
    ActionClosed,
    CallerError,
    CredentialExpired,
    Forbidden,
    Limited,
    PasserelleError,
    RemoteError,
    Unauthenticated,
)
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Answer, Failure, Refusal

if TYPE_CHECKING:
    from passerelle.channels.admission import Admission
    from passerelle.channels.services import ChannelServices
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.frames import Call


def refuse_call(call: str, error: PasserelleError) -> Failure:
    """The ``err`` frame of an error; a losing answer always learns the winner (I7)."""
    data: JsonObject = {**error.details}
    if isinstance(error, ActionClosed):
        data["winner"] = error.winner
    return Failure(call, error.stable_code, error.message, find_retry(error), data or None)


def refuse_subscription(stream: str, error: PasserelleError, ask: str | None = None) -> Refusal:
    """The ``error`` frame of a stream that cannot be followed; ``ask`` is the id of the subscribe frame."""
    return Refusal(
        error.stable_code, error.message, "sub", stream, retry_s=find_retry(error), id=ask
    )


def end_connection(
    error: PasserelleError, of: str, *, admitted: bool = False
) -> tuple[CloseCode, Refusal]:
    """The close code and the final notice for an error that ends the connection.

    ``admitted``: the credential was valid before, so an invalid one was revoked.
    """
    notice = Refusal(error.stable_code, error.message, of, fatal=True, retry_s=find_retry(error))
    code = _choose_code(error)
    if admitted and code is CloseCode.BAD_CREDENTIALS:
        code = CloseCode.REVOKED
    return code, notice


def _choose_code(error: PasserelleError) -> CloseCode:
    match error:
        case CredentialExpired():
            return CloseCode.TOKEN_EXPIRED
        case Unauthenticated():
            return CloseCode.BAD_CREDENTIALS
        case Forbidden():
            return CloseCode.FORBIDDEN
        case Limited(kind="concurrency"):
            return CloseCode.TOO_MANY
        case Limited():
            return CloseCode.RATE_LIMIT
        case CallerError():
            return CloseCode.MALFORMED
        case RemoteError():
            return CloseCode.STORE_UNAVAILABLE
        case _:
            return CloseCode.RESTART


async def execute_call(services: ChannelServices, known: Admission, call: Call) -> Answer | Failure:
    """The answer or the error of a call. An internal error fails the call only; its connection continues."""
    try:
        data = await services.calls.call(known.principal, call.method, call.data, call.idem)
        return Answer(call.id, data)
    except PasserelleError as error:
        return refuse_call(call.id, error)
    except Exception as error:  # noqa: BLE001  a call that fails must not end the streams of its connection
        structlog.get_logger().error(
            "channel.fault",
            method=call.method,
            call=call.id,
            connection=known.welcome.connection,
            exc_info=error,
        )
        fault = PasserelleError("the gateway failed to answer; its log says why")
        return refuse_call(call.id, fault)
