"""What is around the broker's core: sockets, threads, files and the time."""
