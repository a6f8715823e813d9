"""The files that are read: inputs, the splits of them, and packets copied out of them."""
