"""An example request body for each call that takes more than an id; a test parses each as the call does.

Values match the agents of ``passerelle serve --demo-agents``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

_DIGEST: Final = f"sha256:{'0' * 64}"

EXAMPLES: Final[dict[str, JsonObject]] = {
    "submit_turn": {"agent": "echo", "text": "hello"},
    "create_task": {
        "title": "Weekly report",
        "objective": "Write the report of this week",
        "agent": "report",
    },
    "update_task": {"title": "Weekly report, second try", "priority": 7},
    "give_task": {"owner": "bob"},
    "start_task": {"text": "Write the report of this week"},
    "append_task_progress": {"percent": 40, "step": "two of five sections"},
    "pause_task": {"reason": "until Monday"},
    "cancel_task": {"reason": "not needed any more"},
    "fail_task": {"reason": "the source is gone"},
    "respond_action": {"rev": 1, "digest": _DIGEST, "optionId": "pay", "comment": "as agreed"},
    "see_action": {"rev": 1},
    "evaluate_permission": {
        "agent": "payments",
        "actionType": "tool_call",
        "subject": {"tool": "pay", "arguments": {"amount": 40}},
    },
    "set_bypass": {"seconds": 1800},
    "mute_peer": {"minutes": 60},
    "open_session": {"title": "Invoices of May"},
    "submit_job": {
        "title": "Two notes",
        "agents": ["echo"],
        "inputs": ["first", "second"],
        "concurrency": 2,
    },
    "spawn_subagent": {"agent": "echo", "text": "hello", "title": "A second look"},
    "send_subagent_input": {"text": "and once more"},
    "create_schedule": {
        "title": "Every morning",
        "agent": "report",
        "text": "today",
        "cron": "0 7 * * *",
        "timezone": "Europe/Paris",
    },
    "change_tasks": {"verb": "cancel", "filter": {"agent": "echo"}, "expect": 3},
}
