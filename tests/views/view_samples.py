"""Schemas and payloads as real clients sent them, from captures of a Pulsar 4.0.8 broker.

Java means the Java client 4.0.8 (java-keyvalue-protobuf.pcap), Python the client 3.13.0
(python-schemas.pcap). The values are those the clients themselves logged.
"""

from __future__ import annotations

from pulsarctl_wire.wire.PulsarApi_pb2 import Schema


def schema(type_name: str, data: bytes = b"", properties: dict[str, str] | None = None) -> Schema:
    made = Schema(name="", schema_data=data)
    made.type = getattr(Schema, type_name)
    for name, text in (properties or {}).items():
        made.properties.add(key=name, value=text)
    return made


JAVA_ORDER = (
    b'{"type":"record","name":"Order","namespace":"Scenarios","fields":['
    b'{"name":"amount","type":"double"},{"name":"customer","type":["null","string"],"default":null},'
    b'{"name":"id","type":"int"},{"name":"paid","type":"boolean"},'
    b'{"name":"shipTo","type":["null",{"type":"record","name":"Address","fields":['
    b'{"name":"street","type":["null","string"],"default":null},{"name":"zip","type":"int"}]}],'
    b'"default":null},{"name":"tags","type":["null",{"type":"array","items":"string",'
    b'"java-class":"java.util.List"}],"default":null}]}'
)
JAVA_AVRO = [
    bytes.fromhex("00000000000000000216636c69656e7420c3a92030000002020c4d61696e2030d00f0200"),
    bytes.fromhex("000000000000f83f0216636c69656e7420c3a92031020102020c4d61696e2031d20f0202026100"),
    bytes.fromhex("00000000000008400216636c69656e7420c3a92032040002020c4d61696e2032d40f02040261026200"),
]
JAVA_ORDERS = [
    {
        "amount": number * 1.5,
        "customer": f"client é {number}",
        "id": number,
        "paid": number == 1,
        "shipTo": {"street": f"Main {number}", "zip": 1000 + number},
        "tags": ["a", "b"][:number],
    }
    for number in range(3)
]
JAVA_JSON = (
    b'{"id":1,"customer":"client \xc3\xa9 1","amount":1.5,"paid":true,"tags":["a"],'
    b'"shipTo":{"street":"Main 1","zip":1001}}'
)

JAVA_KEYVALUE_DATA = b"\0\0\0\0\0\0\x02\x01" + JAVA_ORDER
JAVA_KEYVALUE_PROPERTIES = {
    "key.schema.properties": "{}",
    "value.schema.properties": '{"__alwaysAllowNull":"true","__jsr310ConversionEnabled":"false"}',
    "key.schema.name": "String",
    "value.schema.name": "",
    "key.schema.type": "STRING",
}
JAVA_KEYVALUE_INLINE = bytes.fromhex("000000026b310000006f") + JAVA_JSON


def java_keyvalue(value_type: str, encoding: str) -> Schema:
    """The Java client's KeyValue<String, Order> schema."""
    chosen = {"value.schema.type": value_type, "kv.encoding.type": encoding}
    return schema("KeyValue", JAVA_KEYVALUE_DATA, {**JAVA_KEYVALUE_PROPERTIES, **chosen})


JAVA_NATIVE = (
    b'{"fileDescriptorSet":"ClEKCnNob3AucHJvdG8iMwoESXRlbRIMCgRuYW1lGAEgASgJEg0KBXByaWNlGAIgASgREg4KBmxh'
    b'YmVscxgDIAMoCUIGQgRTaG9wYgZwcm90bzM=","rootMessageTypeName":"Item","rootFileDescriptorName":"shop.proto"}'
)
JAVA_PARSING_INFO = (
    '[{"number":1,"name":"name","type":"STRING","label":"LABEL_OPTIONAL","definition":null},'
    '{"number":2,"name":"price","type":"SINT32","label":"LABEL_OPTIONAL","definition":null},'
    '{"number":3,"name":"labels","type":"STRING","label":"LABEL_REPEATED","definition":null}]'
)
JAVA_BREAD = bytes.fromhex("0a05627265616410f4031a056672657368")
JAVA_MILK = bytes.fromhex("0a046d696c6b1001")

PYTHON_ORDER = b"""{
 "type": "record", "name": "Order", "fields": [
  {"name": "id", "type": "int"}, {"name": "customer", "type": ["null", "string"]},
  {"name": "amount", "type": ["null", "double"]}, {"name": "paid", "type": ["null", "boolean"]},
  {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
  {"name": "counts", "type": ["null", {"type": "map", "values": "int"}]},
  {"name": "ship_to", "type": ["null", {"type": "record", "name": "Address", "fields": [
   {"name": "street", "type": ["null", "string"]}, {"name": "zip", "type": ["null", "int"]}]}]}]}
"""
PYTHON_AVRO = bytes.fromhex(
    "040204633202000000000000084002000204026102620002020278040002021052756520c3a9203102f49309"
)
PYTHON_JSON = (
    b'{\n "id": 2,\n "customer": "c2",\n "amount": 3.0,\n "paid": false,\n "tags": [\n  "a",\n  "b"\n ],\n'
    b' "counts": {\n  "x": 2\n },\n "ship_to": {\n  "street": "Rue \\u00e9 1",\n  "zip": 75002\n }\n}'
)
PYTHON_ORDER_2 = {
    "id": 2,
    "customer": "c2",
    "amount": 3.0,
    "paid": False,
    "tags": ["a", "b"],
    "counts": {"x": 2},
    "ship_to": {"street": "Rue é 1", "zip": 75002},
}
