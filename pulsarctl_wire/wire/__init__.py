"""The pure protocol: bytes in, values out; no files, sockets, clock or console in here.

commands   which commands there are, who sends them, what answers what
frame      one frame: its parts, parsing and building
stream     one direction of a connection: chunks in, frames, damage and gaps out
session    one connection: answers find their requests, ids their topics
payload    an entry opened: codecs, batches, chunks
fields     protobuf messages as plain values
"""
