"""Push notification configs: fields of the task's hash, for each exposure of the task, with sealed secrets.

A config is also a target of the session's stream, created and ended by the same append, so delivery starts at the event
after which it was set. It is keyed by facade id and config id; only the owner of the task sees it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.errors import PushNotificationNotSupported
from passerelle.a2a_mapping.push import render_config, render_configs
from passerelle.core.batch import EntityKind, EntityRef, TargetChange
from passerelle.core.commands import PushConfigDeleted, PushConfigSet, SetPushConfig
from passerelle.core.errors import ConfigInvalid, InvalidInput, NotFound
from passerelle.core.frozen import frozen
from passerelle.core.ids import TaskId, derive_id, expose, parse_facade
from passerelle.core.push import PushConfig, PushDialect
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.core.wire.codec import from_bytes, to_bytes
from passerelle.core.wire.record import change, record, value
from passerelle.runtime.common.secret import MASK
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from passerelle.core.commands import (
        DeletePushConfig,
        GetPushConfig,
        ListPushConfigs,
        SubmitTurn,
    )
    from passerelle.core.decision import Decision
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.common.sealer import Sealer
    from passerelle.runtime.records.ownership import Owned, Ownership
    from passerelle.runtime.records.writes import Writes
    from passerelle.webhooks.addresses import WebhookRules

MOST_CONFIGS: Final = 10
KIND: Final = "push"


@record
class StoredPush:
    """A config as stored in the task's hash; ``sealed`` holds ``secrets`` by name, ``by`` is its creator."""

    url: str
    dialect: PushDialect
    by: str
    scheme: str | None = None
    secrets: tuple[str, ...] = ()
    sealed: str = ""


@frozen
class PushName:
    """Names one config: the facade id of the task, and the config's id."""

    facade: str
    config_id: str

    @property
    def target(self) -> str:
        """The name of its target on the stream."""
        return f"{KIND}:{self.facade}:{self.config_id}"

    @property
    def task(self) -> EntityRef:
        """The task."""
        parsed = parse_facade(self.facade)
        if parsed is None:
            raise NotFound("task", self.facade)
        return EntityRef(EntityKind.TASK, parsed[0])

    @property
    def field(self) -> str:
        """The field of the task's hash."""
        return f"{name_fields(self.facade)}{self.config_id}"


@value
class SealedPush:
    """A config of a new task as stored in its hash."""

    name: PushName
    stored: bytes


def find_sealed(facade: str, fields: Mapping[str, bytes | None]) -> SealedPush | None:
    """The first push config among the fields of a task."""
    start = name_fields(facade)
    for field, stored in fields.items():
        if stored is not None and field.startswith(start):
            return SealedPush(PushName(facade, field.removeprefix(start)), stored)
    return None


def read_push_name(target: str) -> PushName | None:
    """The config that a target name refers to; None for a target of another kind."""
    kind, _, rest = target.partition(":")
    facade, _, config_id = rest.partition(":")
    return PushName(facade, config_id) if kind == KIND and parse_facade(facade) else None


def name_fields(facade: str) -> str:
    """The prefix of the fields of all configs of an exposure."""
    parsed = parse_facade(facade)
    return f"pc{parsed[1] if parsed else 0}:"


def end_targets(record: TaskRecord, fields: Mapping[str, bytes]) -> tuple[TargetChange, ...]:
    """Ends the targets of a task that callers will never see: no event would ever wake them."""
    facade = expose(TaskId(record.task_id), record.exposure)
    start = name_fields(facade)
    names = (name.removeprefix(start) for name in fields if name.startswith(start))
    return tuple(TargetChange(PushName(facade, name).target, None) for name in names)


def forget_all(decision: Decision, task: EntityRef, record: TaskRecord) -> tuple[TargetChange, ...]:
    """Deletes every config of a task; the returned target changes belong to the same append."""
    fields = decision.fields(task)
    start = name_fields(expose(TaskId(record.task_id), record.exposure))
    ended = end_targets(record, fields)
    for field in [one for one in fields if one.startswith(start)]:
        decision.set_field(task, field, None)
    return ended


@frozen
class PushConfigs:
    """Stores push configs. Without a sealer secrets cannot be stored, so push is off."""

    writes: Writes
    ownership: Ownership
    sealer: Sealer | None
    rules: WebhookRules
    deliver_final: bool

    @property
    def is_on(self) -> bool:
        """Whether there is a key to seal secrets with; agent cards announce push only then."""
        return self.sealer is not None

    def check(self, config: PushConfig) -> None:
        """Checks a config before anything is stored.

        Raises:
            PushNotificationNotSupported: there is no key to seal its secrets with.
            InvalidInput: its address may not be called.
        """
        self._require_sealer()
        self.rules.judge(config.url)

    async def set(
        self, principal: Principal, command: SetPushConfig, idem: str | None = None
    ) -> PushConfigSet:
        """Stores a config of a task of the caller, and returns it as its owner sees it.

        A config without an id gets one derived from the idempotency key, so that a repeated call finds it. One of 0.3,
        whose operation is called *set*, replaces the caller's config with its URL.

        Raises:
            NotFound: no such task of the caller.
            InvalidInput: the address may not be called, or the task has the maximum number of configs.
        """
        self.check(command.config)
        owned = await self.ownership.find(principal, command.task, command.agent)
        config = command.config
        if config.id is None and config.dialect == "0.3":
            config = change(config, id=_find_same(owned, command.task, principal, config.url))
        if config.id is None and idem is not None:
            config = change(config, id=derive_id("push", owned.ref.shard, command.task, idem))
        config = self._name(config, owned.ref)

        def body(decision: Decision) -> AppendOptions:
            return AppendOptions(
                targets=self.attach(decision, owned.ref, command.task, principal, config)
            )

        await self.writes.change(owned.record.session_id, [owned.ref], body)
        return PushConfigSet(render_config(command.task, config))

    async def set_with_message(
        self, principal: Principal, command: SubmitTurn, config: PushConfig
    ) -> None:
        """Stores a config that comes with a message to a task, before the message has any effect.

        Clients send the same config with every message. One without an id replaces the caller's config with its URL,
        so that a receiver gets each event once. Otherwise it gets an id derived from the message id, so that a repeated
        request adds none.
        """
        facade = command.task or ""
        task = EntityRef(EntityKind.TASK, facade.partition("~")[0])
        if config.id is None and parse_facade(facade) is not None:
            owned = await self.ownership.find(principal, facade, command.agent)
            same = _find_same(owned, facade, principal, config.url)
            made = derive_id("push", task.shard, task.id, str(command.message["messageId"]))
            config = change(config, id=same or made)
        await self.set(principal, SetPushConfig(facade, config, command.agent))

    def attach(
        self,
        decision: Decision,
        task: EntityRef,
        facade: str,
        principal: Principal,
        config: PushConfig,
    ) -> tuple[TargetChange, ...]:
        """Adds a config that has an id to a decision over its task.

        The returned target changes belong to the same append.

        Raises:
            InvalidInput: the task has the maximum number of configs.
        """
        name = PushName(facade, config.id or "")
        fields = decision.fields(task)
        others = [
            one for one in fields if one.startswith(name_fields(facade)) and one != name.field
        ]
        if len(others) >= MOST_CONFIGS:
            raise InvalidInput("id", f"a task has at most {MOST_CONFIGS} push configs")
        decision.set_field(task, name.field, self.seal(config, name, principal).stored)
        if _is_live(decision.state(task), facade):
            return (TargetChange(name.target, facade),)
        # No event will follow: a target of a frozen task gets only its final state.
        return (TargetChange(name.target, facade, whole=True),) if self.deliver_final else ()

    async def delete(self, principal: Principal, command: DeletePushConfig) -> PushConfigDeleted:
        """Deletes a config and its pending deliveries; deleting a config that does not exist succeeds.

        Raises:
            NotFound: no such task of the caller.
        """
        self._require_sealer()
        owned = await self.ownership.find(principal, command.task, command.agent)
        name = PushName(command.task, command.config_id)

        def body(decision: Decision) -> AppendOptions:
            if name.field not in decision.fields(owned.ref):
                return AppendOptions()
            decision.set_field(owned.ref, name.field, None)
            return AppendOptions(targets=(TargetChange(name.target, None),))

        await self.writes.change(owned.record.session_id, [owned.ref], body)
        return PushConfigDeleted()

    async def read(self, principal: Principal, query: GetPushConfig) -> JsonObject:
        """One config.

        Raises:
            NotFound: no such task of the caller, or it has no such config.
        """
        self._require_sealer()
        owned = await self.ownership.find(principal, query.task, query.agent)
        configs = _list_stored(owned, query.task)
        config_id = query.config_id
        if config_id is None and len(configs) == 1:
            (config_id,) = configs
        stored = configs.get(config_id or "")
        if stored is None or config_id is None:
            raise NotFound("push config", config_id or query.task)
        return self._show(principal, PushName(query.task, config_id), stored)

    async def list(self, principal: Principal, query: ListPushConfigs) -> JsonObject:
        """Configs of a task by their ids, in pages.

        Raises:
            NotFound: no such task of the caller.
            InvalidInput: the page token is not from this list.
        """
        self._require_sealer()
        owned = await self.ownership.find(principal, query.task, query.agent)
        after = _read_token(query.page_token)
        configs = sorted(_list_stored(owned, query.task).items())
        rest = [(name, stored) for name, stored in configs if after is None or name > after]
        page = rest[: query.page_size or MOST_CONFIGS]
        shown = [self._show(principal, PushName(query.task, name), stored) for name, stored in page]
        return render_configs(shown, _write_token(page[-1][0]) if len(page) < len(rest) else "")

    def open(self, name: PushName, stored: StoredPush) -> PushConfig:
        """A config with its secrets, for a delivery.

        Raises:
            ConfigInvalid: the key that sealed them is not known here.
        """
        secrets: dict[str, str] = {}
        if stored.secrets:
            sealer = self._require_sealer()
            secrets = orjson.loads(sealer.unseal(stored.sealed.encode(), _place(name)))
        return _restore(name, stored, secrets)

    def _show(self, principal: Principal, name: PushName, stored: StoredPush) -> JsonObject:
        """Renders a config; only the principal that set it sees its secrets."""
        masked = _restore(name, stored, dict.fromkeys(stored.secrets, MASK))
        if stored.by != principal.key:
            return render_config(name.facade, masked)
        try:
            return render_config(name.facade, self.open(name, stored))
        except ConfigInvalid:
            return render_config(name.facade, masked)

    def _name(self, config: PushConfig, task: EntityRef) -> PushConfig:
        return config if config.id else change(config, id=self.writes.ids.mint("push", task.shard))

    def seal(self, config: PushConfig, name: PushName, principal: Principal) -> SealedPush:
        """Returns a config as stored in the task's hash, with its secrets sealed for ``name``.

        Raises:
            PushNotificationNotSupported: there is no key to seal them with.
        """
        given = {"token": config.token, "credentials": config.credentials}
        secrets = {key: value for key, value in given.items() if value is not None}
        sealer = self._require_sealer()
        sealed = sealer.seal(orjson.dumps(secrets), _place(name)).decode() if secrets else ""
        stored = StoredPush(
            url=config.url,
            dialect=config.dialect,
            by=principal.key,
            scheme=config.scheme,
            secrets=tuple(secrets),
            sealed=sealed,
        )
        return SealedPush(name, to_bytes(stored))

    def _require_sealer(self) -> Sealer:
        if self.sealer is None:
            raise PushNotificationNotSupported(
                "push notifications are off: there is no secret_key to seal credentials with"
            )
        return self.sealer


def _restore(name: PushName, stored: StoredPush, secrets: Mapping[str, str]) -> PushConfig:
    return PushConfig(
        url=stored.url,
        id=name.config_id,
        token=secrets.get("token"),
        scheme=stored.scheme,
        credentials=secrets.get("credentials"),
        dialect=stored.dialect,
    )


def _list_stored(owned: Owned, facade: str) -> dict[str, StoredPush]:
    start = name_fields(facade)
    return {
        name.removeprefix(start): from_bytes(StoredPush, value, newer=True)
        for name, value in owned.held.fields.items()
        if name.startswith(start)
    }


def _find_same(owned: Owned, facade: str, principal: Principal, url: str) -> str | None:
    """The id of the config of ``principal`` with that URL."""
    same = [
        name
        for name, stored in _list_stored(owned, facade).items()
        if (stored.by, stored.url) == (principal.key, url)
    ]
    return min(same, default=None)


def _is_live(state: object, facade: str) -> bool:
    return (
        isinstance(state, TaskRecord)
        and state.status not in ENDED
        and facade == expose(TaskId(state.task_id), state.exposure)
    )


def _place(name: PushName) -> str:
    return f"{name.facade}/{name.config_id}"


def _write_token(config_id: str) -> str:
    return base64.urlsafe_b64encode(config_id.encode()).decode().rstrip("=")


def _read_token(token: str | None) -> str | None:
    if not token:
        return None
    try:
        return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    except ValueError:
        raise InvalidInput("pageToken", "it is not a token of this list") from None
