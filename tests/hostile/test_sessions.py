"""Whatever a broker sends, `consume`, `send` and `proxy` take less than 400 MiB and a few seconds."""

import resource
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest
from inputs import INPUTS, SIZE, SMALL
from limited import MEMORY, Runs, limited
from peer import Peer, events_of, raw_of
from proxied import LINUX, Proxied, children, until
from segments import build
from test_bounds import FILES, QUICK, slow, written

CONSUME: Final = ["consume", "t", "-s", "s", "-n", "0", "--idle", "1", "--no-reconnect", "--timeout", "5"]
VERBS: Final = {
    "consume line": [*CONSUME, "-o", "line"],
    "consume json": [*CONSUME, "-o", "json"],
    "consume hex": [*CONSUME, "--hex"],
    "send": ["send", "-o", "tree", "--idle", "1", "--timeout", "5"],
}
ENDS: Final = (0, 6, 7, 8)
"""Exit codes: done, the connection was lost, the broker refused, it did not answer."""

PLAYED: Final = [path for path in FILES if path.name not in ("gzip-twice.gz", "interfaces.pcapng.zst")]
"""Those that hold frames, or might."""

LAST_TOPIC: Final = b"the-last-topic"
LAST: Final = build("LOOKUP", topic=LAST_TOPIC.decode(), request_id=1)
"""What a proxy carries at the end."""

OTHERS: Final = [name for name in INPUTS if not name.startswith("items of")]
ITEMS: Final = [name for name in INPUTS if name.startswith("items of")]


@pytest.fixture(scope="module")
def pwire() -> Iterator[Runs]:
    with limited() as runs:
        yield runs


@pytest.fixture(scope="module")
def several() -> Iterator[list[Runs]]:
    """As many as there are verbs: they wait more than they work."""
    with ExitStack() as stack:
        yield [stack.enter_context(limited()) for _ in VERBS]


def check(pwire: Runs, source: Path, verb: str, tmp_path: Path) -> None:
    """One run holds what is promised."""
    script = tmp_path / "script"
    script.write_text('{"type": "PING", "ping": {}}\n')
    more = [str(script)] if verb == "send" else []
    with Peer(source) as peer:
        (result,) = pwire([*VERBS[verb], *more, "--url", peer.url])
    assert not result.broken(ends=ENDS), f"{verb} of {source.name}: {result}"


@pytest.mark.parametrize("verb", [slow("consume line"), "consume json", slow("send")])
@pytest.mark.parametrize("source", PLAYED, ids=lambda path: path.name)
def test_files_that_broke_promises(source: Path, verb: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, source, verb, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_small_inputs(name: str, several: list[Runs], tmp_path: Path) -> None:
    """Two of the verbs; the others have the next input."""
    source = written(name, SMALL, tmp_path)
    verbs = [*VERBS][OTHERS.index(name) % 2 :: 2]
    with ThreadPoolExecutor(len(verbs)) as pool:
        for _ in pool.map(lambda runs, verb: check(runs, source, verb, tmp_path), several, verbs):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "name"), list(zip(cycle(VERBS), sorted(QUICK), strict=False)))
def test_the_worst_inputs(name: str, verb: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SIZE, tmp_path), verb, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", OTHERS)
def test_inputs(name: str, verb: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SIZE, tmp_path), verb, tmp_path)


@pytest.mark.slow
def test_small_commands_of_many_items(several: list[Runs], tmp_path: Path) -> None:
    def some(first: int, runs: Runs) -> None:
        place = tmp_path / str(first)
        place.mkdir()
        for name in ITEMS[first :: len(several)]:
            check(runs, written(name, SMALL, place), "consume line", place)

    with ThreadPoolExecutor(len(several)) as pool:
        list(pool.map(some, range(len(several)), several))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ITEMS)
def test_commands_of_many_items(name: str, pwire: Runs, tmp_path: Path) -> None:
    check(pwire, written(name, SIZE, tmp_path), "consume line", tmp_path)


# -- a proxy between a client and a broker that both play the file


def play(source: socket.socket, target: socket.socket, raw: bytes) -> None:
    """Send it all, and read what comes of it until the end; the proxy may reset the connection."""

    def send() -> None:
        with suppress(OSError):
            source.sendall(raw)
            source.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    with suppress(OSError):
        while target.recv(1 << 20):
            pass
    sender.join()


class Peaks(threading.Thread):
    """Looks at how much processes have had resident, until they end: `mib` is the most of each."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.mib = dict.fromkeys(pids, 0.0)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.02):
            for pid in self.mib:
                with suppress(OSError):
                    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                        if line.startswith("VmHWM:"):
                            self.mib[pid] = int(line.split()[1]) / 1024

    def end(self) -> None:
        self._over.set()
        self.join()


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))


def shows_the_last(proxy: Proxied, shown: Path) -> bool:
    """Send LAST through it; whether it is among the last bytes shown."""
    with proxy.session() as session:
        session.pass_on(True, LAST)
    with shown.open("rb") as file:
        file.seek(max(0, shown.stat().st_size - 4096))
        return LAST_TOPIC in file.read()


def check_proxy(sources: list[Path], tmp_path: Path) -> None:
    """A proxy carries all of it both ways, shows it, records it, and ends as it should."""
    args = ("--tap", "-o", "line", "--record", tmp_path / "seen.pcapng")
    shown = tmp_path / "shown"
    with shown.open("wb") as out, Proxied(*args, stdout=out.fileno(), preexec=limit) as proxy:
        (keeper,) = children(proxy.process.pid)
        watcher = proxy.watcher
        peaks = Peaks([proxy.process.pid, keeper, watcher])
        peaks.start()
        for source in sources:
            raw = raw_of(source, events_of(source))
            with proxy.connect() as client, proxy.accept() as broker:
                play(client, broker, raw)
                play(broker, client, raw)
        until(lambda: shows_the_last(proxy, shown))  # a proxy that ends gives a busy watcher only 10 s
        assert proxy.watcher == watcher, proxy.said
        assert proxy.stop(signal.SIGTERM) == 0, proxy.said
        peaks.end()
    assert "Traceback" not in proxy.err.text
    assert "the watcher" not in proxy.err.text
    assert len(proxy.err.data) < 10_000
    assert max(peaks.mib.values()) < MEMORY, peaks.mib


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_a_proxy_between_files_that_broke_promises(tmp_path: Path) -> None:
    check_proxy(PLAYED, tmp_path)


def all_written(names: Iterable[str], size: int, tmp_path: Path) -> list[Path]:
    """The files of some of `INPUTS`."""
    sources = []
    for number, name in enumerate(names):
        place = tmp_path / str(number)
        place.mkdir()
        sources.append(written(name, size, place))
    return sources


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="looks into /proc")
@pytest.mark.parametrize("first", range(0, len(OTHERS), 20))
def test_a_proxy_between_small_inputs(first: int, tmp_path: Path) -> None:
    check_proxy(all_written(OTHERS[first : first + 20], SMALL, tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not LINUX, reason="looks into /proc")
def test_a_proxy_between_the_worst_inputs(tmp_path: Path) -> None:
    check_proxy(all_written(QUICK, SIZE, tmp_path), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.skipif(not LINUX, reason="looks into /proc")
@pytest.mark.parametrize("name", OTHERS)
def test_a_proxy_between_inputs(name: str, tmp_path: Path) -> None:
    check_proxy([written(name, SIZE, tmp_path)], tmp_path)
