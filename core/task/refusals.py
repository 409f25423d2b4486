"""The error messages for commands that a task's status does not allow."""

from __future__ import annotations

from typing import Final

from passerelle.core.errors import NotCancelable, UnsupportedOperation
from passerelle.core.task import commands
from passerelle.core.task.status import ENDED, Status

_DONE_TO: Final[dict[type, str]] = {
    commands.AcceptTask: "accepted",
    commands.QueueTask: "queued",
    commands.PrepareTask: "started",
    commands.StartRun: "started",
    commands.SendInput: "sent a message",
    commands.SuspendTask: "paused",
    commands.ContinueTask: "resumed",
    commands.BlockTask: "blocked",
    commands.SucceedTask: "completed",
    commands.EndInError: "failed",
    commands.PrepareRetry: "retried",
    commands.ReportProgress: "given progress",
    commands.DescribeTask: "changed",
    commands.LinkTask: "linked",
    commands.ArchiveTask: "archived",
    commands.RequestCancel: "cancelled",
}
"""The command in the caller's words; commands of the gateway itself have none."""
_LATER: Final = (commands.SuspendTask, commands.ContinueTask, commands.SendInput)


def refuse(status: Status, kind: type) -> UnsupportedOperation | NotCancelable:
    """The error for a command class that this status does not allow."""
    name = kind.__name__
    if status in ENDED and kind in {commands.RequestCancel, commands.ConfirmCancel}:
        return NotCancelable(f"the task has ended: {status}", status=status)
    word = _DONE_TO.get(kind)
    said = (
        f"a task that is {status} cannot be {word}"
        if word
        else f"a task that is {status} does not take {name}"
    )
    hint = "; it has ended, and can be retried" if status in ENDED and kind in _LATER else ""
    return UnsupportedOperation(f"{said}{hint}", status=status, command=name)
