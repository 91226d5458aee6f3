"""Maps show themselves in a notebook: in a frame of their own, whose script runs and touches nothing outside."""

from pathlib import Path

from browsing import Watched
from looking_examples import some_maps


def test_the_frame_draws_and_stays_apart(watched: Watched, tmp_path: Path):
    notebook = tmp_path / "notebook.html"
    frame = some_maps("w")._repr_html_()
    notebook.write_text(f"<!doctype html><meta charset='utf-8'><title>cell</title><p id='cell'>cell</p>{frame}")
    watched.open(notebook)
    inside = watched.page.frame_locator("iframe")
    inside.locator(".tile").first.wait_for()
    inside.get_by_role("tab", name="Details").click()
    assert "decoder.0.cross.w" in inside.locator("main").inner_text()
    # The frame has no origin, so its script reads nothing of the notebook.
    reached = watched.page.frames[1].evaluate("() => { try { return parent.document.title; } catch { return null; } }")
    assert reached is None
    with watched.page.expect_download() as waiting:
        inside.get_by_role("tab", name="Matrix").click()
        inside.get_by_role("group", name="Download").get_by_text("JSON", exact=True).click()
    assert waiting.value.suggested_filename == "look.json"
    watched.check_quiet(notebook)
