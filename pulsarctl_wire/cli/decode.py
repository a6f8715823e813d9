"""`pwire decode`: captured traffic as frames, for people and for jq."""

from contextlib import ExitStack
from enum import Enum
from typing import Annotated

import typer

from pulsarctl_wire.cli import completion, console
from pulsarctl_wire.cli.options import DEFAULT_BUFFER, WIDE, only_interface, payload_ratio, size_of


class Output(str, Enum):
    """How events are shown."""

    line = "line"
    tree = "tree"
    json = "json"
    hex = "hex"


class TimeFormat(str, Enum):
    """How times are shown (line and tree)."""

    utc = "utc"
    local = "local"
    date = "date"
    epoch = "epoch"
    relative = "relative"


SELECT, SHOW, READ = "Which frames", "How to show them", "How to read"


def decode(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            help="pcap or pcapng files (also .gz, .zst), hex dumps, raw frames; - is stdin. "
            "Told apart by content; several continue each other.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", help="Form of the output.", rich_help_panel=SHOW)
    ] = Output.line,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print the closing summary alone.", rich_help_panel=SHOW)
    ] = False,
    filter_: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--filter",
            metavar="EXPR",
            help="An expression over the JSON fields: 'command == \"SEND\" and total_size > 1000'.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Option(
            "--command",
            metavar="NAME",
            help="Commands such as SEND,MESSAGE or 'LOOKUP*'.",
            autocompletion=completion.commands,
            rich_help_panel=SELECT,
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="A topic in any spelling, or a pattern with *.",
            autocompletion=completion.topics,
            rich_help_panel=SELECT,
        ),
    ] = None,
    connection: Annotated[
        list[str] | None,
        typer.Option(
            "--connection",
            metavar="N|ADDRESS",
            help="A connection's number, or part of its addresses.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    time_range: Annotated[
        str | None,
        typer.Option(
            "--time-range",
            metavar="FROM..TO",
            help="ISO 8601, epoch seconds, or +seconds from the first event.",
            rich_help_panel=SELECT,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("-c", "--count", metavar="N", min=1, help="Stop after N.", rich_help_panel=SELECT),
    ] = None,
    first_error: Annotated[
        bool,
        typer.Option(
            "--first-error",
            help="Show the first thing that is wrong (damage, bad checksum, a broker's error) and stop.",
            rich_help_panel=SELECT,
        ),
    ] = False,
    list_connections: Annotated[
        bool,
        typer.Option(
            "--connections",
            help="Show connections, those without frames too, and how each went: not the frames.",
            rich_help_panel=SHOW,
        ),
    ] = False,
    two_pass: Annotated[
        bool,
        typer.Option(
            "-2",
            "--two-pass",
            help="Read twice, so that requests name their answers too.",
            rich_help_panel=READ,
        ),
    ] = False,
    interfaces: Annotated[
        list[str] | None,
        typer.Option(
            "-i", "--interface", metavar="NAME", help="Decode a live interface.", rich_help_panel=READ
        ),
    ] = None,
    capture_filter: Annotated[
        str | None,
        typer.Option(
            "--capture-filter",
            metavar="BPF",
            help="With -i: packets to take, as in 'tcp port 6650'.",
            rich_help_panel=READ,
        ),
    ] = None,
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            metavar="SIZE",
            help="With -i: memory for packets that wait to be decoded.",
            show_default="64MB",
            rich_help_panel=READ,
        ),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="TYPE[:FILE]",
            help="Show payloads by this schema: json, string, avro:user.avsc, protobuf:set.desc:pkg.Message.",
            rich_help_panel=SHOW,
        ),
    ] = None,
    max_frame_size: Annotated[
        int | None,
        typer.Option(
            "--max-frame-size",
            metavar="BYTES",
            min=16,
            help="Largest legal frame, whatever the broker announces.",
            show_default="5 MiB + 10 KiB",
            rich_help_panel=READ,
        ),
    ] = None,
    ratio: Annotated[int | None, payload_ratio(SHOW)] = None,
    write: Annotated[
        str | None,
        typer.Option(
            "-w",
            "--write",
            metavar="FILE",
            help="Write the packets of the shown frames as pcapng.",
            rich_help_panel=SHOW,
        ),
    ] = None,
    time_format: Annotated[
        TimeFormat,
        typer.Option(
            "-t",
            "--time",
            help="Times as UTC or local time of day, UTC date, epoch or relative.",
            rich_help_panel=SHOW,
        ),
    ] = TimeFormat.utc,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Do not redact credentials.", rich_help_panel=SHOW)
    ] = False,
    jobs: Annotated[
        int,
        typer.Option("-j", "--jobs", min=1, max=2, help="Processes for large files.", rich_help_panel=READ),
    ] = 2,
    wide: Annotated[bool, WIDE] = False,
) -> None:
    """Decode captured Pulsar traffic: captures, hex dumps, raw frames, pipes, live interfaces."""
    interface = only_interface(interfaces)
    if not sources and not interface:
        console.fail(
            "decode: name a SOURCE (a file, or - for stdin) or an interface (-i); see pwire decode --help",
            console.EXIT_USAGE,
        )
    if capture_filter is not None and interface is None:
        console.fail("decode: --capture-filter goes with --interface; see --filter", console.EXIT_USAGE)
    if buffer is not None and interface is None:
        console.fail("decode: --buffer goes with --interface", console.EXIT_USAGE)
    if interface and (sources or two_pass):
        console.fail(
            "decode: a live interface goes with no other source, and can be read only once (-2)",
            console.EXIT_USAGE,
        )
    of_frames = {
        "--output tree or hex": output in (Output.tree, Output.hex),
        "--command": command,
        "--topic": topic,
        "--first-error": first_error,
        "--two-pass": two_pass,
        "--schema": schema,
        "--write": write,
    }
    odd = next((name for name, given in of_frames.items() if given), "")
    if list_connections and odd:
        console.fail(
            f"decode: --connections shows no frames, so {odd} does not go with it", console.EXIT_USAGE
        )
    from pulsarctl_wire.cli.job import DecodeJob, Options

    options = Options(
        sources=sources or [],
        output=output.value,
        quiet=quiet,
        expression=filter_,
        commands=command or [],
        topics=topic or [],
        connections=connection or [],
        time_range=time_range,
        count=1 if first_error else count,
        first_error=first_error,
        list_connections=list_connections,
        two_pass=two_pass,
        interface=interface,
        capture_filter=capture_filter,
        buffer=size_of("--buffer", buffer or DEFAULT_BUFFER),
        schema=schema,
        max_frame_size=max_frame_size,
        write=write,
        time_format=time_format.value,
        show_secrets=show_secrets,
        jobs=jobs,
        payload_ratio=ratio,
    )
    with console.errors_said(), ExitStack() as stack:
        code = DecodeJob(options, stack).run()
    raise SystemExit(code)
