"""The calls about sessions, threads and turns under way. Their parameters are the commands and queries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.core.principal import Scope
from passerelle.core.session.device_requests import (
    AckEvents,
    ChannelReconnected,
    EventsAcked,
    NoticeSent,
    ReconnectChannel,
    SendNotice,
)
from passerelle.core.session.requests import (
    DescribeSession,
    InterruptTurn,
    ListSessions,
    OpenSession,
    ResumeThread,
    SessionChanged,
    ThreadResumed,
    TurnInterrupted,
)
from passerelle.core.session.webhook_requests import (
    DeleteStreamWebhook,
    ListStreamWebhooks,
    SetStreamWebhook,
    StreamWebhookDeleted,
    StreamWebhookSet,
)
from passerelle.runtime.common.calls import Call


def _row(name: str, summary: str, params: type[Any], result: type[Any] | None = None) -> Call:
    scope = Scope.READ_TASKS if result is None else Scope.WRITE_TASKS
    return Call(name, summary, (scope,), params, lambda given, _: given, result)


_FOLLOW: Final = (Scope.READ_TASKS, Scope.CALL, Scope.READ_APPROVALS, Scope.DECIDE)
"""Which of them a stream takes is looked at with the stream."""

SESSION_ROWS: Final[Sequence[Call]] = (
    _row("list_sessions", "The sessions of the caller, the newest activity first", ListSessions),
    _row("open_session", "Open a session with a name", OpenSession, SessionChanged),
    _row(
        "update_session", "Change the title or labels of a session", DescribeSession, SessionChanged
    ),
    _row("interrupt_turn", "Stop what is under way in a session", InterruptTurn, TurnInterrupted),
    Call(
        "ack_events",
        "Say that a device has a stream up to a cursor",
        _FOLLOW,
        AckEvents,
        lambda given, _: given,
        EventsAcked,
    ),
    Call(
        "reconnect_channel",
        "Bring a device up to date in a stream: its state, then the events after what it has",
        _FOLLOW,
        ReconnectChannel,
        lambda given, _: given,
        ChannelReconnected,
    ),
    Call(
        "send_notice",
        "Say something of a device that is no turn: a notice or a state",
        (Scope.CONNECT,),
        SendNotice,
        lambda given, _: given,
        NoticeSent,
    ),
    Call(
        "set_stream_webhook",
        "Deliver a stream to an address, in signed batches",
        _FOLLOW,
        SetStreamWebhook,
        lambda given, _: given,
        StreamWebhookSet,
    ),
    Call(
        "delete_stream_webhook",
        "Deliver a stream there no more",
        _FOLLOW,
        DeleteStreamWebhook,
        lambda given, _: given,
        StreamWebhookDeleted,
    ),
    Call(
        "list_stream_webhooks",
        "The webhooks of a stream, and how far they have come",
        _FOLLOW,
        ListStreamWebhooks,
        lambda given, _: given,
    ),
    _row("resume_thread", "Attach to the runs of a thread again", ResumeThread, ThreadResumed),
)
