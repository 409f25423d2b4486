"""A secret gives its text to ``get_secret_value`` and to nothing else."""

import copy
import pickle

import pytest

from passerelle.runtime.common.secret import Secret


def test_no_form_of_a_secret_shows_it() -> None:
    secret = Secret("hunter2")
    assert str(secret) == "***"
    assert f"{secret:>5}" == "  ***"
    assert "hunter2" not in f"{secret!r} {[secret]} {secret!s}"
    assert secret.get_secret_value() == "hunter2"


def test_secrets_compare_by_value() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_secret_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Secret("a"))
    with pytest.raises(TypeError, match="not pickled"):
        copy.copy(Secret("a"))
