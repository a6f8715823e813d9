"""The examples of docs/broker.md run: each starts a broker by its code, which a message then goes through."""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from interop.brokers import run_java
from interop.conftest import Go
from proxied import MAIN, environment

from pulsarctl_wire.testing import Broker

DOCUMENT = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
PATIENCE = 60
"""Seconds until a broker has ended."""

IN_JAVA = """
try (Consumer<byte[]> consumer = client.newConsumer().topic("orders").subscriptionName("s")
        .subscriptionType(SubscriptionType.Shared).subscribe();
     Producer<byte[]> producer = client.newProducer().topic("orders").create()) {
    producer.newMessage().value("bread".getBytes()).deliverAfter(1, TimeUnit.HOURS).send();
    control(said.get("http_url").asText(), "advance", "{\\"seconds\\": 3600}");
    System.out.print(new String(consumer.receive(20, TimeUnit.SECONDS).getValue()));
}
"""
JAVA = """
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.*;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

public class Program {
    public static void main(String[] args) throws Exception {
        %s
    }

    %s
}
"""
GO = """
package features

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

%s
%s
func TestOrders(t *testing.T) {
	serviceURL, httpURL := startBroker(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: serviceURL})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "s", Type: pulsar.Shared})
	if err != nil {
		t.Fatal(err)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	bread := pulsar.ProducerMessage{Payload: []byte("bread"), DeliverAfter: time.Hour}
	if _, err := producer.Send(ctx, &bread); err != nil {
		t.Fatal(err)
	}
	control(t, httpURL, "advance", `{"seconds": 3600}`)
	message, err := consumer.Receive(ctx)
	if err != nil || string(message.Payload()) != "bread" {
		t.Fatal(message, err)
	}
}
"""


def example(language: str, word: str) -> str:
    """The code in this language that has this word in it."""
    codes: list[str] = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    (code,) = [each for each in codes if word in each]
    return code


def execute(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run Python code; returns its names."""
    exec(compile(code, "broker.md", "exec"), names)
    return names


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Puts a `pwire` on PATH; gives what waits until all have ended, and tells how many were started."""
    with tempfile.TemporaryDirectory(prefix="pw") as home:  # a short path, for a socket
        pwire, pipe = Path(home) / "pwire", Path(home) / "pipe"
        os.mkfifo(pipe)
        mine = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # it has an end when nobody writes to it any more
        lines = [
            f"#!{sys.executable}",
            "import os, sys",
            f"os.environ.update({environment(Path(home))})",
            f"sys.path[:] = {sys.path}",
            f"os.write(os.open({str(pipe)!r}, os.O_WRONLY), b'1')",
            MAIN,
        ]
        pwire.write_text("\n".join(lines))
        pwire.chmod(0o755)
        monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")

        def ended() -> int:
            count = 0
            while select.select([mine], [], [], PATIENCE)[0]:
                if not (said := os.read(mine, 100)):
                    return count
                count += len(said)
            raise AssertionError("a broker has not ended")

        yield ended
        os.close(mine)


def test_python() -> None:
    for word in ("partitions=", "wait_for_fault"):
        execute(example("python", word), {})
    with Broker() as broker:
        execute(example("python", "def test_"), {"pulsar": pulsar})["test_orders_are_kept"](broker)


def test_python_with_a_process(started: Callable[[], int]) -> None:
    found = []

    def use(url: str) -> None:
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe("orders", "s")
        client.create_producer("orders").send(b"bread")
        found.append(consumer.receive(20_000).data())
        client.close()

    execute(example("python", "subprocess").replace("# …", "use(url)"), {"use": use})
    assert found == [b"bread"]
    assert started() == 1


def test_go(go: Go, started: Callable[[], int], tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum"):
        shutil.copy(Path(__file__).with_name("go") / name, tmp_path)
    (tmp_path / "orders_test.go").write_text(GO % (example("go", "startBroker"), example("go", "/pwire/")))
    assert "--- PASS: TestOrders" in go("test", "-v", ".", place=tmp_path)
    assert started() == 1


@pytest.mark.usefixtures("obtainable")
def test_java(started: Callable[[], int]) -> None:
    code = example("java", "ProcessBuilder").replace("// …", IN_JAVA)
    assert run_java(JAVA % (code, example("java", "/pwire/"))) == "bread"
    assert started() == 1
