"""Checkpoints survive kills, full disks and strangers: what is read is exactly what was written, or one clear error."""

import errno
import hashlib
import json
import os
import pickle
import re
import resource  # noqa: F401 (for the scripts at the end)
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from regard.errors import CheckpointError, NumericError, ResourceError
from regard.files import json_bytes, sha256, sync_folder, write_aside, writing, written_aside
from regard.training.checkpoints import Checkpoint, Store, fit, gather, read_tensors, write_tensors

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


def hash_of(tensor: Tensor) -> str:
    """Of dtype, shape and bytes: NaN equals itself, −0 is not 0."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode() + content).hexdigest()


def hashes(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: hash_of(tensor) for name, tensor in tensors.items()}


def content(checkpoint: Checkpoint | None) -> tuple[int, dict[str, str], dict[str, str], dict[str, Any]]:
    assert checkpoint is not None
    return checkpoint.step, hashes(checkpoint.model), hashes(checkpoint.optimizer), checkpoint.state


def listing(folder: Path) -> dict[str, str | None]:
    """Hash of everything that stands in a folder; None for folders."""
    return {str(path.relative_to(folder)): sha256(path) if path.is_file() else None for path in folder.rglob("*")}


def various() -> dict[str, Tensor]:
    """Every dtype, with the values that a conversion on the way would lose."""
    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, 3.0])
    return {
        "layers.0.weight": torch.randn(3, 5),
        "double": torch.randn(7, dtype=torch.float64),
        "half": odd.to(torch.float16),
        "brain": odd.to(torch.bfloat16),
        "single": odd,
        "step": torch.tensor(2**53 + 1),
        "int32": torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32),
        "int16": torch.tensor([-(2**15), 2**15 - 1], dtype=torch.int16),
        "int8": torch.tensor([-128, 127, 1], dtype=torch.int8),
        "uint64": torch.tensor([2**63 + 1], dtype=torch.uint64),
        "uint32": torch.tensor([2**32 - 1], dtype=torch.uint32),
        "uint16": torch.tensor([2**16 - 1], dtype=torch.uint16),
        "random state": torch.arange(251, dtype=torch.uint8),
        "mask": torch.tensor([True, False, True]),
        "scalar": torch.tensor(0.1, dtype=torch.bfloat16),
        "empty": torch.empty(0),
        "empty, wide": torch.empty(2, 0, 11, dtype=torch.int64),
        "transposed": torch.randn(3, 2).T,
        'name with \n, ü, \ud800 and "': torch.ones(1, requires_grad=True),
    }


# ------------------------------------------------------------------------------------------------------- tensor files


def test_tensors_come_back_bit_equal(tmp_path: Path) -> None:
    tensors = various()
    write_tensors(tmp_path / "a.safetensors", tensors, {"made by": "a test"})
    back = read_tensors(tmp_path / "a.safetensors")
    assert hashes(back) == hashes(tensors)
    memory = [tensor.untyped_storage().data_ptr() for tensor in back.values() if tensor.numel()]
    assert len(set(memory)) == len(memory)
    write_tensors(tmp_path / "none.safetensors", {})
    assert read_tensors(tmp_path / "none.safetensors") == {}


def test_the_reference_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in various().items() if "\ud800" not in name}
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors, {"made by": "a test"})
    assert hashes(safetensors.torch.load_file(path)) == hashes(tensors)
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "made by": "a test"}
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    for name, tensor in tensors.items():  # so that a mapped file can be used in place
        assert (begin + header[name]["data_offsets"][0]) % tensor.element_size() == 0


def test_we_read_what_the_reference_library_writes(tmp_path: Path) -> None:
    tensors = {name: tensor.detach().contiguous() for name, tensor in various().items() if "\ud800" not in name}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    assert hashes(read_tensors(tmp_path / "a.safetensors")) == hashes(tensors)


def test_a_dtype_without_a_name_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tensor 'c' is torch\.complex64"):
        write_tensors(tmp_path / "a.safetensors", {"c": torch.ones(2, dtype=torch.complex64)})
    assert list(tmp_path.iterdir()) == []


def test_a_file_over_the_cap_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": torch.ones(100)})
    size = path.stat().st_size
    assert read_tensors(path, cap_bytes=size).keys() == {"w"}
    with pytest.raises(CheckpointError, match=f"holds {size} bytes, over the limit of {size - 1}"):
        read_tensors(path, cap_bytes=size - 1)


def file_of(header: object, data: bytes = b"", header_bytes: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if header_bytes is None else header_bytes).to_bytes(8, "little") + text + data


def entry(dtype: object, shape: object, *offsets: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


GOOD = entry("F32", [2], 0, 8)
EIGHT, SIXTEEN = bytes(8), bytes(16)


class Bomb:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("exploded",)


BAD_FILES = {
    "empty": (b"", "ends early"),
    "cut in the length": (b"\x08\0\0", "ends early"),
    "cut in the header": (file_of({"w": GOOD}, EIGHT)[:20], "truncated"),
    "cut in the data": (file_of({"v": GOOD, "w": entry("F32", [2], 8, 16)}, bytes(15)), "'w' ends after the file"),
    "more data": (file_of({"w": GOOD}, bytes(9)), "1 bytes that belong to no tensor"),
    "pickle": (pickle.dumps(Bomb()), "is a pickle"),
    "zip of a pickle": (b"PK\x03\x04\x14\0\0\0\x08\0", "is a pickle"),
    "gigantic header": (file_of({}, header_bytes=2**64 - 1), "a header of 18446744073709551615 bytes"),
    "not JSON": (file_of(b"{'w': 1}"), "the header is not JSON"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "the header is not JSON"),
    "UTF-16": (file_of('{"w": 1}'.encode("utf-16")), "the header is not JSON"),
    "deep": (file_of(b'{"w":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    "deep objects": (file_of(b'{"w":' * 100_000 + b"1" + b"}" * 100_000), "nested too deeply"),
    "a list": (file_of([1]), "not a JSON object"),
    "a name twice": (file_of(b'{"w": 1, "w": 2}'), "a key stands twice"),
    "NaN": (file_of(b'{"w": NaN}'), "NaN is not a finite number"),
    "a huge number": (file_of(b'{"w": 1e999}'), "1e999 is not a finite number"),
    "thousands of digits": (file_of({"w": entry("F32", [10**4000] * 64, 0, 8)}, EIGHT), "'w' has impossible numbers"),
    "overlap": (file_of({"v": entry("F32", [2], 0, 8), "w": entry("F32", [2], 4, 12)}, bytes(12)), "'w' overlaps"),
    "the same bytes": (file_of({"v": GOOD, "w": GOOD}, EIGHT), "'w' overlaps"),
    "gap": (file_of({"v": GOOD, "w": entry("U8", [4], 12, 16)}, SIXTEEN), "'w' begins after a gap"),
    "late start": (file_of({"w": entry("F32", [2], 8, 16)}, SIXTEEN), "'w' begins after a gap"),
    "backwards": (file_of({"w": entry("F32", [2], 8, 0)}, EIGHT), "'w' has -8 bytes"),
    "past the end": (file_of({"w": entry("F32", [2**40], 0, 2**42)}, EIGHT), "'w' ends after the file"),
    "shape too large": (
        file_of({"w": entry("F32", [3], 0, 8)}, EIGHT),
        r"'w' has 8 bytes, which do not make F32 \[3\]",
    ),
    "wrong dtype": (file_of({"w": entry("F64", [2], 0, 8)}, EIGHT), r"'w' has 8 bytes, which do not make F64 \[2\]"),
    "product past 2**64": (file_of({"w": entry("F32", [2**32, 2**32], 0, 0)}), "'w' has 0 bytes"),
    "huge but empty": (file_of({"w": entry("F32", [0, 2**62, 2**62], 0, 0)}), "'w' has 0 bytes"),
    "unknown dtype": (file_of({"w": entry("F31", [2], 0, 8)}, EIGHT), "'w' has the unknown dtype 'F31'"),
    "dtype not text": (file_of({"w": entry(["F32"], [2], 0, 8)}, EIGHT), "'w' is not described"),
    "negative size": (file_of({"w": entry("F32", [-2], 0, 8)}, EIGHT), "'w' has impossible numbers"),
    "two negative sizes": (file_of({"w": entry("F32", [-2, -1], 0, 8)}, EIGHT), "'w' has impossible numbers"),
    "negative offset": (file_of({"w": entry("F32", [2], -8, 0)}, EIGHT), "'w' has impossible numbers"),
    "fraction": (file_of({"w": entry("F32", [2.0], 0, 8)}, EIGHT), "'w' has impossible numbers"),
    "boolean": (file_of({"w": entry("F32", [2, True], 0, 8)}, EIGHT), "'w' has impossible numbers"),
    "too many sizes": (file_of({"w": entry("F32", [1] * 65 + [2], 0, 8)}, EIGHT), "'w' has impossible numbers"),
    "three offsets": (file_of({"w": entry("F32", [2], 0, 8, 8)}, EIGHT), "'w' is not described"),
    "another key": (file_of({"w": {**GOOD, "code": "x"}}, EIGHT), "'w' is not described"),
    "no shape": (file_of({"w": {"dtype": "F32", "data_offsets": [0, 8]}}, EIGHT), "'w' is not described"),
    "no object": (file_of({"w": 1}), "'w' is not described"),
    "a nasty name": (file_of({"\x1b[2J\n" + "n" * 1000: 1}), r"tensor '\\x1b\[2J\\nn+\.\.\. is not"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_one_clear_error(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, message = BAD_FILES[kind]
    Path("bad.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_tensors(Path("bad.safetensors"))
    line = str(caught.value)
    assert line.startswith("bad.safetensors: ")
    assert line.isprintable()
    assert len(line) < 300
    assert os.listdir() == ["bad.safetensors"], "something in the file was run"


def test_a_header_is_capped_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write((2**40).to_bytes(8, "little"))
        file.truncate(2**41)  # takes no room on the disk
    with pytest.raises(CheckpointError, match="the header of 1099511627776 bytes is over the limit"):
        read_tensors(path)


def test_what_does_not_fit_into_memory_is_a_lack_of_resources(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    num_bytes = 2**43  # more than a process can be promised, and the file is as long as it says
    path.write_bytes(file_of({"w": entry("U8", [num_bytes], 0, num_bytes)}))
    os.truncate(path, path.stat().st_size + num_bytes)
    code = "import resource, sys; from pathlib import Path; from regard.training.checkpoints import read_tensors\n"
    code += "resource.setrlimit(resource.RLIMIT_AS, (2**42, 2**42))\n"
    code += "try: read_tensors(Path(sys.argv[1]))\nexcept Exception as error: print(type(error).__name__, error)"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"ResourceError {path}: no memory for tensor 'w'\n"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("missing", "is missing"), ("folder", "cannot be read: Is a directory"), ("pipe", "is not a regular file")],
)
def test_what_is_no_file_is_refused_without_waiting(kind: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(CheckpointError, match=rf"a\.safetensors: {message}$"):
        read_tensors(path)


# ------------------------------------------------------------------------------------------------------------- modules


class Tied(nn.Module):
    """A head tied to its embedding, a second parameter over the same memory, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed.weight
        self.score = nn.Linear(3, 7)
        self.score.weight = nn.Parameter(self.embed.weight.data)
        self.nothing = nn.Parameter(torch.empty(0))
        self.void = nn.Parameter(torch.empty(0))
        self.register_buffer("positions", torch.arange(5), persistent=False)


def random_tied(seed: int) -> Tied:
    torch.manual_seed(seed)
    module = Tied()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    module.norm(torch.randn(11, 3))
    return module


def test_every_weight_comes_from_the_file_and_ties_stay(tmp_path: Path) -> None:
    source, target = random_tied(1), random_tied(2)
    before = hashes(target.state_dict())
    weights = gather(source)
    assert list(weights) == [
        "nothing",
        "void",
        "embed.weight",
        *("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
        "score.bias",
    ]
    write_tensors(tmp_path / "a.safetensors", weights)
    fit(read_tensors(tmp_path / "a.safetensors"), target, where="a.safetensors")
    after = hashes(target.state_dict())
    assert after == hashes(source.state_dict())
    same = {name for name in after if after[name] == before[name]}
    assert same == {"nothing", "void", "norm.num_batches_tracked"}
    assert target.head.weight is target.embed.weight
    assert target.score.weight.data_ptr() == target.embed.weight.data_ptr()


def test_gathered_weights_are_copies() -> None:
    module = nn.Linear(3, 2)
    module.weight = nn.Parameter(torch.randn(3, 2).T)
    weights = gather(module)
    kept = hashes(weights)
    assert weights["weight"].is_contiguous()
    assert not weights["weight"].requires_grad
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()
    assert hashes(weights) == kept


def test_views_that_overlap_without_being_equal_keep_their_own_values() -> None:
    module = nn.Module()
    whole = torch.randn(4, 3)
    module.part, module.whole, module.turned = nn.Parameter(whole[:2]), nn.Parameter(whole), nn.Parameter(whole.T)
    weights = gather(module)
    assert hashes(weights) == hashes({"part": whole[:2], "whole": whole, "turned": whole.T})


@pytest.mark.parametrize("name", ["embed.weight", "head.weight", "score.weight"])
def test_a_tied_weight_goes_by_any_of_its_names(name: str) -> None:
    source, target = random_tied(1), random_tied(2)
    weights = gather(source)
    weights[name] = weights.pop("embed.weight")
    fit(weights, target, where="a")
    assert hashes(target.state_dict()) == hashes(source.state_dict())


def test_tied_weights_that_differ_in_the_file_are_refused() -> None:
    source, target = random_tied(1), random_tied(2)
    before = hashes(target.state_dict())
    weights = gather(source)
    weights["head.weight"] = weights["embed.weight"].clone()
    fit(weights, random_tied(3), where="a")
    weights["head.weight"][6, 2] += 1
    with pytest.raises(CheckpointError, match=r"a: tensors 'embed\.weight' and 'head\.weight' differ"):
        fit(weights, target, where="a")
    assert hashes(target.state_dict()) == before


def test_all_that_does_not_fit_is_told_at_once() -> None:
    target = random_tied(2)
    before = hashes(target.state_dict())
    weights = gather(random_tied(1))
    del weights["norm.bias"], weights["score.bias"]
    weights["embed.weight"] = torch.zeros(7, 4)
    weights |= {f"extra.{index}": torch.zeros(1) for index in range(20)}
    with pytest.raises(CheckpointError) as caught:
        fit(weights, target, where="a.safetensors")
    assert str(caught.value) == (
        "a.safetensors: does not fit the model; 2 missing: 'norm.bias', 'score.bias'; "
        f"20 unknown: {', '.join(repr(f'extra.{index}') for index in range(8))} and 12 more; "
        "1 of another shape: 'embed.weight' [7, 4], not [7, 3]"
    )
    assert hashes(target.state_dict()) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    target = random_tied(2)
    before = hashes(target.state_dict())
    weights = gather(random_tied(1))
    weights["score.bias"][3] = value
    with pytest.raises(CheckpointError, match=r"a: tensor 'score\.bias' holds weights that are not finite"):
        fit(weights, target, where="a")
    assert hashes(target.state_dict()) == before


def test_the_modules_dtype_stays_and_has_to_hold_the_numbers() -> None:
    target = nn.Linear(2, 1, bias=False).half()
    fit({"weight": torch.tensor([[1.5, -2.0]])}, target, where="a")
    assert target.weight.dtype == torch.float16
    assert target.weight.tolist() == [[1.5, -2.0]]
    with pytest.raises(CheckpointError, match=r"'weight' holds weights that are not finite in torch\.float16"):
        fit({"weight": torch.tensor([[1.5, 1e30]])}, target, where="a")
    with pytest.raises(CheckpointError, match=r"'weight' is torch\.int64, and the model's is torch\.float16"):
        fit({"weight": torch.tensor([[1, 2]])}, target, where="a")


# --------------------------------------------------------------------------------------------------------------- store


def arguments(step: int, size: int = 100) -> tuple[int, dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """What is saved at a step: anything of it says which step it belongs to."""
    random = torch.Generator().manual_seed(step)
    model = {"embed.weight": torch.randn(size, generator=random), "step": torch.tensor(step)}
    optimizer = {"embed.weight.exp_avg": torch.randn(size // 2, generator=random).bfloat16()}
    return step, model, optimizer, {"step": step, "loss": step / 7, "order": [step, None, "ü\ud800", {"nested": True}]}


def expected(step: int, size: int = 100) -> tuple[int, dict[str, str], dict[str, str], dict[str, Any]]:
    return content(Checkpoint(*arguments(step, size)))


def store_with(folder: Path, *steps: int) -> Store:
    store = Store(folder / "checkpoints")
    for step in steps:
        store.save(*arguments(step))
    return store


def test_a_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs" / "mine" / "checkpoints")
    assert store.steps() == []
    assert store.newest() is None
    store.keep([])
    assert list(tmp_path.iterdir()) == []
    assert store.save(*arguments(1234)) == store.folder / "step-00001234"
    tensors = various()
    store.save(3, tensors, {}, {})
    store.save(*arguments(123456789))
    assert store.steps() == [3, 1234, 123456789]
    assert content(store.newest()) == expected(123456789)
    assert content(store.load(1234)) == expected(1234)
    assert content(store.load(3)) == (3, hashes(tensors), {}, {})
    assert hashes(store.load_model(1234)) == expected(1234)[1]
    assert store.damaged == []
    assert sorted(path.name for path in (store.folder / "step-00001234").iterdir()) == sorted(FILES)
    manifest = json.loads((store.folder / "step-00001234" / "manifest.json").read_bytes())
    for name in FILES[:3]:
        path = store.folder / "step-00001234" / name
        assert manifest["files"].pop(name) == {"bytes": path.stat().st_size, "sha256": sha256(path)}
    assert manifest == {"format": 1, "step": 1234, "files": {}}


def test_a_missing_checkpoint_is_told_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoints: there is no checkpoint of step 5$"):
        Store(tmp_path / "checkpoints").load(5)
    with pytest.raises(CheckpointError, match="no checkpoint of step 5; choose from 4, 6"):
        store_with(tmp_path, 4, 6).load_model(5)


def test_keep_removes_the_others_and_what_was_left_behind(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2, 3, 4)
    shutil.copytree(store.folder / "step-00000001", store.folder / ".tmp-step-00000009-123")
    for old in ("step-00000001", "step-00000004"):
        shutil.copytree(store.folder / "step-00000001", store.folder / f".old-{old}")
    (store.folder / "notes.txt").write_text("mine")
    strange = ["step-0000000000009", "step-1", f"step-{chr(0x665) * 8}"]
    for name in strange:
        shutil.copytree(store.folder / "step-00000001", store.folder / name)
    assert store.steps() == [1, 2, 3, 4]
    store.keep({2, 4, 77})
    assert sorted(os.listdir(store.folder)) == sorted(["notes.txt", "step-00000002", "step-00000004", *strange])
    assert content(store.newest()) == expected(4)


def test_the_same_step_is_replaced(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    store.save(2, {"w": torch.ones(3)}, {}, {"again": True})
    assert content(store.newest()) == (2, hashes({"w": torch.ones(3)}), {}, {"again": True})
    assert sorted(os.listdir(store.folder)) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("go_on", ["keep", "save"])
def test_a_replacement_cut_short_loses_nothing(go_on: str, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    (store.folder / "step-00000002").rename(store.folder / ".old-step-00000002")  # where a kill would leave it
    assert store.steps() == [1, 2]
    assert content(store.newest()) == expected(2)
    if go_on == "keep":
        store.keep([2])
    else:
        store.save(*arguments(2))
        store.keep([2])
    assert os.listdir(store.folder) == ["step-00000002"]
    assert content(store.newest()) == expected(2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.tensor(float("inf")).numpy()[()]])
def test_a_state_that_is_not_finite_is_refused(value: float, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    before = listing(tmp_path)
    with pytest.raises((NumericError, TypeError), match=r"\$\.scores\.dev\[1\]: (nan|inf) cannot|float32"):
        store.save(2, {}, {}, {"scores": {"dev": [0.5, value]}})
    assert listing(tmp_path) == before


def test_a_state_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    with pytest.raises(ResourceError, match="a state of 67108877 bytes is over the limit of 67108864"):
        store.save(2, {}, {}, {"text": "x" * 2**26})
    assert os.listdir(store.folder) == ["step-00000001"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.999])
def test_one_flipped_bit_is_found_and_the_one_before_is_taken(name: str, where: float, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    path = store.folder / "step-00000002" / name
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1 << int(where * 7)
    path.write_bytes(data)
    assert content(store.newest()) == expected(1)
    assert len(store.damaged) == 1
    # A hash that was changed in the manifest shows in the file that it is of.
    named = path if name != "manifest.json" else path.parent
    assert store.damaged[0].startswith(str(named))
    assert store.damaged[0].isprintable()
    with pytest.raises(CheckpointError, match=re.escape(str(named))):
        store.load(2)
    if name == "model.safetensors":
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            store.load_model(2)
    elif name != "manifest.json":
        assert hashes(store.load_model(2)) == expected(2)[1]
    store.keep([1])
    assert content(store.newest()) == expected(1)
    assert store.damaged == []


def test_every_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    store = store_with(tmp_path, 7)
    path = store.folder / "step-00000007" / "manifest.json"
    data = path.read_bytes()
    for index in range(len(data)):
        for other in (b" ", b"0", bytes([data[index] ^ 32])):
            if other != data[index : index + 1]:
                path.write_bytes(data[:index] + other + data[index + 1 :])
                assert store.newest() is None
    path.write_bytes(data)
    assert content(store.newest()) == expected(7)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "link", "link to the same", "folder", "pipe"])
def test_a_damaged_file_is_passed_over(name: str, damage: str, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    path = store.folder / "step-00000002" / name
    outside = tmp_path / "outside"
    path.rename(outside)  # by itself: missing
    match damage:
        case "empty":
            path.touch()
        case "cut":
            path.write_bytes(outside.read_bytes()[:-1])
        case "link":
            path.symlink_to("../../outside")
        case "link to the same":
            path.symlink_to(path.name)
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
    assert content(store.newest()) == expected(1)
    assert len(store.damaged) == 1
    assert store.damaged[0].startswith(f"{path}: ")


def test_a_checkpoint_under_another_steps_name_or_a_link_is_refused(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    shutil.copytree(store.folder / "step-00000001", store.folder / "step-00000002")
    (store.folder / "step-00000003").symlink_to("step-00000001")
    assert content(store.newest()) == expected(1)
    assert [line.split(": ")[1] for line in store.damaged] == [
        "is a link, which is not followed here",
        "belongs to step 1",
    ]
    store.keep([1])
    assert os.listdir(store.folder) == ["step-00000001"]
    assert content(store.newest()) == expected(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {"../outside": {}}}, "does not say size and SHA-256 of model.safetensors"),
        ({"files": ["model.safetensors"]}, "names no files"),
        ({"format": 2}, "is of format 2, and this version of regard reads format 1"),
        ({"step": True}, "is not as it was written"),
        ({"run": "rm -rf"}, "is not as it was written"),
    ],
)
def test_a_manifest_of_another_form_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    path = store.folder / "step-00000001" / "manifest.json"
    path.write_bytes(json_bytes(json.loads(path.read_bytes()) | change))
    with pytest.raises(CheckpointError, match=message):
        store.load(1)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "state.json/../../outside", "\x1b[2J", "x" * 1000])
def test_a_manifest_that_names_another_file_is_refused(name: str, tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    path = store.folder / "step-00000001" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    path.write_bytes(json_bytes(manifest))
    with pytest.raises(CheckpointError, match=r"manifest\.json: names '.*, which is no file of a checkpoint") as caught:
        store.load(1)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_a_deep_state_with_a_true_hash_is_refused(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    folder = store.folder / "step-00000001"
    (folder / "state.json").write_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    size = (folder / "state.json").stat().st_size
    manifest["files"]["state.json"] = {"bytes": size, "sha256": sha256(folder / "state.json")}
    (folder / "manifest.json").write_bytes(json_bytes(manifest))
    with pytest.raises(CheckpointError, match=r"state\.json: the state is nested too deeply"):
        store.load(1)


# --------------------------------------------------------------------------------------------------------------- files


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_aside(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"
    write_aside(path, b"\0\1")
    assert path.read_bytes() == b"\0\1"
    assert sha256(path) == hashlib.sha256(b"\0\1").hexdigest()
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()
    assert os.listdir(tmp_path) == ["metrics.json"]


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_block_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text("old")

    def half() -> None:
        with written_aside(path) as sink:
            sink.write(b"half")
            assert path.read_text() == "old"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="cannot be written: No such file or directory"):
        write_aside(tmp_path / "no folder" / "a", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="folder: cannot be written: Is a directory"):
        write_aside(tmp_path / "folder", "")
    assert os.listdir(tmp_path) == ["folder"]
    full = Path("/dev/full")
    no_space = "^/dev/full: cannot be written: No space left on device; free some space"
    with pytest.raises(ResourceError, match=no_space), writing(full), full.open("wb") as file:
        file.write(b"x")
    for code in (errno.EACCES, errno.EROFS):
        with pytest.raises(ResourceError, match="; choose a folder"), writing(full):
            raise OSError(code, os.strerror(code))


def test_a_file_system_that_cannot_sync_folders_is_borne() -> None:
    folder = os.open("/proc", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            os.fsync(folder)
    finally:
        os.close(folder)
    sync_folder(Path("/proc"))


def test_json_is_written_as_it_will_be_read() -> None:
    value = {"z": [1, 2.5, None, True], "a": {"ü\ud800": "\n"}, "large": 2**70, "tiny": 5e-324}
    assert json.loads(json_bytes(value)) == value
    assert list(json.loads(json_bytes(value))) == list(value)
    assert json_bytes(value).isascii()
    with pytest.raises(NumericError, match=r"\$\.a\[1\]\.b: nan cannot be saved as JSON"):
        json_bytes({"a": [0, {"b": float("nan")}]})
    with pytest.raises(TypeError, match=r"\$\.a: the key 3 is not a string"):
        json_bytes({"a": {3: "three"}})
    with pytest.raises(TypeError, match="Tensor is not JSON"):
        json_bytes({"a": torch.ones(1)})


# ------------------------------------------------------------------------------------------------ real kills and limits


def run_script(script: str, folder: Path, *args: object, timeout: float = 300.0) -> str:
    """Run a script that may use this file's helpers, and give what it printed."""
    source = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_checkpoints import *\n{script}"
    command = [sys.executable, "-c", source, *map(str, args)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


SAVE = """
large, small = {"w": torch.zeros(100_000)}, {}
content = {
    "model.safetensors": (large, small, {}),
    "optimizer.safetensors": (small, large, {}),
    "state.json": (small, small, {"text": "x" * 400_000}),
    "manifest.json": (small, small, {}),
}
for step in (2, 3):
    try:
        Store(Path("checkpoints")).save(step, *content[sys.argv[1]])
    except ResourceError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limit_bytes"), [(name, 300_000) for name in FILES[:3]] + [("manifest.json", 100)])
def test_where_the_disk_takes_no_more_all_is_as_it_was(name: str, limit_bytes: int, tmp_path: Path) -> None:
    """The system's limit on a file's size fails as a full disk does, needs no rights, and lets us choose the file."""
    store = store_with(tmp_path, 1, 2)
    before = listing(tmp_path)
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}))\n"
    line = "checkpoints: cannot be written: File too large; raise the limit on the size of files\n"
    assert run_script(limit + SAVE, tmp_path, name) == line * 2
    assert listing(tmp_path) == before
    assert content(store.newest()) == expected(2)
    assert content(store.load(1)) == expected(1)


DROP_RIGHTS = """
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


@pytest.mark.slow
def test_a_missing_permission_is_told_and_all_is_as_it_was(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2)
    before = listing(tmp_path)
    tmp_path.chmod(0o555)  # the user without rights stands in the folder, and has to pass through no other
    store.folder.chmod(0o555)
    try:
        lines = run_script(DROP_RIGHTS + SAVE, tmp_path, "model.safetensors")
        cause = "checkpoints: cannot be written: Permission denied; choose a folder that you may write to\n"
        assert lines == cause * 2
        assert listing(tmp_path) == before
        assert content(store.newest()) == expected(2)
        state = store.folder / "step-00000002" / "state.json"
        state.chmod(0)
        read = "try: Store(Path('checkpoints')).newest()\nexcept ResourceError as error: print(error)"
        cause = "checkpoints/step-00000002/state.json: cannot be read: permission denied\n"
        assert run_script(DROP_RIGHTS + read, tmp_path) == cause
    finally:
        tmp_path.chmod(0o755)
        store.folder.chmod(0o755)


CRASH = """
import random, signal, time

folder, size, reached, amid_a_save = Path("checkpoints"), 500_000, 0, 0
random.seed(0)
for attempt in range(30):
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        store = Store(folder)
        for step in range(reached + 1, 10**6):
            store.save(*arguments(step, size))
            os.write(tells, step.to_bytes(4, "little"))
            store.save(*arguments(step, size))
            store.keep([step])
    os.close(tells)
    time.sleep(random.uniform(0, 0.2))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    saved = open(told, "rb").read()
    reached = int.from_bytes(saved[-4:], "little") if saved else reached
    amid_a_save += any(name.startswith((".tmp-", ".old-")) for name in os.listdir(folder)) if folder.exists() else 0

    store = Store(folder)
    newest = store.newest()
    assert store.damaged == [], store.damaged
    for name in os.listdir(folder) if folder.exists() else ():
        if name.startswith("step-"):  # the older ones, too, are whole or gone
            assert content(store.load(int(name[5:]))) == expected(int(name[5:]), size)
    if newest is None:
        assert reached == 0, reached
        continue
    assert newest.step in (reached, reached + 1), (newest.step, reached)
    assert content(newest) == expected(newest.step, size)
    reached = newest.step
    if attempt % 2:  # else the next process finds what this one left
        store.keep([reached])
        assert os.listdir(folder) == [f"step-{reached:08d}"]
        assert content(store.newest()) == expected(reached, size)
print(reached, amid_a_save)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_newest_checkpoint_whole(tmp_path: Path) -> None:
    """Thirty processes that save 2.5 MB in a tight loop, replace it, remove the one before, and are killed."""
    reached, amid_a_save = map(int, run_script(CRASH, tmp_path).split())
    assert reached >= 10
    assert amid_a_save >= 3, "the kills have not hit what this test is about"
