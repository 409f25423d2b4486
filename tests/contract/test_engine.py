"""The embedded engine: one owner, no orphaned process, no loss of acknowledged writes, no older engine."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson
import pytest

from passerelle.core.batch import Again, Appended, Batch, DueChange, IdempotencyRow, Stamp
from passerelle.core.errors import DirectoryInUse, EngineFailed, StoreUnavailable
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.store.data_directory import lock_directory, read_stamp
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_binary import EngineBinary, find_engine
from passerelle.store.engine_process import EngineSettings, GuardMode
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, TaskPlace, event, make_place
from tests.support.engine import ask, redis_on_path
from tests.support.waiting import block_until, wait_until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    return EngineSettings(tmp_path / "data")


@pytest.fixture
async def engine(settings: EngineSettings, anyio_backend: str) -> AsyncGenerator[EmbeddedEngine]:
    async with await EmbeddedEngine.start(settings) as running:
        yield running


async def open_store(engine: EmbeddedEngine, tmp_path: Path) -> Store:
    return await Store.open(StoreSettings(engine.url, tmp_path / "blobs"))


def batch_of(at: TaskPlace, number: int) -> Batch:
    """One event without an entity."""
    fact = event(f"ev_{number}")
    row = IdempotencyRow(fact.event_id, "d", b"", 600_000)
    return Batch(at.session, fact.event_id, 0, EPOCH, events=(fact,), idem=row)


async def write(store: Store, at: TaskPlace, number: int) -> bool:
    """Appends an event; returns whether it was acknowledged."""
    try:
        return isinstance(await store.log.append(batch_of(at, number)), Appended | Again)
    except StoreUnavailable:
        return False


async def crash(engine: EmbeddedEngine) -> None:
    """Kills the engine and waits for its restart."""
    before = engine.restarts
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await wait_until(lambda: engine.restarts == before + 1, 20, "the engine is back")


async def await_progress(acknowledged: set[int]) -> None:
    """Waits until some more writes were acknowledged."""
    before = len(acknowledged)
    await wait_until(lambda: len(acknowledged) > before + 200, 20, "writes go on")


async def stored_numbers(store: Store, stream: StreamRef) -> set[int]:
    found: set[int] = set()
    after = 0
    while page := await store.log.read_page(stream, after):
        found |= {int(entry.event_id.rpartition("_")[2]) for entry in page}
        after = page[-1].sequence
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    return state != "Z"


async def test_files_of_the_engine_have_no_rights_for_others(settings: EngineSettings) -> None:
    """Neither files that it writes nor files that an earlier version left open."""
    for _ in range(2):
        async with await EmbeddedEngine.start(settings) as engine:
            ask(engine.url, "SET", "a", "b")
            ask(engine.url, "BGREWRITEAOF")
            files: dict[Path, int] = {}
            for one in settings.data_dir.rglob("*"):
                # The rewrite renames a temporary file meanwhile.
                with suppress(FileNotFoundError):
                    if stat.S_ISREG(mode := one.stat().st_mode):
                        files[one] = stat.S_IMODE(mode)
            names = {one.name.partition(".")[0] for one in files}
            assert {"engine", "socket", "appendonly"} <= names
            assert [one.name for one, mode in files.items() if mode & 0o077] == []
        for one in files:
            if one.exists():
                one.chmod(0o644)


async def test_engine_listens_on_a_private_socket_and_on_no_port(
    engine: EmbeddedEngine, settings: EngineSettings
) -> None:
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE(engine.socket_path.stat().st_mode) == 0o700
    assert len(os.fsencode(engine.socket_path)) < 104
    config = ask(engine.url, "CONFIG", "GET", "*")
    assert isinstance(config, dict)
    wanted = {
        b"port": b"0",
        b"appendonly": b"yes",
        b"appendfsync": b"everysec",
        b"save": b"",
        b"maxmemory-policy": b"noeviction",
        b"stream-node-max-bytes": b"1200",
        b"hash-max-listpack-value": b"4096",
    }
    assert {name: config[name] for name in wanted} == wanted


async def test_start_leaves_a_stamp_and_keeps_its_epoch(settings: EngineSettings) -> None:
    epochs: set[str] = set()
    for _ in range(2):
        async with await EmbeddedEngine.start(settings) as running:
            stamp = read_stamp(settings.data_dir)
            assert stamp is not None
            assert (stamp.engine, stamp.version) == (
                running.binary.name,
                running.binary.version_text,
            )
            assert stamp.rdb_version >= 10
            epochs.add(stamp.epoch)
    assert len(epochs) == 1


@pytest.mark.parametrize("durability", ["everysec", "always"])
async def test_data_survives_a_restart(tmp_path: Path, durability: str) -> None:
    at = make_place()
    settings = EngineSettings(
        tmp_path / "data", durability="always" if durability == "always" else "everysec"
    )
    async with (
        await EmbeddedEngine.start(settings) as first,
        await open_store(first, tmp_path) as store,
    ):
        assert all([await write(store, at, number) for number in range(20)])
        runtime = store.runtime_id
    async with (
        await EmbeddedEngine.start(settings) as second,
        await open_store(second, tmp_path) as store,
    ):
        assert await stored_numbers(store, at.stream) == set(range(20))
        assert store.runtime_id == runtime


async def test_second_owner_of_a_directory_is_refused_with_its_name_and_pid(
    engine: EmbeddedEngine, settings: EngineSettings
) -> None:
    with pytest.raises(DirectoryInUse) as caught:
        await EmbeddedEngine.start(settings)
    assert caught.value.details == {
        "directory": str(settings.data_dir.resolve()),
        "pid": str(os.getpid()),
    }
    assert engine.pid is not None


async def test_successor_waits_for_an_owner_that_is_stopping(settings: EngineSettings) -> None:
    first = await EmbeddedEngine.start(settings)
    second = asyncio.create_task(EmbeddedEngine.start(settings))
    await asyncio.sleep(0)
    await first.stop()
    async with await second as engine:
        assert engine.pid is not None


async def test_engine_starts_with_a_long_temporary_directory(
    settings: EngineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-rather-long-name"] * 4)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    async with await EmbeddedEngine.start(settings) as engine:
        assert len(os.fsencode(engine.socket_path)) < 104


async def test_second_stop_does_nothing(settings: EngineSettings) -> None:
    engine = await EmbeddedEngine.start(settings)
    await engine.stop()
    (settings.data_dir / "marker").touch()
    descriptor = os.open(settings.data_dir / "marker", os.O_RDONLY)
    await engine.stop()
    os.close(descriptor)


async def test_engine_starts_with_a_very_long_data_directory(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-folder-with-a-rather-long-name"] * 8)
    async with (
        await EmbeddedEngine.start(EngineSettings(deep)) as engine,
        await open_store(engine, tmp_path) as store,
    ):
        assert len(str(deep)) > 250
        await store.probe()


async def test_stop_is_quick_with_open_connections_and_leaves_no_socket(
    settings: EngineSettings, tmp_path: Path
) -> None:
    engine = await EmbeddedEngine.start(settings)
    store = await open_store(engine, tmp_path)
    await store.hints.subscribe(make_place().stream, lambda _: None)
    pid = engine.pid
    assert pid is not None
    async with asyncio.timeout(10):
        await engine.stop()
    assert not is_alive(pid)
    assert not engine.socket_path.parent.exists()
    (await lock_directory(settings.data_dir, 0)).release()
    await store.close()


async def test_writes_are_served_again_after_the_engine_crashed(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    at = make_place()
    async with await open_store(engine, tmp_path) as store:
        acknowledged: set[int] = set()
        numbers = iter(range(100_000))
        enough = asyncio.Event()

        async def work() -> None:
            for number in numbers:
                if enough.is_set():
                    return
                if await write(store, at, number):
                    acknowledged.add(number)

        workers = [asyncio.create_task(work()) for _ in range(8)]
        for _ in range(3):
            await await_progress(acknowledged)
            await crash(engine)
        await await_progress(acknowledged)
        enough.set()
        await asyncio.gather(*workers)
        assert acknowledged <= await stored_numbers(store, at.stream)


async def test_engine_that_keeps_failing_is_given_up_with_its_log(engine: EmbeddedEngine) -> None:
    for _ in range(4):
        await crash(engine)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    failure = await asyncio.wait_for(engine.failed, 10)
    assert "5 times" in failure.message
    assert "Ready to accept connections" in failure.message


async def test_restart_with_no_thread_left_is_tried_again(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[threading.Thread]()

    def refuse_once(thread: threading.Thread) -> None:
        # As under a limit of processes (RLIMIT_NPROC, pids.max): the fork has succeeded, and no thread is left.
        if thread.name == "engine-exit" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    await crash(engine)
    assert refused
    assert not engine.failed.done()


async def test_engine_that_exits_at_start_is_an_error_with_its_log(
    settings: EngineSettings, tmp_path: Path
) -> None:
    script = tmp_path / "engine"
    script.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "Valkey server v=9.1.2 x" && exit 0\n'
        f"echo 'no more room on deck' > {settings.data_dir}/engine.log\nexit 3\n",
        encoding="ascii",
    )
    script.chmod(0o755)
    with pytest.raises(EngineFailed, match="no more room on deck") as failed:
        await EmbeddedEngine.start(EngineSettings(settings.data_dir, engine_path=script))
    assert failed.value.hint == "its log says why, engine.log in the data directory"
    (await lock_directory(settings.data_dir, 0)).release()


async def test_damage_inside_the_log_is_refused_with_a_remedy(
    settings: EngineSettings, tmp_path: Path
) -> None:
    at = make_place()
    async with (
        await EmbeddedEngine.start(settings) as first,
        await open_store(first, tmp_path) as store,
    ):
        for number in range(10):
            assert await write(store, at, number)
    (log,) = (settings.data_dir / "appendonlydir").glob("*.incr.aof")
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(b"\0" * 64)
    with pytest.raises(EngineFailed, match="ended at start") as failed:
        await EmbeddedEngine.start(settings)
    assert failed.value.hint is not None
    assert "restore a backup" in failed.value.hint
    assert "valkey-check-aof" in failed.value.hint


async def test_torn_tail_of_the_log_costs_the_last_command_only(
    settings: EngineSettings, tmp_path: Path
) -> None:
    at = make_place()
    async with (
        await EmbeddedEngine.start(settings) as first,
        await open_store(first, tmp_path) as store,
    ):
        for number in range(10):
            assert await write(store, at, number)
    (log,) = (settings.data_dir / "appendonlydir").glob("*.incr.aof")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 7)
    async with (
        await EmbeddedEngine.start(settings) as second,
        await open_store(second, tmp_path) as store,
    ):
        assert await stored_numbers(store, at.stream) == set(range(9))
        head = await store.log.read_head(at.stream)
        assert head is not None
        assert head.sequence == 9
        assert await write(store, at, 9)


@pytest.mark.requirement("CMD-28")
async def test_torn_append_leaves_neither_state_nor_event(
    settings: EngineSettings, tmp_path: Path
) -> None:
    at = make_place()
    first = Batch(at.session, "op_1", 0, EPOCH, entities=(at.write(),), events=(event(),))
    second = Batch(
        at.session,
        "op_2",
        0,
        EPOCH,
        entities=(at.write(Stamp(1, "op_1"), (b"new",)),),
        events=(event(),),
        due=(DueChange(f"retry:{at.task}", 1),),
    )
    async with (
        await EmbeddedEngine.start(settings) as engine,
        await open_store(engine, tmp_path) as store,
    ):
        await store.log.append(first)
        await store.log.append(second)
    (log,) = (settings.data_dir / "appendonlydir").glob("*.incr.aof")
    whole = log.read_bytes()
    # By content: with a slow disk the engine answers up to two seconds before it writes.
    before = whole.rindex(b"MULTI", 0, whole.index(b"op_2"))
    after = whole.index(b"EXEC", before)
    for cut in range(before + 1, after, (after - before) // 7):
        for path in (settings.data_dir / "appendonlydir").glob("*.incr.aof"):
            path.write_bytes(whole[:cut] if path == log else b"")
        async with (
            await EmbeddedEngine.start(settings) as engine,
            await open_store(engine, tmp_path) as store,
        ):
            (task,) = await store.log.load([at.task_ref])
            assert (task.stamp, task.snapshot) == (Stamp(1, "op_1"), b"{}")
            assert len(await store.log.read_page(at.stream, 0)) == 1
            assert (await store.due.claim(at.shard, 1, 1)).next_ms is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("version", "99.0.0", "last opened by valkey 99.0.0"),
        ("schema", 99, "schema 99"),
    ],
)
async def test_directory_of_a_newer_engine_or_schema_is_refused(
    settings: EngineSettings, name: str, value: str | int, words: str
) -> None:
    async with await EmbeddedEngine.start(settings):
        pass
    path = settings.data_dir / "store.json"
    stamp = orjson.loads(path.read_bytes())
    path.write_bytes(orjson.dumps({**stamp, name: value}))
    with pytest.raises(EngineFailed, match=words):
        await EmbeddedEngine.start(settings)
    (await lock_directory(settings.data_dir, 0)).release()


async def test_directory_of_an_open_source_redis_is_upgraded_but_not_downgraded(
    settings: EngineSettings, tmp_path: Path
) -> None:
    older = redis_on_path()
    if older is None or older.version >= (7, 4, 0):
        older = pretend_older(tmp_path)
    at = make_place()

    def find(_: Path | None) -> EngineBinary:
        return older

    async with (
        await EmbeddedEngine.start(settings, find) as first,
        await open_store(first, tmp_path) as store,
    ):
        assert await write(store, at, 1)
    async with (
        await EmbeddedEngine.start(settings) as second,
        await open_store(second, tmp_path) as store,
    ):
        assert await stored_numbers(store, at.stream) == {1}
    with pytest.raises(EngineFailed, match="cannot read it safely"):
        await EmbeddedEngine.start(settings, find)


def pretend_older(tmp_path: Path) -> EngineBinary:
    """The packaged engine under an older name, if no open-source Redis is on PATH."""
    return EngineBinary(find_engine(None).path, "redis", (7, 0, 0))


@contextmanager
def hosted(tmp_path: Path, *guard: str) -> Generator[tuple[subprocess.Popen[str], int, str]]:
    """A process that owns an engine and writes: the process, the engine's id, the session."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.engine_host", str(tmp_path), *guard],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        pid, _, session = process.stdout.readline().split()
        yield process, int(pid), session
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("guard", list(GuardMode))
async def test_killed_owner_leaves_no_engine_and_no_lock_and_loses_nothing(
    tmp_path: Path, guard: GuardMode
) -> None:
    acknowledged: set[int] = set()
    with hosted(tmp_path, guard) as (process, pid, session):
        assert process.stdout is not None
        while len(acknowledged) < 300:
            acknowledged.add(int(process.stdout.readline()))
        process.kill()
        rest = process.stdout.read().split("\n")
        acknowledged |= {int(line) for line in rest[:-1]}
        process.wait(10)
        block_until(lambda: not is_alive(pid), 10, "the engine is gone")
        (await lock_directory(tmp_path / "data", 1)).release()
    async with (
        await EmbeddedEngine.start(EngineSettings(tmp_path / "data")) as engine,
        await open_store(engine, tmp_path) as store,
    ):
        stream = StreamRef(StreamKind.SESSION, session)
        assert acknowledged <= await stored_numbers(store, stream)


async def test_other_process_is_refused_while_the_engine_of_a_dead_owner_still_runs(
    tmp_path: Path,
) -> None:
    with hosted(tmp_path) as (process, pid, _):
        os.kill(pid, signal.SIGSTOP)
        process.kill()
        process.wait(10)
        with pytest.raises(DirectoryInUse):
            await lock_directory(tmp_path / "data", 0.2)
        os.kill(pid, signal.SIGCONT)
        (await lock_directory(tmp_path / "data", 5)).release()


async def test_full_disk_refuses_writes_serves_reads_and_passes(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    at = make_place()
    async with await open_store(engine, tmp_path) as store:
        assert await write(store, at, 0)
        assert engine.pid is not None
        (log,) = (tmp_path / "data" / "appendonlydir").glob("*.incr.aof")
        _, hard = resource.prlimit(engine.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (log.stat().st_size + 20_000, hard))
        acknowledged = {0}

        async def refused() -> bool:
            number = max(acknowledged) + 1
            if await write(store, at, number):
                acknowledged.add(number)
                return False
            return True

        await wait_until(refused, 20, "a write is refused")
        with pytest.raises(StoreUnavailable, match="cannot write to disk") as caught:
            await store.log.append(batch_of(at, 1 + max(acknowledged)))
        assert caught.value.wrote == "no"
        with pytest.raises(StoreUnavailable, match="cannot write to disk"):
            await store.probe()
        assert acknowledged <= await stored_numbers(store, at.stream)
        resource.prlimit(engine.pid, resource.RLIMIT_FSIZE, (hard, hard))

        async def recovered() -> bool:
            return await write(store, at, max(acknowledged) + 1)

        await wait_until(recovered, 10, "writes are served again")
        await store.probe()
        acknowledged.add(max(acknowledged) + 1)
        assert engine.restarts == 0
    await crash(engine)
    async with await open_store(engine, tmp_path) as store:
        assert acknowledged <= await stored_numbers(store, at.stream)


async def test_stale_socket_directory_of_a_dead_owner_is_removed(tmp_path: Path) -> None:
    with hosted(tmp_path) as (process, pid, _):
        sockets = Path((tmp_path / "data" / "socket").read_text(encoding="utf-8")).parent
        process.kill()
        process.wait(10)
        block_until(lambda: not is_alive(pid), 15, "the engine is gone")
        assert sockets.exists()
        async with await EmbeddedEngine.start(EngineSettings(tmp_path / "data")):
            assert not sockets.exists()
