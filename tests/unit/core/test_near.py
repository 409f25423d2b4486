"""The name that was probably meant."""

import pytest

from passerelle.core.wire.near import find_near


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("sendMessage", "SendMessage"),
        ("SendMesage", "SendMessage"),
        ("GETTASK", "GetTask"),
        ("Fly", None),
        ("", None),
        ("x" * 100_000, None),
    ],
)
def test_only_what_is_alike_is_named(name: str, near: str | None) -> None:
    assert find_near(name, ["SendMessage", "GetTask"]) == near
