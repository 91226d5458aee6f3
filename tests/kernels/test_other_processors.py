"""The kernels as other processors have them: the same tests, with what is compiled for these."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from regard.kernels import native

HERE = Path(__file__).parent
FILES = (
    *(HERE / f"test_{name}.py" for name in ("slots", "sequences", "narrow", "split", "recurrences")),
    *(HERE.parent / "layers").glob("test_packed*.py"),
)
RUN = """
import sys
import pytest
from regard.kernels import native

options, files = sys.argv[1].split(), sys.argv[2:]
native._NATIVE, native._OPTIONS = options[:1], (*native._OPTIONS, *options[1:])
kernel = native.choose("native")
assert kernel is not None
alone = "not compil and not fork"  # what starts no other process: that would compile kernels of its own
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", "-k", alone, *files]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="its compiler has options of its own")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param("-march=x86-64", id="vectors of four numbers"),
        pytest.param(
            "-march=native -mno-amx-tile -mno-amx-bf16 -mno-amx-int8",
            id="no matrices",
            marks=pytest.mark.skipif("amx_tile" not in native._processor(), reason="as this processor is"),
        ),
        pytest.param(
            "-march=haswell",
            id="vectors of eight numbers",
            marks=pytest.mark.skipif("avx512f" not in native._processor(), reason="as this processor is, or more"),
        ),
    ],
)
def test_less_than_this_processor_has(options: str, tmp_path: Path) -> None:
    native.choose("native")
    run = subprocess.run(
        [sys.executable, "-c", RUN, options, *map(str, FILES)],
        env={**os.environ, "REGARD_CACHE": str(tmp_path), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        cwd=HERE.parent.parent,
        timeout=900,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert len(list(tmp_path.rglob("regard-*.so"))) == 1, "all were run with one library"
