"""Which changes of the configuration apply to a running gateway, and which ones need a restart."""

from __future__ import annotations

import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.changes import compare
from passerelle.gateway.settings.model import Settings

CASES: list[tuple[JsonObject, tuple[str, ...], tuple[str, ...]]] = [
    ({}, (), ()),
    ({"log_level": "debug"}, ("log_level",), ()),
    ({"access_log": True}, (), ("access_log",)),
    ({"channels": {"heartbeat": "20s"}}, (), ("channels.heartbeat",)),
    ({"channels": {"origins": ["https://a.example"]}}, ("channels",), ()),
    (
        {"channels": {"heartbeat": "20s", "replays": 7, "origins": ["https://a.example"]}},
        ("channels",),
        ("channels.heartbeat", "channels.replays"),
    ),
    ({"retention": {"inbox": "6d"}}, (), ("retention.inbox",)),
    ({"retention": {"memory": "12h"}}, ("retention",), ()),
    ({"webhooks": {"sign": False}}, (), ("webhooks.sign",)),
    (
        {"proxy": {"addresses": ["10.0.0.1"], "address_header": "Forwarded"}},
        ("proxy",),
        ("proxy.address_header", "proxy.certificate_header"),
    ),
]


@pytest.mark.parametrize(("members", "hot", "cold"), CASES)
def test_only_what_applies_is_said_to_be_reloaded(
    members: JsonObject, hot: tuple[str, ...], cold: tuple[str, ...]
) -> None:
    before, after = Settings.model_validate({}), Settings.model_validate(members)
    for old, new in ((before, after), (after, before)):
        found = compare(old, new)
        assert (found.hot, found.cold) == (hot, cold)
