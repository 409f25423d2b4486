"""Failures: the server's error, and what is known about the write."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from redis._parsers.base import BaseParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from passerelle.core.errors import StoreUnavailable
from passerelle.store.failures import (
    REASONS,
    REDIRECTIONS,
    Redirected,
    explain_break,
    explain_reply,
)

_parse = cast(
    "Callable[[str], RedisError]",
    BaseParser.parse_error,  # pyright: ignore[reportUnknownMemberType]
)


def reply_of(text: str) -> RedisError:
    """An error reply as the connection's parser makes it."""
    return _parse(text)


@pytest.mark.parametrize("code", sorted(REASONS))
def test_answer_in_the_table_wrote_nothing(code: str) -> None:
    failure = explain_reply(reply_of(f"{code} the server's own words"))
    assert isinstance(failure, StoreUnavailable)
    # Which right is missing is in the words only.
    words = ": the server's own words" if code == "NOPERM" else ""
    assert (failure.reason, failure.wrote) == (f"{REASONS[code]}{words}", "no")


@pytest.mark.parametrize("code", sorted(REDIRECTIONS))
def test_redirection_is_no_failure(code: str) -> None:
    assert isinstance(explain_reply(reply_of(f"{code} 3999 127.0.0.1:6381")), Redirected)


def test_any_other_error_may_have_written() -> None:
    failure = explain_reply(reply_of("ERR user_script:7: attempt to index a nil value"))
    assert isinstance(failure, StoreUnavailable)
    assert failure.wrote == "unknown"


@pytest.mark.parametrize("error", [TimeoutError(), RedisConnectionError("gone"), OSError("gone")])
def test_break_before_sending_wrote_nothing_and_after_it_is_unknown(error: Exception) -> None:
    assert explain_break(error, sent=False).wrote == "no"
    assert explain_break(error, sent=True).wrote == "unknown"
