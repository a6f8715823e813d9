"""Decoded events on disk, in order, with random access: what `pwire tui` looks at."""
