"""The screen of `pwire tui`, driven by keys, on real captures."""

import asyncio
import json
import threading
from functools import partial
from pathlib import Path

import pytest
from tui.screens import SAMPLES, Inline, run, screen

from pulsarctl_wire.cli.tui import jobs
from pulsarctl_wire.cli.tui.job import Job
from pulsarctl_wire.cli.tui.screen import make_session
from pulsarctl_wire.cli.tui.tui import TuiOptions
from pulsarctl_wire.store import writer
from pulsarctl_wire.store.directory import read_json
from pulsarctl_wire.store.reader import Dropped
from pulsarctl_wire.store.writer import StoreWriter
from pulsarctl_wire.tui.model import Model, Rates

NACKS = SAMPLES / "java-nack-dlq.pcap"
ERRORS = SAMPLES / "errors.pcap"
SILENT = SAMPLES / "advertised-address-silent.pcap"


@run
async def test_frames_with_fields_and_bytes(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        assert "1 17:47:53.040865 0 → CONNECT      Pulsar-Java-v4.0.8" in shown.lines[1]
        assert "client_version: Pulsar-Java-v4.0.8" in shown.text
        assert "000010  6c 73 61 72 2d 4a 61 76" in shown.text
        assert shown.status.strip() == "1/131  │  ? lists the keys, q quits"
        await shown.press("G")
        assert shown.status.startswith(" 131/131")
        await shown.press("g", "j", "j")
        assert "▾ PARTITIONED_METADATA" in shown.text
        assert shown.number == 3


@run
async def test_the_field_under_the_cursor_is_marked_in_the_bytes(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("colon", "3", "4", "enter", "enter")
        fields = shown.get("#fields")
        assert fields.has_focus
        await shown.press("j", "j", "j")
        row = shown.get("#detail")._rows[3]
        assert row[1] == ("fields", "sequence_id")
        data = shown.get("#bytes")
        assert data._highlights == [(14, 16)]
        assert "00000e  send.sequence_id = 0" in shown.text
        await shown.press("tab", "right", "right")  # from the bytes to the field
        assert data.byte_offset == 16
        assert data._highlights == [(16, 18)]
        assert "magic 0e01: checksum" in shown.text


@run
async def test_folding(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("enter", "j", "enter")
        assert "▸ CONNECT" in shown.text
        assert "client_version" not in shown.text
        await shown.press("enter")
        assert "client_version" in shown.text


@run
async def test_filters(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("f")
        await shown.type('command == "ACK"')
        await shown.press("enter")
        await shown.until(lambda: "of 131" in shown.status)
        assert all(" ACK " in line for line in shown.lines[1:4])
        assert 'filter: command == "ACK"' in shown.status
        await shown.press("escape")
        assert shown.status.strip().endswith("/131")
        await shown.press("backspace")  # the filter before
        assert 'filter: command == "ACK"' in shown.status


@run
async def test_letters_in_the_filter_line_are_no_commands(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("f")
        await shown.type("q1gG?jknx")
        assert shown.get("#filter").value == "q1gG?jknx"


@run
async def test_mistakes_in_filters_are_said(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("f")
        await shown.type('comand == "ACK"')
        await shown.press("enter")
        assert "there is no field comand; did you mean command" in shown.status
        line = shown.get("#filter")
        assert line.has_focus
        assert "underline" in str(line.render_line(0)._segments)


@run
async def test_what_is_searched_for_is_no_filter(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("slash")
        await shown.type("latency_ of order 12")
        line = shown.get("#filter")
        assert "underline" not in str(line.render_line(0)._segments)
        assert await line.suggester.get_suggestion("latency_") is None


@run
async def test_fields_commands_and_topics_are_completed(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("f")
        await shown.type("latency_")
        await shown.until(lambda: shown.get("#filter")._suggestion == "latency_ns")
        await shown.press("right")
        assert shown.get("#filter").value == "latency_ns"
        suggest = shown.get("#filter").suggester.get_suggestion
        assert await suggest('command == "SEND_R') == 'command == "SEND_RECEIPT"'
        assert await suggest('topic == "persistent://public/default/pos') is not None
        assert await suggest("nothing_like_it") is None


@run
async def test_following_parties(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        for key, expected in (
            ("t", 'topic == "persistent://public/default/java-nack-dlq-mail"'),
            ("c", "connection == 0"),
            ("p", "connection == 0 and fields.producer_id == 0"),
        ):
            await shown.press("colon", "3", "4", "enter", key)
            assert f"filter: {expected}" in shown.status
            await shown.press("escape")
        await shown.press("colon", "3", "6", "enter", "s")
        assert 'and subscription == "postman"' in shown.status
        await shown.press("escape", "colon", "3", "6", "enter", "M")
        assert "fields.message_id.ledgerId == 92 and fields.message_id.entryId == 0" in shown.status
        assert shown.app.model.row_count == 2  # its receipt, its delivery: ACK has several ids
        await shown.press("escape", "g", "p")
        assert "this frame has no producer" in shown.status


@run
async def test_a_message_from_end_to_end(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("colon", "3", "4", "enter")
        numbers = [shown.number]
        for _ in range(4):
            await shown.press("m")
            await shown.until(lambda: shown.number != numbers[-1])
            numbers.append(shown.number)
        assert numbers == [34, 35, 36, 46, 47]  # SEND, SEND_RECEIPT, MESSAGE, ACK, ACK_RESPONSE
        await shown.press("m")
        assert "no later step of this message is here" in shown.status


@run
async def test_requests_and_answers(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("a")
        assert shown.number == 2
        await shown.press("a")
        assert shown.number == 1


@run
async def test_errors_and_search(tmp_path: Path) -> None:
    async with screen(tmp_path, ERRORS) as shown:
        await shown.press("e")
        await shown.until(lambda: not shown.app._jumps.is_searching)
        first = shown.number
        assert first > 1
        await shown.press("e")
        await shown.until(lambda: shown.number > first)
        await shown.press("E")
        await shown.until(lambda: shown.number == first)
        await shown.press("g", "slash")
        await shown.type("connected")
        await shown.press("enter")
        await shown.until(lambda: shown.number == 2)
        await shown.press("slash", *["backspace"] * 9)
        await shown.type("no such text")
        await shown.press("enter")
        await shown.until(lambda: "no such text: not found" in shown.status)


@run
async def test_findings_lead_to_frames(tmp_path: Path) -> None:
    async with screen(tmp_path, SILENT) as shown:
        await shown.press("6")
        finding = shown.app.model.findings["findings"][0]
        assert finding["id"] in shown.lines[1]
        numbers = [row["number"] for row in finding["evidence"] if row["number"]]
        await shown.until(lambda: f"#{numbers[0]}" in shown.text)
        await shown.press("question_mark")
        assert finding["id"] in shown.text
        await shown.press("escape", "enter")
        assert shown.number == numbers[0]
        assert f"✗ {finding['id']}" in shown.text
        await shown.press("G", "W")
        assert shown.number in map(int, shown.app.model.rules_by_frame)


@run
async def test_tables(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("2")
        assert "127.0.0.1:54498-127.0.0.1:8650" in shown.text
        await shown.press("3")
        assert "public/default/java-nack-dlq-mail-postman-DLQ" in shown.text
        await shown.press("4")
        assert "outbox" in shown.text
        await shown.press("5")
        assert "undertaker" in shown.text
        await shown.press("j", "enter")
        assert 'subscription == "postman"' in shown.status
        await shown.press("2", "o")
        assert "sorted by bytes" in shown.status


@run
async def test_the_sequence_around_the_cursor(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("colon", "8", "enter", "7")
        assert any("▶" in line and "PRODUCER_SUCCESS" in line for line in shown.lines)
        assert "┌ 127.0.0.1" in shown.lines[1]  # who the lifelines are
        await shown.press("escape")
        assert shown.number == 8


@run
async def test_a_link_to_a_frame(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS, first=34) as shown:
        assert shown.number == 34
        await shown.press("colon", "9", "9", "9", "enter")
        assert "there is no frame 999" in shown.status


@run
async def test_long_lines_scroll_sideways(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS, size=(80, 30)) as shown:
        event = shown.app.model.event(5)
        assert event is not None
        whole = shown.app.model.plain_line(event, 400)
        assert shown.lines[6].endswith("…")
        await shown.press("right")
        assert shown.lines[6].startswith(whole[39:70])
        await shown.press("right", "right", "right", "right", "right", "right", "right", "right")
        assert "".join(shown.lines[1:18]).strip()  # not beyond the longest line
        await shown.press("left", "left", "left", "left", "left", "left", "left", "left")
        assert shown.lines[1].startswith("     1 17:47:53")
        await shown.press("3")
        before = shown.lines
        await shown.press("right")
        assert shown.lines == before  # tables fit


@run
async def test_frames_of_several_files_name_them(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS, ERRORS, size=(400, 40)) as shown:
        await shown.press("G")
        file = next(path for path in (NACKS, ERRORS) if str(path) in shown.text)
        number = shown.number
        event = shown.app.event
        assert event is not None
        record = shown.app._session.recorder(event)
        assert (record["number"], record["file"]) == (number, str(file))
        assert f"packet {record['packet']} ({record['wireshark']} of {file})" in shown.text


def test_rates_are_those_of_the_last_seconds() -> None:
    rates = Rates()
    for second in range(5):
        rates.add(float(second), 10 + 100 * second, 2_000 * second)
    assert rates.text == "100 frames/s 2.0 kB/s"
    rates.add(20.0, 410, 8_000)
    assert rates.text == "0 frames/s 0 B/s"


@run
async def test_keys_are_listed(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("question_mark")
        assert "follow the end" in shown.text
        await shown.press("escape")
        assert "follow the end" not in shown.text


@run
async def test_taking_frames_away(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    async with screen(tmp_path / "store", NACKS) as shown:
        for suffix in ("jsonl", "pcapng", "send", "py", "txt"):
            await shown.press("colon", "3", "4", "enter", "v", "j", "j")
            assert "3 selected" in shown.status
            shown.app._selection.save(str(tmp_path / f"frames.{suffix}"))
            count = "1 frame" if suffix in ("send", "py") else "3 frames"  # what the client sent
            assert f"{count} written" in shown.status
        records = [json.loads(line) for line in (tmp_path / "frames.jsonl").read_text().splitlines()]
        assert [record["command"] for record in records] == ["SEND", "SEND_RECEIPT", "MESSAGE"]
        shown.app._selection.save(str(tmp_path / "frames.jsonl"))
        assert "exists already" in shown.status
        shown.app._selection.save("~nobody-of-this-name/frames.jsonl")
        assert "there is no such user" in shown.status
        await shown.press("y")
        assert json.loads(shown.app.clipboard)["number"] == 36
        await shown.press("Y")
        assert shown.app.clipboard.startswith("00 00 00")
        await shown.press("K")
        assert shown.app.clipboard == f"pwire tui '{NACKS}#36'"
    assert '{"command": "SEND"' in (tmp_path / "frames.send").read_text()


@run
async def test_the_name_of_a_capture_stays_in_its_comment(tmp_path: Path) -> None:
    source = tmp_path / 'a\n{"command": "PONG"}.pcap'
    source.write_bytes(NACKS.read_bytes())
    (tmp_path / "store").mkdir()
    async with screen(tmp_path / "store", source) as shown:
        await shown.press("colon", "3", "4", "enter")
        shown.app._selection.save(str(tmp_path / "frames.send"))
    lines = (tmp_path / "frames.send").read_text().splitlines()
    assert lines[0] == r'# 1 frame of a\n{"command": "PONG"}.pcap'
    assert ["PONG" in line for line in lines[1:]] == [False, False]


@run
async def test_only_frames_have_links(tmp_path: Path) -> None:
    async with screen(tmp_path, SAMPLES / "http-lookup.pcap") as shown:
        await shown.press("g", "K")
        assert (shown.app.clipboard, "only frames have a link" in shown.status) == ("", True)


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (250, 80)])
def test_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    async def look() -> None:
        async with screen(tmp_path, NACKS, size=size) as shown:
            for keys in ("enter", "escape", "2", "6", "7", "1"):
                await shown.press(keys)
                assert len(shown.lines) == size[1]
                assert max(map(len, shown.lines)) <= size[0]

    asyncio.run(look())


@run
async def test_light_and_dark(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.press("L")
        assert shown.app.theme == "textual-light"
        await shown.press("L")
        assert shown.app.theme == "textual-dark"


@run
async def test_the_mouse(tmp_path: Path) -> None:
    async with screen(tmp_path, NACKS) as shown:
        await shown.pilot.click("#list", offset=(5, 6))
        assert shown.number == 7


def make_job(directory: Path, *sources: Path) -> Job:
    options = TuiOptions(sources=list(map(str, sources)))
    return Job(directory, options.sources, options.read, options.display, options.checks, is_kept=False)


def test_a_filter_waits_for_the_findings_it_asks_for(tmp_path: Path) -> None:
    job = make_job(tmp_path, SILENT)
    jobs.read(job)
    filtering = threading.Thread(target=jobs.filter_events, args=(job, "match", "findings != null"))
    filtering.start()
    filtering.join(0.5)
    assert filtering.is_alive()
    jobs.examine(job)
    filtering.join()
    matched = read_json(tmp_path, "match", {})["matched"]
    assert matched == len(read_json(tmp_path, "findings", {})["frames"]) > 0


def test_a_screen_of_a_store_whose_first_events_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(tmp_path, NACKS)
    monkeypatch.setattr(jobs, "StoreWriter", partial(StoreWriter, limit=8_000))
    monkeypatch.setattr(writer, "FILE_SIZE", 1_000)
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0)
    jobs.read(job)
    model = Model(make_session(job, "live", Inline(job)))
    model.refresh()
    with pytest.raises(Dropped):
        model.reader.event(0)
    assert (model.row_count, model.problem) == (131, "")
    assert model.row_line(0, 80).strip().endswith("this frame is not kept any more")
