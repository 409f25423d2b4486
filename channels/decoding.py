"""From bytes to frames, in both directions; a refusal names the member that is wrong.

A server decodes what clients may send and answers the rest with an ``error`` or ``err`` frame, as a value:
a refused frame changes nothing (CMD-29). A client decodes what servers send and passes over a type it
does not know, because inside one version only additions happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

import orjson

from passerelle.channels.cursor import GapReason
from passerelle.channels.fields import NAME, TOKEN, Fields
from passerelle.channels.frames import (
    SERVER_ONLY_TYPES,
    Ack,
    Answer,
    AskSnapshot,
    Call,
    ClientBeat,
    ClientFrame,
    Drain,
    Event,
    Failure,
    Gap,
    Hello,
    Live,
    Mode,
    Refusal,
    Role,
    ServerBeat,
    ServerFrame,
    Snapshot,
    SnapshotPlace,
    SnapshotWish,
    StartAt,
    Subscribe,
    Subscribed,
    Unsubscribe,
    UnsubscribeCode,
    Unsubscribed,
    Welcome,
)
from passerelle.channels.nesting import DEPTH_LIMIT, is_too_deep
from passerelle.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from passerelle.core.json import Json, JsonObject

_MOST_STREAMS: Final = 128
_ROLES: Final[Mapping[str, Role]] = {word: word for word in get_args(Role)}
_STARTS: Final[Mapping[str, StartAt]] = {word: word for word in get_args(StartAt)}
_WISHES: Final[Mapping[str, SnapshotWish]] = {word: word for word in get_args(SnapshotWish)}
_MODES: Final[Mapping[str, Mode]] = {word: word for word in get_args(Mode)}
_PLACES: Final[Mapping[str, SnapshotPlace]] = {word: word for word in get_args(SnapshotPlace)}
_REASONS: Final[Mapping[str, GapReason]] = {reason.value: reason for reason in GapReason}
_ENDINGS: Final[Mapping[str, UnsubscribeCode]] = {word: word for word in get_args(UnsubscribeCode)}


def split_message(message: str | bytes) -> list[bytes]:
    """The frames of one message; JSON escapes line feeds, so splitting on them is safe."""
    content = message.encode() if isinstance(message, str) else message
    return [line for line in content.split(b"\n") if line.strip()]


def decode_client(frame: bytes) -> ClientFrame | Refusal | Failure:
    """Reads a frame of a client. A malformed one is refused fatally, any other wrong one is not."""
    try:
        members = _read_object(frame)
    except InvalidInput as error:
        return Refusal("malformed", str(error), fatal=True)
    if is_too_deep(members):
        reason = f"nested deeper than {DEPTH_LIMIT} levels"
        return _refuse_field(members, InvalidInput("frame", reason))
    kind = members.get("t")
    reader = _FROM_CLIENT.get(kind) if isinstance(kind, str) else None
    if reader is None:
        return _refuse_type(kind)
    try:
        return reader(Fields(members))
    except InvalidInput as error:
        return _refuse_field(members, error)


def decode_server(frame: bytes) -> ServerFrame | None:
    """Reads a frame of a server; None for a type that this version does not know.

    Raises:
        InvalidInput: the frame is not JSON, or a member of it is wrong.
    """
    members = _read_object(frame)
    kind = members.get("t")
    reader = _FROM_SERVER.get(kind) if isinstance(kind, str) else None
    return None if reader is None else reader(Fields(members))


def _read_object(frame: bytes) -> JsonObject:
    try:
        members: Json = orjson.loads(frame)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("frame", "not JSON") from error
    if not isinstance(members, dict):
        raise InvalidInput("frame", "a JSON object is required")
    return members


def _refuse_type(kind: Json) -> Refusal:
    if not isinstance(kind, str):
        return Refusal("invalid_input", "t: a text is required")
    if kind in SERVER_ONLY_TYPES:
        return Refusal("forbidden_frame", f"a client may not send {kind}", of=kind)
    return Refusal("unknown_frame", f"no frame type {kind[:40]!r} here", of=kind[:40])


def _refuse_field(members: JsonObject, error: InvalidInput) -> Refusal | Failure:
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


def _read_subscribe(fields: Fields) -> Subscribe:
    view = fields.optional_text("view")
    if view not in (None, "full", "plain"):
        raise InvalidInput("view", "full or plain")
    return Subscribe(
        stream=fields.text("s", NAME),
        full=view == "full",
        cursor=fields.optional_cursor("c"),
        start=fields.optional_word("from", _STARTS),
        snapshot=fields.optional_word("snap", _WISHES),
        max_events=fields.optional_integer("max", least=1),
        id=fields.optional_text("id"),
    )


def _read_hello(fields: Fields) -> Hello:
    return Hello(
        version=fields.integer("v", least=1),
        token=fields.optional_text("token", TOKEN),
        device=fields.text("device"),
        tab=fields.optional_text("tab"),
        role=fields.word("role", _ROLES),
        sdk=fields.optional_text("sdk") or "",
        capabilities=fields.words("caps", 32),
        resume=fields.optional_text("resume", NAME),
        subscriptions=tuple(
            _read_subscribe(Fields(item)) for item in fields.records("subs", _MOST_STREAMS)
        ),
    )


def _read_ack(fields: Fields) -> Ack:
    cursors = fields.cursors("a", _MOST_STREAMS)
    if not cursors:
        raise InvalidInput("a", "at least one stream and its cursor")
    return Ack(cursors)


def _read_call(fields: Fields) -> Call:
    return Call(
        id=fields.text("id"),
        method=fields.text("m"),
        idem=fields.optional_text("idem"),
        data=fields.optional_record("d") or {},
    )


def _read_client_beat(fields: Fields) -> ClientBeat:
    return ClientBeat(fields.integer("n"), fields.cursors("a", _MOST_STREAMS))


_FROM_CLIENT: Final[Mapping[str, Callable[[Fields], ClientFrame]]] = {
    "hello": _read_hello,
    "sub": _read_subscribe,
    "unsub": lambda fields: Unsubscribe(fields.text("s", NAME)),
    "snap": lambda fields: AskSnapshot(fields.text("s", NAME), fields.optional_text("id")),
    "ack": _read_ack,
    "hb": _read_client_beat,
    "rpc": _read_call,
}


def _read_limits(fields: Fields) -> dict[str, int]:
    return {
        name: value
        for name, value in fields.record("limits").items()
        if isinstance(value, int) and not isinstance(value, bool)
    }


def _read_welcome(fields: Fields) -> Welcome:
    return Welcome(
        connection=fields.text("conn"),
        channel=fields.text("channel"),
        generation=fields.integer("gen"),
        principal=fields.text("principal", NAME),
        capabilities=tuple(sorted(fields.words("caps", 64))),
        heartbeat_s=fields.number("hb"),
        idle_s=fields.number("idle"),
        limits=_read_limits(fields),
        resume=fields.text("resume", NAME),
        now=fields.text("now"),
        pending=tuple(fields.records("pending", 1_000)),
        pending_more=fields.flag("pendingMore"),
    )


def _read_subscribed(fields: Fields) -> Subscribed:
    return Subscribed(
        stream=fields.text("s", NAME),
        mode=fields.word("mode", _MODES),
        cursor=fields.cursor("c"),
        dense=fields.flag("dense"),
        missed=fields.integer("n"),
        id=fields.optional_text("id"),
    )


def _read_event(fields: Fields) -> Event:
    return Event(
        stream=fields.text("s", NAME),
        sequence=fields.integer("o", least=1),
        previous=fields.integer("p"),
        chain=fields.text("h"),
        data=fields.record("d"),
    )


def _read_gap(fields: Fields) -> Gap:
    return Gap(
        stream=fields.text("s", NAME),
        why=fields.word("why", _REASONS),
        have=fields.optional_cursor("have"),
        top=fields.optional_cursor("top"),
        first=fields.optional_integer("first"),
        snapshot=fields.word("snap", _PLACES),
        url=fields.optional_text("url", TOKEN),
    )


def _read_snapshot(fields: Fields) -> Snapshot:
    return Snapshot(
        fields.text("s", NAME), fields.cursor("c"), fields.record("d"), fields.optional_text("id")
    )


def _read_failure(fields: Fields) -> Failure:
    return Failure(
        id=fields.text("id", NAME),
        code=fields.text("code"),
        message=fields.any_text("msg"),
        retry_s=fields.optional_integer("retry"),
        data=fields.optional_record("d"),
    )


def _read_refusal(fields: Fields) -> Refusal:
    return Refusal(
        code=fields.text("code"),
        message=fields.any_text("msg"),
        of=fields.optional_text("of"),
        stream=fields.optional_text("s", NAME),
        fatal=fields.flag("fatal"),
        retry_s=fields.optional_integer("retry"),
    )


_FROM_SERVER: Final[Mapping[str, Callable[[Fields], ServerFrame]]] = {
    "welcome": _read_welcome,
    "sub": _read_subscribed,
    "unsub": lambda fields: Unsubscribed(fields.text("s", NAME), fields.word("code", _ENDINGS)),
    "ev": _read_event,
    "live": lambda fields: Live(fields.text("s", NAME), fields.cursor("c"), fields.integer("n")),
    "gap": _read_gap,
    "snap": _read_snapshot,
    "hb": lambda fields: ServerBeat(fields.integer("n"), fields.cursors("c", _MOST_STREAMS)),
    "ok": lambda fields: Answer(fields.text("id", NAME), fields.optional_record("d") or {}),
    "err": _read_failure,
    "error": _read_refusal,
    "drain": lambda fields: Drain(fields.integer("in"), fields.integer("jitter")),
}
