"""The URIs of our A2A extensions. A breaking change makes a new number at the end of the URI."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "urn:passerelle:ext:"
PERMISSION: Final = f"{PREFIX}permission:1"
"""An open decision on a waiting status, and the typed answer to it."""
RESUME: Final = f"{PREFIX}resume:1"
"""A cursor on every event of a stream, and a defined answer to a reader that comes back with one."""
REFERENCE: Final = f"{PREFIX}reference:1"
"""In the metadata of a part: it was not written by the caller, but is of an artifact of a task that it refers to."""
CORRELATION: Final = f"{PREFIX}correlation:1"
"""In the metadata of a message, where an agent is configured so: a key by which its task is found again."""
ACCEPTANCE: Final = f"{PREFIX}acceptance:1"
"""In the metadata of a message that opens a task: what the task must bring before it counts as done."""
STATE: Final = f"{PREFIX}state:1"
"""In the metadata of a status: ``{"known": false}`` where the agent told a state that A2A does not have."""
