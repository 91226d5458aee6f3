"""Swin against transformers: its own random start, through our map, layer by layer, at any size, and back."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import CheckpointError, ConfigError, DataError, FormatError, RegardError
from regard.models.public import layout_for, read_folder, write_folder
from regard.models.registry import family
from regard.models.swin import Swin, SwinConfig
from regard.models.weights import count_parameters, read_tensors, write_tensors

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer

SIZES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 2,
    "num_channels": 3,
    "embed_dim": 8,
    "depths": [2, 3, 1],
    "num_heads": [2, 4, 1],
    "window_size": 4,
}


def swin(kind: str = "SwinModel", **change: Any) -> nn.Module:
    return getattr(transformers, kind)(transformers.SwinConfig(**{**SIZES, **change}))


CASES = {
    "body": lambda: swin(),
    "classes": lambda: swin("SwinForImageClassification", num_labels=7),
    "windows of 7 and patches of 4": lambda: swin(
        image_size=224, patch_size=4, window_size=7, depths=[2, 2], num_heads=[2, 4]
    ),
    "odd windows, one channel, wide": lambda: swin(
        image_size=[24, 40], window_size=3, num_channels=1, mlp_ratio=2.5, hidden_act="gelu_new"
    ),
}
# Of the images that each is made for; twice as wide; and such that every stage has to be filled up.
IMAGES = {
    "body": ((32, 32), (64, 32), (43, 55), (37, 90)),
    "classes": ((32, 32), (48, 80), (43, 55)),
    "windows of 7 and patches of 4": ((224, 224), (231, 258)),
    "odd windows, one channel, wide": ((24, 40), (29, 47), (61, 37)),
}


def moved(theirs: nn.Module) -> nn.Module:
    """Moved so far from its start that biases, norms and tables matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return theirs.eval()


def images(theirs: nn.Module, size: tuple[int, int]) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(2, theirs.config.num_channels, *size, generator=draws, dtype=torch.float64)


def layers_of(theirs: nn.Module, pixels: Tensor) -> list[Tensor]:
    """Embeddings, every block, every merging, the last norm, and what is pooled or scored."""
    theirs = copy.deepcopy(theirs)  # theirs never shifts again where it once saw a small grid
    body = getattr(theirs, "swin", theirs)
    parts = [body.embeddings]
    for stage in body.encoder.layers:
        parts += [*stage.blocks, *([] if stage.downsample is None else [stage.downsample])]
    seen: list[Tensor] = []
    for part in parts:
        part.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
    with torch.inference_mode():
        out = theirs(pixels.to(theirs.dtype))
    return [*seen, out.logits] if "logits" in out else [*seen, out.last_hidden_state, out.pooler_output]


def layers_of_ours(ours: Swin, pixels: Tensor) -> list[Tensor]:
    seen: list[Tensor] = []
    parts = [ours.dropout]
    for stage in ours.stages:
        parts += [*([] if stage.merging is None else [stage.merging]), *stage.blocks]
    hooks = [part.register_forward_hook(lambda _, __, out: seen.append(out)) for part in parts]
    with torch.inference_mode():
        features = ours(pixels.to(ours.norm.weight.dtype))
        for hook in hooks:
            hook.remove()
        seen = [layer.unflatten(0, (len(pixels), -1)) for layer in seen]
        if ours.head is not None:
            return [*seen, ours.head(ours.pool(features))]
        return [*seen, features.hidden_ND.unflatten(0, (len(pixels), -1)), ours.pool(features)]


def worst(one: list[Tensor], other: list[Tensor]) -> list[float]:
    assert [layer.shape for layer in one] == [layer.shape for layer in other]
    return [float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_every_layer_is_theirs_at_every_size_and_what_we_write_they_read(name: str, tmp_path: Path) -> None:
    theirs = moved(CASES[name]())
    theirs.double().save_pretrained(tmp_path / "theirs")
    known, ours, warnings = read_folder(tmp_path / "theirs")
    assert (known, warnings) == ("swin", [])
    assert (ours.config.window_padding, ours.config.window_shrink) == ("zeros", "both")
    theirs.float().save_pretrained(tmp_path / "float32")
    _, narrow, _ = read_folder(tmp_path / "float32")
    exactly = copy.deepcopy(theirs).double()
    ours.load_state_dict({key: value.double() for key, value in narrow.state_dict().items()})
    for size in IMAGES[name]:
        pixels = images(theirs, size)
        exact = layers_of(exactly, pixels)
        assert len(exact) == 1 + sum(ours.config.num_layers) + len(ours.config.num_layers) - 1 + (
            1 if ours.config.num_classes else 2
        )
        assert max(worst(layers_of_ours(ours.eval(), pixels), exact)) <= 1e-10, size
        mine, error = worst(layers_of_ours(narrow.eval(), pixels), exact), worst(layers_of(theirs, pixels), exact)
        assert all(m <= 2 * e + 1e-7 for m, e in zip(mine, error, strict=True)), size
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", known, narrow)
    back, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state, wanted = back.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    assert all(state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)


def test_with_the_mask_what_is_beyond_the_image_has_no_influence_and_theirs_has() -> None:
    """The mask changes nothing where nothing is filled up, and something where something is."""
    torch.manual_seed(0)
    masked = SwinConfig((32, 32), 3, 0, 2, 8, (2, 2), (2, 4), (4,), "masked", "both")
    ours, public = Swin(masked).double().eval(), Swin(replace(masked, window_padding="zeros")).double().eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    public.load_state_dict(ours.state_dict())
    draws = torch.Generator().manual_seed(1)
    for size, differs in (((32, 32), False), ((64, 32), False), ((36, 32), True), ((32, 38), True)):
        pixels = torch.randn(2, 3, *size, generator=draws, dtype=torch.float64)
        with torch.inference_mode():
            far = float((ours(pixels).hidden_ND - public(pixels).hidden_ND).abs().max())
        assert (far > 1e-3) if differs else (far == 0), size


def test_published_sizes_have_the_counts_of_the_public_implementation() -> None:
    for size in family("swin").sizes:
        c = size.config
        config = transformers.SwinConfig(
            embed_dim=c.embed_dim, depths=list(c.num_layers), num_heads=list(c.num_heads), num_labels=c.num_classes
        )
        with torch.device("meta"):
            theirs = transformers.SwinForImageClassification(config)
        wanted = sum(parameter.numel() for parameter in theirs.parameters())
        assert count_parameters(Swin, c) == wanted
        assert size.paper == f"{round(wanted / 1e6)} M"


def change(folder: Path, **settings: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **settings}))


def test_a_mask_trained_here_is_kept_and_read_again(tmp_path: Path) -> None:
    config = SwinConfig((32, 32), 3, 5, 2, 8, (2, 1), (2, 4), (4,))
    write_folder(tmp_path, "swin", Swin(config))
    assert read_folder(tmp_path)[1].config == config
    theirs = transformers.SwinForImageClassification.from_pretrained(tmp_path)
    assert theirs.config.window_padding == "masked"  # which it keeps, and does nothing with
    change(tmp_path, window_padding="none")
    with pytest.raises(FormatError, match="window_padding is 'none'"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"norm_eps": 1e-6}, "epsilon"),
        ({"image_size": (30, 32)}, "places beyond the grid"),
        ({"image_size": (16, 16)}, "no grid is smaller than a window"),
        ({"image_size": (16, 32), "num_layers": (2, 1), "window_size": (4,)}, "shifts other windows"),
        ({"window_size": (4, 2)}, "windows have one size"),
    ],
)
def test_what_theirs_would_do_otherwise_is_not_written(change: dict[str, Any], why: str) -> None:
    config = SwinConfig((32, 32), 3, 5, 2, 8, (2, 1), (2, 4), (4,))
    assert layout_for("swin", config).model_type == "swin"
    if "image_size" in change and why.startswith("no grid"):
        change = {**change, "num_layers": (2, 1, 1), "num_heads": (2, 4, 1)}
    with pytest.raises(DataError, match=why):
        layout_for("swin", replace(config, **change))


@pytest.mark.parametrize(
    "settings",
    [
        {"qkv_bias": False},
        {"use_absolute_embeddings": True},
        {"layer_norm_eps": 1e-6},
        {"patch_size": [2, 4]},
        {"hidden_act": "geglu"},
        {"depths": 3},
        {"depths": [2] * 9},
        {"depths": [2, 3, True]},
        {"depths": [10**9, 3, 1]},
        {"num_heads": [2, 4]},
        {"window_size": "4"},
        {"window_size": 10**9},
        {"window_size": 5},
        {"mlp_ratio": 1e30},
        {"mlp_ratio": float("nan")},
        {"embed_dim": 9},
        {"image_size": [32]},
        {"image_size": 0},
        {"num_channels": 0},
        {"drop_path_rate": 1.5},
        {"window_shrink": ["both"]},
        {"architectures": ["SwinForMaskedImageModeling"]},
    ],
    ids=str,
)
def test_settings_that_we_have_not_are_refused_in_one_line(settings: dict[str, Any], tmp_path: Path) -> None:
    swin("SwinForImageClassification").save_pretrained(tmp_path)
    change(tmp_path, **settings)
    with pytest.raises(RegardError) as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert isinstance(caught.value, FormatError | ConfigError | CheckpointError)


def offsets(side: int) -> Tensor:
    """The number of each pair's offset, pair by pair."""
    places = [(row, column) for row in range(side) for column in range(side)]
    table = [[(r - s + side - 1) * (2 * side - 1) + q - p + side - 1 for s, p in places] for r, q in places]
    return torch.tensor(table)


def test_offsets_and_masks_in_older_files_are_checked(tmp_path: Path) -> None:
    swin().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = read_tensors(path)
    prefix = "encoder.layers.1.blocks.1.attention.self.relative_position_index"
    write_tensors(path, {**tensors, prefix: offsets(4)})
    read_folder(tmp_path)
    wrong = offsets(4)
    wrong[3, 5] += 1
    for name, index in (
        (prefix, wrong),
        (prefix, offsets(3)),
        (prefix, offsets(4).flatten()),
        ("encoder.layers.7.blocks.1.attention.self.relative_position_index", offsets(4)),
        ("encoder.layers.1.blocks.3.attention.self.relative_position_index", offsets(4)),
        ("relative_position_index", offsets(4)),
    ):
        write_tensors(path, {**tensors, name: index})
        with pytest.raises(CheckpointError, match="relative_position_index"):
            read_folder(tmp_path)


def test_a_tensor_more_or_less_is_refused(tmp_path: Path) -> None:
    swin().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = read_tensors(path)
    for wrong in (
        {**tensors, "more": torch.zeros(2)},
        {key: tensor for key, tensor in tensors.items() if not key.endswith("relative_position_bias_table")},
        {**tensors, "embeddings.mask_token": torch.zeros(1, 1, 8)},
    ):
        write_tensors(path, wrong)
        with pytest.raises(CheckpointError):
            read_folder(tmp_path)
