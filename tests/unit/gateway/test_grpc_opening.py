"""gRPC is an extra: without its libraries the error message states how to install them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.a2a.face import Face
from passerelle.gateway.grpc.extra import open_grpc
from passerelle.gateway.settings.model import GrpcSettings, Settings

pytestmark = pytest.mark.anyio
NO_FACE = cast("Face", None)


async def test_nothing_is_opened_where_no_port_is_set(tmp_path: Path) -> None:
    async with open_grpc(Settings(data_dir=tmp_path), NO_FACE) as port:
        assert port is None


async def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "passerelle.gateway.grpc.face", None)
    settings = Settings(data_dir=tmp_path, grpc=GrpcSettings(port=0))
    with pytest.raises(ConfigInvalid, match=r"grpc.port.*pip install 'passerelle\[grpc\]'"):
        async with open_grpc(settings, NO_FACE):
            pass
