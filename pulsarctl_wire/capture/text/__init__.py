"""Text that people paste: what tools, languages and logs print, back to the bytes that it shows."""
