"""What is known of a connection and of the sessions on it, from its frames."""
