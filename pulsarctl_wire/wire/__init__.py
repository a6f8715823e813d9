"""The protocol itself: bytes in, values out. Nothing here uses files, sockets, the clock or the console.

commands   all commands, who sends them, and which answers belong to which requests
frame      one frame: its parts, parsing and building
payload    opens an entry: codecs, batches, chunks
fields     protobuf messages as plain values
framing/   bytes of a connection: where frames begin and end, and what is not a frame
session/   frames of a connection: matches answers with requests, and ids with topics
"""
