"""Paging of lists: ``pageSize`` and ``pageToken``.

A list that used to take ``limit`` or ``after`` still takes both spellings; a request with both is rejected.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.errors import InvalidInput

PageToken: TypeAlias = Annotated[
    str,
    Field(
        max_length=512,
        description="`nextPageToken` of the previous page; absent or empty: the first page.",
    ),
]
"""The start of a page; opaque to callers."""

_TOKEN_DIGITS = 19


def choose_size(page_size: int | None, limit: int | None, default: int) -> int:
    """The maximum number of items of a page.

    Raises:
        InvalidInput: both ``pageSize`` and the older ``limit`` are given.
    """
    if page_size is not None and limit is not None:
        raise InvalidInput("limit", "is the older name of pageSize; use only pageSize")
    return next((size for size in (page_size, limit) if size is not None), default)


def choose_position(page_token: str | None, after: int | None) -> int:
    """The position after which a page begins: that of the token, or the older ``after``; 0 is the beginning.

    Raises:
        InvalidInput: both are given, or the token is not valid.
    """
    if page_token and after is not None:
        raise InvalidInput("after", "is the older name of pageToken; use only pageToken")
    return read_position(page_token) if page_token else after or 0


def read_position(page_token: str) -> int:
    """The position of a token. Raises InvalidInput."""
    if not page_token.isascii() or not page_token.isdecimal() or len(page_token) > _TOKEN_DIGITS:
        raise InvalidInput("pageToken", "is not a page token of this list")
    return int(page_token)
