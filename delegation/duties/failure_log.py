"""What becomes of a look of a duty that fails: it is logged, and the next one comes."""

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
    """Whatever fails within is logged as ``event`` and goes no further.

    It is counted as ``failed``, or as a ``fault`` where it is none of our own errors.
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
