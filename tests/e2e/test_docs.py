"""The examples in the documents work: every configuration loads, every command exists, every request is answered."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

import pytest
import typer.main
from typer.core import TyperGroup

from passerelle.a2a_mapping.dialects.presentation import read_decision
from passerelle.a2a_mapping.dialects.registry import detect
from passerelle.channels.counts import ChannelCounts
from passerelle.channels.endpoint import ChannelEndpoint
from passerelle.channels.hub import Hub
from passerelle.cli.main import app
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.channel_edges import ChannelMetrics
from passerelle.gateway.connection_settings import ConnectionMetrics
from passerelle.gateway.connections import ConnectionTable
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings
from passerelle.protocol.closing import CloseCode, is_retryable
from passerelle.protocol.cursor import GapReason
from passerelle.runtime.observability.metrics import Metrics

ROOT: Final = Path(__file__).resolve().parent.parent.parent
DOCUMENTS: Final = (
    ROOT / "README.md",
    ROOT / "clients" / "python" / "README.md",
    *sorted((ROOT / "docs" / "explanation").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "operate").glob("*.md")),
    *sorted((ROOT / "docs" / "protocol").glob("*.md")),
)
CHANNELS: Final = ROOT / "docs" / "protocol" / "channels.md"
FENCE: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS: Final = ("sh", "bash", "console")
COMMAND: Final = re.compile(r"^(?:\$ )?passerelle\b.*$", re.MULTILINE)
INLINE: Final = re.compile(r"`(passerelle [^`]*)`")
METRIC: Final = re.compile(r"^\| `(passerelle_[a-z0-9_]+)` \|", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a document; ``name`` is its location."""

    name: str
    language: str
    text: str


def read_blocks(language: str) -> list[Block]:
    return [
        Block(f"{path.relative_to(ROOT)}-{number}", found[1], found[2])
        for path in DOCUMENTS
        for number, found in enumerate(FENCE.finditer(path.read_text("utf-8")), 1)
        if found[1] == language
    ]


def read_commands() -> list[str]:
    """Every call of the command, in blocks and in sentences."""
    texts = [path.read_text("utf-8") for path in DOCUMENTS]
    blocks = [block for language in SHELLS for block in read_blocks(language)]
    shown = [
        found[0].removeprefix("$ ") for block in blocks for found in COMMAND.finditer(block.text)
    ]
    named = [found[1] for text in texts for found in INLINE.finditer(text)]
    return sorted({command.split("#", 1)[0].strip() for command in (*shown, *named)})


def name_block(block: Block) -> str:
    return block.name


_PEOPLE: Final = ("ada", "bob", "carol", "cleo", "dora")
_CLIENTS: Final = "\nclients:\n" + "".join(
    f"  - {{name: {name}, key_hash: '{number:064x}', may_call: []}}\n"
    for number, name in enumerate(_PEOPLE, 1)
)
_ISSUERS: Final = (
    "issuers:\n"
    "  - {name: keycloak, issuer: 'https://id.example.com', audience: [gateway], may_call: []}\n"
)


@pytest.mark.parametrize("block", read_blocks("yaml"), ids=name_block)
def test_shown_configuration_loads_without_a_fault(block: Block, tmp_path: Path) -> None:
    config = tmp_path / "passerelle.yaml"
    # A page shows only its own section; the clients that it names are in `clients` of the whole file.
    text = (
        block.text if re.search(r"^clients:", block.text, re.MULTILINE) else block.text + _CLIENTS
    )
    if not re.search(r"^issuers:", text, re.MULTILINE):
        text += _ISSUERS
    config.write_text(text, encoding="utf-8")
    variables = re.findall(r"_env: *(\w+)", block.text)
    environ = dict.fromkeys(variables, "a-token")
    reading = read_settings(Sources(environ, tmp_path, config))
    assert [str(fault) for fault in reading.faults] == []
    assert reading.settings is not None


def list_commands() -> dict[str, set[str]]:
    """The flags of each command."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    flags: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        inner = command.commands.values() if isinstance(command, TyperGroup) else ()
        flags[name] = {
            flag for one in (command, *inner) for parameter in one.params for flag in parameter.opts
        }
    return flags


def find_unknown_words(command: str) -> Iterator[str]:
    """Words of a call that do not exist: the command itself, or a flag."""
    _, *words = shlex.split(command)
    if not words or words[0].startswith("-"):
        known = {
            "--version",
            "--help",
            "-h",
            "--install-completion",
            "--show-completion",
            "--gateway",
        }
        yield from (word for word in words if word.startswith("-") and word not in known)
        return
    flags = list_commands().get(words[0])
    if flags is None:
        yield words[0]
        return
    known = flags | {"--help", "-h"}
    yield from (
        word for word in words[1:] if word.startswith("-") and word.split("=")[0] not in known
    )


@pytest.mark.parametrize("command", read_commands())
def test_shown_command_exists_with_its_flags(command: str) -> None:
    assert list(find_unknown_words(command)) == []


def test_unknown_commands_and_flags_are_found() -> None:
    assert list(find_unknown_words("passerelle fly --high")) == ["fly"]
    assert list(find_unknown_words("passerelle serve --high 3")) == ["--high"]
    assert list(find_unknown_words("passerelle --low")) == ["--low"]


def test_shown_metrics_exist() -> None:
    endpoint = SimpleNamespace(connections=0, find_lag=int)
    hub = SimpleNamespace(streams=0, ring_bytes=0)
    metrics = Metrics()
    metrics.add(
        ChannelMetrics(ChannelCounts(), cast("Hub", hub), cast("ChannelEndpoint", endpoint))
    )
    metrics.add(ConnectionMetrics(ConnectionTable()))
    counted = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in metrics.registry.collect()
        if metric.name.startswith("passerelle_")
    }
    shown = METRIC.findall((ROOT / "docs" / "operate" / "README.md").read_text("utf-8"))
    assert sorted(shown) == sorted(counted)


def test_shown_make_verbs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    verbs = set(re.findall(r"^([a-z-]+):.*##", makefile, re.MULTILINE))
    shown = {
        verb
        for path in (*DOCUMENTS, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md")
        for verb in re.findall(r"(?:^|`)make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)
    }
    assert shown <= verbs


def test_shown_json_bodies_are_json() -> None:
    bodies = [
        words[words.index("-d") + 1]
        for language in ("sh", "bash")
        for block in read_blocks(language)
        if "curl " in block.text
        for words in [shlex.split(block.text)]
        if "-d" in words
    ]
    assert len(bodies) >= 4
    for body in bodies:
        json.loads(body)


def test_tests_of_an_invariant_carry_its_mark() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    rows = re.findall(r"^\| \*\*(I\d+)\*\* \|.*\| (\[.*) \|$", text, re.MULTILINE)
    assert [name for name, _ in rows] == [f"I{number}" for number in range(1, 11)]
    for name, links in rows:
        for path in re.findall(r"\((tests/[^)]*)\)", links):
            assert f'"{name}"' in (ROOT / path).read_text("utf-8"), f"{path} has no test of {name}"


def test_shown_gaps_state_whether_a_clients_state_is_valid() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (\w+)", CHANNELS.read_text("utf-8"), re.MULTILINE)
    shown = {name: answer for name, answer in rows if answer in {"yes", "no", "perhaps"}}
    assert set(shown) == {reason.value for reason in GapReason}
    assert {name for name, answer in shown.items() if answer == "no"} == {
        reason.value for reason in (GapReason.EPOCH, GapReason.AHEAD, GapReason.FORKED)
    }


def test_shown_close_codes_are_listed_with_their_range() -> None:
    text = CHANNELS.read_text("utf-8")
    rows = re.findall(r"^\| (\d{4}) \| .*? \| (\d{4})?", text, re.MULTILINE)
    assert len(rows) == 9
    again = {int(code) for code, _ in rows}
    stop = {int(code) for _, code in rows if code}
    assert again | stop == {code.value for code in CloseCode} - {CloseCode.NORMAL}
    assert {code for code in again | stop if is_retryable(code)} == again


def test_shown_approval_is_parsed_and_the_shown_answer_names_it() -> None:
    question, answer, *_ = (
        json.loads(block.text)
        for block in read_blocks("json")
        if block.name.startswith("docs/protocol/permission.md")
    )
    status: JsonObject = {"state": "TASK_STATE_INPUT_REQUIRED", "message": {"parts": [question]}}
    (prompt,) = detect("payments", {"id": "remote-task", "contextId": "c", "status": status})
    assert (prompt.dialect, prompt.kind, prompt.risk) == ("permission", "permission", "high")
    assert [option.option_id for option in prompt.options] == ["pay", "reject"]
    decision = read_decision({"parts": [answer]})
    assert decision is not None
    assert prompt.native_id == f"{decision.action_id} {decision.rev} {decision.digest}"
