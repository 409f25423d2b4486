"""Received frames that the state machine has not processed yet; while some wait, the socket is not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from passerelle.channels.inputs import EndRequested, Undecodable
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import Failure, Refusal
from passerelle.protocol.wire import decode_client, split_message

if TYPE_CHECKING:
    from passerelle.channels.inputs import Input
    from passerelle.channels.limits import ChannelLimits
    from passerelle.channels.transport import Socket
    from passerelle.protocol.frames import ClientFrame


class FrameConsumer(Protocol):
    """The connection that processes the frames."""

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed."""
        ...

    @property
    def must_wait(self) -> bool:
        """Whether it processes no frames now."""
        ...

    def feed(self, given: Input) -> None:
        """Feeds an input to the connection's state machine."""
        ...

    def receive(self, frame: ClientFrame) -> None:
        """Processes a frame."""
        ...


class Intake:
    """Splits messages into frames and passes them on; while frames wait, TCP backpressure slows the client down."""

    __slots__ = ("_consumer", "_frames", "_is_paused", "_limits", "_socket")

    def __init__(self, socket: Socket, limits: ChannelLimits, consumer: FrameConsumer) -> None:
        self._socket = socket
        self._limits = limits
        self._consumer = consumer
        self._frames: list[bytes | Refusal] = []
        self._is_paused = False

    @property
    def waits(self) -> bool:
        """Whether frames wait until the state machine processes frames again."""
        return self._is_paused

    def take_message(self, message: str | bytes) -> None:
        """One message of the client."""
        if self._consumer.is_over:
            return
        if not isinstance(message, str):
            self._refuse(CloseCode.MALFORMED, "malformed", "text messages only")
        elif len(message) > self._limits.inbound_bytes:
            self._refuse(CloseCode.FRAME_TOO_LARGE, "too_large", "message too large")
        else:
            self._split(message)

    def go_on(self) -> None:
        """Passes on waiting frames, as far as the state machine takes them now."""
        taken, consumer = 0, self._consumer
        while taken < len(self._frames) and not consumer.must_wait and not consumer.is_over:
            line = self._frames[taken]
            taken += 1
            frame = decode_client(line) if isinstance(line, bytes) else line
            if isinstance(frame, Refusal | Failure):
                consumer.feed(Undecodable(frame))
            else:
                consumer.receive(frame)
        del self._frames[:taken]
        self._slow_down()

    def drop(self) -> None:
        """Drops waiting frames."""
        self._frames.clear()

    def _split(self, message: str) -> None:
        frames, most = split_message(message), self._limits.frames_per_message
        if len(frames) > most:
            self._frames.append(Refusal("too_many_frames", f"at most {most} a message"))
        else:
            self._frames += frames
        self.go_on()

    def _slow_down(self) -> None:
        """Stops reading while frames wait, and no earlier: a paused socket does not report its end.

        The end of a socket that is still being admitted must be noticed: its device may reconnect, and is counted
        again.
        """
        if self._frames and not self._is_paused:
            self._is_paused = True
            self._socket.pause()
        elif self._is_paused and not self._frames:
            self._is_paused = False
            self._socket.resume()

    def _refuse(self, code: CloseCode, word: str, reason: str) -> None:
        self._consumer.feed(EndRequested(code, Refusal(word, reason, fatal=True)))
