"""Logs the failure of one pass of a duty, so that the duty continues with the next one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from passerelle.core.errors import PasserelleError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from structlog.typing import FilteringBoundLogger


@contextmanager
def log_failures(
    log: FilteringBoundLogger, event: str, count: Callable[[str, int], None] | None = None
) -> Generator[None]:
    """Logs any exception of the block as ``event`` and suppresses it.

    Counts it as ``failed``, or as ``fault`` if it is not a ``PasserelleError``.
    """
    outcome = ""
    try:
        yield
    except PasserelleError as error:
        outcome = "failed"
        log.warning(event, reason=str(error))
    except Exception:
        outcome = "fault"
        log.exception(event)
    if outcome and count is not None:
        count(outcome, 1)
