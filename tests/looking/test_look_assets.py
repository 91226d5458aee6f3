"""The committed script and style of the page are what the sources in web/ build: their first line says of which."""

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "src" / "regard" / "looking" / "assets"
THEME = "src/regard/looking/theme.css"


def digest() -> str:
    """SHA-256 over path and content of every source, in the order of their paths; web/vite.config.ts does the same."""
    paths = [path.relative_to(ROOT).as_posix() for path in (ROOT / "web" / "src").rglob("*") if path.is_file()]
    found = hashlib.sha256()
    for path in sorted([*paths, "web/package-lock.json", "web/vite.config.ts", THEME]):
        found.update(path.encode() + b"\0" + (ROOT / path).read_bytes() + b"\0")
    return found.hexdigest()


@pytest.mark.parametrize("name", ["look.js", "look.css"])
def test_assets_are_built_from_the_sources_that_are_here(name):
    head = (ASSETS / name).read_text("utf-8").split("\n", 1)[0]
    assert head == f"/* Built by `make web`; sources SHA-256 {digest()} */"


def test_assets_can_be_copied_into_a_page():
    script, style = ((ASSETS / name).read_text("utf-8") for name in ("look.js", "look.css"))
    assert not re.search("</?script", script, re.IGNORECASE)
    assert not re.search("</style", style, re.IGNORECASE)
    assert "url(" not in style
    assert "@import" not in style
    assert len(script.encode()) < 160_000


def test_the_lock_file_names_no_host():
    assert '"resolved"' not in (ROOT / "web" / "package-lock.json").read_text("utf-8")


def test_no_source_makes_elements_of_text():
    ways = ("@html", "innerHTML", "outerHTML", "insertAdjacentHTML", r"document\.write", r"\beval\b", "new Function")
    forbidden = re.compile("|".join([*ways, r"\bstyle="]))
    found = {
        path.relative_to(ROOT).as_posix(): forbidden.findall(path.read_text("utf-8"))
        for path in (ROOT / "web" / "src").rglob("*")
        if path.is_file()
    }
    assert found
    assert {path: uses for path, uses in found.items() if uses} == {}
