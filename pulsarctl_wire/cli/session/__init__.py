"""Verbs that connect to brokers: one module per verb or family of verbs."""
