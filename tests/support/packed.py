"""Unpacks a packed batch, as far as tests read it."""

from __future__ import annotations

from typing import Any, cast

import orjson

from passerelle.core.batch import Batch, Fence, Incarnation, PackedBatch, RunMove
from passerelle.core.packed_events import unpack_events
from passerelle.delegation.projections import copy_event
from passerelle.store.connection import unpack

_BEFORE_KEYS = 3


def read_packed(batch: Batch | PackedBatch) -> Batch:
    """Operation, events, runs and fence, without entities."""
    if isinstance(batch, Batch):
        return batch
    arguments = unpack(batch.call)
    count = int(arguments[_BEFORE_KEYS - 1])
    keys = [key.decode() for key in arguments[_BEFORE_KEYS : _BEFORE_KEYS + count]]
    values = list(arguments[_BEFORE_KEYS + count :])
    control = cast("dict[str, Any]", orjson.loads(values[0]))
    fence = cast("tuple[int, str] | None", control.get("fence"))
    stored = unpack_events(values[1], batch.session, 0, "") if control.get("events") else []
    return Batch(
        session=batch.session,
        op=control["op"],
        shard_epoch=int(control["shard_epoch"]),
        stream_epoch=control["mint"],
        events=tuple(map(copy_event, stored)),
        runs=tuple(_read_run(row, keys) for row in control.get("runs", ())),
        fence=Fence(keys[fence[0] - 1], _read_driver(fence[1])) if fence else None,
    )


def _read_run(row: tuple[int, str, str, str, bool], keys: list[str]) -> RunMove:
    key, number, run, task, enters = row
    return RunMove(run, task, Incarnation(keys[key - 1], int(number)), enters)


def _read_driver(text: str) -> Incarnation:
    instance, _, number = text.rpartition(".")
    return Incarnation(instance, int(number))
