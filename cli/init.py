"""``passerelle init``: writes a first configuration, with the most common settings as comments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from passerelle.core.errors import ConfigInvalid, InvalidInput
from passerelle.core.wire.display import explain_error
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings

DEFAULT_PORT: Final = 8080
_HEAD: Final = """\
# The configuration of a Passerelle gateway. `passerelle check {file}` lists its errors with line numbers.
# A line that begins with # without a space is a disabled setting: remove the # to use it.

# Port and host to listen on. With another host, other machines can connect; they need a key or the owner token.
port: {port}
#host: 0.0.0.0

# The agents behind the gateway. Each is served at /agents/<name>.
"""
_AGENT: Final = """\
{off}  - name: {name}
{off}    url: {url}
#    auth: {{bearer_env: {variable}}}
#    timeout: {{total: 30m, idle: 2m}}
"""
_TAIL: Final = """
# Clients that may call, in addition to the owner. `passerelle key NAME` creates a key and prints this section.
#clients:
#  - name: orchestrator
#    key_hash: "sha256:0000000000000000000000000000000000000000000000000000000000000000"
#    may_call: ["*"]

# Storage: a folder with an embedded engine, or a Redis or Valkey server.
#data_dir: ./state
#redis_url: redis://127.0.0.1:6379

# Log level: info or debug. Format: console for people, json for programs.
#log_level: info
#log_format: console
"""


def compose_config(file: str, agent: str | None, name: str, port: int) -> str:
    """Returns the text of a configuration with one agent; without ``agent``, with a commented-out example."""
    off = "" if agent else "#"
    variable = f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_TOKEN"
    url = _write_scalar(agent or "http://127.0.0.1:9001")
    entry = _AGENT.format(off=off, name=_write_scalar(name), url=url, variable=variable)
    return f"{_HEAD.format(file=file, port=port)}{off}agents:\n{entry}{_TAIL}"


def _write_scalar(text: str) -> str:
    """Returns a text as YAML: plain if possible, else quoted as JSON."""
    return text if re.fullmatch(r"[A-Za-z][\w:/.~%-]*", text) else json.dumps(text)


def propose_name(agent: str) -> str:
    """Derives an agent's name from the last word of its address."""
    parts = urlsplit(agent)
    words = [*filter(None, re.split(r"[^a-z0-9]+", f"{parts.hostname or ''} {parts.path}".lower()))]
    named = [word for word in words if not word.isdigit()]
    return named[-1] if named and named[-1] != "localhost" else "agent"


def write_config(file: Path, agent: str | None, name: str, port: int) -> None:
    """Writes a configuration to a new file.

    Raises:
        ConfigInvalid: an invalid address, name or port; nothing is written.
        InvalidInput: the file exists or cannot be written.
    """
    text = compose_config(file.name, agent, name, port)
    with TemporaryDirectory() as folder:
        tried = Path(folder) / file.name
        tried.write_text(text, "utf-8")
        for fault in read_settings(Sources({}, tried.parent, tried)).faults:
            # omit the line number: it would refer to the temporary file
            raise ConfigInvalid(fault.key, fault.reason)
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise InvalidInput(str(file), "exists already; nothing was changed") from None
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be written: {explain_error(error)}") from None
