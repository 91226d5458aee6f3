"""Packed linear layers against float64, on our own kernels and on PyTorch's products."""

import copy
import math
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.attention import MultiHeadAttention, Segments, record, switch_off
from regard.attention.backends import static
from regard.errors import ResourceError, UsageError
from regard.kernels import native
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.packed import is_packed, pack, packing_error, ready
from regard.layers.packed_linear import PackedLinear, levels
from regard.models.bert import Bert, BertConfig
from regard.models.gan import Gan, GanConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import Vit, VitConfig
from regard.models.weights import gather
from regard.models.xlnet import XLNet, XLNetConfig

PATHS = ("native", "torch")


@pytest.fixture(autouse=True)
def no_kernel_of_a_test_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(static, "own", None)


PRECISIONS = ("fp32", "bf16", "int8")
# Half a step of a weight, relative to it (bf16) or to the greatest of its output (int8).
STEPS = {"fp32": 2.0**-23, "bf16": 2.0**-8, "int8": 0.5 / 127}


def drawn(outputs: int, inputs: int, rows: int, bias: bool = True) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(outputs * 1000 + inputs)
    return nn.Linear(inputs, outputs, bias).eval(), torch.randn(rows, inputs)


def made(linear: nn.Linear, precision: str, path: str) -> PackedLinear:
    return PackedLinear(linear.weight, linear.bias, precision, native.choose(path))


def weights_of(layer: PackedLinear) -> torch.Tensor:
    """The weights as they count: products of one input at a time."""
    return layer(torch.eye(layer.in_features)).T - (0 if layer.bias_O is None else layer.bias_O[:, None])


def oracle(linear: nn.Linear, x_NI: torch.Tensor, precision: str) -> torch.Tensor:
    """The docstring's formulas, in float64."""
    w_OI, x_NI = linear.weight.detach(), x_NI.clone()
    if precision == "bf16":
        w_OI, x_NI = w_OI.bfloat16(), x_NI.bfloat16()
    if precision == "int8":
        most_O1, most_N1 = w_OI.abs().amax(1, True), x_NI.abs().amax(1, True)
        steps = torch.tensor(float(levels(x_NI.shape[1])))
        q_OI = (w_OI * (torch.tensor(127.0) / most_O1)).round().double()
        q_NI = (x_NI * (steps / most_N1)).round().nan_to_num().double()
        y_NO = (q_NI @ q_OI.T) * (most_O1.double() / 127).T * (most_N1.double() / steps)
    else:
        y_NO = x_NI.double() @ w_OI.double().T
    return y_NO if linear.bias is None else y_NO + linear.bias.double()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (7, 5), (33, 33), (40, 800), (4099, 5)])
def test_products_are_those_of_the_formula(path: str, precision: str, outputs: int, inputs: int):
    for rows in (0, 1, 2, 3, 5, 6, 8, 12, 13, 17, 100, 300):
        linear, x_NI = drawn(outputs, inputs, rows, bias=outputs % 2 == 1)
        y_NO = made(linear, precision, path)(x_NI)
        assert y_NO.shape == (rows, outputs)
        torch.testing.assert_close(y_NO.double(), oracle(linear, x_NI, precision), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 64), (33, 65), (50, 200)])
def test_weights_are_the_same_however_they_lie(outputs: int, inputs: int, precision: str):
    torch.manual_seed(outputs)
    weight_OI = torch.randn(outputs, inputs)
    weight_OI[outputs // 2] = 0.0
    turned_OI, apart_OI = weight_OI.T.contiguous().T, torch.cat([weight_OI, weight_OI], 1)[:, :inputs]
    for layer in (PackedLinear(one, None, precision, native.choose("native")) for one in (turned_OI, apart_OI)):
        plain = PackedLinear(weight_OI, None, precision, None)
        assert torch.equal(weights_of(layer), weights_of(plain))
        assert layer.scales_O is plain.scales_O or torch.equal(layer.scales_O, plain.scales_O)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_more_rows_than_are_laid_out_at_once(precision: str):
    """With several blocks of panels, and inputs that floats are multiplied by in several parts."""
    linear, x_NI = drawn(300, 2999, 1500)
    y_NO = made(linear, precision, "native")(x_NI)
    torch.testing.assert_close(y_NO.double(), oracle(linear, x_NI, precision), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_many_outputs_as_of_a_vocabulary(path: str, precision: str):
    linear, x_NI = drawn(50257, 6, 3, bias=False)
    y_NO = made(linear, precision, path)(x_NI)
    torch.testing.assert_close(y_NO.double(), oracle(linear, x_NI, precision), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounding_is_within_half_a_step(path: str, precision: str):
    linear, _ = drawn(37, 51, 1, bias=False)
    found_OI = weights_of(made(linear, precision, path))
    most = linear.weight.abs().amax(1, True) if precision == "int8" else linear.weight.abs()
    assert ((found_OI - linear.weight).abs() <= STEPS[precision] * most * 1.0001).all()
    assert precision == "fp32" or not torch.equal(found_OI, linear.weight)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_both_paths_agree_to_rounding_and_int8_in_every_whole_number(precision: str):
    for rows in (1, 8, 40):
        linear, x_NI = drawn(65, 129, rows, bias=False)
        ours, theirs = (made(linear, precision, path)(x_NI) for path in PATHS)
        if precision == "int8":
            assert torch.equal(ours, theirs)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def test_int8_sums_stay_in_32_bits_where_all_is_greatest():
    for inputs in (2, 768, 4097):
        linear = nn.Linear(inputs, 3, bias=False)
        with torch.no_grad():
            linear.weight.fill_(-1.0)
        x_NI = torch.full((2, inputs), 5.0)
        for path in PATHS:
            torch.testing.assert_close(
                made(linear, "int8", path)(x_NI), torch.full((2, 3), -5.0 * inputs), rtol=1e-6, atol=0
            )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_row_does_not_depend_on_those_beside_it(path: str, precision: str):
    linear, x_NI = drawn(50, 70, 30)
    layer = made(linear, precision, path)
    x_NI[7] *= 1000
    alone = torch.cat([layer(row[None]) for row in x_NI])
    if precision == "int8" or path == "native":
        assert torch.equal(layer(x_NI), alone)
    rest = torch.arange(30) != 7
    torch.testing.assert_close(layer(x_NI)[rest], alone[rest], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_inputs_of_any_shape_and_layout(path: str, precision: str):
    linear, x_NI = drawn(9, 34, 24)
    layer = made(linear, precision, path)
    y_NO = layer(x_NI)
    torch.testing.assert_close(layer(x_NI.view(2, 3, 4, 34)).view(24, 9), y_NO)
    torch.testing.assert_close(layer(x_NI.T.contiguous().T), y_NO)
    wide = torch.randn(24, 80)
    wide[:, 11:45] = x_NI
    torch.testing.assert_close(layer(wide[:, 11:45]), y_NO)
    torch.testing.assert_close(layer(x_NI[::2]), y_NO[::2])
    torch.testing.assert_close(layer(x_NI[:1].expand(5, 34)), y_NO[:1].expand(5, 9))
    torch.testing.assert_close(layer(x_NI[3]), y_NO[3])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row_and_shows(path: str, precision: str, bad: float):
    linear, x_NI = drawn(20, 15, 20)
    layer, plain_NO = made(linear, precision, path), linear(x_NI)
    x_NI[4, 3] = bad
    y_NO = layer(x_NI)
    assert not y_NO[4].isfinite().any()
    assert precision != "int8" or y_NO[4].isnan().all()
    rest = torch.arange(20) != 4
    torch.testing.assert_close(y_NO[rest], plain_NO[rest], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("path", PATHS)
def test_int8_of_zeros_and_of_tiny_numbers_is_the_bias(path: str):
    linear, x_NI = drawn(20, 15, 3)
    layer = made(linear, "int8", path)
    for x in (torch.zeros_like(x_NI), torch.full_like(x_NI, 1e-42)):
        torch.testing.assert_close(layer(x), linear.bias.expand(3, 20))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_parts_stand_on_the_same_memory(path: str, precision: str):
    linear, x_NI = drawn(70, 19, 4)
    layer = made(linear, precision, path)
    part = layer.part(32, 21)
    torch.testing.assert_close(part(x_NI), layer(x_NI)[:, 32:53])
    assert part.weights.untyped_storage().data_ptr() == layer.weights.untyped_storage().data_ptr()
    assert (layer.part(33, 4) is None) == (path == "native")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_joint_product_is_the_three(path: str, precision: str):
    torch.manual_seed(0)
    plain = MultiHeadAttention(64, 4, num_kv_heads=2, rotary_base=100.0).eval()
    for projection in (plain.q_proj, plain.k_proj, plain.v_proj):
        nn.init.normal_(projection.bias)
    packed = pack(nn.ModuleList([copy.deepcopy(plain)]).eval(), precision, path)[0]
    x_ND, segments = torch.randn(11, 64), Segments.ragged([4, 7])
    assert plain.joint_proj is None
    assert isinstance(packed.joint_proj, PackedLinear)
    together = packed(x_ND, segments)
    joint, packed.joint_proj = packed.joint_proj, None
    torch.testing.assert_close(together, packed(x_ND, segments), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(together, plain(x_ND, segments), rtol=0.05, atol=0.05)
    assert joint.out_features == 64 + 2 * 32


def test_an_attention_without_packing_keeps_its_state():
    names = set(MultiHeadAttention(8, 2).state_dict())
    assert names == {f"{part}_proj.{end}" for part in ("q", "k", "v", "out") for end in ("weight", "bias")}


def texts(model: nn.Module) -> torch.Tensor:
    return model.head(model(torch.arange(23) % 19, Segments.ragged([9, 1, 13])))


def pairs(model: Transformer) -> torch.Tensor:
    tokens, segments = torch.arange(23) % 19, Segments.ragged([9, 1, 13])
    return model.head(model(tokens, segments, tokens.flip(0), Segments.ragged([3, 8, 12])))


def pictures(model: nn.Module) -> torch.Tensor:
    return model(torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)).hidden_ND


def masked(model: Bert) -> torch.Tensor:
    return model(torch.arange(12), Segments.ragged([5, 7]))


VIT = VitConfig(image_size=(32, 32), patch_size=8, embed_dim=48, num_layers=2, num_heads=3, mlp_dim=64)
SWIN = SwinConfig(image_size=(32, 32), embed_dim=48, num_layers=(1, 1), num_heads=(3, 6), window_size=(4,))


def stepped(model: nn.Module) -> torch.Tensor:
    state = model.start(torch.arange(12), Segments.ragged([5, 7]), 2)
    found = []
    for token in range(4):
        logits_RV, state = model.step(torch.tensor([token, 1, 2, token]), state)
        found.append(logits_RV)
    return torch.cat(found)


MODELS = {
    "gpt": (lambda: GPT(GPTConfig(23, 64, 2, 4, max_len=64)), texts),
    "gpt step by step": (lambda: GPT(GPTConfig(23, 64, 2, 4, max_len=64)), stepped),
    "llama": (lambda: Llama(LlamaConfig(23, 64, 2, 4, 2, 96, 64)), texts),
    "llama step by step": (lambda: Llama(LlamaConfig(23, 64, 2, 4, 2, 96, 64)), stepped),
    "transformer": (lambda: Transformer(TransformerConfig(23, 23, 64, 96, 4, 0, 2, 2)), pairs),
    "transformer step by step": (lambda: Transformer(TransformerConfig(23, 23, 64, 96, 4, 0, 2, 2)), stepped),
    "bert": (lambda: Bert(BertConfig(23, 64, 2, 4, 96)), masked),
    "vit": (lambda: Vit(VIT), pictures),
    "swin": (lambda: Swin(SWIN), pictures),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_a_packed_model_computes_what_the_plain_one_does(name: str, precision: str, path: str):
    build, run = MODELS[name]
    torch.manual_seed(3)
    plain = build().eval()
    with torch.inference_mode():
        wanted = run(plain)
        packed = pack(plain, precision, path)
        found = run(packed)
    assert packed is plain
    assert not any(isinstance(module, nn.Linear) for module in packed.modules())
    error = float((found - wanted).abs().max() / wanted.abs().max())
    assert error < {"fp32": 1e-5, "bf16": 0.02, "int8": 0.05}[precision]
    assert error > 0 or precision == "fp32"


def test_relative_scores_work_packed():
    torch.manual_seed(3)
    model = XLNet(XLNetConfig(23, 32, 1, 2, 48)).eval()
    tokens, segments = torch.arange(12), Segments.ragged([5, 7])
    with torch.inference_mode():
        wanted = model(tokens, segments)
        torch.testing.assert_close(pack(model)(tokens, segments), wanted, rtol=1e-4, atol=1e-5)


def test_weights_that_are_computed_are_packed_too():
    torch.manual_seed(3)
    model = Gan(GanConfig((16, 16), 1, 8, 8, spectral_norm=True)).eval()
    latents_BZ = torch.randn(4, 8)
    with torch.inference_mode():
        wanted = model.generator(latents_BZ)
        found = pack(model, "int8").generator(latents_BZ)
    assert isinstance(model.generator.start, PackedLinear)
    assert 0 < float((found - wanted).abs().max()) < 0.05 * float(wanted.abs().max())


def test_a_table_is_still_looked_up_and_its_output_is_packed():
    model = GPT(GPTConfig(23, 32, 1, 2)).eval()
    table = model.embed.weight.clone()
    pack(model, "int8")
    assert isinstance(model.output, PackedLinear)
    assert torch.equal(model.embed.weight, table)
    assert sum(one.numel() for one in model.parameters()) == 23 * 32 + 1024 * 32 + 3 * 2 * 32


def test_recording_works_packed():
    torch.manual_seed(0)
    model = GPT(GPTConfig(23, 32, 1, 2)).eval()
    tokens, segments = torch.arange(9), Segments.ragged([4, 5])

    def rows() -> list[torch.Tensor]:
        with record(model) as recorded:
            model(tokens, segments)
        return [one.weights_HTS for one in recorded["blocks.0.self_attn"]]

    for before, after in zip(rows(), (pack(model), rows())[1], strict=True):
        torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)


def test_a_copy_works_by_itself():
    model = pack(GPT(GPTConfig(23, 32, 1, 2)).eval(), "int8")
    tokens, segments = torch.arange(9), Segments.ragged([4, 5])
    wanted, again = model(tokens, segments), copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.weights.zero_()
    assert torch.equal(again(tokens, segments), wanted)


def test_on_another_device_what_writes_becomes_bf16():
    made = ready(GPT(GPTConfig(23, 32, 1, 2)).to("meta"), "bf16")
    assert {parameter.dtype for parameter in made.parameters()} == {torch.bfloat16}
    assert not made.training
    assert all(block.self_attn._together for block in made.blocks)
    made = ready(GPT(GPTConfig(23, 32, 1, 2)).to("meta"), "fp32")
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float32}
    assert all(block.self_attn._together for block in made.blocks)
    with pytest.raises(UsageError, match="bf16 weights are for the CPU; give the device cpu"):
        ready(Bert(BertConfig(23, 32, 1, 2)).to("meta"), "bf16")


def test_what_packing_refuses():
    model = GPT(GPTConfig(23, 32, 1, 2))
    with pytest.raises(UsageError, match="training mode"):
        pack(model)
    with pytest.raises(UsageError, match="unknown precision 'fp8'; choose fp32, bf16, int8"):
        pack(model.eval(), "fp8")
    with pytest.raises(UsageError, match="not on the CPU"):
        pack(copy.deepcopy(model).to("meta"))
    with pytest.raises(UsageError, match="int8 weights are for the CPU"):
        ready(copy.deepcopy(model).to("meta"), "int8")
    pack(model)
    with pytest.raises(UsageError, match="cannot be trained"):
        model.train()
    with pytest.raises(UsageError, match="cannot be saved"):
        gather(model)
    with pytest.raises(UsageError, match="do not change"):
        switch_off(model, {"blocks.0.self_attn": [1]})
    with pytest.raises(UsageError, match="give float32"):
        model.output(torch.zeros(1, 32, dtype=torch.float64))
    with pytest.raises(UsageError, match="give float32"):
        model.output(torch.zeros(1, 31))
    with pytest.raises(UsageError, match="a gradient"):
        model.output(torch.zeros(1, 32, requires_grad=True))


def test_small_models_stay_plain_unless_asked():
    model = GPT(GPTConfig(23, 32, 1, 2)).eval()
    assert isinstance(ready(model, "fp32").output, nn.Linear)
    assert isinstance(ready(model, "int8").output, PackedLinear)


def test_the_error_is_told():
    model = GPT(GPTConfig(23, 32, 1, 2)).eval()
    errors = {precision: packing_error(pack(copy.deepcopy(model), precision)) for precision in PRECISIONS}
    assert errors["fp32"] == 0.0
    assert 1e-4 < errors["bf16"] < errors["int8"] < 0.05


# ---------------------------------------------------------------------------------------------------------- compiling

CHECK = """
import torch
from regard.kernels import native
from regard.layers.mlp import ACTIVATIONS, MLP
from regard.layers.packed_linear import PackedLinear
layer = PackedLinear(torch.eye(3), None, "int8", native.choose())
print(layer.kernel is not None, layer(torch.tensor([[1.0, 2.0, 3.0]])).round().tolist(), native.describe())
"""


def start(**env: str) -> subprocess.Popen[str]:
    values = {**os.environ, **env}
    return subprocess.Popen(
        [sys.executable, "-c", CHECK], env=values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "[[1.0, 2.0, 3.0]]" in out
    return out


def test_two_processes_compile_at_once_and_damage_is_mended(tmp_path: Path):
    both = [start(REGARD_CACHE=str(tmp_path), REGARD_KERNEL="auto") for _ in range(2)]
    assert all(said(one).startswith("True") for one in both)
    (kept,) = (tmp_path / "kernels").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:5000] + b"x" + whole[5001:]):
        kept.write_bytes(damaged)
        assert said(start(REGARD_CACHE=str(tmp_path), REGARD_KERNEL="auto")).startswith("True")
        assert native._is_whole(kept)


def test_without_a_compiler_products_are_pytorchs(tmp_path: Path):
    out = said(start(REGARD_CACHE=str(tmp_path), PATH=str(tmp_path), CXX="", REGARD_KERNEL="auto"))
    assert out.startswith("False")
    assert "no C++ compiler is installed" in out


def test_a_compiler_that_fails_is_told(tmp_path: Path):
    compiler = tmp_path / "g++"
    complains = 'echo "In a file:" >&2; echo "a.cpp:3: error: no sense" >&2; exit 1'
    compiler.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "broken 1.0"; else {complains}; fi\n')
    compiler.chmod(0o755)
    out = said(start(REGARD_CACHE=str(tmp_path), PATH=f"{tmp_path}:/bin", CXX="", REGARD_KERNEL="auto"))
    assert out.startswith("False")
    assert "broken 1.0 cannot compile our kernels: a.cpp:3: error: no sense" in out


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere there are two ways to ask for it")
def test_no_kernels_are_made_for_any_processor_where_those_for_this_one_fail(tmp_path: Path):
    """They would have a tenth of its speed, and nobody would know."""
    compiler, real = tmp_path / "g++", shutil.which("g++")
    fails = 'for one; do if [ "$one" = -march=native ]; then echo "error: which processor?" >&2; exit 1; fi; done'
    compiler.write_text(f'#!/bin/sh\n{fails}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    out = said(start(REGARD_CACHE=str(tmp_path), PATH=f"{tmp_path}:{os.environ['PATH']}", CXX="", REGARD_KERNEL="auto"))
    assert out.startswith("False")
    assert "cannot compile our kernels: error: which processor?" in out


def test_a_cache_that_cannot_be_written_compiles_for_this_process(tmp_path: Path):
    (tmp_path / "kernels").write_text("a file where the folder should be")
    assert said(start(REGARD_CACHE=str(tmp_path), REGARD_KERNEL="auto")).startswith("True")


def test_the_choice_of_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("REGARD_KERNEL", "torch")
    assert native.choose() is None
    assert native.describe() == "PyTorch's, as REGARD_KERNEL says"
    monkeypatch.setenv("REGARD_KERNEL", "cuda")
    with pytest.raises(UsageError, match="choose auto, native or torch"):
        native.choose()
    monkeypatch.setattr(native, "load", lambda: (None, "no C++ compiler is installed"))
    with pytest.raises(ResourceError, match="no C\\+\\+ compiler"):
        native.choose("native")
    assert native.choose("auto") is None


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations_come_with_the_product(precision: str, activation: str):
    for rows, outputs, inputs in ((3, 37, 24), (40, 160, 800), (300, 48, 24)):
        linear, x_NI = drawn(outputs, inputs, rows)
        x_NI *= 40  # some beyond where they are flat
        layer = made(linear, precision, "native")
        wanted = ACTIVATIONS[activation](layer(x_NI).double())
        assert layer.activated(activation)
        assert not layer.activated(activation)  # not twice
        torch.testing.assert_close(layer(x_NI).double(), wanted, atol=1e-6, rtol=1e-5)


def test_activations_of_great_numbers_and_of_none():
    layer = PackedLinear(torch.eye(6), None, "fp32", native.choose("native"))
    x_NI = torch.diag(torch.tensor([-300.0, 300.0, -3e38, 0.0, math.nan, -20.0]))  # none meets another in a sum
    for activation in ("relu", "gelu", "gelu-quick", "silu"):  # the other's cube is infinite
        one = copy.deepcopy(layer)
        assert one.activated(activation)
        wanted = ACTIVATIONS[activation](layer(x_NI))
        assert torch.equal(one(x_NI).isnan(), wanted.isnan())
        torch.testing.assert_close(one(x_NI).nan_to_num(), wanted.nan_to_num(), atol=1e-6, rtol=1e-6)


def test_what_has_no_kernel_stays_beside_the_product():
    linear, _ = drawn(16, 16, 1)
    assert not made(linear, "fp32", "native").activated("tanh")
    assert not made(linear, "fp32", "torch").activated("relu")


def test_activations_that_have_no_name_or_several_places_stay():
    torch.manual_seed(3)
    a, b, c = (MLP(16, 32, "silu").eval() for _ in range(3))
    b.up_proj = a.up_proj
    c.activation = torch.tanh
    model, x_ND = nn.ModuleList([a, b, c]), torch.randn(3, 16)
    wanted = [one(x_ND) for one in model]
    pack(model.eval(), kernel="native")
    with torch.inference_mode():
        for one, was in zip(model, wanted, strict=True):
            torch.testing.assert_close(one(x_ND), was.detach(), atol=1e-5, rtol=1e-5)


def test_whether_a_model_is_packed():
    gpt = GPT(GPTConfig(23, 32, 1, 2)).eval()
    assert not is_packed(gpt)
    assert not is_packed(pack(copy.deepcopy(gpt), kernel="torch"))
    assert is_packed(pack(gpt, kernel="native"))
    assert not is_packed(pack(nn.ModuleList([nn.Linear(64, 64), nn.LSTM(64, 64)]).eval(), kernel="native"))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_outputs_are_the_same_bits_as_a_layer_of_their_own(precision: str):
    linear, x_NI = drawn(99, 40, 20)
    layer = made(linear, precision, "native")
    for first, count in ((0, 16), (16, 64), (80, 19)):
        assert torch.equal(layer(x_NI)[:, first : first + count], layer.part(first, count)(x_NI))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_inputs_give_the_bias(precision: str):
    layer = PackedLinear(torch.empty(20, 0), torch.randn(20), precision, native.choose("native"))
    for rows in (1, 60):
        assert torch.equal(layer(torch.empty(rows, 0)), layer.bias_O.expand(rows, 20))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_laid_out_for_another_processor_are_refused(precision: str):
    linear, x_NI = drawn(20, 40, 3)
    layer = made(linear, precision, "native")
    state = layer.__getstate__()
    assert torch.equal(copy.deepcopy(layer)(x_NI), layer(x_NI))
    state["own"] = not state["own"]
    other = PackedLinear.__new__(PackedLinear)
    if precision == "fp32":
        other.__setstate__(state)
        assert torch.equal(other(x_NI), layer(x_NI))
    else:
        with pytest.raises(UsageError, match="laid out for another processor"):
            other.__setstate__(state)
