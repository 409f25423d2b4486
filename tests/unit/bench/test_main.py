"""The command line of the benchmark, without measuring anything."""

import pytest

from bench.__main__ import main


def test_an_unknown_part_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed"])
    assert ended.value.code == 2
    assert "no such part: speed" in capsys.readouterr().err
