"""`pwire conform`."""
