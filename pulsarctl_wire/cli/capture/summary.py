"""The summary of a capture that `decode` prints on stderr at the end."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pulsarctl_wire.capture.tls.counts import TlsCounts
from pulsarctl_wire.render.text import Paint, copies_in_words, count_of, human_bytes, skipped_in_words
from pulsarctl_wire.wire.commands import BODIES, command_name
from pulsarctl_wire.wire.frame import Event, Frame, HttpMessage, Malformed
from pulsarctl_wire.wire.numbers import Numbers
from pulsarctl_wire.wire.session.counts import damage_of, messages_in
from pulsarctl_wire.wire.session.ending import EndedConnection, WithoutData, without_data_in_words

_KINDS: Final = 1_000
"""Command types below this are counted separately, all others together."""

_MAX_UNKNOWN: Final = 10  # unknown commands that are listed


class Summary:
    """Counts events. Summaries can be merged."""

    def __init__(self) -> None:
        self.commands: Counter[int] = Counter()
        self.checksums: Counter[str | None] = Counter()
        self.protocols: Counter[str] = Counter()
        self.other_traffic: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        """Bytes, partial, sent, delivered, malformed, malformed_bytes, gaps, gap_bytes, unopened, and others.

        `unknown` counts frames whose types are too high to count separately, `chosen` the selected events.
        """
        self.forms: list[str] = []
        """The forms in which texts showed the traffic."""
        self.packets = 0
        self.connections = 0
        self.cut_packets = 0
        self.skipped: Mapping[str, int] = {}
        """Packets without TCP, by reason."""
        self.dropped_packets: int | None = 0
        """Dropped by the kernel while capturing; None if the system does not count them."""
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.copies = 0
        """Packets that were captured again."""
        self.longer_copies = 0
        """Connections whose copies go on after the connection itself."""
        self.without_data = WithoutData()
        self.tls = TlsCounts()
        self.secrets = 0
        """The number of TLS secrets that are known."""
        self._connection_numbers = Numbers()

    def add(self, events: list[Event]) -> None:
        """Count `events`. This runs for every frame, so the loop is kept cheap."""
        commands, totals = self.commands, self.totals
        index = -1
        size = 0
        for event in events:
            if event.__class__ is not Frame:
                self._add_damage(event)
                continue
            if event.connection.index != index:
                index = event.connection.index
                self._connection_numbers.add(index)
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
                totals["sent" if number == 6 else "delivered"] += messages_in(event)
        totals["bytes"] += size
        self._extend_span([event.time_ns for event in events if event.__class__ is not HttpMessage])

    def _extend_span(self, times: list[int | None]) -> None:
        all_times = [time for time in (self.first_ns, self.last_ns, *times) if time is not None]
        self.first_ns, self.last_ns = min(all_times, default=None), max(all_times, default=None)

    def _add_damage(self, event: Event) -> None:
        self.totals.update(damage_of(event))
        if isinstance(event, Malformed) and event.protocol:
            self.protocols[event.protocol] += 1

    def add_ended_connection(self, ending: EndedConnection) -> None:
        """Count a connection that has ended."""
        self.without_data.add(ending)
        self.tls.add(ending)

    def finish(self, decoder: Any, unopened: int) -> None:
        """Copy the counts of a `Decoder` or `CountJob`; `unopened` entries were not opened."""
        self.totals["unopened"] = unopened
        self.forms = decoder.forms
        self.secrets = decoder.secrets.keylog.secrets if hasattr(decoder, "secrets") else 0
        self.packets = decoder.packets
        self.cut_packets = decoder.cut_packets
        self.skipped = decoder.skipped
        self.dropped_packets = decoder.dropped_packets
        copies = decoder.reassembler.copies
        self.copies, self.longer_copies = copies.total, copies.longer
        self.connections = decoder.reassembler.connections
        self.other_traffic = decoder.reassembler.other_traffic

    def rename(self, numbers: Mapping[int, int], names: Mapping[str, str | None]) -> None:
        """Renumber the connections that `numbers` contains. `names` concerns nothing that is counted here."""
        self._connection_numbers.rename(numbers)

    def merge(self, other: "Summary") -> None:
        """Add the counts of `other`."""
        self.commands.update(other.commands)
        self.checksums.update(other.checksums)
        self.protocols.update(other.protocols)
        self.totals.update(other.totals)
        self._extend_span([other.first_ns, other.last_ns])
        self._connection_numbers.merge(other._connection_numbers)
        self.without_data.merge(other.without_data)
        self.tls.merge(other.tls)

    @property
    def frames(self) -> int:
        """The number of frames that were captured completely."""
        return sum(self.commands.values()) + self.totals["unknown"]

    def is_empty(self) -> bool:
        """Return whether nothing was read."""
        return not (self.packets or self.connections)

    def lines(self, paint: Paint) -> Iterator[str]:
        """Format the summary as lines."""
        totals = self.totals
        span = ""
        if self.first_ns is not None and self.last_ns is not None and self.commands:
            span = f" in {(self.last_ns - self.first_ns) / 1e9:.3f} s"
        active_count = len(self._connection_numbers)
        rest = self.connections - active_count
        note = f" (and {rest} without Pulsar frames{_list_counts(self.other_traffic)})" if rest else ""
        packets = f"{count_of(self.packets, 'packet')}, " if self.packets else ""
        frames = self.frames
        yield paint(
            "bold",
            f"{packets}{count_of(active_count, 'connection')}{note}, "
            f"{count_of(frames, 'frame')}{span}, {human_bytes(totals['bytes'])}",
        )
        if self.forms:
            yield f"  read as    {', '.join(self.forms)}"
        if self.commands:
            counts = sorted(self.commands.items(), key=lambda item: (-item[1], command_name(item[0])))
            commands = [f"{command_name(number)} {count}" for number, count in counts if number in BODIES]
            unknown = [(number, count) for number, count in counts if number not in BODIES]
            commands += [f"{command_name(number)} {count}" for number, count in unknown[:_MAX_UNKNOWN]]
            if other_count := sum(count for _, count in unknown[_MAX_UNKNOWN:]) + totals["unknown"]:
                commands.append(f"other unknown commands {other_count}")
            yield "  commands   " + ", ".join(commands)
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
        if tls := self.tls.describe(self.secrets):
            yield f"  TLS        {tls}"
        if self.copies:
            text = copies_in_words(self.copies, self.longer_copies)
            yield f"  copies     {paint('yellow' if self.longer_copies else '', text)}"
        if skipped := skipped_in_words(self.skipped):
            yield f"  skipped    {skipped}"
        damage = ", ".join(self._damage())
        if damage:
            yield f"  damage     {paint('yellow', damage)}"

    def _damage(self) -> Iterator[str]:
        totals = self.totals
        if totals["malformed"]:
            size = totals["malformed_bytes"]
            yield f"{totals['malformed']} malformed ({size} bytes{_list_counts(self.protocols)})"
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


def _list_counts(counts: Counter[str]) -> str:
    return f": {', '.join(f'{name} {count}' for name, count in counts.most_common())}" if counts else ""
