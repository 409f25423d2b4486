"""The bytes that a device signs when it decides: they bind the answer to the approval that was shown.

A relay between device and gateway can withhold such an answer, but cannot make or change one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.wire.canonical import canonicalize, digest

if TYPE_CHECKING:
    from passerelle.core.commands import RespondAction

VERSION: Final = 1


def compose_decision(
    answer: RespondAction, option_id: str | None, device_id: str, iat: int
) -> bytes:
    """Canonical JSON (RFC 8785) of the answer. ``content`` is replaced by its digest, or by null.

    Raises:
        InvalidInput: the content has no canonical form.
    """
    return canonicalize(
        {
            "v": VERSION,
            "actionId": answer.action_id,
            "rev": answer.rev,
            "digest": answer.digest,
            "optionId": option_id,
            "contentDigest": None if answer.content is None else digest(answer.content),
            "decisionId": answer.decision_id,
            "deviceId": device_id,
            "iat": iat,
        }
    )
