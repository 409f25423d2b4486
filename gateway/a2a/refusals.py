"""Errors of peers as callers may read them: where a peer is, and how its card is wrong, stays in the log."""

from __future__ import annotations

from passerelle.core.errors import InvalidAgentResponse, PasserelleError, PeerBusy, PeerUnavailable


def veil(error: PasserelleError, agent: str) -> PasserelleError:
    """``error``, or in its place one that names the agent and nothing behind it (A2A-12)."""
    match error:
        case PeerBusy():
            return PeerBusy(
                f"agent {agent!r} takes no more work for now",
                retry_after_s=error.retry_after_s or 1,
                agent=agent,
            )
        case PeerUnavailable():
            return PeerUnavailable(
                f"agent {agent!r} is not available",
                retry_after_s=error.retry_after_s,
                agent=agent,
            )
        case InvalidAgentResponse():
            return InvalidAgentResponse(
                f"agent {agent!r} answered with something that is not A2A", agent=agent
            )
        case _:
            return error
