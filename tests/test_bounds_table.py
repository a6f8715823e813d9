"""docs/architecture.md's table of bounds: each row has a test that takes it over its bound."""

from __future__ import annotations

import ast
import asyncio
import io
import itertools
import re
import struct
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from segments import ETHERNET, START_NS, build, pcap

from pulsarctl_wire.capture import numbers
from pulsarctl_wire.capture.comments import describe_route
from pulsarctl_wire.capture.files import read_packets
from pulsarctl_wire.capture.links import RAW_IP
from pulsarctl_wire.capture.packets import FRAGMENTS, MAX_DATAGRAMS, Dissector
from pulsarctl_wire.capture.series import span_of
from pulsarctl_wire.capture.writer import PcapngWriter
from pulsarctl_wire.cli.capture.summary import Summary
from pulsarctl_wire.cli.session import lines
from pulsarctl_wire.cli.session.replay import _MAX_HEADS, Report
from pulsarctl_wire.net.replay import remap
from pulsarctl_wire.net.replay.differences import Difference
from pulsarctl_wire.render.text import Paint
from pulsarctl_wire.table.builder import TableBuilder
from pulsarctl_wire.wire.frame import MAX_KEPT_FRAME, MAX_PARSED, Connection, Event, Frame, Gap, Malformed
from pulsarctl_wire.wire.framing.stream import FrameStream
from pulsarctl_wire.wire.payload import MAX_METADATA, open_entry
from pulsarctl_wire.wire.PulsarApi_pb2 import BaseCommand, MessageMetadata
from pulsarctl_wire.wire.session.knowledge import MAX_PENDING, Knowledge, Unanswered

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = ROOT / "tests"

BOUNDS: Final[dict[str, tuple[str, ...]]] = {
    "a frame kept whole": ("wire/test_stream.py::test_a_frame_too_large_to_keep_is_passed_over",),
    "a command or metadata that is parsed": (
        "test_bounds_table.py::test_a_command_that_is_too_large_to_parse",
        "test_bounds_table.py::test_metadata_that_is_too_large_to_parse",
    ),
    "the head of a message over HTTP; a body; requests that wait for answers": (
        "wire/test_http_reader.py::test_answers",
        "wire/test_http_reader.py::test_requests_that_wait_are_bounded",
    ),
    "connections for lookups over HTTP, of the proxy": (
        "net/test_proxy_web.py::test_connections_are_bounded",
    ),
    "an answer of a web service to us": ("net/test_net_web.py::test_an_answer_that_is_too_large",),
    "work of searches for the next frame in a direction": (
        "wire/test_stream.py::test_a_search_gives_up_large_candidates_before_it_takes_for_ever",
        "wire/test_stream.py::test_all_searches_of_a_stream_give_up_large_candidates_together",
    ),
    "bytes of all connections that wait (holes, unfinished frames)": (
        "capture/test_reassembly.py::test_connections_that_hold_most_are_ended",
    ),
    "packets that `doctor` puts in the order of their times": (
        "capture/test_sources.py::test_packets_in_the_order_of_their_times",
    ),
    "what `doctor` remembers": (
        "checks/test_doctor_bounds.py::test_findings_beyond_the_bound_are_counted",
        "checks/test_doctor_bounds.py::test_names_are_bounded",
        "checks/test_doctor_bounds.py::test_sends_are_bounded",
    ),
    "events of a packet, a gap or an end at a time": (
        "capture/test_reassembly.py::test_what_one_segment_completes_comes_in_portions",
        "wire/test_stream.py::test_what_a_candidate_hid_comes_in_portions",
    ),
    "bytes that wait after a hole": (
        "capture/test_reassembly.py::test_a_hole_with_more_than_8_mib_behind_it_is_given_up",
        "capture/test_reassembly.py::test_many_holes_keep_the_bound",
    ),
    "open connections": (
        "capture/test_reassembly.py::test_of_too_many_connections_the_silent_ones_are_ended",
        "hostile/test_bounds.py::test_more_connections_than_are_followed",
    ),
    "ended connections that are remembered": (
        "capture/test_reassembly.py::test_ended_connections_are_forgotten",
        "capture/test_reassembly.py::test_forgotten_connections_are_freed_at_once",
    ),
    "lines of `--connections` that wait for connections which began earlier": (
        "cli/test_decode_connections.py::test_no_more_lines_wait_than_there_may",
    ),
    "named servers of connections without data": (
        "capture/test_lifecycle.py::test_parts_add_up_to_the_whole",
    ),
    "connections that are distinguished when they are counted": (
        "wire/test_numbers.py::test_a_million_take_a_bit_each",
    ),
    "kinds of commands in the summary": ("test_bounds_table.py::test_kinds_of_commands",),
    "rows of a sequence diagram": (
        "test_sequence.py::test_what_is_beyond_the_limit_is_counted",
        "test_sequence.py::test_names_and_fields_are_cut",
    ),
    "outcomes of a filter that are remembered": (
        "cli/test_decode_select.py::test_no_more_outcomes_are_remembered_than_there_may",
    ),
    "frames whose answers are linked (`--two-pass`)": ("test_bounds_table.py::test_answers_that_are_linked",),
    "kinds of commands that `send` may be told to expect": (
        "cli/test_send_wrong.py::test_more_kinds_of_commands_than_are_remembered",
    ),
    "faults in what `send` sent that are reported": (
        "cli/test_send_wrong.py::test_most_of_what_is_wrong_is_counted",
    ),
    "pending requests, sends, chunks, producers, consumers": (
        "wire/test_session.py::test_unanswered_requests_are_forgotten",
        "wire/test_session.py::test_unanswered_sends_are_forgotten",
        "wire/test_session.py::test_chunks_that_nobody_answers_are_forgotten",
        "wire/test_session.py::test_producers_and_consumers_are_forgotten",
        "wire/test_names.py::test_long_names_are_cut",
        "test_stats_live.py::test_where_nobody_answers_memory_is_bounded",
    ),
    "unanswered sends of producers and connections that ended": (
        "test_bounds_table.py::test_sends_that_ended_without_an_answer",
    ),
    "schemas, and requests that their answers complete": (
        "wire/test_session.py::test_large_schemas_are_bounded_by_their_bytes",
        "wire/test_session.py::test_large_requests_without_answer_are_bounded",
    ),
    "compiled schemas": (
        "views/test_views_cache.py::test_the_schema_unused_for_longest_goes_first",
        "views/test_views_cache.py::test_a_huge_schema_is_refused_uncompiled",
        "views/test_views_dangers.py::test_all_dangers_are_survived_under_limits",
    ),
    "a compressed source": (
        "capture/test_files.py::test_a_source_that_expands_too_much_breaks_off",
        "capture/test_sources.py::test_compressed_too_often",
    ),
    "interfaces of a pcapng section": (
        "capture/test_files.py::test_a_section_has_so_many_interfaces_and_no_more",
    ),
    "a text that shows bytes": (
        "capture/test_hexdump.py::test_a_long_dump_comes_in_pieces",
        "capture/test_hexdump.py::test_a_line_that_is_needed_as_a_whole_is_bounded",
        "capture/test_hexdump.py::test_repeats_are_capped_over_all_dumps",
        "capture/test_text.py::test_repeats_are_bounded",
    ),
    "what is known of a log": ("capture/test_text.py::test_what_is_known_of_a_log_is_bounded",),
    "bytes without packets that are decoded at a time": (
        "capture/test_sources.py::test_raw_frames_come_a_few_at_a_time",
    ),
    "a TCP segment captured before it was split": (
        "capture/test_packets.py::test_no_offloaded_packet_is_this_large",
    ),
    "IP packets nested in one another": (
        "capture/test_packets.py::test_ip_packets_in_one_another",
        "capture/test_packets.py::test_tunnels_in_one_another_without_end",
    ),
    "TLS records of a connection that wait for a secret or their numbers": (
        "capture/test_tls_connection.py::test_what_waits_is_bounded",
        "capture/test_tls_hostile.py::test_records_without_a_handshake_wait_in_bounded_memory",
    ),
    "a handshake message of TLS": (
        "capture/test_tls_hostile.py::test_a_handshake_message_without_end_is_not_kept",
    ),
    "secrets of key logs": (
        "capture/test_tls_keylog.py::test_the_oldest_secrets_are_forgotten",
        "capture/test_tls_keylog.py::test_labels_of_one_client_random_are_bounded",
    ),
    "a line of a key log": ("capture/test_tls_keylog.py::test_an_endless_line_is_dropped",),
    "record numbers of TLS that are tried": (
        "capture/test_tls_midway.py::test_the_effort_is_bounded_and_that_is_said",
    ),
    "connections of which a new one may be a copy": (
        "capture/test_copies.py::test_connections_that_are_remembered_are_bounded",
        "capture/test_copies.py::test_a_connection_that_begins_much_later_is_none",
    ),
    "copies of a connection": ("capture/test_copies.py::test_more_copies_than_anybody_has",),
    "link types of skipped packets": ("capture/test_packets.py::test_packets_without_tcp_are_skipped",),
    "IP fragments": (
        "capture/test_packets.py::test_fragments_of_a_datagram_take_64_kib_at_most",
        "test_bounds_table.py::test_datagrams_without_end",
    ),
    "decompressed payload": (
        "wire/test_payload.py::test_a_bomb_that_says_how_large_it_is",
        "wire/test_payload.py::test_a_bomb_puts_out_no_more_than_it_says",
    ),
    "everything decompressed from an input": (
        "test_record.py::test_what_was_opened_for_too_few_bytes_is_left_unopened_and_counted",
        "test_record.py::test_a_budget_grows_with_what_is_read",
        "test_record.py::test_messages_cost_of_the_budget",
        "test_record.py::test_metadata_costs_of_the_budget_and_more_if_it_is_no_utf_8",
        "test_record.py::test_a_marker_that_is_no_utf_8",
    ),
    "the same for a subscription": ("net/test_net_bounds.py::test_more_than_the_budget_opens",),
    "a payload that `consume` shows by its view": ("cli/test_session_verbs.py::test_consume_cuts_no_value",),
    "warnings of one kind in a session or a replay": (
        "net/test_warnings.py::test_repeated_warnings_are_counted",
        "net/test_net_replay.py::test_what_is_said_of_many_connections_is_counted",
    ),
    "messages of a batch": (
        "wire/test_payload.py::test_a_batch_of_nothings_is_bounded",
        "test_bounds_table.py::test_metadata_of_a_batch_that_is_too_large",
    ),
    "bytes of messages shown per frame": (
        "test_record.py::test_payloads_are_shown_up_to_a_bound",
        "test_record.py::test_payloads_that_are_not_ascii_count_twice",
        "test_record.py::test_keys_and_properties_are_shown_up_to_a_bound",
    ),
    "texts of a frame that are not UTF-8": (
        "wire/test_fields.py::test_texts_that_are_no_utf_8_are_shown_up_to_a_bound",
    ),
    "values decoded by schema": (
        "test_record.py::test_values_are_built_up_to_a_bound_of_the_frame",
        "views/test_views_avro.py::test_values_are_cut_at_the_budget",
        "views/test_views_avro.py::test_a_text_that_is_no_utf_8_costs_values",
        "views/test_views_avro.py::test_times_and_floats_cost_twice",
        "views/test_views_avro.py::test_a_payload_that_does_not_fit_costs_values",
        "views/test_views_avro.py::test_depth_is_limited_at_64",
        "views/test_views_protobuf.py::test_values_are_cut_at_the_budget",
        "views/test_views_protobuf.py::test_depth_is_limited_at_64",
    ),
    "values tried for defaults and unions of an Avro schema when a text is encoded": (
        "views/test_views_encode.py::test_schemas_that_make_much_of_little",
    ),
    "items of repeated fields shown per frame": (
        "test_record.py::test_items_and_notes_are_shown_up_to_a_bound",
    ),
    "chunks that wait for more": (
        "wire/test_payload.py::test_the_bytes_that_wait_are_bounded",
        "wire/test_payload.py::test_the_messages_that_wait_are_bounded",
    ),
    "recipients of an encrypted entry": (
        "wire/test_sealed_messages.py::test_recipients_are_tried_up_to_a_bound",
    ),
    "encrypted data keys that are tried in vain": (
        "wire/test_sealed_messages.py::test_data_keys_are_tried_in_vain_up_to_a_bound",
    ),
    "data keys, and failures to decrypt one, that are remembered": (
        "wire/test_sealed_messages.py::test_data_keys_are_remembered_up_to_a_bound",
    ),
    "a preview of a batch in a line": (
        "cli/test_decode_terminal.py::test_a_preview_ends_between_characters",
        "cli/test_decode_terminal.py::test_a_batch_is_shown_by_its_first_message",
    ),
    "packets of an interface that wait to be read": (
        "capture/test_live.py::test_what_is_dropped_is_counted_and_said",
        "cli/test_live_command.py::test_decode_says_what_was_dropped",
        "cli/test_live_command.py::test_capture_says_what_was_dropped",
    ),
    "a packet of an interface": ("capture/test_live.py::test_a_packet_larger_than_a_block_is_cut",),
    "packets kept for `--write`": (
        "capture/test_writer.py::test_old_packets_are_let_go",
        "capture/test_writer.py::test_empty_packets_are_let_go_too",
        "capture/test_writer.py::test_what_was_written_is_remembered_in_bounds",
    ),
    "checksums of payloads that a table's builder knows to decompress": (
        "table/test_table_odd.py::test_checksums_of_payloads_that_decompress",
    ),
    "rows collected for the table": (
        "test_bounds_table.py::test_rows_that_are_collected",
        "test_bounds_table.py::test_gaps_that_are_collected",
        "test_bounds_table.py::test_payloads_that_are_collected",
    ),
    "packets that `sanitize` holds until their frames are complete": (
        "sanitize/test_sanitizer.py::test_too_many_packets_that_wait",
    ),
    "bytes that `sanitize` keeps for packets that repeat them": (
        "sanitize/test_sanitizer.py::test_too_many_bytes_to_be_repeated",
    ),
    "texts that `sanitize` remembers for `--check` and `--map`": (
        "sanitize/test_sanitizer.py::test_too_many_texts_to_be_searched",
    ),
    "rows of `stats`": (
        "test_stats.py::test_rows_are_bounded_and_nothing_is_lost",
        "test_stats.py::test_connections_without_frames_leave_room_for_those_with_frames",
        "test_stats.py::test_names_are_bounded",
        "test_stats.py::test_latencies_are_bounded_and_rows_without_them_say_so",
    ),
    "topics, and ended connections, of `--stats` and `--metrics`": (
        "test_stats_live.py::test_topics_beyond_the_bound_are_counted_together",
        "test_stats_live.py::test_connections_that_ended_are_kept_for_a_while",
    ),
    "files read side by side": ("capture/test_series.py::test_no_more_files_are_open_than_may_be",),
    "comments on a packet of `--write`; cells of each; packets that wait for more": (
        "capture/test_writer.py::test_comments_are_bounded",
        "capture/test_writer.py::test_an_event_that_comes_when_its_packet_was_written_is_counted",
        "capture/test_writer.py::test_selected_packets_that_wait_are_bounded",
        "cli/test_decode_write.py::test_a_long_comment_is_cut",
    ),
    "stretches of packets in a row of one file, for `wireshark`": (
        "test_bounds_table.py::test_stretches_of_packets",
    ),
    "connections whose comments in a recording of the proxy are kept": (
        "test_bounds_table.py::test_comments_on_many_connections",
    ),
    "the end of a file that is searched for its last packet": (
        "test_bounds_table.py::test_a_last_packet_that_is_too_large_to_be_found",
    ),
    "connections a split reports; those it keeps; their packets": (
        "pipeline/test_pipeline_found.py::test_connections_that_a_split_does_not_tell_of",
        "pipeline/test_pipeline_found.py::test_connections_that_a_split_does_not_keep",
        "pipeline/test_pipeline_found.py::test_packets_that_a_split_does_not_keep",
    ),
    "files of a split that are written at a time, if a table is partitioned": (
        "pipeline/test_pipeline_partitioned.py::test_many_days_need_few_open_files",
    ),
    "files that are decoded as one split": (
        "pipeline/test_pipeline_groups.py::test_every_input_is_in_one_split",
    ),
    "rows of a Parquet file in memory while it is written or merged": (
        "table/test_table_groups.py::test_batches_become_row_groups",
        "pipeline/test_pipeline_optimized.py::test_few_rows_are_in_memory",
    ),
    "files that a batch of `--follow` takes": (
        "spark/test_follow_state.py::test_a_batch_takes_up_so_many_files",
    ),
    "saved progress": (
        "pipeline/test_pipeline_saved.py::test_sizes_and_depths_that_are_not_there",
        "pipeline/test_pipeline_saved.py::test_what_others_made_up_is_refused_or_gone_on_with",
    ),
    "captures read for completion": ("cli/test_completion.py::test_only_the_beginning_of_a_capture_is_read",),
    "a line of stdin": ("test_bounds_table.py::test_a_line_that_is_too_long",),
    "sends without receipt": ("net/test_net_producing.py::test_too_much_pending",),
    "bytes that wait to be sent": ("net/test_net_bounds.py::test_bytes_that_wait_to_be_sent",),
    "brokers connected at a time; redirects of a lookup": (
        "net/test_net_bounds.py::test_brokers_that_are_connected",
        "net/test_net_lookups.py::test_lookup_redirect_loop",
    ),
    "partitions of a topic": ("net/test_net_lookups.py::test_more_partitions_than_there_can_be",),
    "topics and partitions that are consumed together": (
        "net/test_net_bounds.py::test_partitions_that_are_consumed",
        "net/test_net_bounds.py::test_topics_that_are_consumed_by_a_pattern",
    ),
    "topics and partitions that `cluster` looks up": (
        "cli/test_session_verbs.py::test_cluster_with_more_partitions_than_are_asked_for",
    ),
    "names that a watch of topics knows": ("net/test_net_bounds.py::test_topics_of_a_watch",),
    "changes of topics received before the list of topics": (
        "net/test_net_bounds.py::test_changes_of_topics_without_the_topics",
    ),
    "schemas that a consumer remembers": ("net/test_net_bounds.py::test_schemas_that_are_remembered",),
    "messages requested by permits": (
        "net/test_net_bounds.py::test_fewer_permits_for_large_messages",
        "net/test_net_bounds.py::test_partitions_share_the_room",
    ),
    "deliveries that wait to be taken, as received": (
        "net/test_net_bounds.py::test_more_than_there_is_room_for",
    ),
    "entries open at a time while consuming": ("net/test_net_bounds.py::test_entries_wait_compressed",),
    "consumers, and rows of each, of `permits`": (
        "test_permits.py::test_more_consumers_than_are_followed",
        "test_permits.py::test_rows_of_a_long_capture_are_bounded",
        "test_permits.py::test_different_events_of_a_row_are_bounded_and_counted",
    ),
    "an entry while consuming, opened": (
        "net/test_net_bounds.py::test_too_large_to_be_opened",
        "cli/test_session_verbs.py::test_consume_with_too_little_memory",
    ),
    "acknowledged entries recognized when redelivered": (
        "net/test_net_bounds.py::test_acknowledged_entries_that_are_known_again",
    ),
    "partly acknowledged batches recognized when redelivered": (
        "net/test_net_bounds.py::test_batches_that_are_partly_acknowledged",
    ),
    "messages whose redelivery will be requested later": (
        "net/test_net_bounds.py::test_refused_messages_that_wait",
        "net/test_net_bounds.py::test_messages_that_are_not_acknowledged",
    ),
    "acknowledgements that wait to be confirmed": (
        "net/test_net_bounds.py::test_acknowledgements_that_are_not_confirmed",
    ),
    "producers of dead letters and retries": ("net/test_net_bounds.py::test_producers_of_dead_letters",),
    "messages of a batch acknowledged in a transaction": (
        "net/test_net_bounds.py::test_a_batch_that_claims_too_much_is_not_acknowledged_in_a_transaction",
    ),
    "traffic that the watcher has not read yet": (
        "net/test_tap_ring.py::test_what_is_larger_than_the_ring",
        "net/test_tap_ring.py::test_what_is_carried_and_what_is_missed_is_all",
    ),
    "output of the tap that nobody has read": ("cli/test_printer.py::test_who_reads_nothing_leaves_no_room",),
    "restarts of a watcher that dies again and again": (
        "cli/test_keeping.py::test_those_that_fail_again_and_again_wait_longer_and_longer",
    ),
    "connections of `--metrics`": (
        "cli/test_metrics.py::test_those_that_say_nothing_keep_nobody_from_the_metrics",
        "cli/test_metrics.py::test_nonsense_is_refused",
        "cli/test_metrics.py::test_who_neither_asks_nor_leaves_is_given_up",
    ),
    "a line of `proxy ctl`": ("net/test_control.py::test_a_line_without_end_is_not_kept",),
    "a frame that a lane inspects": (
        "wire/test_walk.py::test_large_frames_are_not_stopped_at_unless_all_are",
    ),
    "bytes that faults delay, and answers in the broker's place that wait": (
        "net/test_relay_faults.py::test_what_is_delayed_is_bounded",
        "net/test_relay_faults.py::test_answers_behind_a_frame_that_does_not_end_are_bounded",
    ),
    "copies that the fault `duplicate` makes of a frame; a scenario": (
        "faults/test_faults_each.py::test_copies_have_an_end",
        "faults/test_faults_text.py::test_scenarios_that_mean_nothing",
    ),
    "connections that wait at the proxy for a broker": (
        "net/test_proxy_limits.py::test_connections_that_wait_are_bounded_and_the_newest_refused",
        "net/test_proxy_limits.py::test_bytes_that_wait_are_bounded_over_all_connections",
        "net/test_proxy_limits.py::test_a_connect_that_does_not_come_is_not_waited_for_for_ever",
    ),
    "brokers that have listeners": ("net/test_proxy_routing.py::test_a_cluster_of_too_many_brokers",),
    "frames of a replay that have no counterpart yet": (
        "net/test_net_replay.py::test_what_waits_for_its_counterpart_is_bounded",
    ),
    "differences of a replay whose consequences are counted": (
        "test_bounds_table.py::test_differences_that_have_consequences",
    ),
    "message ids that a replay has learned": ("test_bounds_table.py::test_ids_that_a_replay_has_learned",),
}
"""The rows of the table, and who takes them over their bounds."""


def rows() -> list[str]:
    """What is bounded, by the table."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.partition("## What is bounded, and by what\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| .+ \|.*\|$", table, re.MULTILINE)
    return [row for row in found if row != "what"]


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    assert sorted(rows()) == sorted(BOUNDS)


@cache
def functions_of(path: str) -> dict[str, str]:
    """The functions of a file, and their decorators."""
    tree = ast.parse((TESTS / path).read_text())
    return {
        each.name: " ".join(map(ast.unparse, each.decorator_list))
        for each in tree.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("named", sorted(set(itertools.chain(*BOUNDS.values()))))
def test_the_tests_are_there_and_run(named: str) -> None:
    path, _, name = named.partition("::")
    decorators = functions_of(path)[name]
    assert "xfail" not in decorators
    assert "mark.skip(" not in decorators


# -- those that have no better place


def ping(number: int = BaseCommand.PING) -> Frame:
    return Frame(build("PING"), BaseCommand(), number, Connection(0), True)


def fed(data: bytes, limit: int) -> list[Event]:
    return FrameStream(Connection(0), True, limit=limit).feed(data)


def test_a_command_that_is_too_large_to_parse() -> None:
    size = MAX_PARSED + 1
    stream = FrameStream(Connection(0), True, limit=MAX_KEPT_FRAME)
    events = stream.feed(struct.pack(">II", size + 4, size) + b"\x08\x12" + bytes(size - 2)) + stream.close()
    assert [event.__class__ for event in events] == [Malformed]
    assert isinstance(events[0], Malformed)
    assert f"COMMAND_SIZE is over {MAX_PARSED} bytes" in events[0].reason


def test_metadata_that_is_too_large_to_parse() -> None:
    metadata = MessageMetadata(producer_name="p" * MAX_PARSED, sequence_id=0, publish_time=1)
    [frame] = fed(build("SEND", metadata, b"", producer_id=0, sequence_id=0), MAX_KEPT_FRAME)
    assert isinstance(frame, Frame)
    assert frame.metadata is None
    assert any(f"more than {MAX_PARSED} are not parsed" in note for note in frame.notes)


def test_metadata_of_a_batch_that_is_too_large() -> None:
    payload = b"\0\0\0\2\x18\0" + (MAX_METADATA + 1).to_bytes(4, "big") + bytes(MAX_METADATA + 1)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    [frame] = fed(build("SEND", metadata, payload, producer_id=0, sequence_id=0), MAX_KEPT_FRAME)
    assert isinstance(frame, Frame)
    opened = open_entry(frame)
    assert len(opened.messages) == 1
    assert f"message 1 of the batch: metadata of {MAX_METADATA + 1} bytes is not parsed" in opened.notes


def test_sends_that_ended_without_an_answer() -> None:
    knowledge = Knowledge()
    for number in range(MAX_PENDING + 1):
        knowledge.add_unanswered((None, "p", number, 1, 0), Unanswered(number, None, Connection(0), True))
    assert len(knowledge.unanswered) + knowledge.forgotten == MAX_PENDING + 1
    assert MAX_PENDING // 4 < len(knowledge.unanswered) <= MAX_PENDING
    assert (None, "p", MAX_PENDING, 1, 0) in knowledge.unanswered


def test_kinds_of_commands() -> None:
    summary = Summary()
    for number in range(500, 3_000):
        summary.add([ping(number)])
    assert len(summary.commands) <= 1_000
    text = "\n".join(summary.lines(Paint(False)))
    assert "other unknown commands 2490" in text
    assert summary.frames == 2_500


def test_answers_that_are_linked() -> None:
    knowledge = Knowledge(link_answers=True)
    knowledge.link(1_000_000, 1_000_001)
    assert knowledge.answers is not None
    assert len(knowledge.answers) <= 1_000_000 + 4_096


def test_datagrams_without_end() -> None:
    dissector = Dissector()
    count = 2 * MAX_DATAGRAMS
    for number in range(count):
        head = struct.pack(">BBHHHBBH", 0x45, 0, 60, number, 0x2000, 64, 6, 0) + bytes(8)
        assert dissector.segment(RAW_IP, head + bytes(40), 60) is None
    assert len(dissector._datagrams) == MAX_DATAGRAMS
    assert dissector.skipped == {FRAGMENTS: count}


def batches(events: list[Event], **options: Any) -> list[int]:
    """The sizes of the batches that rows come in."""
    builder = TableBuilder(("it",), **options)
    return [
        sum(rows.num_rows for rows in batches.values())
        for batches in builder.add_all([event] for event in events)
    ]


def test_rows_that_are_collected() -> None:
    first, rest = batches([ping()] * 70_000)
    assert first + rest == 70_000
    assert 65_536 <= first < 65_536 + 64


def test_gaps_that_are_collected() -> None:
    first, *rest = batches([Gap(1, Connection(0), True, number, None, 1) for number in range(2_000)])
    assert first + sum(rest) == 2_000
    assert 1_024 <= first < 1_024 + 64


def test_payloads_that_are_collected() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    frames = fed(build("SEND", metadata, bytes(1 << 20), producer_id=0, sequence_id=0), MAX_KEPT_FRAME) * 100
    assert batches(frames, payload=True) == [64, 36]


def test_a_last_packet_that_is_too_large_to_be_found() -> None:
    packets = [(START_NS + number, ETHERNET, bytes(size), size) for number, size in enumerate((60, 200_000))]
    for count, known in ((1, True), (2, False)):
        data = pcap(packets[:count])
        span = span_of(io.BytesIO(data), len(data))
        assert span is not None
        assert (span.last is not None) is known


@pytest.mark.parametrize("text", [b"short\n" + bytes(1 << 20), bytes((1 << 19) + 1) + b"\n"])
def test_a_line_that_is_too_long(
    text: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 1 << 19)
    path = tmp_path / "lines"
    path.write_bytes(text)

    async def read() -> list[bytes]:
        return [line async for some in lines.read_lines(str(path)) for line in some]

    with pytest.raises(SystemExit):
        asyncio.run(read())
    assert f"a line of more than {1 << 19} bytes" in capsys.readouterr().err


def test_differences_that_have_consequences(capsys: pytest.CaptureFixture[str]) -> None:
    """Beyond the bound consequences are told one by one."""
    report = Report("text")
    for number in range(0, 2 * _MAX_HEADS + 20, 2):
        report.add(Difference("missing", 0, ping(), number=number))
        report.add(Difference("missing", 0, ping(), number=number + 1, cause=number))
    assert len(report._heads) <= _MAX_HEADS
    assert len(report._consequences) == _MAX_HEADS
    assert len(capsys.readouterr().out.splitlines()) == _MAX_HEADS + 20


def test_ids_that_a_replay_has_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remap, "MAX_KNOWN", 100)
    learning = remap.Remap(remap.Names())
    for number in range(1_000):
        old, new = (
            fed(build("SEND_RECEIPT", producer_id=1, sequence_id=0, message_id=place), MAX_KEPT_FRAME)[0]
            for place in ({"ledgerId": 1, "entryId": number}, {"ledgerId": 2, "entryId": number})
        )
        assert isinstance(old, Frame)
        assert isinstance(new, Frame)
        learning.learn(old, new)
        assert len(learning._ids) <= 100
    assert (1, 999) in learning._ids


def test_comments_on_many_connections() -> None:
    file = io.BytesIO()
    writer = PcapngWriter(file)
    for number in range(MAX_PENDING + 1):
        writer.write((START_NS, RAW_IP, b"", 0), [describe_route(str(number), "here", "there")])
    reader = read_packets(b"", io.BytesIO(file.getvalue()).read)
    assert len(list(reader)) == MAX_PENDING + 1
    assert len(reader.listeners) == MAX_PENDING // 2 + 1
    assert reader.listeners[str(MAX_PENDING), "there"] == "here"


def test_stretches_of_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "MAX_STRETCHES", 100)
    packets = numbers.PacketNumbers(several=True)
    for packet in range(1, 152):
        packets.add(packet, "ab"[packet % 2], packet // 2 + 1)
    assert packets.find(50) == (None, None)
    assert packets.find(101) == ("b", 51)
    assert packets.find(151) == ("b", 76)
