"""The verb ``regard sizes``."""

import json

from cli_tools import Cli


def test_images_stand_in_the_table(cli: Cli) -> None:
    done = cli(["sizes", "--json"])
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    wanted = {
        "vit-b/16": (86_567_656, "86 M"),
        "vit-l/16": (304_326_632, "307 M"),
        "vit-h/14": (632_045_800, "632 M"),
        "mae-vit-b/16": (111_655_680, None),
    }
    assert {name: (rows[name]["parameters"], rows[name]["paper"]) for name in wanted} == wanted
