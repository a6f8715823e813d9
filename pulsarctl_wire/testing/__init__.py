"""A Pulsar broker for tests, in this process: fresh in milliseconds, and moved through time at will.

    with Broker() as broker:
        client = pulsar.Client(broker.service_url)
        ...
        broker.advance(3600)        an hour passes for the broker
        broker.unload("orders")     clients connect to the topic again

        broker.wait_for("command=ACK topic=orders")
        assert not broker.findings()

    async with Broker(settings={"brokerDeduplicationEnabled": True}) as broker:
        ...
        await broker.aio.advance(3600)

A test that takes the pytest fixture `pulsar_broker` gets a broker of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self  # Python 3.10 has none

    from pulsarctl_wire.broker.shell.running import Plan, Running
    from pulsarctl_wire.checks.finding import Finding
    from pulsarctl_wire.faults.lanes import Faults
    from pulsarctl_wire.testing.traffic import Traffic
    from pulsarctl_wire.wire.frame import Frame

P = ParamSpec("P")
T = TypeVar("T")


class AsyncBroker:
    """What can be done to a running `Broker`, as coroutines for tests with an event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def ask(self, do: str, /, **request: object) -> dict[str, Any]:
        """Make any request of `broker/shell/control.py`; return the answer."""
        return await asyncio.wrap_future(self._broker._submit(self._answer(do, request)))

    async def _answer(self, do: str, request: dict[str, object]) -> dict[str, Any]:
        from pulsarctl_wire.broker.shell.control import answer

        running = self._broker._running
        assert running is not None
        return await answer(running.server, {"do": do, **request})

    async def advance(self, seconds: float) -> None:
        """Move the broker's clock forward: what is due by then happens, in order."""
        await self.ask("advance", seconds=seconds)

    async def housekeeping(self) -> None:
        """Apply expiry, quotas and retention now, and delete what nobody has used for long enough."""
        await self.ask("housekeeping")

    async def compact(self, topic: str) -> None:
        """Compact a topic."""
        await self.ask("compact", topic=topic)

    async def unload(self, topic: str) -> None:
        """Close a topic: its clients are told to connect again."""
        await self.ask("unload", topic=topic)

    async def terminate(self, topic: str) -> tuple[int, int]:
        """Let a topic take no more messages. Returns ledger and entry of the last one."""
        ledger, entry = (await self.ask("terminate", topic=topic))["last"]
        return ledger, entry

    async def cut(self, connection: int | None = None) -> int:
        """End a connection, by its number in `state`, or all, without a word. Returns how many."""
        number: int = (await self.ask("cut", connection=connection))["connections"]
        return number

    async def move(self, topic: str, broker: int) -> None:
        """Give a topic's bundle to another broker of a cluster; its clients are told."""
        await self.ask("move", topic=topic, broker=broker)

    async def migrate(self, topic: str, service_url: str = "", service_url_tls: str = "") -> None:
        """Tell the clients of a topic that it has moved to another cluster, at these URLs."""
        await self.ask("migrate", topic=topic, service_url=service_url, service_url_tls=service_url_tls)

    async def kill_broker(self, broker: int) -> None:
        """Have a broker of a cluster die: its connections end, and others take its topics."""
        await self.ask("kill", broker=broker)

    async def start_broker(self, broker: int) -> None:
        """Start a broker again that was killed, at the same ports."""
        await self.ask("start", broker=broker)

    async def restart_broker(self, broker: int = 0) -> None:
        """Have a broker die and start again at once: its connections end, its topics are loaded anew."""
        await self.ask("restart", broker=broker)

    async def add_fault(self, fault: str) -> int:
        """Add a fault, as for --fault: "drop command=SEND_RECEIPT nth=1". Returns its number."""
        number: int = (await self.ask("fault-add", fault=fault))["number"]
        return number

    async def faults(self) -> list[dict[str, Any]]:
        """Return the faults: number, text, how many frames matched and were hit."""
        answer: list[dict[str, Any]] = (await self.ask("fault-list"))["faults"]
        return answer

    async def wait_for_fault(self, number: int, hits: int = 1, timeout: float = 30.0) -> int:
        """Wait until a fault has hit at least `hits` frames since it was added. Returns how many it has hit.

        Raises RequestTimeout if that takes longer than `timeout` (seconds).
        """
        request = {"number": number, "hits": hits, "timeout": timeout}
        count: int = (await self.ask("fault-wait", **request))["hits"]
        return count

    async def remove_fault(self, number: int) -> None:
        """Remove a fault."""
        await self.ask("fault-remove", number=number)

    async def clear_faults(self) -> None:
        """Remove all faults."""
        await self.ask("fault-clear")

    async def wait_for(self, selection: str, timeout: float = 10.0, count: int = 1) -> Frame:
        """Wait until `count` frames that `selection` chooses went over the wire; see `Broker.wait_for`."""
        return await asyncio.to_thread(self._broker.wait_for, selection, timeout, count)

    async def state(self) -> dict[str, Any]:
        """Return connections, topics, subscriptions and consumers, as `pwire broker ctl state` shows them."""
        return await self.ask("state")


def _blocking(
    call: Callable[Concatenate[AsyncBroker, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Broker, P], T]:
    """Return the method of `Broker` that waits for a coroutine of its `aio`."""

    @wraps(call)
    def wait(broker: Broker, /, *args: P.args, **named: P.kwargs) -> T:
        return broker._submit(call(broker.aio, *args, **named)).result()

    return wait


class Broker:
    """An embedded broker, or a cluster; a context manager, also with `async`.

    Everything is in memory, unless `data` names a directory, where it stays for the next broker.
    `settings` are lines of Pulsar's standalone.conf. `partitions` has the partitioned topics that exist from
    the start, each with its number of partitions. `brokers` is how many there are; methods count them from 0.
    Ports are free ones, unless given. With `tls`, there are TLS ports too.

    The broker runs in a thread with an event loop of its own, so the methods may be called from any thread.
    They raise SettingsError if something cannot be done, such as unloading a topic that does not exist. `aio`
    has `wait_for` and those from `ask` to `state` as coroutines.
    """

    def __init__(
        self,
        *,
        settings: Mapping[str, object] | None = None,
        data: str | Path | None = None,
        partitions: Mapping[str, int] | None = None,
        brokers: int = 1,
        port: int = 0,
        http_port: int = 0,
        tls: bool = False,
    ) -> None:
        self._settings = dict(settings or {})
        self._data = data
        self._partitions = dict(partitions or {})
        self._brokers = brokers
        self._ports = port, http_port
        self._tls = tls
        self._traffic: Traffic | None = None
        self._running: Running | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.aio = AsyncBroker(self)

    # -- starting and stopping

    def start(self) -> None:
        """Start the broker. Raises InUse, StorageError, SettingsError; RuntimeError if it runs already."""
        from pulsarctl_wire.broker.shell.running import bind, tls_context

        if self._thread is not None:
            raise RuntimeError("this broker has been started already")
        plan = self._plan()
        tls = tls_context(plan)
        sockets = bind(plan)
        startup = _Startup()
        self._thread = threading.Thread(
            target=self._run, args=(plan, sockets, tls, startup), name="pulsar-broker", daemon=True
        )
        self._thread.start()
        try:
            startup.wait()
        except BaseException:
            self._thread.join()
            self._thread = None
            raise

    def _plan(self) -> Plan:
        from pulsarctl_wire.broker.basics.settings import list_unknown, parse_settings
        from pulsarctl_wire.broker.shell.running import Plan
        from pulsarctl_wire.errors import SettingsError

        for text in list_unknown(self._settings):
            raise SettingsError(text)
        port, http_port = self._ports
        return Plan(
            settings=parse_settings(self._settings),
            port=port,
            http_port=http_port,
            tls_port=0 if self._tls else None,
            https_port=0 if self._tls else None,
            data=None if self._data is None else Path(self._data),
            brokers=self._brokers,
            partitions=self._partitions,
        )

    def _run(self, plan: Plan, sockets: Any, tls: Any, startup: _Startup) -> None:
        """Serve until `stop`; this runs in the thread."""

        async def serve() -> None:
            from pulsarctl_wire.broker.shell.running import Running, close_all
            from pulsarctl_wire.testing.traffic import Traffic

            end_event = asyncio.Event()
            try:
                self._traffic = Traffic()
                running = Running(plan, sockets, tls=tls, tap=self._traffic)
                running.server.new_faults = _new_faults
                try:
                    await running.open()
                except BaseException:
                    await running.close()
                    raise
            except BaseException as error:
                close_all(sockets)
                startup.fail(error)
                return
            self._running, self._loop, self._end_event = running, asyncio.get_running_loop(), end_event
            startup.complete()
            await end_event.wait()
            await running.close()

        asyncio.run(serve())

    def stop(self) -> None:
        """Stop the broker; what it received is stored. Does nothing if it does not run."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None:
            return
        loop.call_soon_threadsafe(self._end_event.set)
        thread.join()
        self._thread = self._loop = self._running = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *reason: object) -> None:
        await asyncio.to_thread(self.stop)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the broker's event loop."""
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("the broker does not run")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # -- where it is

    def _url(self, name: str, number: int = 0) -> str:
        if self._running is None:
            raise RuntimeError("the broker does not run")
        url: str = getattr(self._running.brokers[number], name)
        return url

    @property
    def service_url(self) -> str:
        """The URL for clients: pulsar://…"""
        return self._url("service_url")

    @property
    def port(self) -> int:
        """The port of the binary protocol."""
        if self._running is None:
            raise RuntimeError("the broker does not run")
        return self._running.port

    @property
    def http_url(self) -> str:
        """The URL of the admin API: http://…"""
        return self._url("http_url")

    @property
    def service_url_tls(self) -> str:
        """The URL for clients with TLS: pulsar+ssl://…; "" without TLS."""
        return self._url("service_url_tls")

    @property
    def https_url(self) -> str:
        """The URL of the admin API with TLS; "" without TLS."""
        return self._url("https_url")

    @property
    def service_urls(self) -> list[str]:
        """The URLs for clients of all brokers of a cluster."""
        return [self._url("service_url", number) for number in range(self._brokers)]

    @property
    def ca_file(self) -> str:
        """The path of the certificates that clients must trust, unless the settings name a certificate."""
        import os

        from pulsarctl_wire.net.certificates import ensure_ca, find_ca_directory

        return str(ensure_ca(find_ca_directory(os.environ))[0])

    # -- what went over the wire, also after it has stopped

    @property
    def traffic(self) -> Traffic:
        """All that its connections carried since it was started."""
        if self._traffic is None:
            raise RuntimeError("the broker has not been started")
        return self._traffic

    def frames(self, selection: str = "") -> list[Frame]:
        """Return the frames that went over the wire, those of both sides, in order.

        `selection` is "command=ACK topic=orders direction=to-broker", as for a fault, or a filter expression
        as of `pwire decode`. Raises SettingsError, FilterError.
        """
        return self.traffic.list_frames(selection)

    def wait_for(self, selection: str, timeout: float = 10.0, count: int = 1) -> Frame:
        """Wait until `count` frames that `selection` chooses have gone over the wire since the start.

        Returns the last of them. Raises RequestTimeout after `timeout` seconds, SettingsError, FilterError.
        """
        return self.traffic.wait_for(selection, timeout, count)

    def findings(self) -> list[Finding]:
        """Return what `pwire doctor` finds in the traffic so far."""
        return self.traffic.examine()

    # -- what can be done to it

    ask = _blocking(AsyncBroker.ask)
    advance = _blocking(AsyncBroker.advance)
    housekeeping = _blocking(AsyncBroker.housekeeping)
    compact = _blocking(AsyncBroker.compact)
    unload = _blocking(AsyncBroker.unload)
    terminate = _blocking(AsyncBroker.terminate)
    cut = _blocking(AsyncBroker.cut)
    move = _blocking(AsyncBroker.move)
    migrate = _blocking(AsyncBroker.migrate)
    kill_broker = _blocking(AsyncBroker.kill_broker)
    start_broker = _blocking(AsyncBroker.start_broker)
    restart_broker = _blocking(AsyncBroker.restart_broker)
    add_fault = _blocking(AsyncBroker.add_fault)
    faults = _blocking(AsyncBroker.faults)
    wait_for_fault = _blocking(AsyncBroker.wait_for_fault)
    remove_fault = _blocking(AsyncBroker.remove_fault)
    clear_faults = _blocking(AsyncBroker.clear_faults)
    state = _blocking(AsyncBroker.state)


def _new_faults() -> Faults:
    """Return an empty set of faults, to which faults with topics and filters can be added."""
    from pulsarctl_wire.cli.proxy.options import make_test
    from pulsarctl_wire.faults.lanes import Faults

    return Faults(0, make_test)


class _Startup:
    """The start of a broker in its thread: whether it has succeeded, or why not."""

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._error: BaseException | None = None

    def complete(self) -> None:
        self._settled.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._settled.set()

    def wait(self) -> None:
        """Wait until the broker has started; raise the error if it could not."""
        self._settled.wait()
        if self._error is not None:
            raise self._error
