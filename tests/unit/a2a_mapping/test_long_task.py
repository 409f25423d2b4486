"""A Task written in pieces has the same bytes as one written at once."""

from __future__ import annotations

from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.content import fold
from passerelle.a2a_mapping.long_task import (
    is_slim,
    slim_frame,
    write_artifact,
    write_slim_task,
    write_task,
)
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.long_json import Slice

_LEAVES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_NAMES = st.sampled_from(["parts", "artifactId", "artifacts", "status", "metadata", "é"])
_ARTIFACTS = st.dictionaries(_NAMES, _JSON | st.lists(_JSON, max_size=3), max_size=4)
_TASKS = st.dictionaries(_NAMES, _JSON | st.lists(_ARTIFACTS, max_size=3), max_size=5)


@given(_TASKS)
def test_a_task_in_pieces_is_the_task(task: dict[str, object]) -> None:
    assert b"".join(write_task(cast("JsonObject", task))) == orjson.dumps(task)


@given(_ARTIFACTS)
def test_an_artifact_in_pieces_is_the_artifact(artifact: dict[str, object]) -> None:
    assert b"".join(write_artifact(cast("JsonObject", artifact))) == orjson.dumps(artifact)


@pytest.mark.parametrize("count", [1, 7])
def test_no_piece_holds_more_than_one_part(count: int) -> None:
    parts: list[Json] = [{"text": "x" * 1000} for _ in range(count)]
    artifacts: list[Json] = [{"artifactId": "a", "parts": parts}] * 2
    task: JsonObject = {"artifacts": artifacts}
    assert max(map(len, write_task(task))) < 1100


def test_content_in_a_blob_cannot_be_serialized_directly_and_is_written_in_pieces() -> None:
    parts: list[Json] = [{"text": "a"}, {"text": "b"}]
    frame: JsonObject = {"artifactUpdate": {"artifact": {"artifactId": "x", "parts": parts}}}
    content = orjson.dumps(frame)
    slim = slim_frame(frame, content, "blob")
    task = fold(None, slim)
    assert task is not None
    task = fold(task, {"artifactUpdate": {**frame["artifactUpdate"], "append": True}})  # type: ignore[dict-item]
    assert task is not None
    assert is_slim(task)
    with pytest.raises(TypeError):
        orjson.dumps(task)
    with pytest.raises(TypeError):
        list(write_task(task))
    read = b"".join(
        content[piece.start : piece.start + piece.size] if isinstance(piece, Slice) else piece
        for piece in write_slim_task(task).pieces
    )
    assert orjson.loads(read)["artifacts"] == [{"artifactId": "x", "parts": parts * 2}]


def test_a_frame_without_parts_stays_as_it_is() -> None:
    frame: JsonObject = {"artifactUpdate": {"artifact": {"artifactId": "x", "parts": []}}}
    assert slim_frame(frame, orjson.dumps(frame), "blob") is frame
