"""The leak check of the suite detects a leak."""

from __future__ import annotations

from tests.support.engine import Server, ask, find_leaks


def test_key_without_an_expiry_or_a_known_name_is_a_leak(engine_server: Server) -> None:
    ask(engine_server.url, "SET", "{01}:stray:1", "x")
    ask(engine_server.url, "SET", "{01}:stray:2", "x", "EX", "60")
    ask(engine_server.url, "HSET", "{01}:meta", "epoch", "1")
    ask(engine_server.url, "SET", "{01}:idem:k", "x")
    assert sorted(find_leaks(engine_server)) == ["{01}:idem:k", "{01}:stray:1"]
