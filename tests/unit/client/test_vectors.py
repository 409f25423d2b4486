"""Behaviour shared by all clients of the channel; the JavaScript client runs the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest

from passerelle.client import items
from passerelle.client.answers import read_refusal, read_result
from passerelle.client.track import Track
from passerelle.core.errors import BadCursor
from passerelle.protocol.closing import is_retryable
from passerelle.protocol.cursor import parse_cursor
from passerelle.protocol.wire import decode_server, encode_client

if TYPE_CHECKING:
    from collections.abc import Mapping

VECTORS: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors/channel.json").read_text("utf-8")
)
STREAM: Final = "session:se_1"
SPELLED: Final = {"hasSnapshot": "has_snapshot"}


@pytest.mark.parametrize(("code", "again"), VECTORS["closing"])
def test_close_code_determines_whether_to_reconnect(code: int, again: bool) -> None:  # noqa: FBT001 - a row of the vectors
    assert is_retryable(code) is again


def test_cursors_are_read_whole_or_refused() -> None:
    for text in VECTORS["cursors"]["good"]:
        assert str(parse_cursor(text)) == text
    for text in VECTORS["cursors"]["bad"]:
        with pytest.raises(BadCursor):
            parse_cursor(text)


@pytest.mark.parametrize("row", VECTORS["answers"], ids=lambda row: str(row["is"]))
def test_answer_is_read_as_its_outcome(row: Mapping[str, Any]) -> None:
    if "result" in row:
        outcome = read_result(row["result"])
    else:
        error = row["error"]
        outcome = read_refusal(items.CallRefused(error["code"], "", None, error["data"]))
    assert type(outcome).__name__.lower() == row["is"]


@pytest.mark.parametrize("script", VECTORS["tracks"], ids=lambda script: str(script["name"]))
def test_followed_stream(script: Mapping[str, Any]) -> None:
    wish = script.get("wish", {})
    track = Track(
        STREAM,
        lambda _stream, _cursor: None,
        script["saved"],
        full=wish.get("full", False),
        start=wish.get("from"),
        snapshot=wish.get("snap"),
        volatile=wish.get("vol", False),
    )
    if "ask" not in script["steps"][0]:
        track.ask()
    for step in script["steps"]:
        play(track, step)


def play(track: Track, step: Mapping[str, Any]) -> None:
    match step:
        case {"ask": wanted}:
            assert orjson.loads(encode_client(track.ask())) == wanted
        case {"move": cursor, "moved": moved}:
            assert track.move(parse_cursor(cursor)) is moved
        case {"take": said, "gives": wanted}:
            frame = decode_server(orjson.dumps(said))
            item = track.take(frame)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - of the vectors
            assert track.resubscribe is step.get("resubscribe", False)
            if wanted is None:
                assert item is None
            else:
                check(item, wanted)
        case _:
            pytest.fail(f"no such step: {step}")


def check(item: items.AnyItem | None, wanted: Mapping[str, Any]) -> None:
    assert type(item).__name__.lower() == wanted["type"]
    for member, value in wanted.items():
        if member != "type":
            assert getattr(item, SPELLED.get(member, member)) == value, member
