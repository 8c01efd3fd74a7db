"""A matplotlib figure as an SVG fragment for a page: always the same bytes, coloured by the page's style sheet.

Colours in a chart are roles. matplotlib draws each role in a stand-in colour, and a CSS variable replaces it here, so
that one chart serves light, dark and paper. Style attributes become classes, because a strict content security policy
forbids them. A figure must contain no text from outside; names and titles belong to the page, which escapes them.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = (
    "ink",
    "muted",
    "grid",
    "paper",
    "baseline",
    "candidate",
    "floor",
    "tolerance",
    "cap",
    "mark",
    "p1",
    "p2",
    "p3",
    "p4",
    "p5",
    "p6",
)
# Role -> stand-in colour. The values must only differ from each other and from colours that matplotlib uses by
# itself.
ROLES = {name: f"#0a0b{index:02x}" for index, name in enumerate(_NAMES, start=16)}
_STAND_INS = {stand_in: f"var(--{name})" for name, stand_in in ROLES.items()}

RC: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's own font
    "svg.hashsalt": "harness",  # without it every identifier is random
    "text.parse_math": False,
    "font.size": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.5,
    "text.color": ROLES["ink"],
    "axes.labelcolor": ROLES["muted"],
    "axes.titlecolor": ROLES["muted"],
    "xtick.color": ROLES["muted"],
    "ytick.color": ROLES["muted"],
    "axes.edgecolor": ROLES["muted"],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": ROLES["grid"],
    "grid.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.7,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "xtick.major.width": 0.7,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.edgecolor": "none",
}


class StyleSheet:
    """Collects the style attributes of many fragments, and gives each distinct one a class name."""

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}

    def fragment(self, figure: Figure, prefix: str) -> str:
        """Return the figure as one `<svg>` element, hidden from screen readers, whose identifiers begin with
        `prefix`.
        """
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        text = buffer.getvalue()
        text = text[text.index("<svg") :].strip()
        text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
        head, body = text.split(">", 1)
        view = re.search(r'viewBox="[-0-9. ]+"', head)
        text = f'<svg {view[0] if view else ""} xmlns="http://www.w3.org/2000/svg" aria-hidden="true">{body}'
        text = text.replace("xlink:href=", "href=")
        used = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text))
        keep = {first or second for first, second in used}
        text = re.sub(r' id="([^"]*)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in keep else "", text)
        text = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", text)
        text = re.sub(r' style="([^"]*)"', self._class, text)
        text = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", text)
        return re.sub(r"\s*\n\s*", "\n", text)

    def _class(self, match: re.Match[str]) -> str:
        font = r"font: ([0-9.]+px)[^;]*;?|font-family:[^;]*;?"  # keep the chart's size, the page's family
        style = re.sub(font, lambda m: f"font-size: {m[1]};" if m[1] else "", match[1])
        style = re.sub(r"#0a0b[0-9a-f]{2}", lambda m: _STAND_INS.get(m[0], m[0]), " ".join(style.split()))
        return f' class="{self._classes.setdefault(style, f"s{len(self._classes)}")}"'

    def css(self) -> str:
        """Return the rules of all fragments so far."""
        return "".join(f"svg .{name} {{ {style} }}\n" for style, name in self._classes.items())
