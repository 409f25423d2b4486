"""What a socket has read and the machine has not taken yet; while something waits here the socket is not read."""

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
    """The connection that the frames are for."""

    @property
    def is_over(self) -> bool:
        """Whether nothing counts any more."""
        ...

    @property
    def must_wait(self) -> bool:
        """Whether it takes nothing for now."""
        ...

    def feed(self, given: Input) -> None:
        """Tells the connection's machine what happened."""
        ...

    def receive(self, frame: ClientFrame) -> None:
        """Takes a frame."""
        ...


class Intake:
    """Splits messages into frames and gives them on, as far as they are taken; then TCP slows the client down."""

    __slots__ = ("_frames", "_is_paused", "_limits", "_socket", "_taker")

    def __init__(self, socket: Socket, limits: ChannelLimits, taker: FrameConsumer) -> None:
        self._socket = socket
        self._limits = limits
        self._taker = taker
        self._frames: list[bytes | Refusal] = []
        self._is_paused = False

    @property
    def waits(self) -> bool:
        """Whether something was left, to be taken when the machine takes frames again."""
        return self._is_paused

    def take_message(self, message: str | bytes) -> None:
        """One message of the client."""
        if self._taker.is_over:
            return
        if not isinstance(message, str):
            self._refuse(CloseCode.MALFORMED, "malformed", "text messages only")
        elif len(message) > self._limits.inbound_bytes:
            self._refuse(CloseCode.FRAME_TOO_LARGE, "too_large", "message too large")
        else:
            self._split(message)

    def go_on(self) -> None:
        """Takes what was read, as far as the machine takes it now."""
        taken, taker = 0, self._taker
        while taken < len(self._frames) and not taker.must_wait and not taker.is_over:
            line = self._frames[taken]
            taken += 1
            frame = decode_client(line) if isinstance(line, bytes) else line
            if isinstance(frame, Refusal | Failure):
                taker.feed(Undecodable(frame))
            else:
                taker.receive(frame)
        del self._frames[:taken]
        self._slow_down()

    def drop(self) -> None:
        """Forgets what waits."""
        self._frames.clear()

    def _split(self, message: str) -> None:
        frames, most = split_message(message), self._limits.frames_per_message
        if len(frames) > most:
            self._frames.append(Refusal("too_many_frames", f"at most {most} a message"))
        else:
            self._frames += frames
        self.go_on()

    def _slow_down(self) -> None:
        """Reads no more while something waits. A socket that is not read says nothing of its end, so not before that.

        The end of a socket that is still being admitted has to be seen: its device has come back, and counts anew.
        """
        if self._frames and not self._is_paused:
            self._is_paused = True
            self._socket.pause()
        elif self._is_paused and not self._frames:
            self._is_paused = False
            self._socket.resume()

    def _refuse(self, code: CloseCode, word: str, reason: str) -> None:
        self._taker.feed(EndRequested(code, Refusal(word, reason, fatal=True)))
