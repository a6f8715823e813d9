"""The proxy: forwards connections, applies faults, and passes what it carries to a watcher."""
