"""``passerelle verify``: runs the validator on the configured store."""

from __future__ import annotations

import sys
from time import monotonic
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.times import parse_ms
from passerelle.delegation.verification.subset import ALL
from passerelle.delegation.verification.walk import verify_store
from passerelle.gateway.store_setup import reach_store
from passerelle.runtime.common.durations import parse_duration

if TYPE_CHECKING:
    from passerelle.delegation.verification.report import VerifyReport
    from passerelle.delegation.verification.subset import SessionSubset
    from passerelle.gateway.settings.model import Settings

_LINE_S: Final = 0.2


async def run_verify(
    settings: Settings,
    session: str | None = None,
    *,
    rebuild: bool = False,
    repair: bool = False,
    subset: SessionSubset = ALL,
) -> VerifyReport:
    """Verifies the configured store, also while a gateway runs; with ``repair``, repairs it.

    Prints progress to standard error if that is a terminal.

    Raises:
        ConfigInvalid: the data directory has no store.
        NotFound: the session does not exist.
        EngineFailed, StoreUnavailable: the store cannot be opened or read.
    """
    progress = _Progress()
    async with reach_store(settings) as store:
        return await verify_store(
            store, session, rebuild=rebuild, repair=repair, subset=subset, on_progress=progress.show
        )


def read_since(text: str, now_ms: int, field: str = "since") -> int:
    """Returns a time in ms, given as RFC 3339 (``2026-01-31T12:00:00Z``) or as an age (``24h``, ``24h ago``).

    Raises:
        InvalidInput: ``field`` has neither form.
    """
    try:
        return now_ms - parse_duration(text.removesuffix(" ago"), now_ms).ms
    except ValueError:
        pass
    try:
        return parse_ms(text)
    except ValueError:
        reason = f"{text!r} is neither a time, such as 2026-01-31T12:00:00Z, nor how long ago, such as 24h"
        raise InvalidInput(field, reason) from None


class _Progress:
    """One line of a terminal, overwritten with each update."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._told_s = 0.0

    def show(self, done: int, of: int) -> None:
        now_s = monotonic()
        if self._is_shown and (now_s - self._told_s >= _LINE_S or done == of):
            self._told_s = now_s
            end = "\n" if done == of else ""
            sys.stderr.write(f"\rverify: {done} of {of} sessions{end}")
            sys.stderr.flush()
