"""What Spark's checkpoint holds is read as data: what somebody else put there ends the query in one line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pipeline.comparing import run
from pipeline.test_pipeline_run import parts, put
from pipeline.test_pipeline_saved import Trap
from segments import Tcp, captured, conversation, pcap

from pulsarctl_wire.errors import CaptureError
from pulsarctl_wire.pipeline.decoding.edges import Options, Settings
from pulsarctl_wire.pipeline.decoding.rows import decode_split
from pulsarctl_wire.pipeline.files.inputs import find_inputs
from pulsarctl_wire.pipeline.files.splits import plan
from pulsarctl_wire.pipeline.storage import saved
from pulsarctl_wire.pipeline.storage.store import Store
from pulsarctl_wire.pipeline.upkeep.optimize import optimize

pytest.importorskip("pyspark", reason="pyspark is not installed")

WAY_OUT = "delete the directory, or name another one by --out"


class State:
    """A value of `transformWithState`, as it comes from the checkpoint."""

    def __init__(self, value: bytes | None = None) -> None:
        self.value = value

    def getValueState(self, name: str, schema: str) -> State:
        return self

    def exists(self) -> bool:
        return self.value is not None

    def get(self) -> tuple[Any]:
        return (self.value,)

    def update(self, row: tuple[bytes]) -> None:
        (self.value,) = row


def stitched(tmp_path: Path, state: State, count: int = 1) -> list[tuple[Any, ...]]:
    """What comes of the first `count` files."""
    import pandas as pd

    from pulsarctl_wire.spark.follow import StitchProcessor

    segments = Tcp().whole(conversation())
    for number in range(2):
        part = captured(segments)[number * 8 : number * 8 + 8]
        (tmp_path / f"{number}.pcap").write_bytes(pcap(part))
    (tmp_path / "drafts").mkdir(exist_ok=True)
    settings = Settings(str(tmp_path / "drafts"))
    processor = StitchProcessor(settings)
    processor.init(state)
    inputs = find_inputs([str(tmp_path)])[count - 1 : count]
    splits = [split for each in inputs for split in plan(count - 1, each)]
    rows = [(each.file, each.part, saved.dump(decode_split(each, settings))) for each in splits]
    batch = pd.DataFrame(rows, columns=["file", "part", "decoded"])
    (found,) = processor.handleInputRows((1,), iter([batch]), None)
    return list(found.itertuples(index=False, name=None))


def test_the_state_goes_on_from_batch_to_batch(tmp_path: Path) -> None:
    state = State()
    assert [name for name, *_ in stitched(tmp_path, state)] == ["000000-00000", ""]
    assert stitched(tmp_path, state, 2)[-1] == ("", "", 0, 0, state.value)
    progress = saved.load_progress(state.value or b"", "it")
    assert (progress.file, progress.totals.packets) == (2, 16)


def test_the_state_does_not_grow_with_the_files(tmp_path: Path) -> None:
    """One connection goes on from file to file."""
    import pandas as pd

    from pulsarctl_wire.spark.follow import StitchProcessor

    (tmp_path / "drafts").mkdir()
    settings, state = Settings(str(tmp_path / "drafts")), State()
    packets = captured(Tcp().whole(conversation([b"x"] * 100)))
    sizes = []
    for number in range(60):
        path = tmp_path / f"with a long name {number:06}.pcap"
        path.write_bytes(pcap(packets[2 * number : 2 * number + 2]))
        (split,) = plan(number, find_inputs([str(path)])[0])
        row = {"file": number, "part": 0, "decoded": saved.dump(decode_split(split, settings))}
        processor = StitchProcessor(settings)
        processor.init(state)
        list(processor.handleInputRows((1,), iter([pd.DataFrame([row])]), None))
        sizes.append(len(state.value or b""))
    assert max(sizes[30:]) < max(sizes[:30]) + 60


def test_a_pickle_as_state_is_not_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(CaptureError, match=f"progress/checkpoint was written by another version.*{WAY_OUT}"):
        stitched(tmp_path, State(pickle.dumps(Trap(made))))
    assert not made.exists()


def test_a_pickle_beside_the_checkpoint_is_not_executed(tmp_path: Path) -> None:
    """A directory that an older version followed is refused before Spark has anything to do."""
    made = tmp_path / "made"
    (tmp_path / "progress" / "checkpoint").mkdir(parents=True)
    (tmp_path / "progress" / "all").write_bytes(pickle.dumps(Trap(made)))
    with pytest.raises(CaptureError, match=f"progress/all was written by another version.*{WAY_OUT}"):
        Store(str(tmp_path)).follow(Options())
    assert not made.exists()


@pytest.mark.parametrize("batch", [None, [1], [["a.pcap"]], [["a.pcap", "large", 1]], [["a.pcap", 1, 1, 1]]])
def test_offsets_that_name_no_files(batch: Any) -> None:
    from pulsarctl_wire.spark.follow import Rotated, stream_options

    reader = Rotated(stream_options("captures", Settings("drafts"))).streamReader(None)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match=f"progress/checkpoint is damaged.*{WAY_OUT}"):
        reader.partitions(reader.initialOffset(), {"files": 1, "last": "a.pcap", "batch": batch})


def test_a_batch_takes_up_so_many_files(tmp_path: Path) -> None:
    from pulsarctl_wire.spark.follow import Rotated, stream_options

    for number in range(70):
        packets = captured(Tcp(client=("10.0.0.1", 1_000 + number)).whole(conversation()))
        shifted = [(each[0] + number * 1_000_000_000, *each[1:]) for each in packets if each[0] is not None]
        (tmp_path / f"it-{number:03}.pcap").write_bytes(pcap(shifted))
    reader = Rotated(stream_options(str(tmp_path), Settings("drafts", Options(1_000_000)))).streamReader(None)  # type: ignore[arg-type]
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), None)  # type: ignore[arg-type]
    second = reader.latestOffset(first, None)  # type: ignore[arg-type]
    assert [len(each["batch"]) for each in (first, second)] == [64, 6]


def test_a_batch_may_be_repeated_after_its_files_were_merged(tmp_path: Path) -> None:
    """What was saved before the last batch stays apart, so that the files of that batch can be replaced."""
    from pulsarctl_wire.spark.follow import _Batches

    paths, out = put(tmp_path, parts(5)), tmp_path / "out"
    store = Store(str(out))
    for count in (2, 4):
        run(paths[:count], out, Options(900))
        batches = _Batches(store, Settings("", Options(900)), None, print)  # type: ignore[arg-type]
        batches._begin(f"{count:06}-00000")  # the next batch begins
    assert [each.next for each in store.prepare_change()] == ["000004-00000", "000004-00000"]
    run(paths, out, Options(900))
    optimize(str(out), 1 << 20)
    merged = sorted(path.name for path in (out / "frames").glob("*.parquet"))
    assert [name[:13] for name in merged] == ["000000-00000.", "000004-00000."]
    again = _Batches(store, Settings("", Options(900)), None, print)  # type: ignore[arg-type]
    again._begin("000004-00000")
    assert [path.name for path in (out / "frames").glob("*.parquet")] == merged[:1]
    assert [each.next for each in store.prepare_change()] == ["000004-00000", "000005-00000"]
