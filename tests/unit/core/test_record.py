"""Records: copied as a whole, and never into another type."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from passerelle.core.task.record import TaskRecord
from passerelle.core.wire.record import change, value
from tests.support.payloads import values


@given(task=values(TaskRecord))
def test_copy_is_what_replace_makes(task: TaskRecord) -> None:
    changed = change(task, title="later", last=task.last + 1)
    assert changed == replace(task, title="later", last=task.last + 1)
    assert (task.title, task.last) != (changed.title, changed.last)


@given(task=values(TaskRecord))
def test_copy_has_no_members_that_its_class_does_not_have(task: TaskRecord) -> None:
    with pytest.raises(KeyError, match="titel"):
        change(task, titel="later")


def test_value_keeps_nothing_that_a_copy_would_take_along() -> None:
    with pytest.raises(TypeError, match="Kept keeps what it derives"):

        @value
        class Kept:
            text: str

            @cached_property
            def size(self) -> int:
                return len(self.text)


if TYPE_CHECKING:

    def rename(task: TaskRecord) -> None:
        """A record is frozen for the type checkers, who refuse an exception that is not needed."""
        task.title = "later"  # type: ignore[misc]
