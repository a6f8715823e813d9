"""Reads the texts of the manual.

A page begins with its name, a colon, and what the thing is. Its sections are indented by two, and the lines
that continue them by four:

    FLOW: Grants a consumer's permits.
      sent: after SUBSCRIBE,
        and while messages are consumed.
"""

Page = dict[str, str]
"""Sections by label, each as one line; "about" is the first."""


def pages(text: str) -> dict[str, Page]:
    """The pages of `text`, by name."""
    found: dict[str, Page] = {}
    page, label = Page(), ""
    for line in filter(None, text.splitlines()):
        if line.startswith("    "):
            page[label] += f" {line.strip()}"
            continue
        name, _, words = line.strip().partition(": ")
        label = name
        if not line.startswith(" "):
            page, label = found.setdefault(name, Page()), "about"
        page[label] = words
    return found
