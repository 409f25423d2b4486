"""A command that the status of a task does not allow is refused in the caller's words."""

import pytest

from passerelle.core.errors import NotCancelable
from passerelle.core.task.commands import ConfirmCancel, ContinueTask, RequestCancel, SuspendTask
from passerelle.core.task.refusals import refuse
from passerelle.core.task.status import Status


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (
            Status.COMPLETED,
            SuspendTask,
            "a task that is completed cannot be paused; it has ended, and can be retried",
        ),
        (
            Status.FAILED,
            ContinueTask,
            "a task that is failed cannot be resumed; it has ended, and can be retried",
        ),
        (Status.RUNNING, ContinueTask, "a task that is running cannot be resumed"),
    ],
)
def test_refusal_names_the_command_and_what_is_allowed_instead(
    status: Status, kind: type, said: str
) -> None:
    error = refuse(status, kind)
    assert error.message == said
    assert error.details == {"status": status, "command": kind.__name__}


@pytest.mark.parametrize("kind", [RequestCancel, ConfirmCancel])
def test_task_that_has_ended_is_not_cancelable(kind: type) -> None:
    error = refuse(Status.CANCELLED, kind)
    assert isinstance(error, NotCancelable)
    assert error.message == "the task has ended: cancelled"
