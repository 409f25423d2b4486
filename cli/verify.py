"""``passerelle verify``: the validator over the store of the settings."""

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
    """Verifies the store of the settings, also beside a gateway. With ``repair`` it is repaired on the way.

    How far it is stands on standard error, where that is a terminal.

    Raises:
        ConfigInvalid: there is no store in the data directory.
        NotFound: there is no such session.
        EngineFailed, StoreUnavailable: the store cannot be opened or read.
    """
    progress = _Progress()
    async with reach_store(settings) as store:
        return await verify_store(
            store, session, rebuild=rebuild, repair=repair, subset=subset, tell=progress.show
        )


def read_since(text: str, now_ms: int, field: str = "since") -> int:
    """A time in ms, written as RFC 3339 (``2026-01-31T12:00:00Z``) or as how long ago it was (``24h``, ``24h ago``).

    Raises:
        InvalidInput: ``field`` is neither.
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
    """One line of a terminal, written over and over."""

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
