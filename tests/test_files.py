"""A folder that one process holds is not another's."""

import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import ResourceError
from regard.files import locked

HOLD = """
import sys, time
from pathlib import Path
from regard.files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_process_until_it_ends_or_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ResourceError, match="another process"), locked(tmp_path):
        pytest.fail("held twice")
    holder.kill()
    holder.communicate()
    with locked(tmp_path):
        pass
    with locked(tmp_path):  # and let go at the end of the block
        assert list(tmp_path.iterdir()) == []
