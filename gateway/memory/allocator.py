"""What was freed goes back to the machine: the C library is told to keep large blocks apart from small ones.

glibc learns from what is freed: after a block of 1 MB has come and gone, the next ones stand among the small ones,
and a small one that stays keeps all the memory below it. So what one abuse took was never given back, and the next
one took more.
"""

from __future__ import annotations

import ctypes
from typing import Final

LARGE_BLOCK: Final = 524_288
"""From here on a block has pages of its own, which costs calls of the system: above what one read of a socket takes."""
_KEPT_FREE: Final = 4_194_304
"""Free bytes at the end of the heap that are kept for the next request."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def return_large_blocks() -> bool:
    """Has large blocks go back as they are freed, from now on; False where the C library has no such setting."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    # A threshold that was set is not learnt any more.
    wanted = ((_MMAP_THRESHOLD, LARGE_BLOCK), (_TRIM_THRESHOLD, _KEPT_FREE))
    return all(set_option(name, value) == 1 for name, value in wanted)
