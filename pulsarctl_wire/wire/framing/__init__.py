"""One direction of a connection: bytes in; frames, gaps and malformed stretches out."""
