"""Renders events as lines, trees, annotated bytes or JSON, and counts as tables. No console, no clock."""
