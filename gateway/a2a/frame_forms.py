"""The forms in which a stored frame is sent: as stored, marked for resumption, and in the spelling of 0.3.

A form is rendered for the first reader that asks for it, and depends on the frame alone (G12).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import orjson

from passerelle.a2a_mapping.extensions import RESUME
from passerelle.a2a_mapping.resume import mark_frame
from passerelle.a2a_mapping.v0_3.responses import ends_stream, write_response
from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.a2a_mapping.v0_3.forms import Form
    from passerelle.channels.stream_frame import Frames, StreamFrame

_PIECE = b'{"artifactUpdate"'


@frozen
class FrameForm:
    """A form's name, and how to render it; None for the stored form."""

    name: str = ""
    make: Callable[[StreamFrame], bytes] | None = None

    def keeps(self, frame: StreamFrame) -> bool:
        """Whether the frame is sent as stored."""
        return self.make is None and not frame.is_marked and frame.history is None

    def render(self, frame: StreamFrame) -> bytes:
        """Renders the frame in this form; load it first if it is not in memory."""
        if self.make is not None:
            return frame.form(self.name, self.make)
        return MARKED.render(frame) if frame.is_marked else frame.data


PLAIN = FrameForm()
MARKED = FrameForm(RESUME, lambda frame: mark_frame(frame.data, frame.generation, frame.cursor))


def choose_form(legacy: Form | None, *, marked: bool) -> FrameForm:
    """The form for a reader: ``legacy`` is its spelling of 0.3, ``marked`` whether the resume extension is active."""
    inner = MARKED if marked else PLAIN
    if legacy is None:
        return inner
    return FrameForm(f"0.3 {legacy} {inner.name}", partial(_write_legacy, inner, legacy))


async def end_with_turn(batches: Frames, *, follows_on: bool) -> Frames:
    """The frames up to the last one of a 0.3 turn; ``follows_on``: the first is a Task as it was stored."""
    is_first = True
    async with aclosing(batches):
        async for frames in batches:
            for index, held in enumerate(frames):
                # The first bytes identify a piece of an artifact; a Task is needed whole.
                frame = held if held.data.startswith(_PIECE) else await held.load()
                if _is_last(frame, is_first=is_first, follows_on=follows_on):
                    yield frames[: index + 1]
                    return
                is_first = False
            yield frames


def _is_last(frame: StreamFrame, *, is_first: bool, follows_on: bool) -> bool:
    # Pieces of artifacts never end a stream, and they are the large frames.
    return not frame.data.startswith(_PIECE) and ends_stream(
        orjson.loads(frame.data), is_first=is_first, follows_on=follows_on
    )


def _write_legacy(inner: FrameForm, legacy: Form, frame: StreamFrame) -> bytes:
    return orjson.dumps(write_response(orjson.loads(inner.render(frame)), legacy))
