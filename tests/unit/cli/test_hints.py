"""What a command hints at, where something is wrong with its settings."""

from __future__ import annotations

import pytest

from passerelle.cli.exit_status import find_hints
from passerelle.core.errors import ConfigInvalid


@pytest.mark.parametrize(
    "where",
    [
        "redis_url",
        "clients.3.name",
        "passerelle.yaml:15: clients.3.name",
        "/etc/passerelle.yaml:15: clients.3.name",
    ],
)
def test_check_is_hinted_at_for_settings(where: str) -> None:
    [hint] = find_hints(ConfigInvalid(where, "cannot be used"))
    assert "passerelle check" in hint


@pytest.mark.parametrize(
    "where",
    [
        "--out",
        "WORKER_KEY",
        "/srv/state/owner-token",
        "keys/cards.pem",
        "cards.pem",
        "file",
        "nofile.yaml",
    ],
)
def test_check_is_not_hinted_at_for_an_option_a_variable_or_a_file(where: str) -> None:
    assert find_hints(ConfigInvalid(where, "cannot be used")) == []


@pytest.mark.parametrize(
    ("where", "ways"),
    [
        ("port", "--port, PASSERELLE_PORT or port in"),
        ("host", "--host, PASSERELLE_HOST or host in"),
        ("grpc.port", "--grpc-port, PASSERELLE_GRPC__PORT or grpc.port in"),
        ("channels.port", "--channel-port, PASSERELLE_CHANNELS__PORT or channels.port in"),
    ],
)
def test_where_to_set_another_address_is_hinted_at(where: str, ways: str) -> None:
    [hint] = find_hints(ConfigInvalid(where, "8080 on 127.0.0.1 is in use"))
    assert ways in hint
    assert "check" not in hint
