"""Swin's own parts: grids, merging, depths, what is refused, and timm's layout without timm (see `make parity`)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import CheckpointError, ConfigError, DataError, FormatError, RegardError, UsageError
from regard.models.public import layout_for, read_folder, write_folder
from regard.models.registry import family
from regard.models.swin import Merging, Swin, SwinConfig
from regard.models.weights import read_tensors, write_tensors

TINY = SwinConfig((32, 32), 3, 5, 2, 8, (2, 1), (2, 4), (4,))
TIMM = replace(TINY, window_padding="zeros-after-shift", window_shrink="side")


def moved(config: SwinConfig) -> Swin:
    torch.manual_seed(0)
    model = Swin(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def images(height: int, width: int, count: int = 2, channels: int = 3) -> torch.Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(count, channels, height, width, generator=draws, dtype=torch.float64)


def test_grids_and_windows_of_the_paper() -> None:
    config = family("swin").sizes[0].config
    assert config.grids(224, 224) == [(56, 56), (28, 28), (14, 14), (7, 7)]
    assert config.grids(231, 258) == [(58, 65), (29, 33), (15, 17), (8, 9)]
    assert config.fit(2, (14, 14)) == ((7, 7), (3, 3))
    assert config.fit(3, (7, 7)) == ((7, 7), (0, 0))
    assert config.fit(3, (7, 14)) == ((7, 7), (0, 3))
    assert config.fit(3, (4, 14)) == ((4, 7), (0, 3))
    both = replace(config, window_shrink="both")
    assert both.fit(3, (7, 14)) == ((7, 7), (0, 0))
    assert both.fit(3, (4, 14)) == ((4, 4), (0, 0))
    assert both.fit(2, (14, 15)) == ((7, 7), (3, 3))
    each = replace(config, window_size=(7, 7, 14, 7))
    assert [each.window(stage) for stage in range(4)] == [7, 7, 14, 7]


@pytest.mark.parametrize("size", [(32, 32), (2, 2), (3, 57), (43, 37), (61, 5)])
def test_images_of_any_size_have_vectors_for_every_place(size: tuple[int, int]) -> None:
    for config in (TINY, TIMM, replace(TINY, window_padding="zeros", window_shrink="both")):
        model = moved(config)
        pixels = images(*size)
        features = model(pixels)
        assert features.grid == (-(-size[0] // 4), -(-size[1] // 4))
        assert features.grid_BYXD().shape == (2, *features.grid, 16)
        assert torch.allclose(model.pool(features), features.grid_BYXD().mean((1, 2)), atol=1e-12, rtol=0)
        features.hidden_ND.square().sum().backward()
        assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "head" not in name)


def test_what_fills_up_pixels_is_zero() -> None:
    """An image with rows and columns of zeros behind it, as many as make whole patches, is the same image."""
    model = moved(replace(TINY, patch_size=5, image_size=(40, 40)))
    pixels = images(38, 41)
    filled = torch.zeros(2, 3, 40, 45, dtype=torch.float64)
    filled[:, :, :38, :41] = pixels
    assert torch.equal(model(pixels).hidden_ND, model(filled).hidden_ND)


def test_merging_by_hand() -> None:
    """A 2 × 3 grid of tokens 1 to 6: the first square down, then right; the second filled up with zeros."""
    merging = Merging(1, 1e-5).double()
    merging.norm = torch.nn.Identity()
    with torch.no_grad():
        merging.proj.weight.copy_(torch.tensor([[1.0, 10.0, 100.0, 1000.0], [0.0, 0.0, 0.0, 1.0]]))
    x_ND = torch.arange(1.0, 7.0, dtype=torch.float64)[:, None]
    assert merging(x_ND, (2, 3)).tolist() == [[1 + 40 + 200 + 5000, 5], [3 + 60, 0]]
    assert merging(x_ND, (3, 2)).tolist() == [[1 + 30 + 200 + 4000, 4], [5 + 600, 0]]


def test_depths_of_parameters() -> None:
    model = Swin(replace(TINY, num_layers=(2, 3, 1), num_heads=(1, 2, 4)))
    assert model.num_depths == 8
    for name, depth in {
        "patches.proj.weight": 0,
        "embed_norm.bias": 0,
        "stages.0.blocks.0.self_norm.weight": 1,
        "stages.0.biases.1.weight": 2,
        "stages.1.merging.proj.weight": 2,
        "stages.1.blocks.0.mlp.up_proj.weight": 3,
        "stages.1.blocks.2.self_attn.q_proj.bias": 5,
        "stages.2.merging.norm.weight": 5,
        "stages.2.biases.0.weight": 6,
        "norm.weight": 7,
        "head.bias": 7,
    }.items():
        assert model.depth(name) == depth, name
    depths = {model.depth(name) for name, _ in model.named_parameters()}
    assert depths == set(range(8))


def test_weights_start_as_in_the_released_code() -> None:
    model = Swin(replace(TINY, embed_dim=64))
    for name, parameter in model.named_parameters():
        if name.startswith("patches") or "norm" in name:
            continue
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.numel() > 500:
            assert 0.018 < float(parameter.detach().std()) < 0.022, name
    rates = [block.drop_path.p for stage in model.stages for block in stage.blocks]
    assert rates == [0.0, 0.05, 0.1]


@pytest.mark.parametrize(
    "change",
    [
        {"image_size": (32,)},
        {"num_layers": ()},
        {"num_layers": (1,) * 9, "num_heads": (1,) * 9},
        {"num_heads": (2,)},
        {"window_size": (4, 4, 4)},
        {"window_size": ()},
        {"window_padding": "none"},
        {"window_shrink": "neither"},
        {"mlp_ratio": 0.0},
        {"mlp_ratio": float("nan")},
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Swin(replace(TINY, **change))
    assert "\n" not in str(caught.value)


def test_an_image_smaller_than_a_patch_is_refused() -> None:
    with pytest.raises(UsageError, match="1 × 8"):
        moved(TINY)(images(1, 8))


# ---------------------------------------------------------------------------------------------------------------- timm


def write(folder: Path, model: Swin) -> Path:
    folder.mkdir(exist_ok=True)
    write_folder(folder, "swin", model, form="timm")
    return folder


def change(folder: Path, *, args: dict[str, Any] | None = None, **settings: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    values = {**values, **settings, "model_args": {**values["model_args"], **(args or {})}}
    (folder / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    "config",
    [
        TIMM,
        TINY,
        replace(TIMM, num_classes=0, num_channels=1, mlp_ratio=2.5),
        replace(TIMM, image_size=(64, 48), window_size=(4, 5)),
        family("swin").tiny[2],
    ],
    ids=str,
)
def test_a_folder_of_timm_s_comes_back_as_it_was(config: SwinConfig, tmp_path: Path) -> None:
    config = replace(config, dropout=0.0, attention_dropout=0.0, drop_path=0.1)
    model = moved(config)
    _, back, warnings = read_folder(write(tmp_path, model))
    assert (back.config, warnings) == (config, [])
    state = model.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in back.state_dict().items())


def test_timm_s_names(tmp_path: Path) -> None:
    tensors = read_tensors(write(tmp_path, moved(TIMM)) / "model.safetensors")
    ends = ("weight", "bias")
    block = {
        f"{part}.{end}" for part in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2") for end in ends
    }
    block |= {"attn.relative_position_bias_table"}
    wanted = {f"layers.{name}.{part}" for name in ("0.blocks.0", "0.blocks.1", "1.blocks.0") for part in block}
    wanted |= {f"{name}.{end}" for name in ("patch_embed.proj", "patch_embed.norm", "norm", "head.fc") for end in ends}
    wanted |= {f"layers.1.downsample.{name}" for name in ("norm.weight", "norm.bias", "reduction.weight")}
    assert tensors.keys() == wanted
    state = moved(TIMM).state_dict()
    attn = "stages.0.blocks.1.self_attn"
    packed = torch.cat([state[f"{attn}.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(tensors["layers.0.blocks.1.attn.qkv.weight"], packed)
    assert tensors["patch_embed.proj.weight"].shape == (8, 3, 2, 2)


def test_what_timm_s_own_constructors_say(tmp_path: Path) -> None:
    """A config.json as the hub has it: a name and what differs from it."""
    for name, windows in (("swin_tiny_patch4_window7_224", (7,)), ("swin_s3_tiny_224", (7, 7, 14, 7))):
        values = {"architecture": name, "num_classes": 10, "pretrained_cfg": {"input_size": [3, 224, 224]}}
        (tmp_path / "config.json").write_text(json.dumps(values))
        known = next(layout for layout in family("swin").public if layout.form == "timm")
        config = known.read(values, "here")
        assert (config.window_size, config.num_layers, config.num_classes) == (windows, (2, 2, 6, 2), 10)
        small = known.read({**values, "model_args": {"img_size": 128}}, "here")
        assert (small.image_size, small.window_size) == (
            (128, 128),
            (*windows[:1] * 2, 8 if len(windows) > 1 else 7, 4),
        )
        assert known.write(replace(config, image_size=(224, 224)))["architecture"] == name


@pytest.mark.parametrize(
    "args",
    [
        {"window_size": [[4, 4]]},
        {"window_size": "4"},
        {"img_size": [33, 32]},
        {"img_size": [8, 64]},  # the second stage would have windows of 2 × 4
        {"qkv_bias": False},
        {"always_partition": True},
        {"patch_size": 0},
        {"depths": [2]},
        {"mlp_ratio": 1e9},
    ],
    ids=str,
)
def test_what_timm_has_and_we_have_not_is_refused(args: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, moved(TIMM))
    change(tmp_path, args=args)
    with pytest.raises(RegardError) as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, FormatError | ConfigError | CheckpointError)


def test_two_numbers_are_a_height_and_a_width(tmp_path: Path) -> None:
    write(tmp_path, moved(TIMM))
    change(tmp_path, args={"window_size": [4, 5]})
    with pytest.raises(FormatError, match="windows of 4 × 5"):
        read_folder(tmp_path)
    change(tmp_path, args={"window_size": [4, 4]})
    assert read_folder(tmp_path)[1].config == TIMM


def test_masks_in_older_files_are_checked(tmp_path: Path) -> None:
    config = replace(TIMM, image_size=(20, 16))  # a grid of 10 × 8, filled up to 12 × 8
    write(tmp_path, moved(config))
    path = tmp_path / "model.safetensors"
    tensors = read_tensors(path)
    regions = torch.zeros(12, 8)
    for number, (rows, columns) in enumerate(
        (rows, columns)
        for rows in (slice(0, -4), slice(-4, -2), slice(-2, None))
        for columns in (slice(0, -4), slice(-4, -2), slice(-2, None))
    ):
        regions[rows, columns] = number
    windows = torch.stack([regions[r : r + 4, c : c + 4].flatten() for r in (0, 4, 8) for c in (0, 4)])
    mask = torch.where(windows[:, :, None] == windows[:, None], 0.0, -100.0)
    name = "layers.0.blocks.1.attn_mask"
    write_tensors(path, {**tensors, name: mask})
    read_folder(tmp_path)
    wrong = mask.clone()
    wrong[0, 3, 5] = -100.0
    for other in (wrong, mask[:4], mask[:, :9, :9]):
        write_tensors(path, {**tensors, name: other.contiguous()})
        with pytest.raises(CheckpointError, match="attn_mask"):
            read_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image_size": (31, 32)}, "multiples of patches"),
        ({"activation": "relu"}, "activations are gelu"),
        ({"norm_eps": 1e-6}, "epsilon"),
        ({"image_size": (12, 12)}, "no grid is smaller than a window"),
        ({"image_size": (36, 32), "window_padding": "masked"}, "places beyond the grid"),
    ],
)
def test_what_timm_would_do_otherwise_is_not_written(change: dict[str, Any], why: str) -> None:
    assert layout_for("swin", TIMM, "timm").model_type == "timm/swin"
    with pytest.raises(DataError, match=why):
        layout_for("swin", replace(TIMM, **change), "timm")
