"""What a verb of the command line is given: the gateway that it asks, and how its answer is printed."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from passerelle.core.wire.display import escape_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from passerelle.cli.control_client import ControlClient
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.gateway.settings import Settings


@dataclass(frozen=True, slots=True)
class Link:
    """Opened with the first call, so that a flag that is wrong is complained about before a token is looked for.

    ``key`` makes a change safe to be repeated: whoever comes with it again gets the first answer.
    """

    url: str | None = None
    token_env: str | None = None
    config: Path | None = None
    data_dir: Path | None = None
    as_json: bool = False
    key: str | None = None

    def load_settings(self) -> Settings:
        """The settings that name the gateway. Raises ConfigInvalid."""
        from passerelle.gateway.settings_source import Sources, load_settings

        flags = {"data_dir": self.data_dir}
        settings, notices = load_settings(Sources(os.environ, Path.cwd(), self.config, flags))
        for notice in notices:
            print(f"passerelle: notice: {notice}", file=sys.stderr)
        return settings

    def open(self) -> ControlClient:
        """A client for the gateway. Raises ConfigInvalid: there is no token."""
        from passerelle.cli.control_client import open_client

        return open_client(self.load_settings(), self.url, self.token_env)

    def read(self, path: str, params: Mapping[str, Json] | None = None) -> JsonObject:
        """The answer of a query; parameters without a value are left out."""
        return self.open().get(path, _leave_out(params or {}))

    def post(
        self, path: str, body: Mapping[str, Json] | None = None, key: str | None = None
    ) -> JsonObject:
        """The answer of a command; members without a value are left out."""
        return self.open().send("POST", path, _leave_out(body or {}), key or self.key)

    def patch(self, path: str, body: Mapping[str, Json]) -> JsonObject:
        """The answer of a command that changes what describes something."""
        return self.open().send("PATCH", path, _leave_out(body), self.key)

    def put(self, path: str, body: Mapping[str, Json]) -> JsonObject:
        """The answer of a command that puts something in the place of what was there."""
        return self.open().send("PUT", path, _leave_out(body), self.key)

    def delete(self, path: str) -> JsonObject:
        """The answer of a command that ends something."""
        return self.open().send("DELETE", path, {}, self.key)

    def tell(self, answer: JsonObject, lines: Iterable[str]) -> None:
        """Prints an answer: as it is for programs, as ``lines`` for people."""
        if self.as_json:
            print(json.dumps(answer, indent=2))
            return
        for line in lines:
            # What agents say must not act on the terminal.
            print(escape_text(line.replace("\n", " ")))


def name_path(*steps: str) -> str:
    """A path out of fixed steps and ids; an id cannot lead anywhere else."""
    first, *rest = steps
    return "/".join((first, *(quote(step, safe="~") for step in rest)))


def _leave_out(members: Mapping[str, Json]) -> JsonObject:
    return {name: value for name, value in members.items() if value is not None}
