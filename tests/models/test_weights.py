"""Loading for use: mapped, built without drawing, assigned; and nothing of it may be seen from outside."""

import hashlib
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from regard.errors import CheckpointError
from regard.models.registry import families
from regard.models.weights import build_like, gather, map_tensors, read_tensors, write_tensors

GREATEST = torch.finfo(torch.float32).max


class Pair(nn.Module):
    """Two large matrices, tied or not; a table is computed beside them."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a = nn.Linear(257, 509, bias=False)
        self.b = nn.Linear(257, 509, bias=False)
        if tied:
            self.b.weight = self.a.weight
        self.register_buffer("table", torch.arange(7.0), persistent=False)


def test_mapped_equals_read_and_writing_leaves_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    torch.manual_seed(3)
    write_tensors(path, {"large": torch.randn(257, 509), "small": torch.randn(5), "none": torch.empty(0, 3)})
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    mapped, read = map_tensors(path), read_tensors(path)
    assert list(mapped) == list(read)
    assert all(torch.equal(mapped[name], read[name]) and mapped[name].shape == read[name].shape for name in read)
    mapped["large"].zero_()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert torch.equal(map_tensors(path)["large"], read["large"])


def test_numbers_that_stand_askew_are_read(tmp_path):
    values = torch.arange(1 << 17, dtype=torch.float32)
    header = {"x": {"dtype": "F32", "shape": [1 << 17], "data_offsets": [0, 4 << 17]}}
    text = json.dumps(header).encode()
    text += b" " * (3 - len(text) % 4)  # 8 bytes, then a header of an odd length
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + values.numpy().tobytes())
    assert (8 + len(text)) % 4 == 3
    assert torch.equal(map_tensors(path)["x"], values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_weights_stand_where_the_file_has_them(tmp_path, dtype):
    path = tmp_path / "model.safetensors"
    written = {f"{name}.weight": torch.randn(509, 257).to(dtype) for name in "ab"}
    write_tensors(path, written)
    tensors = map_tensors(path)
    state = torch.get_rng_state()
    model = build_like(lambda tied: Pair(tied), False, tensors, tmp_path)
    assert torch.equal(torch.get_rng_state(), state), "weights were drawn"
    assert model.a.weight.data_ptr() == tensors["a.weight"].data_ptr()
    assert torch.equal(model.b.weight, written["b.weight"])
    assert model.table.dtype == dtype
    assert torch.equal(model.table, torch.arange(7.0).to(dtype))
    assert isinstance(model.a.weight, nn.Parameter)
    assert model.a.weight.requires_grad


def test_what_is_not_tied_shares_no_memory(tmp_path):
    one = torch.randn(509, 257)
    apart = build_like(lambda tied: Pair(tied), False, {"a.weight": one, "b.weight": one}, tmp_path)
    assert len(gather(apart)) == 2
    with torch.no_grad():
        apart.a.weight.zero_()
    assert apart.b.weight.abs().sum() > 0
    tied = build_like(lambda tied: Pair(tied), True, {"a.weight": torch.randn(509, 257)}, tmp_path)
    assert tied.a.weight is tied.b.weight
    assert len(gather(tied)) == 1


@pytest.mark.parametrize("bad", [[torch.inf], [torch.nan], [torch.inf, -torch.inf]])
def test_what_is_not_finite_is_refused_wherever_it_stands(tmp_path, bad):
    weights = torch.randn(509, 257)
    weights.view(-1)[11 : 11 + len(bad)] = torch.tensor(bad)
    with pytest.raises(CheckpointError, match=r"'a\.weight' holds weights that are not finite"):
        build_like(lambda tied: Pair(tied), True, {"a.weight": weights}, tmp_path)


def test_a_sum_beyond_the_greatest_number_is_no_fault(tmp_path):
    weights = torch.full((509, 257), GREATEST)
    model = build_like(lambda tied: Pair(tied), True, {"a.weight": weights}, tmp_path)
    assert torch.equal(model.a.weight, weights)


@pytest.mark.parametrize(("name", "number"), [(f.name, i) for f in families().values() for i in range(len(f.tiny))])
def test_every_family_is_whole_without_drawing(tmp_path, name, number):
    family = families()[name]
    torch.manual_seed(5)
    model = family.build(family.tiny[number])
    loaded = build_like(family.build, family.tiny[number], gather(model), tmp_path)
    names = dict(model.named_buffers()), dict(loaded.named_buffers())
    assert all(torch.equal(buffer, names[1][name]) for name, buffer in names[0].items())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))


def test_loading_imports_neither_trainer_nor_page_nor_scorer():
    unwanted = ["scipy", "sacrebleu", "fastapi", "transformers", "tensorboardX", "pyarrow"]
    unwanted += ["regard.looking", "regard.training.loop", "regard.training.report", "regard.tasks.registry"]
    code = (
        "import sys, regard.api\n"
        "from regard.tasks import folder, plain, public_text\n"
        "from regard.tasks.images import public\n"
        "from regard.training import hardware\n"
        f"print([name for name in {unwanted} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("of", ["parameter", "data", "view"])
def test_a_cut_distribution_ends_whatever_the_memory_holds(tmp_path, of):
    class Drawn(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4, 5), 1e9))
            places = {"parameter": self.weight, "data": self.weight.data, "view": self.weight.data[:2]}
            nn.init.trunc_normal_(places[of], std=0.02, a=-0.04, b=0.04)

    weight = torch.randn(4, 5)
    assert torch.equal(build_like(Drawn, None, {"weight": weight}, tmp_path).weight, weight)
