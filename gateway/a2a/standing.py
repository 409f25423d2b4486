"""Whether a caller may still have what it waits for: asked as at the door, while a stream is open.

A key that is withdrawn, a token that expires, a grant that is taken away: a stream that was opened before ends with the
error that would be the answer now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.errors import CallerError, NotFound, RemoteError, Unauthenticated
from passerelle.core.wire.record import value
from passerelle.gateway.a2a.operations import SCOPES
from passerelle.runtime.common.calls import require_operation, require_scope

if TYPE_CHECKING:
    from passerelle.a2a_mapping.rpc import Method
    from passerelle.core.commands import Authenticator
    from passerelle.core.credentials import Credentials
    from passerelle.core.principal import Principal


@value
class Standing:
    """What a caller showed, and what it was let in for."""

    authenticator: Authenticator
    shown: Credentials
    principal: Principal
    agent: str
    method: Method

    async def judge(self) -> CallerError | None:
        """Why it has to go; None also while nobody can tell."""
        try:
            now = await self.authenticator.authenticate(self.shown)
            if now.key != self.principal.key:
                raise Unauthenticated("the credential is somebody else's now")
            if not now.sees(self.agent):
                raise NotFound("agent", self.agent)
            require_scope(now, SCOPES[self.method])
            require_operation(now, self.agent, self.method)
        except CallerError as error:
            return error
        except RemoteError:
            return None
        return None
