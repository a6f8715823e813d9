"""`pwire sanitize`: writes a capture with other names, payloads and addresses, which can be shared."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import SOURCES, ReadOptions
from pulsarctl_wire.cli.signature import flag, group, option, several
from pulsarctl_wire.render.text import count_of

if TYPE_CHECKING:
    from pulsarctl_wire.sanitize.check import Originals
    from pulsarctl_wire.sanitize.names import Kind
    from pulsarctl_wire.sanitize.sanitizer import Sanitizer

_MAX_LEFTOVERS: Final = 10
"""Maximum number of leftover texts that are named."""


@dataclass(frozen=True, kw_only=True)
class SanitizeOptions:
    """The command line of `sanitize`; docs/cli.md describes its options."""

    sources: list[str] = SOURCES()
    write: str = option("-w --write FILE", "The pcapng file to write; - is stdout.", default=...)
    keep: list[str] = several(
        "--keep KINDS",
        "What stays as it is: topics, subscriptions, names, keys, properties, payloads, schemas, addresses, "
        "errors, credentials, versions; with commas.",
        autocompletion=completion.kept_kinds,
    )
    map: str | None = option(
        "--map FILE",
        "Write what was replaced by what, without payloads and credentials, as JSON lines. Whoever has it "
        "can undo that.",
    )
    seed: str | None = option(
        "--seed TEXT", "Replace in the same way as other runs with this seed; keep it secret."
    )
    check: bool = flag(
        "--check", "Search the output for what was replaced; exit code 12 if something is left."
    )
    read: ReadOptions = group(ReadOptions, "How to read")


def sanitize(options: SanitizeOptions) -> int:
    """Replace names, payloads and addresses in captures, so that they may leave the house."""
    keep = _parse_kinds(options.keep)
    if options.check and options.write == "-":
        console.fail("sanitize: --check reads the output again: name a file with --write")
    from pulsarctl_wire.cli.capture.reading import find_captures

    sources = find_captures(options.sources)
    if options.map == "-":
        console.fail("sanitize: --map -: stdout is not for secrets; name a file")
    for name, path in (("--write", options.write), ("--map", options.map)):
        if path is not None:
            console.refuse_source(name, path, [*sources, *options.read.keylogs])
    if options.map is not None and _is_same_file(options.map, options.write):
        console.fail(f"sanitize: --map {options.map}: that is the file of --write; name another file")
    with console.errors_reported(), ExitStack() as stack:
        return _Job(options, sources, keep, stack).run()


def _is_same_file(one: str, other: str) -> bool:
    """Return whether two paths lead to one file, which need not exist yet."""
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _parse_kinds(texts: list[str]) -> frozenset[Kind]:
    """Return the kinds that `--keep` names; another name ends the command."""
    from pulsarctl_wire.sanitize.names import Kind

    kinds = set()
    for name in (name.strip().lower() for text in texts for name in text.split(",")):
        if name not in list(Kind):
            console.fail(f"sanitize: --keep {name}: use some of {', '.join(Kind)}")
        kinds.add(Kind(name))
    return frozenset(kinds)


class _Job:
    """One run."""

    def __init__(
        self, options: SanitizeOptions, sources: list[str], keep: frozenset[Kind], stack: ExitStack
    ) -> None:
        from pulsarctl_wire.sanitize.check import Originals

        self.options = options
        self.sources = sources
        self.keep = keep
        self.stack = stack
        self.originals = Originals()
        self.map_file = None if options.map is None else self._create_map(options.map)
        self.replaced = 0  # different texts

    def run(self) -> int:
        """Write the capture; returns the exit code."""
        from pulsarctl_wire.capture.secrets import may_have_secrets
        from pulsarctl_wire.capture.sources import collect_rarely
        from pulsarctl_wire.sanitize.names import Pseudonyms
        from pulsarctl_wire.sanitize.sanitizer import Sanitizer

        collect_rarely()
        options = self.options
        self.sources = [self._prepare(source) for source in self.sources]
        secret = os.urandom(32) if options.seed is None else options.seed.encode("utf-8", "surrogateescape")
        stream = self._create(options.write)
        sanitizer = Sanitizer(
            stream,
            Pseudonyms(secret, self.keep, self._note),
            options.read.reading,
            opens_tls=bool(options.read.keylogs) or any(map(may_have_secrets, self.sources)),
        )
        code = self._read(sanitizer)
        if sanitizer.count == 0:
            if not code:
                text = "sanitize: there are no packets; it reads captures of packets"
                console.fail(text, console.EXIT_SOURCE)
            return code
        stream.flush()
        if self.map_file is not None:
            self.map_file.flush()
        self._say(sanitizer)
        return (self._check(self.originals) if options.check else 0) or code

    def _prepare(self, source: str) -> str:
        """Check that a source can be opened; return its path. Stdin is copied to a file, to be read twice."""
        from pulsarctl_wire.capture.sources import open_source

        if source != "-":
            open_source(source).stream.close()
            return source
        from pulsarctl_wire.cli.capture.reading import spool_stdin

        return spool_stdin(self.stack)

    def _read(self, sanitizer: Sanitizer) -> int:
        """Read all sources; returns the exit code for what is wrong with them."""
        from pulsarctl_wire.cli.capture.reading import Sources

        sources = Sources(self.sources, self.stack, bar=console.is_terminal(sys.stderr))
        try:
            for events in sources.read(sanitizer.decoder):
                sanitizer.take(events)
        except KeyboardInterrupt:
            sources.code = console.EXIT_INTERRUPTED
        sanitizer.finish()
        return sources.code

    def _note(self, kind: Kind, text: bytes, replacement: bytes) -> None:
        """Note what replaces a text; payloads and credentials are not written to the map."""
        if not self.originals.add(kind, text, replacement):
            return
        self.replaced += 1
        if self.map_file is not None and kind not in ("payloads", "credentials"):
            from pulsarctl_wire.render.jsonl import json_line

            texts = (data.decode("utf-8", "backslashreplace") for data in (text, replacement))
            line = dict(zip(("kind", "text", "replacement"), (kind.value, *texts), strict=True))
            self.map_file.write(json_line(line))

    # -- output

    def _create(self, path: str) -> BinaryIO:
        if path == "-":
            return sys.stdout.buffer
        try:
            return self.stack.enter_context(open(path, "wb"))
        except OSError as error:
            console.fail(f"--write {path}: {error.strerror}", console.EXIT_OUTPUT)

    def _create_map(self, path: str) -> BinaryIO:
        """Open the map, which only its owner may read."""
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
            os.fchmod(descriptor, 0o600)
            return self.stack.enter_context(open(descriptor, "wb"))
        except OSError as error:
            console.fail(f"--map {path}: {error.strerror}", console.EXIT_OUTPUT)

    def _say(self, sanitizer: Sanitizer) -> None:
        """Print what was written, what was not replaced, and what could not be preserved."""
        options, payloads = self.options, sanitizer.payloads
        target = "stdout" if options.write == "-" else options.write
        packets, texts = count_of(sanitizer.count, "packet"), count_of(self.replaced, "text")
        console.warn(f"{packets} written to {target}; {texts} replaced")
        for name in sanitizer.decoder.without_packets:
            console.warn(f"{name}: left out, as it holds no packets")
        if self.keep:
            console.warn(f"not replaced: {', '.join(sorted(self.keep))}")
        if sanitizer.blanked:
            console.warn(
                f"{count_of(sanitizer.blanked, 'packet')} without TCP: only headers are left of them"
            )
        if sanitizer.cut_short:
            text = "their frames were incomplete for too long: they are written as cut, or as noise"
            console.warn(f"{count_of(sanitizer.cut_short, 'packet')}: {text}")
        if payloads.unfit:
            text = "nothing else compresses to the same size: they do not decompress any more"
            console.warn(f"{count_of(payloads.unfit, 'compressed payload')}: {text}")
        if payloads.unkept:
            text = "not kept, as they have keys or properties (--keep keys,properties)"
            console.warn(f"{count_of(payloads.unkept, 'compressed batch', 'compressed batches')}: {text}")
        if options.map is not None:
            console.warn(f"{options.map} is secret: whoever has it can undo what is in it")

    def _check(self, originals: Originals) -> int:
        """Search the output for what was replaced; returns the exit code."""
        from pulsarctl_wire.sanitize.check import check_output

        search = originals.make_search()
        places: dict[bytes, str] = {}
        count = 0
        with open(self.options.write, "rb") as stream:
            for leftover in check_output(stream, search):
                count += 1
                if leftover.text not in places and len(places) < _MAX_LEFTOVERS:
                    text = leftover.text.decode("utf-8", "backslashreplace")
                    places[leftover.text] = f"packet {leftover.packet} has {text!r} ({leftover.kind.value})"
        for place in places.values():
            console.warn(f"check: {place}")
        if originals.unchecked:
            console.warn(f"check: {count_of(originals.unchecked, 'text')} not searched: too many")
        result = f"left in {count_of(count, 'place')}" if count else "none is left"
        console.warn(f"check: {count_of(search.count, 'text')} searched, {result}")
        return console.EXIT_LEFT if count else 0
