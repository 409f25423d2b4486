"""The supported servers: their names, and the oldest version."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

ServerVersion: TypeAlias = tuple[int, int, int]
EngineName: TypeAlias = Literal["valkey", "redis"]

OLDEST: Final[ServerVersion] = (7, 0, 0)
"""For both engines: the commands used are those of Redis 7.0."""


def parse_version(text: str) -> ServerVersion:
    """``9.1.2`` as numbers; missing or invalid parts count as 0."""
    parts = [int(digits) if digits.isdigit() else 0 for digits in text.split(".")[:3]]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return (major, minor, patch)
