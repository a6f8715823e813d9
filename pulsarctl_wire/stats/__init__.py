"""What a capture held, counted by command, connection, topic, producer, subscription and error.

    events -> counting.py   Stats: cells while they come, rows (rows.py) when the time moves on
              latencies.py  times in bounded memory, percentiles
              report.py     what came of it, as plain records

Every frame passes here, so that little is done for each: it is noted in a cell, one for each
combination of what frames are about. Cells give their counts to rows (one for each command, each
topic, ...) where the time moves on to the next bucket of the series, and where much has gathered.

Counts of other connections can be added (`Stats.merge`), as two processes make them of one capture.

Memory is bounded, whatever the capture: rows of a kind and their names, those that come later are
counted together as `OTHERS`; bytes of latencies, rows that want some later have none; buckets of a
series, whose width doubles as the capture goes on.
"""

from pulsarctl_wire.stats.counting import Stats
from pulsarctl_wire.stats.latencies import PERCENTILES
from pulsarctl_wire.stats.report import Record, records, total_record
from pulsarctl_wire.stats.rows import NAMES, OTHERS

__all__ = ["NAMES", "OTHERS", "PERCENTILES", "Record", "Stats", "records", "total_record"]
