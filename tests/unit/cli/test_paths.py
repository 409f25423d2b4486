"""Request paths are built from ids that a user gives."""

from __future__ import annotations

import os

import pytest

from passerelle.cli.verbs.verb import name_path
from passerelle.core.errors import InvalidInput


def test_ids_are_quoted() -> None:
    path = name_path("/v1/tasks", "a/b?c#d é", "explain")
    assert path == "/v1/tasks/a%2Fb%3Fc%23d%20%C3%A9/explain"


@pytest.mark.parametrize("text", ["", ".", ".."])
def test_id_that_a_proxy_would_normalize_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="id: is not valid"):
        name_path("/v1/tasks", text, "cancel")


def test_an_id_that_is_no_text_is_refused_and_no_fault() -> None:
    with pytest.raises(InvalidInput, match="id: is not UTF-8"):
        name_path("/v1/tasks", os.fsdecode(b"\xff"))
