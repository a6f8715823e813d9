"""Cases of `pwire conform client` that clients fail, and what they do instead."""

from __future__ import annotations

from typing import Final

FAILURES: Final = {
    "java": {
        "message_bad_crc_behind_0e02": "it does not check a checksum behind broker entry metadata",
        "producer_no_schema_version": "it throws an exception, and opens the producer again for ever",
    },
    "wheel": {
        "end_of_topic": "an unknown command to it: it closes the connection, and subscribes again",
        "auth_challenge_at_connect": "it closes the connection, and connects again until its time is over",
        "trailing_bytes": "it takes them for the next frame, and connects again for ever",
    },
    "go": {
        "end_of_topic": "an unknown command to it: it closes the connection, and subscribes again",
        "auth_challenge_at_connect": "it fails when its time is over",
        "producer_not_ready_error": "it does not ask again",
        "producer_connection_lost": "it does not ask again",
        "lookup_not_ready": "it does not ask again",
    },
    "pwire": {
        "connection_closed_once": "it takes the port for a wrong one, and says so",
    },
}
"""By client and case."""
