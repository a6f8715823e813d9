"""An embedded Pulsar broker.

The core is pure: `cluster.py` takes frames, times and completed storage requests in, and gives bytes to send,
connections to close and storage requests out. `storage.py`, `server.py` and `http.py` connect it to files and
sockets.
"""
