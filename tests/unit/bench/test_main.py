"""The command line of the benchmark, without measuring anything."""

from pathlib import Path

import pytest

from bench.__main__ import main


def test_an_unknown_part_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed"])
    assert ended.value.code == 2
    assert "no such part: speed" in capsys.readouterr().err


def test_a_base_without_an_environment_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["a2a", "--base", str(tmp_path)]) == 2
    assert f"{tmp_path} has no .venv" in capsys.readouterr().err
