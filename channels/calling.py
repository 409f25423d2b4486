"""Carries out a call of a client, and says what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from passerelle.channels.failures import refuse_call
from passerelle.core.errors import PasserelleError
from passerelle.protocol.frames import Answer

if TYPE_CHECKING:
    from passerelle.channels.admission import Admission
    from passerelle.channels.services import ChannelServices
    from passerelle.protocol.frames import Call, Failure


async def carry_out(services: ChannelServices, known: Admission, call: Call) -> Answer | Failure:
    """The answer, or why there is none. A fault of ours is one too: the streams beside the call go on."""
    try:
        data = await services.calls.call(known.principal, call.method, call.data, call.idem)
        return Answer(call.id, data)
    except PasserelleError as error:
        return refuse_call(call.id, error)
    except Exception as error:  # noqa: BLE001  one call that fails must not end the streams beside it
        structlog.get_logger().error(
            "channel.fault",
            method=call.method,
            call=call.id,
            connection=known.welcome.connection,
            exc_info=error,
        )
        fault = PasserelleError("the gateway failed to answer; its log says why")
        return refuse_call(call.id, fault)
