"""The verb `pwire proxy`: its options, the watcher process, and its control commands."""
