"""pwire's own client in a test's event loop, as the client of `pwire conform client`."""

from __future__ import annotations

import asyncio

from pulsarctl_wire.conformance.clients.stage import PRODUCE, Run, Stage
from pulsarctl_wire.errors import WireError
from pulsarctl_wire.net.session.client import Client
from pulsarctl_wire.net.session.producer import Publisher
from pulsarctl_wire.net.session.receive_queue import ConsumerOptions
from pulsarctl_wire.net.session.send_queue import ProducerOptions, SendResult
from pulsarctl_wire.net.session.subscription import Subscription
from pulsarctl_wire.net.settings import Settings, parse_url
from pulsarctl_wire.wire.entry import Outgoing
from pulsarctl_wire.wire.PulsarApi_pb2 import CommandSubscribe

SECONDS = {"timeout": 1.0, "keepalive": 0.3}


class InnerRun(Run):
    """A run as a task."""

    task: asyncio.Task[None]

    async def kill(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class InnerStage(Stage):
    """A stage for pwire's own client. It takes less time to settle than a process may."""

    def __init__(self) -> None:
        super().__init__(SECONDS)

    async def settle(self, seconds: float = 0.5) -> None:
        await super().settle(seconds / 10)

    async def start(self, mode: str, url: str, number: int) -> Run:
        run = InnerRun(self)
        run.task = asyncio.create_task(self._run(run, mode, url, number))
        return run

    async def _run(self, run: Run, mode: str, url: str, number: int) -> None:
        timeout = self.seconds["timeout"]
        settings = Settings(
            url=parse_url(url),
            timeout=timeout,
            connect_timeout=timeout,
            keep_alive=self.seconds["keepalive"],
        )
        try:
            async with Client(settings, warn=self.note) as client:
                code = await (self._produce if mode == PRODUCE else self._consume)(run, client, number)
        except WireError as error:
            self.note(str(error))
            code = 1
        run.end(code)

    async def _produce(self, run: Run, client: Client, number: int) -> int:
        results: list[SendResult] = []
        options = ProducerOptions(batch_count=1, send_timeout=self.seconds["timeout"])
        producer = Publisher(client, self.topic, options, results.append)
        await producer.open()
        for index in range(number):
            await producer.send(Outgoing(b"%d" % index))
        await producer.flush()
        await producer.close()
        failures = [result for result in results if result.error is not None]
        return 1 if failures or len(results) < number else 0

    async def _consume(self, run: Run, client: Client, number: int) -> int:
        subscription = Subscription(
            client, [self.topic], ConsumerOptions("s", initial=CommandSubscribe.Earliest)
        )
        await subscription.open()
        count = 0
        while count < number:
            delivery = await subscription.take()
            if delivery is None:
                return 1
            for message in delivery.messages:
                run.add_line((message.payload or b"").decode())
                count += 1
            delivery.consumer.ack(delivery)
            delivery.consumer.release_permits(delivery)
        await subscription.close()
        return 0
