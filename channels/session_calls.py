"""Calls in the state machine: commands of any client, an agent's answers, and an agent's own calls to other agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.channels.outputs import Ask, Execute, Send, Serve
from passerelle.channels.session_end import refuse
from passerelle.core.wire.record import change
from passerelle.protocol.frames import Failure, Refusal
from passerelle.protocol.reverse_frames import (
    AGENT_METHODS,
    HOST_IDS,
    AnswerPiece,
    StopAsking,
    TakeMore,
)

if TYPE_CHECKING:
    from passerelle.channels.session_state import ConnectionState, ConnectionStep
    from passerelle.protocol.frames import Answer, Call
    from passerelle.protocol.reverse_frames import AgentFrame

_BUSY_S: Final = 1


def execute(state: ConnectionState, call: Call) -> ConnectionStep:
    """Begins a call. A call to an agent is special only for agents: for other clients it is an unknown command."""
    if call.id in state.calls | state.asks:
        return refuse(state, Refusal("duplicate_id", f"call {call.id[:40]} is open", of="rpc"))
    if asks(state, call):
        return _ask(state, call)
    return change(state, calls=state.calls | {call.id}), (Execute(call),)


def asks(state: ConnectionState, call: Call) -> bool:
    """Whether this is an agent's call to another agent."""
    return _is_agent(state) and call.method.startswith(AGENT_METHODS)


def settle(state: ConnectionState, frame: Answer | Failure) -> ConnectionStep:
    """A call has its answer."""
    done = {frame.id}
    return change(state, calls=state.calls - done, asks=state.asks - done), (Send(frame),)


def take_agent_frame(state: ConnectionState, frame: AgentFrame) -> ConnectionStep:
    """Routes frames that only agents send: registrations, answers, and frames about calls, by call id."""
    if not _is_agent(state):
        message = f"{frame.TAG} is for connections with the role agent"
        return refuse(state, Refusal("forbidden_frame", message, of=frame.TAG))
    match frame:
        case TakeMore() | StopAsking():
            return state, (Ask(frame),)
        case AnswerPiece(call) if not call.startswith(HOST_IDS):
            return state, (Ask(frame),)
        case _:
            return state, (Serve(frame),)


def _ask(state: ConnectionState, call: Call) -> ConnectionStep:
    if call.id.startswith(HOST_IDS):
        return refuse(
            state, _invalid_member(call, "id", f"begins with {HOST_IDS!r}, as the gateway's do")
        )
    if call.to is None:
        return refuse(state, _invalid_member(call, "to", "a non-empty text is required"))
    most = state.limits.calls
    if len(state.asks) >= most:
        busy = Failure(call.id, "concurrency_limited", f"at most {most} calls at once", _BUSY_S)
        return state, (Send(busy),)
    return change(state, asks=state.asks | {call.id}), (Ask(call),)


def _invalid_member(call: Call, member: str, reason: str) -> Failure:
    return Failure(call.id, "invalid_input", f"{member}: {reason}", data={"field": member})


def _is_agent(state: ConnectionState) -> bool:
    return state.hello is not None and state.hello.role == "agent"
