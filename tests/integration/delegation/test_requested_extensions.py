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
from tests.support.harness import Harness
from tests.support.scripted_peer import make_card
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

THEIRS = "urn:theirs"


@pytest.mark.requirement("DIA-2")
async def test_run_requests_its_callers_extensions_after_a_restart(harness: Harness) -> None:
    _declare(harness, THEIRS, PERMISSION)
    both = ", ".join(sorted((THEIRS, PERMISSION)))
    accepted = await _send(harness, "ask Which colour?", frozenset({THEIRS, "urn:foreign"}))
    await harness.until(accepted, Status.WAITING_INPUT)
    await harness.restart()
    seen = len(harness.peer.requests)
    # A new process has no call context.
    await asyncio.get_running_loop().create_task(harness.adopt(accepted), context=Context())
    view = await harness.question(accepted)
    await harness.respond(view, option_id="reply", content={"text": "blue"})
    await harness.until(accepted, Status.COMPLETED)
    later = harness.peer.requests[seen:]
    assert any(request.method.startswith("Send") for request in later)
    assert {request.headers.get("a2a-extensions") for request in harness.peer.requests} == {both}


async def test_extensions_of_one_caller_are_not_requested_for_another(harness: Harness) -> None:
    _declare(harness, THEIRS)
    accepted = await _send(harness, "hello", frozenset({THEIRS}))
    await harness.until(accepted, Status.COMPLETED)
    later = await _send(harness, "hello", frozenset())
    await harness.until(later, Status.COMPLETED)
    sends = [one for one in harness.peer.requests if one.method.startswith("Send")]
    assert [one.headers.get("a2a-extensions") for one in sends] == [THEIRS, None]


@pytest.mark.requirement("DIA-1")
async def test_message_without_a_required_extension_is_refused(
    harness: Harness,
) -> None:
    _declare(harness, THEIRS, required=True)
    with pytest.raises(ExtensionRequired, match=THEIRS):
        await _send(harness, "hello", frozenset())
    assert harness.peer.count("SendMessage") == 0
    accepted = await _send(harness, "hello", frozenset({THEIRS}))
    await harness.until(accepted, Status.COMPLETED)


async def test_poll_of_a_run_requests_the_extensions_of_its_message(harness: Harness) -> None:
    _declare(harness, THEIRS)
    accepted = await _send(harness, "ask Which colour?", frozenset({THEIRS}))
    await harness.until(accepted, Status.WAITING_INPUT)
    await wait_until(lambda: harness.peer.count("GetTask") > 1, 15, "the agent was polled")
    assert {one.headers.get("a2a-extensions") for one in harness.peer.requests} == {THEIRS}


async def _send(harness: Harness, text: str, requested: frozenset[str]) -> TurnAccepted:
    """Sends like a binding, which stores the caller's requested extensions in the call context."""

    async def send() -> TurnAccepted:
        set_call_context(requested, None)
        return await harness.send(text)

    return await asyncio.create_task(send())


def _declare(harness: Harness, *uris: str, required: bool = False) -> None:
    card = make_card("echo", harness.peer.url + "/")
    extensions: list[Json] = [{"uri": uri, "required": required} for uri in uris]
    harness.peer.card = {**card, "capabilities": {"streaming": True, "extensions": extensions}}
