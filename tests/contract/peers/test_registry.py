"""The peers of a process, and the effect of a reload."""

from __future__ import annotations

import pytest

from passerelle.core.errors import ConfigInvalid, NotFound
from passerelle.core.peer import Answered, Unreached
from passerelle.peers.config import PeerConfig
from passerelle.peers.credential import Bearer
from passerelle.peers.registry import PeerRegistry
from passerelle.runtime.common.secret import Secret
from tests.contract.peers.conftest import HandClock
from tests.contract.peers.test_peer_suite import read_all, say
from tests.support.scripted_peer import ScriptedPeer

pytestmark = pytest.mark.anyio


async def test_peers_are_found_by_name_and_others_are_not_found() -> None:
    registry = PeerRegistry([PeerConfig("a", "http://a.example")], HandClock())
    assert registry.names == ("a",)
    assert registry.find("a").name == "a"
    with pytest.raises(NotFound):
        registry.find("b")


async def test_reload_keeps_equal_peers_and_replaces_the_others() -> None:
    same = PeerConfig("same", "http://a.example", auth=Bearer(Secret("one")))
    registry = PeerRegistry(
        [same, PeerConfig("moved", "http://b.example"), PeerConfig("gone", "http://c.example")],
        HandClock(),
    )
    kept, moved = registry.find("same"), registry.find("moved")
    registry.replace(
        [
            PeerConfig("moved", "http://d.example"),
            PeerConfig("same", "http://a.example", auth=Bearer(Secret("one"))),
        ]
    )
    assert registry.names == ("moved", "same")
    assert registry.find("same") is kept
    assert registry.find("moved") is not moved
    registry.replace([PeerConfig("same", "http://a.example", auth=Bearer(Secret("two")))])
    assert registry.find("same") is not kept


async def test_duplicate_name_changes_nothing() -> None:
    registry = PeerRegistry([PeerConfig("a", "http://a.example")], HandClock())
    with pytest.raises(ConfigInvalid, match=r"agents\.b"):
        registry.replace([PeerConfig("b", "http://b.example"), PeerConfig("b", "http://c.example")])
    assert registry.names == ("a",)


async def test_running_stream_outlives_a_reload(scripted: ScriptedPeer) -> None:
    registry = PeerRegistry([PeerConfig("scripted", scripted.url)], HandClock())
    scripted.hold()
    stream = registry.find("scripted").stream(say("chunks 2"))
    scripted.release()
    assert isinstance(await anext(stream), Answered)
    registry.replace([])
    scripted.release_all()
    assert len(await read_all(stream)) == 5
    await registry.close()


async def test_peers_of_one_origin_share_their_connections(scripted: ScriptedPeer) -> None:
    names = ("first", "second")
    registry = PeerRegistry([PeerConfig(name, scripted.url) for name in names], HandClock())
    for name in names:
        assert isinstance(await registry.find(name).send(say("hello")), Answered)
    assert scripted.open_connections == 2, "one for cards and streams, one for whole answers"
    await registry.close()
    assert isinstance(await registry.find("first").send(say("hello")), Unreached)
