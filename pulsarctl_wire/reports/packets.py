"""Where the packets of frames, or of whole connections, are: in which captures, from which byte on, as SQL.

A window is a part of a capture, and what is copied of it: packets that begin from byte `start` to `stop`
(null: to the end), between the times `since` and `until` (null: any). The packet at byte `place` must be
there, with the time `place_ns`. `total_size` and `command_size` are those of the frame to look for; null: all
packets are copied. `pipeline.files.extract.window` makes a `Window` of each row, by the order of the columns.
"""

from typing import Final

from pulsarctl_wire.reports.sql import literal

PICKED_FRAMES: Final = "picked"
"""The view that `picked_frames` is to be kept as, before `windows` is run."""

WINDOWS: Final = "windows"
"""The view that `windows` or `connections` is to be kept as, before `totals` and `of_file` are run."""

_ENDS: Final = "src_ip, src_port, dst_ip, dst_port"
_AFTER: Final = 1_000_000_000  # ns after a connection's end in which its last packets come
_NONE: Final = "CAST(NULL AS BIGINT)"
_COLUMNS: Final = f"""file, start, stop, {_ENDS}, since, until, place, place_ns,
    total_size, command_size, partial, is_whole, frames"""
_BACK: Final = 8  # where packets are out of order, reading begins so many frames before the wanted one


def condition(where: str) -> str:
    """Return a condition of the user as a part of a query: line breaks end a comment in it."""
    return f"(\n{where}\n)"


def picked_frames(table: str, where: str) -> str:
    """Select the frames with rows in `table` that meet a condition, and where the frames around each are.

    `file1` and `offset1` are the place of the previous frame in the same direction, `file2` and `offset2` of
    the one before that; without such a frame, of the connection's first packet. `joins`: the previous frame
    ends where this one begins; `goes_back`: and it may have begun in an earlier packet than it ends in.
    `goes_on`: the next frame begins where this one ends. `is_mixed`: packets are out of order here.
    `is_alone`: this one can surely be decoded from its packet alone, as it is a complete frame of a known
    command (see `wire/framing/resync.py`), and does not follow the rest of a longer frame in that packet.
    """
    back = f"OVER (PARTITION BY connection, to_broker, file ORDER BY stream_offset ROWS {_BACK} PRECEDING)"
    return f"""
        WITH chosen AS (SELECT DISTINCT connection, to_broker, stream_offset FROM {table}
            WHERE {condition(where)}),
        near AS (
            SELECT connection, to_broker, stream_offset, file, packet_offset, time_ns, {_ENDS}, total_size,
                command_size, partial, start_time_ns,
                reported_ns IS NOT NULL OR coalesce(start_time_ns < lag(time_ns) OVER w, false) AS is_mixed,
                coalesce(lag(stream_offset + total_size + 4) OVER w = stream_offset, false) AS joins,
                lag(file) OVER w AS file1_, lag(packet_offset) OVER w AS offset1_,
                lag(time_ns) OVER w AS time1, lag(start_time_ns) OVER w AS start1,
                lag(start_time_ns IS NOT NULL OR time_ns IS NULL) OVER w AS in_several1,
                lag(file, 2) OVER w AS file2_, lag(packet_offset, 2) OVER w AS offset2_,
                lag(file, {_BACK}) OVER w AS file_back,
                min(packet_offset) {back} AS offset_back, max(packet_offset) {back} AS offset_late,
                lead(stream_offset) OVER w = stream_offset + total_size + 4 AS goes_on,
                lead(file) OVER w AS file_after, lead(packet_offset) OVER w AS offset_after,
                start_time_ns IS NULL AND time_ns IS NOT NULL AND NOT partial
                    AND command NOT LIKE 'UNKNOWN%' AS is_plain
            FROM all_frames WHERE connection IN (SELECT connection FROM chosen)
            WINDOW w AS (PARTITION BY connection, to_broker ORDER BY stream_offset)
        )
        SELECT near.*,
            coalesce(file1_, began.file, near.file) AS file1,
            coalesce(offset1_, began.packet_offset, 0) AS offset1,
            coalesce(file2_, began.file, near.file) AS file2,
            coalesce(offset2_, began.packet_offset, 0) AS offset2,
            joins AND in_several1 AS goes_back,
            is_plain AND NOT (joins AND in_several1 AND file1_ = near.file AND offset1_ = near.packet_offset)
                AS is_alone
        FROM near JOIN chosen ON near.connection = chosen.connection AND near.to_broker = chosen.to_broker
            AND near.stream_offset = chosen.stream_offset
        LEFT JOIN all_connections began ON near.connection = began.connection"""


def windows() -> str:
    """Select the windows of the frames in `PICKED_FRAMES`, with the frame before each if that may be needed.

    If a part of a frame is in earlier captures (`is_parted`), those have windows for it, too; of all windows
    of such a frame every packet is copied, without a search. If packets are out of order, windows are wide.
    """
    own = f"""
        SELECT file, place, place_ns, {_ENDS}, {_NONE} AS since, {_NONE} AS until, false AS is_whole,
            CASE WHEN NOT is_parted THEN total_size END AS total_size, command_size, partial, 1 AS frames,
            CASE WHEN is_mixed THEN CASE WHEN file_back = file THEN offset_back ELSE 0 END
                WHEN is_alone THEN place
                WHEN is_parted THEN 0
                WHEN goes_back THEN least(offset2, place)
                WHEN file1 = file THEN least(offset1, place)
                ELSE 0 END AS start,
            CASE WHEN is_mixed THEN offset_late
                WHEN goes_on AND NOT joins AND file_after = file THEN greatest(offset_after, place)
                ELSE place END AS stop
        FROM (SELECT *, packet_offset AS place, time_ns AS place_ns, NOT is_alone AND
            (file1 <> file OR (goes_back AND file2 <> file)) AS is_parted FROM {PICKED_FRAMES})"""
    earlier_start = "CASE WHEN NOT goes_back THEN offset1 WHEN file2 = file1 THEN offset2 ELSE 0 END"
    return f"""
        SELECT {_COLUMNS} FROM ({own})
        UNION ALL {_part("file1", earlier_start)} AND file1 <> file
        UNION ALL {_part("file2", "offset2")} AND goes_back AND file2 <> file1
        UNION ALL {_opening()}"""


def _part(file: str, start: str) -> str:
    """Select the windows from `start` in an earlier file to the end of that file."""
    return f"""
        SELECT {file}, {start}, {_NONE}, {_ENDS},
            CASE WHEN joins THEN coalesce(start1, time1) ELSE coalesce(start_time_ns, time_ns) END, time_ns,
            {_NONE}, {_NONE}, {_NONE}, {_NONE}, false, false, 0
        FROM {PICKED_FRAMES} WHERE NOT is_alone"""


def _opening() -> str:
    """Select the SYNs of connections whose addresses others have too, or whose packets are out of order."""
    return f"""
        SELECT file, packet_offset, packet_offset, client_ip, client_port, server_ip, server_port,
            {_NONE}, {_NONE}, packet_offset, time_ns, {_NONE}, {_NONE}, false, true, 0
        FROM (SELECT *, count(*) OVER (PARTITION BY client_ip, client_port, server_ip, server_port) AS uses
            FROM all_connections WHERE connection IN (SELECT connection FROM {PICKED_FRAMES}))
        WHERE NOT joined AND (uses > 1 OR
            connection IN (SELECT connection FROM {PICKED_FRAMES} WHERE is_mixed))"""


def connections(table: str, where: str) -> str:
    """Select the windows of all packets of the connections with rows in `table` that meet a condition."""
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
        spans AS (SELECT connection, file, packet_offset, last_ns,
            lead(time_ns) OVER (PARTITION BY cluster, client_ip, client_port, server_ip, server_port
                ORDER BY time_ns) AS next_ns FROM all_connections),
        placed AS (
            SELECT connection, file, min(packet_offset) AS place, {first}, sum(frames) AS frames FROM rows_of
            GROUP BY connection, file
        )
        SELECT placed.file AS file,
            CASE WHEN spans.file = placed.file THEN least(packet_offset, place) ELSE 0 END AS start,
            {_NONE} AS stop, {_ENDS}, since,
            greatest(until, least(coalesce(last_ns, until) + {_AFTER}, coalesce(next_ns - 1, {2**62})))
                AS until,
            place, time_ns AS place_ns, {_NONE} AS total_size, {_NONE} AS command_size, false AS partial,
            true AS is_whole, frames
        FROM placed JOIN lives ON placed.connection = lives.connection
        LEFT JOIN spans ON placed.connection = spans.connection"""


def totals() -> str:
    """Return the captures with windows, and how many frames depend on each, the earliest ones first."""
    return f"SELECT file, sum(frames) AS frames FROM {WINDOWS} GROUP BY file ORDER BY min(place_ns), file"


def of_file(file: str) -> str:
    """Return the windows of a capture, in their order."""
    return f"SELECT * FROM {WINDOWS} WHERE file = {literal(file)} ORDER BY start, place"


def counted(table: str, where: str) -> str:
    """Return how many connections have rows in a table that meet a condition."""
    return f"SELECT count(DISTINCT connection) AS connections FROM {table} WHERE {condition(where)}"
