"""What all bindings do around a call: a span, a count, and the one error that its caller sees.

Each binding reads its own requests and writes its own answers; metrics, log and trace are the same for all of them.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import structlog

from passerelle.core.errors import PasserelleError
from passerelle.core.frozen import frozen
from passerelle.gateway.a2a.reply import hide_agent_details
from passerelle.runtime.observability.logs import explain_fault
from passerelle.runtime.observability.spans import end_request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from passerelle.runtime.observability.metrics import Metrics
    from passerelle.runtime.observability.spans import Spans

NO_OPERATION: Final = "none"


@dataclass(slots=True, kw_only=True)
class Visit:
    """What is known about a call at its end. An unknown agent is not counted by name."""

    agent: str = ""
    operation: str = NO_OPERATION
    outcome: str = "ok"


@frozen
class Visits:
    """Measures the calls of one edge. ``edge`` is the label under which its internal errors are counted."""

    metrics: Metrics
    spans: Spans | None
    edge: Literal["a2a", "grpc", "channel"]

    @asynccontextmanager
    async def receive(
        self, headers: Mapping[str, str], binding: str, version: str
    ) -> AsyncGenerator[Visit]:
        """Wraps a call from its request to its answer; binding and version are named as in spans.

        Raises:
            PasserelleError: the error that the caller sees, whatever went wrong.
        """
        visit = Visit()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        span = self.spans.begin_request(headers) if self.spans else None
        try:
            yield visit
        except asyncio.CancelledError:
            visit.outcome = "left"
            raise
        except Exception as error:
            shown = self.judge(visit, error)
            if shown is error:
                raise
            raise shown from error
        finally:
            if span is not None:
                end_request(
                    span,
                    agent=visit.agent,
                    operation=visit.operation,
                    outcome=visit.outcome,
                    binding=binding,
                    version=version,
                )
            self.count(visit, loop.time() - began_s)

    def judge(self, visit: Visit, error: Exception) -> PasserelleError:
        """The error that the caller sees; the log has the details."""
        if not isinstance(error, PasserelleError):
            visit.outcome = "internal"
            self.metrics.runtime_errors.labels(self.edge).inc()
            structlog.get_logger().error("a2a.fault", agent=visit.agent, exc_info=error)
            return explain_fault()
        visit.outcome = error.stable_code
        shown = hide_agent_details(error, visit.agent)
        if shown is not error:
            structlog.get_logger().warning(
                "a2a.peer", agent=visit.agent, code=error.stable_code, reason=error.message
            )
        return shown

    def count(self, visit: Visit, seconds: float) -> None:
        """Counts a call that has ended."""
        self.metrics.count_request(visit.agent, visit.operation, visit.outcome, seconds)
