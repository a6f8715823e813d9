"""Fuzzing: valid sessions, mutations of them, and what a broker may do about these."""
