"""Where the packets of frames, or of whole connections, are: in which captures, from which byte on, as SQL.

A row is a `pipeline.extract.Window`.
"""

from typing import Final

from pulsarctl_wire.reports.sql import literal

PICKED: Final = "picked"
"""The view that `picked` is to be kept as, before `windows` is run."""

WINDOWS: Final = "windows"
"""The view that `windows` or `connections` is to be kept as, before `totals` and `of_file` are run."""

_ENDS: Final = "src_ip, src_port, dst_ip, dst_port"
_AFTER: Final = 1_000_000_000  # ns after a connection's end in which its last packets come
_NONE: Final = "CAST(NULL AS BIGINT)"
_BACK: Final = 8  # frames before one whose packets were captured out of order, where reading begins


def condition(where: str) -> str:
    """A condition of the user as a part of a query; a comment in it ends with it."""
    return f"(\n{where}\n)"


def picked(table: str, where: str) -> str:
    """The frames with rows in a table that meet a condition, and those around each in its direction.

    Numbers in names count back from the frame. `joins`: the frame before it ends where it begins.
    """
    return f"""
        WITH chosen AS (SELECT DISTINCT connection, to_broker, stream_offset FROM {table}
            WHERE {condition(where)}),
        began AS (SELECT connection, min(file) AS file0, min(packet_offset) AS offset0
            FROM all_connections GROUP BY connection),
        near AS (
            SELECT connection, to_broker, stream_offset, file, packet_offset, time_ns, start_time_ns, {_ENDS},
                total_size, command_size, partial, reported_ns,
                partial OR command LIKE 'UNKNOWN%' AS is_odd,
                coalesce(lag(stream_offset + total_size + 4) OVER w = stream_offset, false) AS joins,
                lag(file) OVER w AS file1, lag(packet_offset) OVER w AS offset1,
                lag(time_ns) OVER w AS time1, lag(start_time_ns) OVER w AS start1,
                lag(file, 2) OVER w AS file2, lag(packet_offset, 2) OVER w AS offset2,
                lag(file, {_BACK}) OVER w AS file_back, lag(packet_offset, {_BACK}) OVER w AS offset_back,
                lead(stream_offset) OVER w = stream_offset + total_size + 4 AS goes_on,
                lead(file) OVER w AS file_after, lead(packet_offset) OVER w AS offset_after
            FROM all_frames WHERE connection IN (SELECT connection FROM chosen)
            WINDOW w AS (PARTITION BY connection, to_broker ORDER BY stream_offset)
        )
        SELECT near.*, began.file0, began.offset0 FROM near
        JOIN chosen ON near.connection = chosen.connection AND near.to_broker = chosen.to_broker
            AND near.stream_offset = chosen.stream_offset
        LEFT JOIN began ON near.connection = began.connection"""


_ALONE: Final = """(start_time_ns IS NULL AND NOT is_odd AND NOT
        (joins AND file1 = file AND offset1 = packet_offset AND start1 IS NOT NULL))"""
"""Whether it is known that a frame can be decoded from its packet alone: the first one in it can, but not an
odd one (see `wire/resync.py`)."""

_START: Final = f"""CASE
    WHEN reported_ns IS NOT NULL THEN CASE WHEN file_back = file THEN offset_back ELSE 0 END
    WHEN {_ALONE} THEN packet_offset
    WHEN coalesce(file1, file0) = file AND NOT (joins AND start1 IS NOT NULL) THEN coalesce(offset1, offset0)
    WHEN file1 = file AND file2 = file THEN offset2
    ELSE 0 END"""
"""From where on a frame's packets are looked for in its file, with those of the frame before, if they may be
needed."""

_STOP: Final = """CASE WHEN goes_on AND NOT joins AND file_after = file AND offset_after > packet_offset
    THEN offset_after ELSE packet_offset END"""
"""Up to where: if no frame joins it before, the one after it shows where it begins."""


def windows() -> str:
    """The windows of the frames in `PICKED`, and of the parts of them in earlier captures."""
    own = f"""SELECT file, {_START} AS start, {_STOP} AS stop, {_ENDS}, {_NONE} AS since, {_NONE} AS until,
        packet_offset AS place, time_ns AS place_ns, total_size, command_size, partial, 1 AS frames
        FROM {PICKED}"""
    first = _earlier("coalesce(file1, file0)", "coalesce(offset1, offset0)")
    return f"""SELECT * FROM ({own}
        UNION ALL {first} AND coalesce(file1, file0) <> file
        UNION ALL {_earlier("file2", "offset2")} AND joins AND start1 IS NOT NULL AND file2 <> file1)"""


def _earlier(file: str, start: str) -> str:
    """The windows from a place in an earlier file to the end of that file."""
    began = "CASE WHEN joins AND file2 = file1 AND start1 IS NOT NULL THEN offset2 ELSE"
    return f"""SELECT {file} AS file, {began} {start} END AS start, {_NONE} AS stop, {_ENDS},
        CASE WHEN joins THEN coalesce(start1, time1) ELSE coalesce(start_time_ns, time_ns) END AS since,
        time_ns AS until, {_NONE} AS place, {_NONE} AS place_ns, total_size, command_size, partial,
        0 AS frames FROM {PICKED} WHERE NOT {_ALONE}"""


def connections(table: str, where: str) -> str:
    """The windows of all packets of the connections with rows in a table that meet a condition."""
    first = ", ".join(f"min_by({name}, packet_offset) AS {name}" for name in ("time_ns", *_ENDS.split(", ")))
    return f"""
        WITH chosen AS (SELECT DISTINCT connection FROM {table} WHERE {condition(where)}),
        rows_of AS (
            SELECT connection, file, packet_offset, time_ns, coalesce(start_time_ns, time_ns) AS start_ns,
                {_ENDS}, 1 AS frames FROM all_frames WHERE connection IN (SELECT connection FROM chosen)
            UNION ALL SELECT connection, file, packet_offset, time_ns, time_ns, client_ip, client_port,
                server_ip, server_port, 0 FROM all_connections
                WHERE connection IN (SELECT connection FROM chosen)
            UNION ALL SELECT connection, file, packet_offset, time_ns, time_ns, {_ENDS}, 0 FROM all_gaps
                WHERE connection IN (SELECT connection FROM chosen) AND time_ns IS NOT NULL
        ),
        lives AS (SELECT connection, min(start_ns) AS since, max(time_ns) AS until FROM rows_of
            GROUP BY connection),
        ends AS (SELECT connection, min(file) AS file0, min(packet_offset) AS offset0,
            max(last_ns) AS last_ns, min(next_ns) AS next_ns FROM (
                SELECT *, lead(time_ns) OVER (PARTITION BY client_ip, client_port, server_ip, server_port
                    ORDER BY time_ns) AS next_ns FROM all_connections
            ) GROUP BY connection),
        placed AS (
            SELECT connection, file, min(packet_offset) AS place, {first}, sum(frames) AS frames FROM rows_of
            GROUP BY connection, file
        )
        SELECT placed.file, CASE WHEN file0 = placed.file THEN least(offset0, place) ELSE 0 END AS start,
            {_NONE} AS stop, {_ENDS}, since,
            greatest(until, least(coalesce(last_ns, until) + {_AFTER}, coalesce(next_ns - 1, {2**62})))
                AS until,
            place, time_ns AS place_ns, {_NONE} AS total_size, {_NONE} AS command_size, false AS partial,
            frames
        FROM placed JOIN lives ON placed.connection = lives.connection
        LEFT JOIN ends ON placed.connection = ends.connection"""


def totals() -> str:
    """The captures with windows, and how many frames depend on each, the earliest ones first."""
    return f"SELECT file, sum(frames) AS frames FROM {WINDOWS} GROUP BY file ORDER BY min(place_ns), file"


def of_file(file: str) -> str:
    """The windows of a capture, in their order."""
    return f"SELECT * FROM {WINDOWS} WHERE file = {literal(file)} ORDER BY start, place"


def counted(table: str, where: str) -> str:
    """How many connections have rows in a table that meet a condition."""
    return f"SELECT count(DISTINCT connection) AS connections FROM {table} WHERE {condition(where)}"
