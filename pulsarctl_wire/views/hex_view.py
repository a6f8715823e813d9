"""Hexadecimal digits: the view for bytes that nothing else explains."""

from __future__ import annotations

from pulsarctl_wire.views.content import Content, Shown


def score(content: Content) -> float:
    """0.1, always: better than no view, worse than any that fits."""
    return 0.1


def show(content: Content) -> Shown:
    """The payload as lower-case hexadecimal digits."""
    return Shown("hex", content.payload.hex())
