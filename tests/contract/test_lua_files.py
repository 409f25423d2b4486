"""The check of script files asks a real engine whether they compile."""

from pathlib import Path

from tools.lua import compile_scripts

SOUND = "#!lua\nreturn redis.call('INCR', KEYS[1])\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_script_that_does_not_compile_is_named(tmp_path: Path) -> None:
    sound = write(tmp_path, "sound.lua", SOUND)
    broken = write(tmp_path, "broken.lua", SOUND + "end\n")
    (fault,) = compile_scripts([sound, broken])
    assert fault.startswith("broken.lua: ")
