"""Which pages may open sockets, and that a refusal, which browsers do not explain, is logged once a minute."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from passerelle.channels.origins import WebOrigins

PAGE = "https://desk.example"
OTHER = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("origin", "host", "admitted"),
    [
        (None, "us.example", True),
        (PAGE, "us.example", True),
        ("https://us.example", "us.example", True),
        ("https://us.example:8443", "us.example", False),
        (OTHER, "127.0.0.1:8080", False),
        ("null", "us.example", False),
        ("https://[", "us.example", False),
    ],
)
def test_page_is_listed_or_of_the_same_host(
    origin: str | None, host: str, *, admitted: bool
) -> None:
    assert WebOrigins([PAGE]).admits(origin, host) is admitted


def test_another_list_counts_at_once() -> None:
    origins = WebOrigins([PAGE])
    origins.reload([OTHER])
    assert origins.admits(OTHER, "us.example")
    assert not origins.admits(PAGE, "us.example")


def count(seconds: list[float]) -> Iterator[float]:
    yield from seconds


def test_refused_origin_is_logged_once_a_minute_with_what_helps() -> None:
    clock = count([0, 59, 61])
    origins = WebOrigins((), lambda: next(clock))
    with capture_logs() as lines:
        for _ in range(3):
            origins.admits(OTHER, "us.example")
    assert [(line["event"], line["origin"]) for line in lines] == [
        ("channel.origin_refused", OTHER)
    ] * 2
    assert "channels.origins" in lines[0]["hint"]


def test_crowd_of_origins_neither_fills_the_log_nor_memory() -> None:
    origins = WebOrigins((), lambda: 0)
    with capture_logs() as lines:
        for number in range(1_000):
            origins.admits(f"https://{'x' * 500}{number}.example", "us.example")
    assert len(lines) == 50
    assert all(len(line["origin"]) <= 200 for line in lines)
