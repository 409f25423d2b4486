"""Encodes and decodes frames, in both directions; a refusal names the wrong member.

A server decodes client frames and answers others with an ``error`` or ``err`` frame, as a value: a refused frame
changes nothing (CMD-29). A client decodes server frames and ignores unknown types, because within one version only
additions happen.

An ``item`` is built around the stored StreamResponse, which is neither decoded nor encoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import orjson

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import DEPTH_LIMIT, is_too_deep
from passerelle.protocol.frame_codec import FrameCodec
from passerelle.protocol.frames import SERVER_ONLY_TYPES, ClientFrame, Failure, Refusal, ServerFrame
from passerelle.protocol.members import NAME, ObjectValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from passerelle.core.wire.json import Json, JsonObject

MESSAGE_BYTES: Final = 65_536
"""Frames are combined into one message up to this size."""
CLIENT_CODECS: Final[Mapping[str, FrameCodec[Any]]] = {
    kind.TAG: FrameCodec(kind) for kind in get_args(ClientFrame)
}
SERVER_CODECS: Final[Mapping[str, FrameCodec[Any]]] = {
    kind.TAG: FrameCodec(kind) for kind in get_args(ServerFrame)
}


def split_message(message: str | bytes) -> list[bytes]:
    """The frames of one message; JSON escapes line feeds, so splitting on them is safe."""
    content = message.encode() if isinstance(message, str) else message
    return [line for line in content.split(b"\n") if line.strip()]


def pack_messages(frames: Sequence[bytes]) -> list[bytes]:
    """As few messages as the limit allows; a larger frame gets its own message."""
    if frames and sum(map(len, frames)) + len(frames) <= MESSAGE_BYTES:
        return [b"\n".join(frames)]
    messages: list[bytes] = []
    first, size = 0, 0
    for place, frame in enumerate(frames):
        if place > first and size + len(frame) > MESSAGE_BYTES:
            messages.append(b"\n".join(frames[first:place]))
            first, size = place, 0
        size += len(frame) + 1
    if first < len(frames):
        messages.append(b"\n".join(frames[first:]))
    return messages


def decode_client(frame: bytes) -> ClientFrame | Refusal | Failure:
    """Reads a client frame. A malformed frame is refused fatally, any other wrong one is not."""
    try:
        members = _read_object(frame)
    except InvalidInput as error:
        return Refusal("malformed", str(error), fatal=True)
    if is_too_deep(frame, members):
        reason = f"nested deeper than {DEPTH_LIMIT} levels"
        return _refuse_member(members, InvalidInput("frame", reason))
    kind = members.get("t")
    codec = CLIENT_CODECS.get(kind) if isinstance(kind, str) else None
    if codec is None:
        return _refuse_type(kind)
    try:
        read: ClientFrame = codec.read(members)
    except InvalidInput as error:
        return _refuse_member(members, error)
    return read


def decode_server(frame: bytes) -> ServerFrame | None:
    """Reads a frame of a server; None for a type that this version does not know.

    Raises:
        InvalidInput: the frame is not JSON, or a member of it is wrong.
    """
    members = _read_object(frame)
    kind = members.get("t")
    codec = SERVER_CODECS.get(kind) if isinstance(kind, str) else None
    return None if codec is None else codec.read(members)


def encode_client(frame: ClientFrame) -> bytes:
    """The bytes of a client's frame."""
    return orjson.dumps(CLIENT_CODECS[frame.TAG].write(frame))


def encode_server(frame: ServerFrame) -> bytes:
    """The bytes of a server's frame."""
    return orjson.dumps(SERVER_CODECS[frame.TAG].write(frame))


def build_item(call: str, number: int, cursor: str, data: bytes | None) -> bytes:
    """The ``item`` frame with a stored StreamResponse as its ``d``; without ``data`` it was sent in pieces."""
    after = b',"c":%b' % orjson.dumps(cursor) if cursor else b""
    content = b"" if data is None else b',"d":%b' % data
    return b'{"t":"item","id":%b,"n":%d%b%b}' % (orjson.dumps(call), number, after, content)


def _read_object(frame: bytes) -> JsonObject:
    try:
        members: Json = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("frame", "not JSON") from error
    return ObjectValue().read(members, "frame")


def _refuse_type(kind: Json) -> Refusal:
    if not isinstance(kind, str):
        return Refusal("invalid_input", "t: a text is required")
    if kind in SERVER_ONLY_TYPES:
        return Refusal("forbidden_frame", f"a client may not send {kind}", of=kind)
    return Refusal("unknown_frame", f"no frame type {kind[:40]!r} here", of=kind[:40])


def _refuse_member(members: JsonObject, error: InvalidInput) -> Refusal | Failure:
    kind, stream, call = members.get("t"), members.get("s"), members.get("id")
    if isinstance(call, str) and call:
        return Failure(call[:NAME], error.stable_code, str(error), data={"field": error.field})
    return Refusal(
        error.stable_code,
        str(error),
        of=kind if isinstance(kind, str) else None,
        stream=stream[:NAME] if isinstance(stream, str) else None,
        fatal=kind == "hello",
    )
