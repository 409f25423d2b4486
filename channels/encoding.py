"""From frames to bytes, in both directions.

An ``ev`` is put together around the stored envelope, which is neither decoded nor encoded again, so one
frame serves every reader of a stream under one name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import orjson

from passerelle.channels.frames import (
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
    Refusal,
    ServerBeat,
    ServerFrame,
    Snapshot,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.channels.cursor import Cursor, Linked
    from passerelle.core.json import Json, JsonObject


def build_event(stream: str, linked: Linked, previous: int) -> bytes:
    """The ``ev`` frame of a stored entry, its envelope byte for byte in ``d``."""
    entry = linked.entry
    return b'{"t":"ev","s":%b,"o":%d,"p":%d,"h":"%b","d":%b}' % (
        orjson.dumps(stream),
        entry.sequence,
        previous,
        linked.chain.encode(),
        entry.data,
    )


def join_frames(frames: Iterable[bytes]) -> bytes:
    """One message out of several frames."""
    return b"\n".join(frames)


def encode_client(frame: ClientFrame) -> bytes:
    """The bytes of a client's frame."""
    return _dump(_spell_client(frame))


def encode_server(frame: ServerFrame) -> bytes:
    """The bytes of a server's frame."""
    return _dump(_spell_server(frame))


def _dump(members: JsonObject) -> bytes:
    return orjson.dumps({name: value for name, value in members.items() if value is not None})


def _list(items: Iterable[Json]) -> Json:
    return [*items]


def _text(cursor: Cursor | None) -> str | None:
    return None if cursor is None else str(cursor)


def _texts(cursors: Mapping[str, Cursor]) -> JsonObject | None:
    return {stream: str(cursor) for stream, cursor in cursors.items()} or None


def _spell_subscribe(frame: Subscribe) -> JsonObject:
    return {
        "t": "sub",
        "s": frame.stream,
        "view": "full" if frame.full else None,
        "c": _text(frame.cursor),
        "from": frame.start,
        "snap": frame.snapshot,
        "max": frame.max_events,
        "id": frame.id,
    }


def _spell_hello(frame: Hello) -> JsonObject:
    subscriptions: list[Json] = [
        {
            name: value
            for name, value in _spell_subscribe(item).items()
            if name != "t" and value is not None
        }
        for item in frame.subscriptions
    ]
    return {
        "t": "hello",
        "v": frame.version,
        "token": frame.token,
        "device": frame.device,
        "tab": frame.tab,
        "role": frame.role,
        "sdk": frame.sdk or None,
        "caps": _list(sorted(frame.capabilities)),
        "resume": frame.resume,
        "subs": subscriptions,
    }


def _spell_client(frame: ClientFrame) -> JsonObject:
    match frame:
        case Hello():
            return _spell_hello(frame)
        case Subscribe():
            return _spell_subscribe(frame)
        case Unsubscribe(stream):
            return {"t": "unsub", "s": stream}
        case AskSnapshot(stream, call):
            return {"t": "snap", "s": stream, "id": call}
        case Ack(cursors):
            return {"t": "ack", "a": _texts(cursors)}
        case ClientBeat(number, cursors):
            return {"t": "hb", "n": number, "a": _texts(cursors)}
        case Call(call, method, idem, data):
            return {"t": "rpc", "id": call, "m": method, "idem": idem, "d": data}
        case _:
            assert_never(frame)


def _spell_welcome(frame: Welcome) -> JsonObject:
    return {
        "t": "welcome",
        "conn": frame.connection,
        "channel": frame.channel,
        "gen": frame.generation,
        "principal": frame.principal,
        "caps": _list(frame.capabilities),
        "hb": frame.heartbeat_s,
        "idle": frame.idle_s,
        "limits": {**frame.limits},
        "resume": frame.resume,
        "now": frame.now,
        "pending": _list(frame.pending),
        "pendingMore": frame.pending_more,
    }


def _spell_subscribed(frame: Subscribed) -> JsonObject:
    return {
        "t": "sub",
        "s": frame.stream,
        "ok": True,
        "mode": frame.mode,
        "c": str(frame.cursor),
        "dense": frame.dense,
        "n": frame.missed,
        "id": frame.id,
    }


def _spell_gap(frame: Gap) -> JsonObject:
    return {
        "t": "gap",
        "s": frame.stream,
        "why": frame.why.value,
        "have": _text(frame.have),
        "top": _text(frame.top),
        "first": frame.first,
        "snap": frame.snapshot,
        "url": frame.url,
    }


def _spell_event(frame: Event) -> JsonObject:
    return {
        "t": "ev",
        "s": frame.stream,
        "o": frame.sequence,
        "p": frame.previous,
        "h": frame.chain,
        "d": frame.data,
    }


def _spell_failure(frame: Failure) -> JsonObject:
    return {
        "t": "err",
        "id": frame.id,
        "code": frame.code,
        "msg": frame.message,
        "retry": frame.retry_s,
        "d": frame.data,
    }


def _spell_refusal(frame: Refusal) -> JsonObject:
    return {
        "t": "error",
        "code": frame.code,
        "of": frame.of,
        "s": frame.stream,
        "msg": frame.message,
        "fatal": frame.fatal,
        "retry": frame.retry_s,
    }


def _spell_server(frame: ServerFrame) -> JsonObject:  # noqa: C901, PLR0912 - one arm per frame type of the closed union
    match frame:
        case Welcome():
            return _spell_welcome(frame)
        case Subscribed():
            return _spell_subscribed(frame)
        case Unsubscribed(stream, code):
            return {"t": "unsub", "s": stream, "code": code}
        case Event():
            return _spell_event(frame)
        case Live(stream, cursor, replayed):
            return {"t": "live", "s": stream, "c": str(cursor), "n": replayed}
        case Gap():
            return _spell_gap(frame)
        case Snapshot(stream, cursor, data, call):
            return {"t": "snap", "s": stream, "c": str(cursor), "d": data, "id": call}
        case ServerBeat(number, cursors):
            return {"t": "hb", "n": number, "c": _texts(cursors)}
        case Answer(call, data):
            return {"t": "ok", "id": call, "d": data}
        case Failure():
            return _spell_failure(frame)
        case Refusal():
            return _spell_refusal(frame)
        case Drain(within_ms, jitter_ms):
            return {"t": "drain", "in": within_ms, "jitter": jitter_ms}
        case _:
            assert_never(frame)
