"""The installed command in a shell: its output, streams and exit status."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final

import pytest
import typer.main
from typer.core import TyperGroup

from passerelle.cli.exit_status import ExitStatus
from passerelle.cli.main import app
from passerelle.gateway.auth.keys import hash_key
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.common.version import VERSION

COMMAND: Final = Path(sys.executable).with_name("passerelle")
COMMANDS: Final = (
    *(
        "init",
        "serve",
        "call",
        "login",
        "logout",
        "contexts",
        "demo",
        "check",
        "verify",
        "key",
        "signing-key",
        "token",
        "store",
        "help",
        "version",
    ),
    *("agents", "approvals", "deliveries", "devices", "evidence", "tasks", "sessions"),
)
OF_THIS_USER: Final = "contexts"
"""A group whose verbs call no gateway."""
BESIDE_GATEWAYS: Final = {"token", "store"}
"""Groups whose verbs open the store themselves, as ``verify`` does."""
ALONE: Final = {("evidence", "verify"), ("evidence", "checker")}
"""Verbs without a gateway and settings."""


def run(
    folder: Path, *arguments: str | Path, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("PASSERELLE_")
    }
    environ["XDG_STATE_HOME"] = str(folder / "state")
    environ["COLUMNS"] = "100"
    environ.update(variables)
    done = subprocess.run(
        [COMMAND, *arguments],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def test_version_is_the_one_of_the_package(tmp_path: Path) -> None:
    done = run(tmp_path, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"passerelle {VERSION}\n", "")


def test_module_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "passerelle", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == f"passerelle {VERSION}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_the_commands(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (("version",), ("--version",)),
        (("help",), ("--help",)),
        (("help", "tasks"), ("tasks", "--help")),
        (("help", "store", "backup"), ("store", "backup", "--help")),
        (("help", "help"), ("help", "--help")),
    ],
)
def test_help_and_version_are_commands_as_well(
    tmp_path: Path, command: tuple[str, ...], flags: tuple[str, ...]
) -> None:
    said, asked = run(tmp_path, *command), run(tmp_path, *flags)
    assert (said.returncode, said.stdout, said.stderr) == (0, asked.stdout, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_has_an_example(tmp_path: Path, name: str) -> None:
    done = run(tmp_path, name, "--help")
    assert done.returncode == 0
    assert f"Example: passerelle {name}" in done.stdout


def test_help_of_each_verb_has_a_short_line_and_an_example_of_itself() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    verbs = 0
    for name, inner in group.commands.items():
        for verb, command in inner.commands.items() if isinstance(inner, TyperGroup) else ():
            verbs += 1
            first, _, _ = (command.help or "").partition("\n")
            assert first.endswith("."), (name, verb)
            assert len(first) <= 80, (name, verb)
            assert (command.epilog or "").startswith(f"Example: passerelle {name} {verb}")
            wanted = {"--config"} if name in BESIDE_GATEWAYS else {"--json", "--url", "--config"}
            flags = {flag for one in command.params for flag in one.opts}
            assert wanted <= flags or (name, verb) in ALONE or name == OF_THIS_USER
    assert verbs >= 20


@pytest.mark.parametrize("group", ["tasks", "approvals", "store"])
def test_group_alone_shows_its_verbs(tmp_path: Path, group: str) -> None:
    done = run(tmp_path, group)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run(tmp_path, group, "--help").stdout


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys, passerelle.cli.main\n"
        "heavy = {'pydantic_core', 'pydantic', 'uvicorn', 'starlette', 'redis', 'aiohttp', 'a2a'}\n"
        "heavy |= {'asyncio', 'httpx', 'yaml', 'http.client'}\n"
        "heavy |= {name for name in sys.modules if name.startswith('passerelle.cli.verbs.')}\n"
        "heavy -= {'passerelle.cli.verbs.output'}  # how text is written, whatever the verb\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_completion_is_offered_for_shells(tmp_path: Path) -> None:
    # Without a surrounding shell, as in a test runner: the shell is named and not detected.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = run(tmp_path, "--show-completion", "bash", variables=named)
    assert done.returncode == 0
    assert "_PASSERELLE_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("foo",), "No such command 'foo'."),
        (("help", "taks"), "No such command 'taks'. Did you mean 'tasks'?"),
        (("version", "now"), "Got unexpected extra argument"),
        (("serve", "--prot", "1"), "No such option: --prot"),
        (("serve", "--port", "many"), "Invalid value for '--port'"),
        (("serve", "--auth", "none"), "Invalid value for '--auth': 'none' is not one of"),
        (("signing-key",), "Missing argument '"),
        (
            ("check", "a.yaml", "--config", "b.yaml"),
            "Invalid value for --config: only one file can be checked",
        ),
        (("key", "Not A Name"), "Invalid value for 'name': should be 1 to 63 of a-z"),
        (
            ("schedules", "create", "T", "echo", "hi"),
            "Invalid value for '--cron': give exactly one",
        ),
        (
            ("schedules", "create", "T", "echo", "hi", "--cron", "* * * * *", "--every", "5m"),
            "Invalid value for '--cron': give exactly one of --cron and --every",
        ),
        (("jobs", "submit", "T", "echo"), "Invalid value for '--text': give a --text or --inputs"),
    ],
)
def test_unknown_command_ends_with_one_line_and_a_hint(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run(tmp_path, *arguments)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert lines[0].startswith(f"passerelle: error: {message}")
    assert lines[1].startswith("passerelle: hint: ")


def test_check_reports_every_error_with_its_location(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(
        "prot: 1\nagents:\n  - name: Echo\n    url: ftp://h\n    retires: 3\n", encoding="utf-8"
    )
    done = run(tmp_path, "check", "broken.yaml")
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines()[1:] == [
        "error: broken.yaml:3: agents.0.name: should be 1 to 63 of a-z, 0-9, _ and -, with a letter or digit first",
        "error: broken.yaml:4: agents.0.url: should be a URL with http:// or https:// and a host",
        "error: broken.yaml:5: agents.0.retires: is an unknown setting; did you mean retry?",
        "error: broken.yaml:1: prot: is an unknown setting; did you mean port?",
        "check: 4 errors",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "passerelle: error: config.yaml: cannot be read: No such file or directory"),
        ("port: [", "passerelle: error: config.yaml:1: is not YAML"),
    ],
)
def test_check_of_an_invalid_file(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    done = run(tmp_path, "check", "config.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith(message)


def test_check_reads_its_file_from_an_argument_a_flag_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "passerelle.yaml").write_text("prot: 1\n", "utf-8")
    calls = (("passerelle.yaml",), ("--config", "passerelle.yaml"), ("-c", "passerelle.yaml"), ())
    reported = [run(tmp_path, "check", *words) for words in calls]
    for done in reported:
        assert done.returncode == 2
        assert "passerelle.yaml:1: prot: is an unknown setting; did you mean port?" in done.stdout


def test_check_names_the_unreachable_agent(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Bound but not listening: connections are refused, and no other process takes the port.
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "c.yaml").write_text(
            f"agents: [{{name: echo, url: '{url}'}}]\n", encoding="utf-8"
        )
        done = run(tmp_path, "check", "c.yaml")
    assert done.returncode == 2
    faults = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(faults) == 1
    assert "agents.echo" in faults[0]
    assert url in faults[0]


def test_check_of_a_configuration_without_agents_explains_how_to_add_one(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 0\n", encoding="utf-8")
    done = run(tmp_path, "check", "c.yaml")
    assert done.returncode == 0
    assert "no agent is configured; add one:" in done.stdout
    assert done.stdout.endswith("check: ok\n")


def test_key_prints_a_key_and_the_hash_that_goes_into_the_file(tmp_path: Path) -> None:
    done = run(tmp_path, "key", "orchestrator")
    key = done.stdout.splitlines()[0].removeprefix("key: ")
    assert hash_key(Secret(key)) in done.stdout
    (tmp_path / "c.yaml").write_text(done.stdout.partition("\n")[2], encoding="utf-8")
    assert run(tmp_path, "check", "c.yaml").returncode == 0


def test_signing_key_is_private_and_never_replaced(tmp_path: Path) -> None:
    done = run(tmp_path, "signing-key", "cards.pem", "--algorithm", "EdDSA")
    assert (done.returncode, done.stdout[:5]) == (0, "kid: ")
    made = (tmp_path / "cards.pem").read_bytes()
    settings = done.stdout.partition("\n")[2] + "public_url: https://gateway.example\n"
    (tmp_path / "c.yaml").write_text(settings, encoding="utf-8")
    assert run(tmp_path, "check", "c.yaml").returncode == 0
    (tmp_path / "cards.pem").chmod(0o644)
    refused = run(tmp_path, "check", "c.yaml")
    assert (refused.returncode, "others can read it" in refused.stdout) == (2, True)
    again = run(tmp_path, "signing-key", "cards.pem")
    said = "passerelle: error: cards.pem: exists already; a key is never replaced\n"
    assert (again.returncode, again.stderr) == (2, said)
    nowhere = run(tmp_path, "signing-key", "keys/cards.pem")
    said = "passerelle: error: keys/cards.pem: cannot be written: No such file or directory\n"
    assert (nowhere.returncode, nowhere.stderr) == (2, said)
    assert (tmp_path / "cards.pem").read_bytes() == made


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--auth", "open", "--host", "10.0.0.1"), "--auth: auth: open is for loopback addresses"),
        (("--port", "70000"), "--port: port: should be 65535 or less"),
        (("--config", "absent.yaml"), "absent.yaml: cannot be read"),
    ],
)
def test_serve_refuses_invalid_settings_before_it_starts_anything(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run(tmp_path, "serve", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"passerelle: error: {message}")
    assert not (tmp_path / "state").exists()


def test_call_without_a_gateway_names_the_command_to_start_it(tmp_path: Path) -> None:
    done = run(tmp_path, "call", "echo", "hello", "--data-dir", tmp_path / "data")
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not exist yet: start `passerelle serve`" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("call", "echo", "caf\udce9"),
        ("tasks", "create", "echo", "caf\udce9"),
        ("tasks", "list", "--text", "caf\udce9"),
    ],
)
def test_argument_in_another_encoding_is_a_usage_error(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    there = {"PASSERELLE_TOKEN": "psr_x", "PASSERELLE_URL": "http://127.0.0.1:9"}
    done = run(tmp_path, *words, variables=there)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "passerelle: error: text: an argument or the input is not UTF-8\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "lines.txt: No such file or directory"),
        (b"one\ncaf\xe9\n", "lines.txt is not UTF-8 at byte 7"),
        (b" \n\n", "lines.txt has no line that is not empty"),
    ],
)
def test_unreadable_job_inputs_are_reported(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "lines.txt").write_bytes(content)
    done = run(tmp_path, "jobs", "submit", "T", "echo", "--inputs", "lines.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"passerelle: error: --inputs: {reason}\n"


def test_letters_unsupported_by_the_terminal_are_escaped(tmp_path: Path) -> None:
    done = run(tmp_path, "check", "caf\u00e9.yaml", variables={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 2
    assert "caf\\xe9.yaml: cannot be read" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_no_crash(tmp_path: Path, unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = print_to(full, tmp_path, unbuffered)
    said = "standard output could not be written: No space left on device"
    assert (done.returncode, done.stderr) == (2, f"passerelle: error: {said}\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_closed_pipe_is_no_crash(tmp_path: Path, unbuffered: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "wb") as pipe:  # noqa: PTH123  a descriptor has no path
        done = print_to(pipe, tmp_path, unbuffered)
    assert (done.returncode, done.stderr) == (1, "")


def test_closed_standard_output_is_no_crash(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "passerelle", "version")
    done = subprocess.run(
        ("/bin/sh", "-c", '"$@" >&-', "sh", *words),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def print_to(file: IO[bytes], folder: Path, unbuffered: str) -> subprocess.CompletedProcess[str]:
    """``passerelle version`` with its output in a file; without ``unbuffered`` it is written at the end."""
    return subprocess.run(
        (sys.executable, "-m", "passerelle", "version"),
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=file,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )


def test_serve_names_the_unknown_key_of_the_file_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "passerelle.yaml").write_text("port: 0\nredis_ulr: redis://h\n", encoding="utf-8")
    done = run(tmp_path, "serve")
    assert done.returncode == 2
    line = done.stderr.splitlines()[0]
    assert line.startswith("passerelle: error: ")
    assert line.endswith(
        "passerelle.yaml:2: redis_ulr: is an unknown setting; did you mean redis_url?"
    )


def test_dry_run_of_a_verification_requires_a_repair_option(tmp_path: Path) -> None:
    done = run(tmp_path, "verify", "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--repair" in done.stderr


def test_first_configuration_is_written_once_and_can_be_read(tmp_path: Path) -> None:
    made = run(tmp_path, "init", "--agent", "http://127.0.0.1:9", "--name", "echo", "--yes")
    assert (made.returncode, made.stderr) == (0, "")
    assert "passerelle check passerelle.yaml" in made.stdout
    checked = run(tmp_path, "check", "passerelle.yaml")
    assert "agents.echo: its card at http://127.0.0.1:9/" in checked.stdout, "the agent is reached"
    again = run(tmp_path, "init", "--yes")
    assert again.returncode == ExitStatus.CALLER
    assert "exists already; nothing was changed" in again.stderr
    unasked = run(tmp_path, "init", "other.yaml")
    assert unasked.returncode == ExitStatus.CALLER
    assert "--yes skips the questions" in unasked.stderr
    assert not (tmp_path / "other.yaml").exists()
