"""What a capture held, in a few lines: the closing summary on stderr."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from pulsarctl_wire.capture.sources import Decoder
from pulsarctl_wire.cli.console import Paint, count_of, human_bytes
from pulsarctl_wire.wire.commands import BODIES, command_name
from pulsarctl_wire.wire.ending import WithoutData, without_data_in_words
from pulsarctl_wire.wire.frame import Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.numbers import Numbers

_KINDS: Final = 1_000
"""Types of commands that are counted each; unknown ones beyond are counted together."""

_UNKNOWN_SHOWN: Final = 10


class Summary:
    """Counts events; several can be added up."""

    def __init__(self) -> None:
        self.commands: Counter[int] = Counter()
        self.checksums: Counter[str | None] = Counter()
        self.protocols: Counter[str] = Counter()
        self.other_traffic: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        """Of bytes, partial, sent, delivered, malformed, malformed_bytes, gaps, gap_bytes, unknown, unopened.

        `unknown` are frames of unknown types that are not counted each, `chosen` events that were selected.
        """
        self.packets = 0
        self.connections = 0
        self.cut_packets = 0
        self.dropped_packets: int | None = 0
        """By the kernel while capturing; None where the system does not tell."""
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.without_data = WithoutData()
        self._with_frames = 0  # connections
        self._seen = Numbers()

    def add(self, events: list[Event]) -> None:
        """Count `events`. All frames pass here, so that it does little for each."""
        commands, totals = self.commands, self.totals
        index = -1
        size = 0
        for event in events:
            if event.__class__ is not Frame:
                self._add_damage(event)
                continue
            if event.connection.index != index:
                index = event.connection.index
                self._with_frames += self._seen.add(index)
            if event.partial:
                totals["partial"] += 1
                continue
            size += len(event.raw)
            number = event.type
            if 0 <= number < _KINDS:
                commands[number] += 1
            else:
                totals["unknown"] += 1
            if number == 6 or number == 9:  # SEND, MESSAGE
                self.checksums[event.checksum] += 1
                metadata = event.metadata
                if metadata is not None:
                    count = metadata.num_messages_in_batch
                    if metadata.num_chunks_from_msg > 1:
                        count = int(event.joined is not None)
                    totals["sent" if number == 6 else "delivered"] += count
        totals["bytes"] += size
        self._span([event.time_ns for event in events])

    def _span(self, times: list[int | None]) -> None:
        known = [time for time in (self.first_ns, self.last_ns, *times) if time is not None]
        self.first_ns, self.last_ns = min(known, default=None), max(known, default=None)

    def _add_damage(self, event: Event) -> None:
        if isinstance(event, Gap):
            self.totals["gaps"] += 1
            self.totals["gap_bytes"] += event.size
        elif isinstance(event, Malformed):
            self.totals["malformed"] += 1
            self.totals["malformed_bytes"] += event.size
            if event.protocol:
                self.protocols[event.protocol] += 1

    def finish(self, decoder: Decoder, unopened: int) -> None:
        """Take over what the decoder has counted itself; `unopened` entries were left so."""
        self.totals["unopened"] = unopened
        self.packets = decoder.packets
        self.cut_packets = decoder.cut_packets
        self.dropped_packets = decoder.dropped_packets
        self.connections = decoder.reassembler.connections
        self.other_traffic = decoder.reassembler.other_traffic

    def merge(self, other: "Summary") -> None:
        """Add the counts of `other`, made of other connections of the same packets."""
        self.commands.update(other.commands)
        self.checksums.update(other.checksums)
        self.protocols.update(other.protocols)
        self.totals.update(other.totals)
        self._span([other.first_ns, other.last_ns])
        self._with_frames += other._with_frames
        self.connections += other.connections
        self.other_traffic.update(other.other_traffic)
        self.without_data.merge(other.without_data)

    @property
    def frames(self) -> int:
        """Frames that were captured whole."""
        return sum(self.commands.values()) + self.totals["unknown"]

    def is_empty(self) -> bool:
        """Whether nothing at all was read."""
        return not (self.packets or self.connections)

    def lines(self, paint: Paint) -> Iterator[str]:
        """The summary as lines."""
        totals = self.totals
        span = ""
        if self.first_ns is not None and self.last_ns is not None and self.commands:
            span = f" in {(self.last_ns - self.first_ns) / 1e9:.3f} s"
        others = self.connections - self._with_frames
        other = f" (and {others} without Pulsar frames{_named(self.other_traffic)})" if others else ""
        packets = f"{count_of(self.packets, 'packet')}, " if self.packets else ""
        frames = self.frames
        yield paint(
            "bold",
            f"{packets}{count_of(self._with_frames, 'connection')}{other}, "
            f"{count_of(frames, 'frame')}{span}, {human_bytes(totals['bytes'])}",
        )
        if self.commands:
            ranked = sorted(self.commands.items(), key=lambda item: (-item[1], command_name(item[0])))
            named = [f"{command_name(number)} {count}" for number, count in ranked if number in BODIES]
            unknown = [(number, count) for number, count in ranked if number not in BODIES]
            named += [f"{command_name(number)} {count}" for number, count in unknown[:_UNKNOWN_SHOWN]]
            if rest := sum(count for _, count in unknown[_UNKNOWN_SHOWN:]) + totals["unknown"]:
                named.append(f"other unknown commands {rest}")
            yield "  commands   " + ", ".join(named)
        if totals["sent"] or totals["delivered"]:
            yield f"  messages   {totals['sent']} sent, {totals['delivered']} delivered"
        if self.checksums:
            invalid = self.checksums["invalid"]
            yield (
                f"  checksums  {self.checksums['valid']} valid, "
                + paint("red" if invalid else "", f"{invalid} invalid")
                + f", {self.checksums['absent']} absent"
            )
        if totals["unopened"]:
            yield f"  unopened   {count_of(totals['unopened'], 'entry', 'entries')}: see --payload-ratio"
        without_data = without_data_in_words(self.without_data.records())
        if without_data:
            yield f"  no data    {paint('yellow', without_data)}"
        damage = ", ".join(self._damage())
        if damage:
            yield f"  damage     {paint('yellow', damage)}"

    def _damage(self) -> Iterator[str]:
        totals = self.totals
        if totals["malformed"]:
            size = totals["malformed_bytes"]
            yield f"{totals['malformed']} malformed ({size} bytes{_named(self.protocols)})"
        if totals["gaps"]:
            yield f"{count_of(totals['gaps'], 'gap')} ({totals['gap_bytes']} bytes)"
        if totals["partial"]:
            yield count_of(totals["partial"], "partial frame")
        if self.cut_packets:
            yield f"{count_of(self.cut_packets, 'packet')} cut by the snap length"
        if self.dropped_packets:
            yield f"{count_of(self.dropped_packets, 'packet')} dropped by the kernel"
        elif self.dropped_packets is None:
            yield "packets dropped by the kernel are not counted on this system"


def _named(counts: Counter[str]) -> str:
    return f": {', '.join(f'{name} {count}' for name, count in counts.most_common())}" if counts else ""
