"""The canonical form of JSON (RFC 8785), and digests over it, which approvals are bound to.

Equal values have equal bytes, whatever library wrote them: ``42`` and ``42.0`` agree, the order of keys does not count.
A whole number beyond 2^53 would not survive a reader that knows only floats, so it is refused; such numbers must be
sent as text.
"""

from __future__ import annotations

import hashlib
from typing import Final

import rfc8785

from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import Json

DIGEST_PREFIX: Final = "sha256:"


def canonicalize(value: Json) -> bytes:
    """The RFC 8785 bytes of ``value``.

    Raises:
        InvalidInput: a whole number beyond 2^53, NaN or infinity, or a text that is not Unicode.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise InvalidInput("value", f"has no canonical form: {error}") from None


def digest(value: Json) -> str:
    """``sha256:`` and the hex SHA-256 of the canonical bytes.

    Raises:
        InvalidInput: the value has no canonical form.
    """
    return DIGEST_PREFIX + hashlib.sha256(canonicalize(value)).hexdigest()
