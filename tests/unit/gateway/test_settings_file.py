"""The configuration file: line numbers of keys, and files that are refused before they are parsed."""

import os
from pathlib import Path
from threading import Thread

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.settings.file import SIZE_LIMIT_BYTES, parse_settings, read_settings_file


def test_each_key_and_item_knows_its_line() -> None:
    file = parse_settings("port: 1\nagents:\n  - name: a\n  - name: b\n", "f")
    assert file.tree == {"port": 1, "agents": [{"name": "a"}, {"name": "b"}]}
    assert file.locate(("agents", 1, "name")) == "f:4"
    assert file.locate(("agents", 1, "missing")) == "f:4"
    assert file.locate(("nothing",)) == "f"


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_empty_file_sets_nothing(text: str) -> None:
    assert parse_settings(text, "f").tree == {}


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("port: 1\nport: 2\n", "f:2", "port is given twice"),
        ("- a\n", "f:1", "must be a mapping"),
        ("port: [1\n", "f:2", "is not YAML"),
        ("port: !!python/object:os.system x\n", "f:1", "is not YAML"),
        ("a: 1\n---\nb: 2\n", "f:2", "is not YAML"),
        ("a: &a [*a]\n", "f:1", "is nested too deeply"),
        (f"a: {'[' * 2000}{']' * 2000}\n", "f", "is nested too deeply"),
        ("b: 1\na: \x00\n", "f:2", "U+0000"),
        ('b: 1\na: "x\\0"\n', "f:2", "a: has the character U+0000"),
        ("b: 1\na: [2024-13-45]\n", "f:2", "a.0: '2024-13-45' is no date; quote it"),
        (f"b: 1\na: {'9' * 5000}\n", "f:2", "is no number that can be used"),
        ("a: !!bool x\n", "f:1", "a: 'x' is no value of its tag"),
        ("a: !!timestamp x\n", "f:1", "a: 'x' is no date"),
        ('"a\\nb": 1\n"a\\nb": 2\n', "f:2", r"'a\nb' is given twice"),
    ],
)
def test_text_that_is_no_configuration_is_refused_with_its_line(
    text: str, where: str, reason: str
) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        parse_settings(text, "f")
    assert caught.value.details["where"] == where
    assert reason in str(caught.value.details["reason"])


def test_aliases_that_multiply_are_bounded() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ConfigInvalid, match="has more than"):
        parse_settings("\n".join(["l0: &l0 [x]", *levels]), "f")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"absent\.yaml: cannot be read: No such file"):
        read_settings_file(tmp_path / "absent.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"port: \xff")
    with pytest.raises(ConfigInvalid, match="is not UTF-8 at byte 6"):
        read_settings_file(binary)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (SIZE_LIMIT_BYTES + 1))
    with pytest.raises(ConfigInvalid, match="is larger than"):
        read_settings_file(large)
    with pytest.raises(ConfigInvalid, match="is larger than"):
        read_settings_file(Path("/dev/zero"))
    with pytest.raises(ConfigInvalid, match="cannot be read: embedded null"):
        read_settings_file(tmp_path / "a\0b")


def test_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    pipe = tmp_path / "settings"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=["port: 9\n"], daemon=True)
    writer.start()
    assert read_settings_file(pipe).tree == {"port": 9}
    writer.join(20)
