"""The protocol itself: bytes in, values out. Nothing here uses files, sockets, the clock or the console.

commands   all commands, who sends them, and which answers belong to which requests
frame      one frame: its parts, parsing and building
stream     one direction of a connection: chunks in; frames, malformed stretches and gaps out
state      one connection: matches answers with requests, and ids with topics
payload    opens an entry: codecs, batches, chunks
fields     protobuf messages as plain values
"""
