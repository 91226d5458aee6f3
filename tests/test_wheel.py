"""The built wheel in an empty environment: with what it says it needs, and no node, it shows a model's attention."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from looking_examples import a_png
from serving_tools import Live, write_vit
from test_project import ROOT


@pytest.mark.slow
@pytest.mark.network
def test_the_wheel_looks_into_a_model_without_node(tmp_path: Path):
    write_vit(tmp_path / "model")
    picture = tmp_path / "picture.png"
    picture.write_bytes(a_png(24, 24))
    binaries = tmp_path / "env" / "bin"
    pip = [str(binaries / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    install = [*pip, "-c", str(ROOT / "constraints.txt")]
    for command in ([sys.executable, "-m", "venv", str(tmp_path / "env")], [*build, str(ROOT)], [*install, "torch"]):
        subprocess.run(command, check=True, timeout=600)
    subprocess.run([*install, str(next(tmp_path.glob("*.whl")))], check=True, timeout=600)
    env = {"PATH": str(binaries), "HOME": str(tmp_path)}
    assert shutil.which("node", path=env["PATH"]) is None
    command = [str(binaries / "regard"), "look", str(tmp_path / "model"), str(picture)]
    live = Live(["--no-browser"], command, env)
    try:
        assert b'<script src="/assets/look.js">' in live.ask("/").body
        assert live.ask("/assets/look.js").body == (ROOT / "src/regard/looking/assets/look.js").read_bytes()
        run = live.ask("/api/runs/1").json
        assert [one["shape"] for one in run["layers"]] == [[2, 10, 10]] * 2
    finally:
        live.stop()
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "look.html")], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "look.html").read_text()
    store = json.loads(page.split('<script type="application/json" id="look">')[1].split("</script>")[0])
    assert store["runs"][0]["output"] == run["output"]
