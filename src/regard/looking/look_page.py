"""The page of maps: its script and style are built from web/, its data come from `form`."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from regard.looking.form import describe
from regard.looking.maps import Maps
from regard.looking.page import ICON
from regard.looking.text import Json, escape, script_json

# What the server sends with the page; a file names its own script and style by their hashes instead.
SERVED_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def look_page(*maps: Maps) -> str:
    """Draw what a model looked at, as one file that loads nothing.

    Args:
        *maps: A run, or two to compare.

    Returns:
        A whole HTML document.

    Raises:
        UsageError: More weights than a page holds.
    """
    style, script = asset("look.css"), asset("look.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    store: Json = {"mode": "file", "runs": [describe(one, whole=True) for one in maps]}
    return _document(
        maps[0].title,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f"<style>{style}</style>",
        f"<script>{script}</script>",
        store,
    )


def served_page(runs: list[int]) -> str:
    """Write the page that fetches runs from the server it came from.

    Args:
        runs: Numbers of the runs to begin with, at most two.

    Returns:
        A whole HTML document; its policy is SERVED_CSP.
    """
    link = '<link rel="stylesheet" href="/assets/look.css">'
    script = '<script src="/assets/look.js"></script>'
    return _document("Attention", "", link, script, {"mode": "live", "runs": runs})


def asset(name: str) -> str:
    """Read a built file of the page.

    Args:
        name: Of the file.

    Returns:
        Its text.
    """
    return resources.files("regard.looking").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _document(title: str, policy: str, style: str, script: str, store: Json) -> str:
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} · regard</title>
<link rel="icon" href="{ICON}">
{style}
</head>
<body class="look">
<main id="app"><noscript>This page draws with a script.</noscript></main>
<script type="application/json" id="look">{script_json(store)}</script>
{script}
</body>
</html>
"""
