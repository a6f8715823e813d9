"""Schemas."""

from __future__ import annotations

import json
from typing import Any

from broker.admin.calls import call, refused

from pulsarctl_wire.conformance.basics.target import Target


def avro(kind: str) -> dict[str, Any]:
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}
    return {"type": "AVRO", "schema": json.dumps(record), "properties": {}}


def path(broker: Target) -> str:
    return f"/admin/v2/schemas/public/default/{broker.name()}"


@call("schemas/post and get")
async def post(broker: Target) -> None:
    at, schema = path(broker), avro("string")
    await refused(broker, 404, "Schema not found", "GET", f"{at}/schema")
    for _ in range(2):
        assert await broker.rest("POST", f"{at}/schema", schema) == {"version": {"version": 0}}
    told = await broker.rest("GET", f"{at}/schema")
    assert (told["version"], told["type"], told["data"], told["properties"]) == (
        0,
        "AVRO",
        schema["schema"],
        {},
    )
    assert told["timestamp"] > 0
    assert await broker.rest("GET", f"{at}/schema/0") == told
    await refused(broker, 404, "Schema not found", "GET", f"{at}/schema/7")
    assert await broker.rest("GET", f"{at}/schemas") == {"getSchemaResponses": [told]}
    assert await broker.rest("POST", f"{at}/version", schema) == {"version": 0}
    assert await broker.rest("POST", f"{at}/version", avro("int")) == {"version": -1}
    compatible = {"schemaCompatibilityStrategy": "FULL", "compatibility": True}
    assert await broker.rest("POST", f"{at}/compatibility", schema) == compatible
    await refused(broker, 409, "", "POST", f"{at}/schema", avro("int"))
    await refused(broker, 500, "", "POST", f"{at}/compatibility", avro("int"))


@call("schemas/delete")
async def delete(broker: Target) -> None:
    at, schema = path(broker), avro("string")
    await broker.rest("POST", f"{at}/schema", schema)
    assert await broker.rest("DELETE", f"{at}/schema") == {"version": 1}
    assert await broker.rest("DELETE", f"{at}/schema") == {"version": 2}
    await refused(broker, 404, "Schema not found", "GET", f"{at}/schema")
    assert await broker.rest("GET", f"{at}/schemas") == {"getSchemaResponses": []}
    assert await broker.rest("POST", f"{at}/schema", schema) == {"version": {"version": 3}}
    assert await broker.rest("DELETE", f"{at}/schema?force=true") == {"version": -1}
    assert await broker.rest("POST", f"{at}/schema", avro("int")) == {"version": {"version": 0}}


@call("schemas/of other types")
async def others(broker: Target) -> None:
    at = path(broker)
    await broker.rest("POST", f"{at}/schema", {"type": "STRING", "schema": "", "properties": {"a": "b"}})
    told = await broker.rest("GET", f"{at}/schema")
    assert (told["type"], told["data"], told["properties"]) == ("STRING", "", {"a": "b"})
    bogus = {"type": "BOGUS", "schema": ""}
    await refused(broker, 500, "No enum constant", "POST", f"{at}/schema", bogus)


@call("schemas/strategy of the namespace")
async def strategy(broker: Target) -> None:
    namespace = await broker.create_namespace()
    strategies = f"/admin/v2/namespaces/{namespace}/schemaCompatibilityStrategy"
    await broker.rest("PUT", strategies, "ALWAYS_COMPATIBLE")
    at = f"/admin/v2/schemas/{namespace}/t"
    await broker.rest("POST", f"{at}/schema", avro("string"))
    assert await broker.rest("POST", f"{at}/schema", avro("int")) == {"version": {"version": 1}}
