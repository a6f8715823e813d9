r"""HTML pages: one file without scripts that loads nothing from the network, for dark and light screens.

Text from captures is escaped twice: control characters as \xNN, then as HTML. In case anything gets through,
a content security policy forbids scripts and requests.
"""

import html
from collections.abc import Iterable
from typing import Final

from pulsarctl_wire.render.text import clean


def escape(text: object) -> str:
    r"""Escape text from a capture for HTML and XML: control characters as \xNN, and markup."""
    return html.escape(clean(str(text)))


def document(verb: str, title: str, subtitle: str, body: str, style: str = "") -> str:
    """Build the page of `pwire VERB`. `body` is HTML, `style` the CSS that it needs beyond the common CSS."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head>"
        f"<body><header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header><main>{body}</main>"
        f"<footer>pwire {verb}</footer></body></html>\n"
    )


def section(title: str, note: str, body: str, *, wide: bool = True) -> str:
    """Build a part of a page. `body` is HTML; `wide` parts take the whole width, others are side by side."""
    heading = f"<h2>{escape(title)} <small>{escape(note)}</small></h2>" if title else ""
    return f'<section class="{"wide" if wide else ""}">{heading}{body or _NOTHING}</section>'


def table(titles: Iterable[str], rows: Iterable[str]) -> str:
    """Build a table; each of `rows` is the HTML of a row's cells."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_NOTHING: Final = '<p class="none">none</p>'

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"

_STYLE: Final = """
:root{--bg:#f5f6f9;--panel:#fff;--ink:#1b2130;--soft:#667085;--line:#e4e7ee;--grid:#e9ecf2;--accent:#4c7ef3;
--good:#1f9d74;--warn:#c27c0e;--bad:#d43f5e}
@media(prefers-color-scheme:dark){:root{--bg:#0f131b;--panel:#171c27;--ink:#e6e9f0;--soft:#929db2;--line:#262d3c;
--grid:#252c3a;--accent:#7ea2ff;--good:#4cc79a;--warn:#eab04c;--bad:#ff7591}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:14px/1.5 Inter,system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-font-smoothing:antialiased}
header,main,footer{max-width:1440px;margin:0 auto;padding:0 28px}
header{padding-top:36px}
h1{font-size:26px;font-weight:650;letter-spacing:-.02em;margin:0;overflow-wrap:anywhere}
header p,small,footer,.card span,.none{color:var(--soft)}
header p{margin:4px 0 24px;font-variant-numeric:tabular-nums}
section{background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:18px 20px;min-width:0}
h2{font-size:15px;font-weight:620;margin:0 0 10px}
h2 small{font-size:12.5px;font-weight:400;margin-left:6px}
.scroll{overflow-x:auto;margin:0 -20px;padding:0 20px}
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;font-weight:500;font-size:12px;color:var(--soft);border-bottom:1px solid var(--line);
padding:5px 14px 5px 0;white-space:nowrap}
td{padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:top;min-width:64px;
overflow-wrap:anywhere}
tbody tr:last-child td{border-bottom:0}
tbody tr:hover td{background:color-mix(in srgb,var(--accent) 7%,transparent)}
.n{font-variant-numeric:tabular-nums}.n,.w{white-space:nowrap}
@media(max-width:640px){.scroll{margin:0 -12px;padding:0 12px}}
footer{padding-top:26px;padding-bottom:40px;font-size:12px}
"""
