"""Lists the receivers of a task's stream and their positions: webhooks by target cursor, devices by acknowledgement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.channels.link_record import is_of_owner
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, expose
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.read_models.delivery import Receiver
from passerelle.protocol.cursor import parse_cursor
from passerelle.webhooks.push_configs import PushName, name_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.task.record import TaskRecord
    from passerelle.store.acks import RedisAcks
    from passerelle.store.targets import RedisTargets, Target


@frozen
class Receivers:
    """Lists receivers."""

    targets: RedisTargets
    acks: RedisAcks

    async def find(self, record: TaskRecord, fields: Mapping[str, bytes]) -> list[Receiver]:
        """The webhooks of a task whose hash has ``fields``, and devices of the owner that acknowledge its session."""
        stream = StreamRef(StreamKind.SESSION, record.session_id)
        facade = expose(TaskId(record.task_id), record.exposure)
        start = name_fields(facade)
        configs = [name.removeprefix(start) for name in fields if name.startswith(start)]
        targets = await self.targets.read(stream) if configs else {}
        acks = await self.acks.list_acks(stream)
        webhooks = (
            _read_target(config, targets.get(PushName(facade, config).target)) for config in configs
        )
        devices = (
            Receiver(f"device:{one.device}", _read_sequence(one.cursor))
            for one in acks
            if one.cursor and is_of_owner(one.device)
        )
        return [*webhooks, *devices]


def _read_target(config: str, target: Target | None) -> Receiver:
    """The state of a webhook; a target that is gone had no pending deliveries."""
    name = f"webhook:{config}"
    if target is None:
        return Receiver(name, 0, "done")
    return Receiver(name, _read_sequence(target.cursor), target.state)


def _read_sequence(cursor: str) -> int:
    return parse_cursor(cursor).sequence if cursor else 0
