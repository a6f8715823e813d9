"""An embedded Pulsar broker.

The core is pure: `core.py` takes in frames, times and completed storage requests, and gives out bytes to
send, connections to close and storage requests. `shell/` connects it to files and sockets.

In lines that name sources, `b/` is the package org.apache.pulsar.broker of Pulsar, or its part `service`.
"""
