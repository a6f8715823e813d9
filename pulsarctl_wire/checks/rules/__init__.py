"""The rules, by what they are about; registry.py lists them in order.

In docstrings T, A and R are the thresholds `quiet`, `unacked` and `unanswered` (`rule.Thresholds`).
"""
