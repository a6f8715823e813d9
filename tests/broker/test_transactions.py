"""Whose a transaction is: who has begun it, and superusers."""

from __future__ import annotations

import pytest
from broker.targets import EmbeddedTarget
from net.scripted import run

from pulsarctl_wire.conformance.basics.probe import Probe
from pulsarctl_wire.conformance.basics.settings import SETTINGS
from pulsarctl_wire.conformance.producing.txn import begin
from pulsarctl_wire.wire.PulsarApi_pb2 import ServerError


def test_only_its_owner_and_superusers_may_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "auth", {**SETTINGS["auth"], "transactionCoordinatorEnabled": True})

    async def check() -> None:
        async with EmbeddedTarget("auth") as broker:

            async def client(role: str) -> Probe:
                token = broker.sign_token(role).encode()
                return await broker.connect(auth_method_name="token", auth_data=token)

            admin, other = await client("admin"), await client("stranger")
            txn = await begin(broker, admin)
            for name, fields in (("END_TXN", {}), ("END_TXN_ON_PARTITION", {"topic": "t"})):
                refused = await other.request(name, f"{name}_RESPONSE", txn_action=0, **fields, **txn)
                assert ServerError.Name(refused.error) == "TransactionNotFound"
                assert "super user" in refused.message
            body = await admin.request("END_TXN", "END_TXN_RESPONSE", txn_action=0, **txn)
            assert not body.HasField("error")

    run(check())
