"""`pwire tui`, and the processes beside its screen."""
