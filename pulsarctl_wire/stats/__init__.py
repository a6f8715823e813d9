"""Statistics by command, connection, topic, producer, subscription and error.

    events -> counting.py   Stats: counts events in cells, which are flushed to rows (rows.py)
              latencies.py  times in bounded memory, percentiles
              report.py     the result as plain records
              live.py       counters of live traffic (meters.py), read at any moment (snapshot.py)
              overview.py   counters for the screen of `pwire tui`
              permits.py    the permits of each consumer over time

`Stats` counts every frame of a capture, so it does little per frame: it adds the frame to a cell. There is
one cell for each combination of command, connection, topic and so on. From time to time, each cell is flushed
to the rows of its command, its connection, its topic and so on.

Memory is bounded: the rows of a kind and their names (later ones are counted together as `OTHERS`), the bytes
of latencies (later rows have none), and the buckets of a series (their width doubles as the capture goes on).
"""
