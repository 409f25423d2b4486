"""What a connection without TLS settings of its own trusts: the authorities of this machine."""

from __future__ import annotations

import ssl
from functools import lru_cache


@lru_cache(1)
def trust_public_authorities() -> ssl.SSLContext:
    """The context that all such connections share.

    Reading the authorities takes some 20 ms, in which the loop serves nobody.
    """
    return ssl.create_default_context()
