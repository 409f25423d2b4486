"""The chain of a stream: it distinguishes histories that have the same sequences (I8).

``chain(0) = H(epoch)`` and ``chain(n) = H(chain(n-1) + event id n)``, where ``H`` is the first 8 hex digits of SHA-1.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache


def start_chain(epoch: str) -> str:
    """The chain before the first event of a stream."""
    return _shorten(epoch)


@lru_cache(1024)
def extend_chain(chain: str, event_id: str) -> str:
    """The chain after an event, from the chain before it. Cached: readers of one page recompute the same values."""
    return _shorten(chain + event_id)


def _shorten(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]
