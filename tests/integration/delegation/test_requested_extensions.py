"""Extensions that a run requests from its agent: those of its caller, on every call, under any driver."""

from __future__ import annotations

import asyncio
from contextvars import Context

import pytest

from passerelle.a2a_mapping.errors import ExtensionRequired
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.core.commands import TurnAccepted
from passerelle.core.task.status import Status
from passerelle.core.wire.json import Json
from passerelle.runtime.common.carried import set_call_context
from tests.support.house import House
from tests.support.scripted_peer import make_card
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

THEIRS = "urn:theirs"


@pytest.mark.requirement("DIA-2")
async def test_run_requests_its_callers_extensions_after_a_restart(house: House) -> None:
    _declare(house, THEIRS, PERMISSION)
    both = ", ".join(sorted((THEIRS, PERMISSION)))
    accepted = await _send(house, "ask Which colour?", frozenset({THEIRS, "urn:foreign"}))
    await house.until(accepted, Status.WAITING_INPUT)
    await house.restart()
    seen = len(house.peer.requests)
    # A new process has no call context.
    await asyncio.get_running_loop().create_task(house.adopt(accepted), context=Context())
    view = await house.question(accepted)
    await house.respond(view, option_id="reply", content={"text": "blue"})
    await house.until(accepted, Status.COMPLETED)
    later = house.peer.requests[seen:]
    assert any(request.method.startswith("Send") for request in later)
    assert {request.headers.get("a2a-extensions") for request in house.peer.requests} == {both}


async def test_extensions_of_one_caller_are_not_requested_for_another(house: House) -> None:
    _declare(house, THEIRS)
    accepted = await _send(house, "hello", frozenset({THEIRS}))
    await house.until(accepted, Status.COMPLETED)
    later = await _send(house, "hello", frozenset())
    await house.until(later, Status.COMPLETED)
    sends = [one for one in house.peer.requests if one.method.startswith("Send")]
    assert [one.headers.get("a2a-extensions") for one in sends] == [THEIRS, None]


@pytest.mark.requirement("DIA-1")
async def test_message_without_a_required_extension_is_refused(
    house: House,
) -> None:
    _declare(house, THEIRS, required=True)
    with pytest.raises(ExtensionRequired, match=THEIRS):
        await _send(house, "hello", frozenset())
    assert house.peer.count("SendMessage") == 0
    accepted = await _send(house, "hello", frozenset({THEIRS}))
    await house.until(accepted, Status.COMPLETED)


async def test_poll_of_a_run_requests_the_extensions_of_its_message(house: House) -> None:
    _declare(house, THEIRS)
    accepted = await _send(house, "ask Which colour?", frozenset({THEIRS}))
    await house.until(accepted, Status.WAITING_INPUT)
    await wait_until(lambda: house.peer.count("GetTask") > 1, 15, "the agent was polled")
    assert {one.headers.get("a2a-extensions") for one in house.peer.requests} == {THEIRS}


async def _send(house: House, text: str, requested: frozenset[str]) -> TurnAccepted:
    """Sends like a binding, which stores the caller's requested extensions in the call context."""

    async def send() -> TurnAccepted:
        set_call_context(requested, None)
        return await house.send(text)

    return await asyncio.create_task(send())


def _declare(house: House, *uris: str, required: bool = False) -> None:
    card = make_card("echo", house.peer.url + "/")
    extensions: list[Json] = [{"uri": uri, "required": required} for uri in uris]
    house.peer.card = {**card, "capabilities": {"streaming": True, "extensions": extensions}}
