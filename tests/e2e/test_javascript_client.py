"""The JavaScript client against the whole product."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from passerelle.demo.network import open_network
from passerelle.demo.processes import GatewayProcess
from tests.support.javascript import ClientHost, ScriptedClient, open_client_host
from tests.support.loops import Backend
from tests.support.processes import AGENT, Answer, Caller, open_caller, read_stored, run_gateway
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class World:
    """A gateway, and the host that runs the clients."""

    gateway: GatewayProcess
    host: ClientHost

    async def open(
        self, scripted: ScriptedClient, url: str | None = None, **options: object
    ) -> None:
        """Connects, as the owner unless a token is given."""
        address = (url or self.gateway.url).replace("http", "ws", 1) + "/v1/channel"
        known = {"device": "screen", "token": self.gateway.token, "gaps": "snapshot"}
        await scripted.do("open", url=address, **{**known, **options})


@pytest.fixture(scope="module")
async def world(
    anyio_backend: Backend,
    idle_peer: ScriptedPeer,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[World]:
    del anyio_backend
    folder = tmp_path_factory.mktemp("stage")
    async with (
        open_client_host(folder) as host,
        run_gateway(tmp_path_factory.mktemp("gateway"), {AGENT: idle_peer.url}) as gateway,
    ):
        yield World(gateway, host)


async def begin_held(caller: Caller, peer: ScriptedPeer, text: str) -> tuple[str, str]:
    """A task whose peer waits after WORKING; returns its id and its session."""
    peer.hold()
    peer.release(2)
    task = await caller.begin(text)
    return task["id"], (await caller.read_record(task["id"]))["sessionId"]


async def await_event(scripted: ScriptedClient, stream: str, kind: str) -> dict[str, Any]:
    """The first event of a class that the application receives."""

    def look() -> dict[str, Any] | None:
        return next((it for it in scripted.events(stream) if it["type"] == kind), None)

    found = await wait_until(look, WITHIN_S, f"{kind} of {stream}")
    assert found is not None
    return found


async def await_question(scripted: ScriptedClient) -> dict[str, Any]:
    """The only open approval, once it has reached the person's inbox."""

    async def look() -> dict[str, Any] | None:
        pending = cast(
            "list[Answer]", (await scripted.do("call", method="list_actions"))["pending"]
        )
        return pending[0] if pending else None

    return cast("Answer", await wait_until(look, WITHIN_S, "a question in the inbox"))


@pytest.mark.requirement("CHN-3")
async def test_screen_that_loses_its_network_and_is_closed_receives_every_event_once(
    world: World, peer: ScriptedPeer
) -> None:
    async with (
        open_caller(world.gateway) as caller,
        open_network(world.gateway.port) as network,
    ):
        task, session = await begin_held(caller, peer, "chunks 30")
        stream = f"session:{session}"
        seen: list[dict[str, Any]] = []
        async with world.host.open_client() as scripted:
            await world.open(scripted, network.url)
            await scripted.do("stream", name=stream, wish={"from": "start"}, acks=True)
            for released in (5, 5, 5):
                before = len(scripted.events(stream))
                peer.release(released)
                await wait_until(
                    lambda before=before: len(scripted.events(stream)) > before,  # type: ignore[misc]
                    WITHIN_S,
                    "more events",
                )
                network.pull_out()
                network.plug_in()
            # Its answer arrives after every item that the application received before.
            await scripted.do("close")
            seen += scripted.events(stream)
        peer.release_all()
        await caller.await_end(task)
        async with world.host.open_client() as scripted:
            await world.open(scripted, network.url)
            await scripted.do("stream", name=stream, wish={}, acks=True)
            await await_event(scripted, stream, "snapshot.updated")
            had = {event["eventId"] for event in seen}
            again = [event for event in scripted.events(stream) if event["eventId"] in had]
            # The position is saved when the application requests the next item: one may arrive twice.
            assert len(again) <= 1
            seen += [event for event in scripted.events(stream) if event["eventId"] not in had]
            assert not [item for item in scripted.items if item["type"] == "gap"]
        assert seen == read_stored(world.gateway, session)


async def test_calls_are_answered_and_a_repeat_is_executed_once(
    world: World, peer: ScriptedPeer
) -> None:
    async with world.host.open_client() as scripted:
        await world.open(scripted)
        turn = {"agent": AGENT, "parts": [{"text": "from the screen"}]}
        first = await scripted.do("call", method="submit_turn", data=turn, idem="once")
        again = await scripted.do("call", method="submit_turn", data=turn, idem="once")
        assert again["taskId"] == first["taskId"]
        # A turn is stored when it is answered, and then sent to the agent.
        async with open_caller(world.gateway) as caller:
            await caller.await_end(first["taskId"])
        assert peer.texts == ["from the screen"]
        refused = await scripted.order("call", method="get_task", data={"taskId": "task_nobody"})
        assert (refused["error"], refused["code"]) == ("CallRefused", "not_found")


@pytest.mark.requirement("CHN-8")
async def test_first_of_two_screens_wins_and_the_other_learns_the_winner(
    world: World, peer: ScriptedPeer
) -> None:
    del peer
    async with (
        open_caller(world.gateway) as caller,
        world.host.open_client() as scripted,
    ):
        task = await caller.send("ask")
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        await world.open(scripted, device="first")
        shown = await await_question(scripted)
        given = {"option": shown["options"][0]["optionId"], "content": {"text": "42"}}
        won = await scripted.do("answer", action=shown, given=given)
        assert won["outcome"] == "won", won
        lost = await scripted.do("answer", action=shown, given=given)
        assert lost["outcome"] == "lost"
        assert lost["winner"]["decidedBy"]


async def test_cursor_of_another_history_is_a_gap_that_the_application_sees(
    world: World, peer: ScriptedPeer
) -> None:
    del peer
    async with open_caller(world.gateway) as caller, world.host.open_client() as scripted:
        record = await caller.read_record((await caller.send("hello"))["id"])
        stream = f"session:{record['sessionId']}"
        await world.open(scripted, gaps=None)
        await scripted.do("stream", name=stream, wish={"from": "start"}, acks=False)
        await await_event(scripted, stream, "task.completed")
        await scripted.do("stream", name="session:se_nobody", wish={}, acks=False)
        await wait_until(lambda: scripted.ended, WITHIN_S, "the foreign stream is refused")
        assert scripted.ended == [{"ended": "session:se_nobody", "error": "StreamClosed"}]


async def test_wrong_token_stops_the_channel_and_is_not_retried(
    world: World, peer: ScriptedPeer
) -> None:
    del peer
    async with world.host.open_client() as scripted:
        await world.open(scripted, token="psr_wrong")
        await scripted.await_state("stopped")
        assert scripted.statuses[-1]["code"] == 4500
        refused = await scripted.order("call", method="list_actions")
        assert refused["error"] == "ChannelStopped"
