"""The screen of `pwire tui`: a reader of a store, and of what jobs write beside it."""
