"""Weights on disk: the same numbers as in memory, read-only, without a name, gone with the array."""

import errno
import gc
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from looking_examples import some_weights

from regard.attention import Rows
from regard.errors import DataError, ResourceError
from regard.looking import AttentionMap, spill
from regard.looking.spill import Sheet, Sheets


def open_files() -> int:
    """Files of this process, mapped ones among them, that have no name any more."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum(line.endswith("(deleted)") and tempfile.gettempdir() in line for line in maps)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Everything is too large for memory, and temporary files lie in a folder of the test's."""
    monkeypatch.setattr(spill, "SPILL_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(weights: np.ndarray) -> np.ndarray:
    sheet = Sheet(weights.shape)
    for first, last in ((0, 2), (2, 3), (3, 7)):
        sheet.put(first, torch.from_numpy(weights[:, first:last].copy()))
    return sheet.array()


def test_what_comes_in_blocks_comes_out_whole(on_disk: Path) -> None:
    weights = some_weights(3, 7, 5)
    before = open_files()
    found = filled(weights)
    assert os.listdir(on_disk) == []
    assert open_files() == before + 1
    assert found.dtype == np.float32
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, weights.astype(np.float32))
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0, 0] = 1
    one = AttentionMap("a", "cross", tuple("abcdefg"), tuple("hijkl"), found)
    assert one.weights_HTS is found
    part = one.weights_HTS[1]
    del found, one
    gc.collect()
    np.testing.assert_array_equal(part, weights[1].astype(np.float32))  # a part keeps the file
    del part
    gc.collect()
    assert open_files() == before


def test_in_memory_it_is_the_same(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = some_weights(3, 7, 5)
    in_file = filled(weights)
    monkeypatch.setattr(spill, "SPILL_BYTES", 4 * 3 * 7 * 5)
    before = open_files()
    in_memory = filled(weights)
    assert open_files() == before
    assert not in_memory.flags.writeable
    np.testing.assert_array_equal(in_memory, in_file)


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_narrow_rows_are_filled_up_and_gaps_are_zero(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPILL_BYTES", limit)
    sheet = Sheet((2, 5, 3))
    sheet.put(0, torch.full((2, 2, 2), 0.5, dtype=torch.bfloat16))
    sheet.put(3, torch.full((2, 2, 3), 0.25, dtype=torch.float64))
    wanted = [[0.5, 0.5, 0]] * 2 + [[0, 0, 0]] + [[0.25] * 3] * 2
    assert sheet.array().tolist() == [wanted, wanted]
    for first, shape in ((0, (1, 2, 3)), (4, (2, 2, 3)), (0, (2, 1, 4))):
        with pytest.raises(DataError, match=r"where \(2, 5, 3\) are expected"):
            Sheet((2, 5, 3)).put(first, torch.zeros(shape))


def test_a_full_disk_is_told(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = Sheet((1, 1, 2))
    sheet._file.close()
    sheet._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - the kernel's own full disk
    with pytest.raises(ResourceError) as caught, sheet._file:
        sheet.put(0, torch.zeros(1, 1, 2))
    assert os.strerror(errno.ENOSPC) in str(caught.value)


def rows(weights: torch.Tensor, within: bool = True) -> Rows:
    return Rows(0, (0, 1), tuple(range(weights.shape[1])), weights.shape[1], within, weights)


def test_a_layer_takes_its_first_rows_call_behind_call() -> None:
    sheets, weights = Sheets(3), torch.rand(2, 5, 4)
    sheets("a", rows(weights[:, :2]))
    sheets("b", rows(weights[:, :3], within=False))
    with pytest.raises(DataError, match="a: 2 of 3 rows were recorded"):
        sheets.weights("a")
    sheets("a", rows(weights[:, 2:3]))
    sheets("a", rows(weights[:, 3:]))  # another stream, which is not shown
    assert sheets.within == {"a": True, "b": False}
    for name in "ab":
        assert np.array_equal(sheets.weights(name), weights[:, :3].numpy())


# --------------------------------------------------------------------------------------------------------------- checks


def a_map(weights: object) -> AttentionMap:
    return AttentionMap("a", "cross", tuple("abcdefg"), tuple("hijkl"), weights)  # type: ignore[arg-type]


def test_weights_are_kept_where_they_cannot_change() -> None:
    own = some_weights(3, 7, 5).astype(np.float32)
    assert a_map(own).weights_HTS is not own
    own.setflags(write=False)
    assert a_map(own).weights_HTS is own
    for other in (some_weights(3, 7, 5), own.astype(">f4"), own.tolist(), own.astype(np.float16)):
        kept = a_map(other).weights_HTS
        assert (kept.dtype, kept.flags.writeable) == (np.float32, False)
        np.testing.assert_allclose(kept, own, atol=1e-3)


@pytest.mark.parametrize("span", [1, 1 << 30])
def test_checks_in_parts_say_what_checks_at_once_say(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPAN_BYTES", span)
    good = some_weights(3, 7, 5)
    high, low, nan = good.copy(), good.copy(), good.copy()
    high[0, 1], high[2, 6, 4] = 0.5, 1.5
    low[1, 2, 3] = -0.25
    nan[0, 0], nan[2, 6, 4] = 9.0, np.nan
    for wrong, message in (
        (high, r"weights from 0?\.?[\de.-]+ to 1\.5"),
        (low, "weights from -0.25 to"),
        (nan, "a weight is not finite"),
        (good * 1.5 / good.max(), "weights from|head 0, query 0 sums to"),
    ):
        with pytest.raises(DataError, match=message):
            a_map(wrong)
    sums = good.copy()
    sums[1, 5], sums[1, 3], sums[2, 0] = 0.1, 0.05, 0.0  # the last one attends to nothing
    with pytest.raises(DataError, match=r"head 1, query 3 sums to 0.25; a row sums to 1, or to 0"):
        a_map(sums)
    with pytest.raises(DataError, match="weights are not an array of numbers"):
        a_map([["x"]])


@pytest.mark.parametrize("span", [1, 1 << 30])
def test_the_mean_is_over_the_heads_that_attend(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "SPAN_BYTES", span)
    weights = some_weights(3, 7, 5)
    weights[0, 2] = weights[2, 2] = 0
    weights[:, 4] = 0
    found = a_map(weights).mean()
    wanted = weights.mean(0)
    wanted[2], wanted[4] = weights[1, 2], 0
    assert len(found.weights_HTS) == 1
    np.testing.assert_allclose(found.weights_HTS[0], wanted, atol=1e-7)
