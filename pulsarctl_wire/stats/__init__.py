"""Statistics of a capture by command, connection, topic, producer, subscription and error.

    events -> counting.py   Stats: counts events in cells, which are flushed to rows (rows.py)
              latencies.py  times in bounded memory, percentiles
              report.py     the result as plain records

Every frame passes through here, so little is done per frame: it is counted in a cell. There is one for each
combination of command, connection, topic and so on. From time to time cells are flushed to the rows of their
command, connection, topic and so on.

Memory is bounded: the rows of a kind and their names (later ones are counted together as `OTHERS`), the bytes
of latencies (later rows have none), and the buckets of a series (their width doubles as the capture goes on).
"""
