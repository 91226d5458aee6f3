"""What every page has: one file, which loads nothing."""

from collections.abc import Callable, Iterable
from importlib import resources

from regard.looking.text import escape

CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_MARK = (
    '<svg viewBox="0 0 18 18" aria-hidden="true"><path d="M0 0h5v5H0zM6.5 6.5h5v5h-5zM13 13h5v5h-5z"/>'
    '<path opacity=".28" d="M6.5 0h5v5h-5zM13 0h5v5h-5zM0 6.5h5v5H0zM13 6.5h5v5h-5zM0 13h5v5H0zM6.5 13h5v5h-5z"/></svg>'
)
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 18 18' fill='%234a7fc4'%3E"
    "%3Cpath d='M0 0h5v5H0zM6.5 6.5h5v5h-5zM13 13h5v5h-5z'/%3E%3C/svg%3E"
)


def section(title: str, about: str, body: str, anchor: str = "") -> str:
    """Lay out a part of a page.

    Args:
        title: Its title, escaped.
        about: A sentence below it, escaped; empty for none.
        body: Elements.
        anchor: Its name for links within the page; empty for none.

    Returns:
        A section.
    """
    told = f'<p class="about">{about}</p>' if about else ""
    named = f' id="{anchor}"' if anchor else ""
    return f"<section{named}><h2>{title}</h2>{told}{body}</section>"


def responsive(draw: Callable[[int], str], wide: int, narrow: int) -> str:
    """Draw a chart twice: letters that shrink with a picture cannot be read on a telephone.

    Args:
        draw: Draws it at a width, px.
        wide: Width where there is room.
        narrow: Width on a telephone.

    Returns:
        Elements, of which the page shows one.
    """
    return f'<div class="wide">{draw(wide)}</div><div class="narrow">{draw(narrow)}</div>'


def pairs(told: Iterable[tuple[str, str]]) -> str:
    """Lay out names and values, which need not be escaped."""
    return f'<dl class="pairs">{"".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in told)}</dl>'


def document(title: str, kicker: str, body: str, *, kind: str) -> str:
    """Put a page together.

    Args:
        title: Its title; need not be escaped.
        kicker: What kind of page it is, for readers.
        body: Elements.
        kind: What kind of page it is, for the style.

    Returns:
        A whole HTML document.
    """
    folder = resources.files("regard.looking")
    theme, css, script = (folder.joinpath(name).read_text("utf-8") for name in ("theme.css", "page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{CSP}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} · regard</title>
<link rel="icon" href="{ICON}">
<style>
{theme}{css}</style>
</head>
<body class="{kind}">
<header class="masthead"><span class="mark">{_MARK}regard</span><span>{kicker}</span></header>
<main>{body}
</main>
<footer>This page is one file and loads nothing.</footer>
<script>
{script}</script>
</body>
</html>
"""
