"""An embedded Pulsar broker.

The core is pure: `cluster/cluster.py` takes frames, times and completed storage requests in, and gives bytes
to send, connections to close and storage requests out. `shell/` connects it to files and sockets.
"""
