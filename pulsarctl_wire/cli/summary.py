"""What a capture held, in a few lines: the closing summary on stderr."""

from collections import Counter
from collections.abc import Iterator

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.cli.console import Paint, human_bytes
from pulsarctl_wire.wire.commands import PAYLOAD_TYPES, command_name
from pulsarctl_wire.wire.frame import Event, Frame, Gap


class Summary:
    """Counts events. `add` is called for each of them, so it does little."""

    def __init__(self) -> None:
        self.commands: dict[int, int] = {}
        self.partial = 0
        self.checksums: dict[str | None, int] = {}
        self.sent = 0
        self.delivered = 0
        self.malformed = 0
        self.malformed_bytes = 0
        self.protocols: Counter[str] = Counter()
        self.gaps = 0
        self.gap_bytes = 0
        self.frames = 0
        self.bytes = 0
        self.pulsar: set[int] = set()
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._connection = -1

    def add(self, event: Event) -> None:
        """Count an event."""
        if event.__class__ is not Frame:
            self._add_damage(event)
            return
        time_ns = event.time_ns
        if time_ns is not None:
            if self.first_ns is None:
                self.first_ns = time_ns
            self.last_ns = time_ns
        index = event.connection.index
        if index != self._connection:
            self._connection = index
            self.pulsar.add(index)
        if event.partial:
            self.partial += 1
            return
        self.bytes += len(event.raw)
        number = event.type
        self.commands[number] = self.commands.get(number, 0) + 1
        if number in PAYLOAD_TYPES:
            self.checksums[event.checksum] = self.checksums.get(event.checksum, 0) + 1
            metadata = event.metadata
            if metadata is None:
                return
            count = metadata.num_messages_in_batch
            if metadata.num_chunks_from_msg > 1:
                count = int(event.joined is not None)
            if number == 6:
                self.sent += count
            else:
                self.delivered += count

    def _add_damage(self, event: Event) -> None:
        if isinstance(event, Gap):
            self.gaps += 1
            self.gap_bytes += event.size
        elif not isinstance(event, Frame):
            self.malformed += 1
            self.malformed_bytes += event.size
            if event.protocol:
                self.protocols[event.protocol] += 1

    def lines(self, decoder: Decoder, paint: Paint) -> Iterator[str]:
        """The summary as lines."""
        total = sum(self.commands.values())
        span = (
            ""
            if self.first_ns is None or self.last_ns is None
            else f" in {_seconds(self.last_ns - self.first_ns)}"
        )
        connections = f"{len(self.pulsar)} connections" if len(self.pulsar) != 1 else "1 connection"
        others = decoder.reassembler.connections - len(self.pulsar)
        other = (
            f" (and {others} without Pulsar frames{_named(decoder.reassembler.other_traffic)})"
            if others
            else ""
        )
        packets = f"{decoder.packets} packets, " if decoder.packets else ""
        yield paint("bold", f"{packets}{connections}{other}, {total} frames{span}, {human_bytes(self.bytes)}")
        if self.commands:
            ranked = sorted(self.commands.items(), key=lambda item: (-item[1], command_name(item[0])))
            yield "  commands   " + ", ".join(f"{command_name(number)} {count}" for number, count in ranked)
        if self.sent or self.delivered:
            yield f"  messages   {self.sent} sent, {self.delivered} delivered"
        if self.checksums:
            invalid = self.checksums.get("invalid", 0)
            yield (
                f"  checksums  {self.checksums.get('valid', 0)} valid, "
                + paint("red" if invalid else "", f"{invalid} invalid")
                + f", {self.checksums.get('absent', 0)} absent"
            )
        damage = [
            f"{self.malformed} malformed ({self.malformed_bytes} bytes{_named(self.protocols)})"
            if self.malformed
            else "",
            f"{self.gaps} gaps ({self.gap_bytes} bytes)" if self.gaps else "",
            f"{self.partial} partial frames" if self.partial else "",
            f"{decoder.cut_packets} packets cut by the snap length" if decoder.cut_packets else "",
        ]
        if any(damage):
            yield "  damage     " + paint("yellow", ", ".join(filter(None, damage)))


def _named(counts: Counter[str]) -> str:
    return f": {', '.join(f'{name} {count}' for name, count in counts.most_common())}" if counts else ""


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3f} s"
