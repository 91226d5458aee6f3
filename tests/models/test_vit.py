"""ViT and MAE against convolutions, loops and numbers worked out by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.attention import record
from regard.errors import CheckpointError, ConfigError, UsageError
from regard.layers.patches import GridPositions, PatchEmbedding, interpolate, patchify, unpatchify
from regard.models.interface import check_image_size
from regard.models.mae import Mae, MaeConfig
from regard.models.reconstructor import Reconstruction
from regard.models.registry import check_bounds, family
from regard.models.vit import Vit, VitConfig

VIT = VitConfig((15, 10), 3, 7, 5, 16, 2, 2, 24)
MAE = MaeConfig((15, 20), 3, 5, 16, 2, 2, 24, 8, 1, 2, 12)


def model_of(config: Any, dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    model = (Vit if isinstance(config, VitConfig) else Mae)(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def images(count: int, height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randn(count, channels, height, width, dtype=torch.float64)


# -------------------------------------------------------------------------------------------------------------- patches


@pytest.mark.parametrize(("height", "width"), [(15, 10), (5, 5), (17, 24), (29, 6)])
def test_patches_are_a_convolution(height: int, width: int) -> None:
    layer = PatchEmbedding(3, 11, 5).double()
    pixels = images(2, height, width)
    kernel = layer.proj.weight.unflatten(1, (3, 5, 5))
    wanted = nn.functional.conv2d(pixels, kernel, layer.proj.bias, stride=5)
    assert layer.grid(pixels) == wanted.shape[2:] == (height // 5, width // 5)
    assert torch.allclose(layer(pixels), wanted.flatten(2).transpose(1, 2).flatten(0, 1), atol=1e-12, rtol=0)
    layer.proj.bias.data.normal_()
    whole = layer(pixels).unflatten(0, (2, -1))
    visible = torch.stack([torch.randperm(whole.shape[1])[: max(whole.shape[1] // 2, 1)] for _ in range(2)])
    some = torch.stack([rows[places] for rows, places in zip(whole, visible, strict=True)])
    assert torch.allclose(layer(pixels, visible), some.flatten(0, 1), atol=1e-12, rtol=0)


def test_patches_start_like_the_released_convolution() -> None:
    weight = PatchEmbedding(3, 512, 16).proj.weight
    assert abs(float(weight.detach().std()) * (3 * 256) ** 0.5 - 1) < 0.01
    assert float(weight.detach().abs().max()) * (3 * 256) ** 0.5 <= 2 / 0.8796 + 1e-3


def test_pixels_of_a_patch_stand_row_column_channel() -> None:
    pixels = images(2, 7, 11)  # a row and two columns are left over
    patches = patchify(pixels, 3)
    assert patches.shape == (2, 2 * 3, 3 * 3 * 3)
    for image, row, column, y, x, channel in np.ndindex(2, 2, 3, 3, 3, 3):
        value = patches[image, row * 3 + column, (y * 3 + x) * 3 + channel]
        assert value == pixels[image, channel, row * 3 + y, column * 3 + x]
    assert torch.equal(unpatchify(patches, (2, 3), 3), pixels[:, :, :6, :9])


def cubic(size: int, target: int) -> np.ndarray:
    """Weights of a cubic convolution with a = −0.75 (Keys 1981), pixel centres at halves, edges repeated."""
    weights = np.zeros((target, size))
    for place in range(target):
        centre = (place + 0.5) * size / target - 0.5
        for tap in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
            x = abs(tap - centre)
            near, far = 1.25 * x**3 - 2.25 * x**2 + 1, -0.75 * (x**3 - 5 * x**2 + 8 * x - 4)
            weights[place, min(max(tap, 0), size - 1)] += near if x <= 1 else far if x < 2 else 0.0
    return weights


def stretched(table: np.ndarray, grid: tuple[int, int], target: tuple[int, int]) -> np.ndarray:
    rows, columns = cubic(grid[0], target[0]), cubic(grid[1], target[1])
    return np.einsum("iy,jx,yxd->ijd", rows, columns, table.reshape(*grid, -1)).reshape(target[0] * target[1], -1)


def test_positions_stretch_to_every_size() -> None:
    table = torch.randn(14 * 14, 3, dtype=torch.float64)
    assert interpolate(table, (14, 14), (61, 61)).shape == (61 * 61, 3)  # 976 pixels in patches of 16
    for patch in (14, 16):
        for pixels in range(96, 519):
            for height in (pixels, 614 - pixels):  # square, and not
                target = (height // patch, pixels // patch)
                found = interpolate(table, (14, 14), target)
                assert found.shape == (target[0] * target[1], 3)
                if height == pixels or pixels % 8 == 0:
                    assert np.abs(found.numpy() - stretched(table.numpy(), (14, 14), target)).max() < 1e-12
    for grid, target in (((2, 3), (5, 4)), ((7, 5), (3, 11)), ((1, 4), (2, 2))):
        small = torch.randn(grid[0] * grid[1], 3, dtype=torch.float64)
        assert np.abs(interpolate(small, grid, target).numpy() - stretched(small.numpy(), grid, target)).max() < 1e-12
    assert interpolate(table, (14, 14), (14, 14)) is table


def test_positions_stretch_in_float32_at_least() -> None:
    table = torch.randn(14 * 14, 8).bfloat16()
    found = interpolate(table, (14, 14), (9, 23))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, interpolate(table.float(), (14, 14), (9, 23)).bfloat16())


def test_fixed_positions_by_hand() -> None:
    positions = GridPositions((3, 5), 8, num_extra=1, kind="sincos")
    assert list(dict(positions.named_parameters())) == []
    assert list(positions.state_dict()) == ["weight"]
    extra, table = positions((3, 5))
    assert torch.equal(extra, torch.zeros(1, 8))
    row, column = 2, 3
    wanted = [np.sin(column), np.sin(column / 100), np.cos(column), np.cos(column / 100)]
    wanted += [np.sin(row), np.sin(row / 100), np.cos(row), np.cos(row / 100)]
    assert np.abs(table[row * 5 + column].numpy() - wanted).max() < 1e-6


# ------------------------------------------------------------------------------------------------------------------ ViT


def test_hidden_patches_cost_and_change_nothing() -> None:
    model, pixels = model_of(VIT), images(3, 20, 15)
    visible = torch.stack([torch.randperm(12)[:5] for _ in range(3)])
    features = model(pixels, visible)
    assert (features.grid, features.segments.lengths) == ((1, 5), (6, 6, 6))
    assert features.grid_BYXD().shape == (3, 1, 5, 16)
    spoilt = patchify(pixels, 5)
    for image, places in zip(spoilt, visible, strict=True):
        image[[place for place in range(12) if place not in places]] = torch.nan
    assert torch.equal(model(unpatchify(spoilt, (4, 3), 5), visible).hidden_ND, features.hidden_ND)
    # The same rows, cut out of what stands before the blocks.
    seen: list[Tensor] = []
    hook = model.dropout.register_forward_hook(lambda _, __, out: seen.append(out))
    model(pixels), model(pixels, visible)
    hook.remove()
    whole, some = (rows.unflatten(0, (3, -1)) for rows in seen)
    for image in range(3):
        assert torch.allclose(some[image, 1:], whole[image, 1:][visible[image]], atol=1e-12, rtol=0)
        assert torch.equal(some[image, 0], whole[image, 0])
    # All of them in another order: the same vectors in that order.
    order = torch.stack([torch.randperm(12) for _ in range(3)])
    full, turned = (model(pixels, rows).hidden_ND.unflatten(0, (3, -1)) for rows in (None, order))
    for image in range(3):
        assert torch.allclose(turned[image, 1:], full[image, 1:][order[image]], atol=1e-12, rtol=0)


@pytest.mark.parametrize("class_token", [True, False])
def test_mean_is_that_of_the_patches_with_the_norm_behind_it(class_token: bool) -> None:
    model = model_of(replace(VIT, class_token=class_token, pooling="mean", norm_pooled=True))
    pixels = images(3, 15, 10)
    outs: list[Tensor] = []
    model.blocks[-1].register_forward_hook(lambda _, __, out: outs.append(out))
    features = model(pixels)
    assert torch.equal(features.hidden_ND, outs[0])
    rows = outs[0].unflatten(0, (3, -1))[:, 1 if class_token else 0 :]
    assert rows.shape[1] == 6
    wanted = nn.functional.layer_norm(sum(rows[:, place] for place in range(6)) / 6, (16,), None, None, 1e-6)
    wanted = wanted * model.norm.weight + model.norm.bias
    assert torch.allclose(model.pool(features), wanted, atol=1e-12, rtol=0)
    before = model_of(replace(VIT, class_token=class_token, pooling="mean"))
    normed = before.norm(outs[0]).unflatten(0, (3, -1))[:, 1 if class_token else 0 :]
    assert torch.allclose(before.pool(before(pixels)), normed.mean(1), atol=1e-12, rtol=0)


def test_pooler_stands_between_class_token_and_head() -> None:
    model, pixels = model_of(replace(VIT, pooler=True)), images(2, 15, 10)
    first = model(pixels).hidden_ND.unflatten(0, (2, -1))[:, 0]
    wanted = model.head(torch.tanh(model.pooler(first)))
    assert torch.equal(model.classify(pixels), wanted)


def test_stochastic_depth_rises_evenly() -> None:
    model = Vit(replace(VIT, num_layers=5, drop_path=0.2))
    assert [round(block.drop_path.p, 12) for block in model.blocks] == [0.0, 0.05, 0.1, 0.15, 0.2]
    assert [block.drop_path.p for block in Vit(replace(VIT, num_layers=1, drop_path=0.2)).blocks] == [0.0]


def test_a_model_goes_on_at_another_size_and_with_other_classes() -> None:
    model, pixels = model_of(VIT), images(2, 20, 25)
    larger = model.adapted(image_size=(20, 25), drop_path=0.1)
    assert larger.positions.weight.shape == (1 + 4 * 5, 16)
    assert larger.positions.weight.requires_grad
    assert torch.allclose(larger(pixels).hidden_ND, model(pixels).hidden_ND, atol=1e-12, rtol=0)
    assert torch.allclose(larger.classify(pixels), model.classify(pixels), atol=1e-12, rtol=0)
    other = model.adapted(num_classes=4)
    assert torch.equal(other(pixels).hidden_ND, model(pixels).hidden_ND)
    assert torch.equal(other.classify(pixels), torch.zeros(2, 4, dtype=torch.float64))
    assert model.adapted(num_classes=0).head is None
    for change in ({"embed_dim": 32}, {"patch_size": 3}, {"class_token": False, "pooling": "mean"}):
        with pytest.raises(CheckpointError, match="of another shape"):
            model.adapted(**change)


def test_depths_are_those_of_the_blocks() -> None:
    model = Vit(replace(VIT, pooler=True))
    assert model.num_depths == 4
    for name, depth in (
        ("patches.proj.weight", 0),
        ("class_token", 0),
        ("positions.weight", 0),
        ("blocks.0.mlp.up_proj.weight", 1),
        ("blocks.1.self_norm.bias", 2),
        ("norm.weight", 3),
        ("pooler.bias", 3),
        ("head.weight", 3),
    ):
        assert name in dict(model.named_parameters())
        assert model.depth(name) == depth


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": (15,)}, r"image_size is \[15\]; give height and width"),
        ({"image_size": (15, 10, 3)}, r"image_size is \[15, 10, 3\]"),
        ({"image_size": (15, 4)}, "patch_size is 5 in images of 15 × 4"),
        ({"pooling": "last"}, "unknown pooling 'last'"),
        ({"class_token": False}, "no class token; set pooling: mean"),
        ({"norm_pooled": True}, "norm_pooled is for a mean"),
        ({"positions": "rotary"}, "unknown positions 'rotary'; choose learned or sincos"),
        ({"drop_path": 1.0}, "drop_path is 1.0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Vit(replace(VIT, **change))


def test_sizes_of_images_are_bounded() -> None:
    assert check_image_size((3, 5)) == (3, 5)
    for change, message in (
        ({"image_size": (8, 0)}, r"image_size is \(8, 0\); give 1 to 65,536"),
        ({"image_size": (70_000, 8)}, r"image_size is \(70000, 8\)"),
        ({"drop_path": 1.5}, "drop_path is 1.5; give a probability"),
        ({"num_channels": 0}, "num_channels is 0; give 1"),
        ({"num_classes": -1}, "num_classes is -1; give 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_bounds(replace(VIT, **change), "here")


def test_images_that_cannot_be_read_are_refused() -> None:
    model = model_of(VIT)
    for pixels, message in (
        (images(1, 4, 20), "an image of 4 × 20 pixels; a patch has 5 × 5"),
        (images(1, 15, 10, channels=1), r"pixels of shape \(1, 1, 15, 10\); give \(images, 3 channels"),
        (images(1, 15, 10)[0], r"pixels of shape \(3, 15, 10\)"),
    ):
        with pytest.raises(UsageError, match=message):
            model(pixels)
    with pytest.raises(UsageError, match="a model without a head"):
        model_of(replace(VIT, num_classes=0)).classify(images(1, 15, 10))


# ------------------------------------------------------------------------------------------------------------------ MAE


def test_the_patches_with_the_smallest_numbers_are_seen() -> None:
    model = Mae(replace(MAE, mask_ratio=0.5))
    visible, masked = model.choose(torch.tensor([[0.3, 0.1, 0.9, 0.2, 0.7], [0.5, 0.4, 0.3, 0.2, 0.1]]))
    assert visible.tolist() == [[1, 3], [4, 3]]
    assert masked.tolist() == [[True, False, True, False, True], [True, True, True, False, False]]
    for total, ratio, kept in ((196, 0.75, 49), (49, 0.75, 12), (64, 0.75, 16), (12, 0.6, 4)):
        visible, masked = Mae(replace(MAE, mask_ratio=ratio)).choose(torch.rand(3, total))
        assert (visible.shape, masked.sum(1).tolist()) == ((3, kept), [total - kept] * 3)


def test_loss_is_that_of_loops_over_hidden_patches() -> None:
    for normalize in (True, False):
        model = model_of(replace(MAE, normalize_pixels=normalize))
        pixels = images(3, 20, 15)
        rebuilt = model(pixels, torch.rand(3, 12))
        assert (rebuilt.grid, rebuilt.masked_BT.sum().item()) == ((4, 3), 27)
        wanted = 0.0
        for image, patch in rebuilt.masked_BT.nonzero().tolist():
            row, column = divmod(patch, 3)
            values = pixels[image, :, row * 5 : row * 5 + 5, column * 5 : column * 5 + 5].permute(1, 2, 0).flatten()
            numbers = values.numpy()
            if normalize:
                numbers = (numbers - numbers.mean()) / np.sqrt(numbers.var(ddof=1) + 1e-6)
            wanted += float(((rebuilt.predicted_BTF[image, patch].detach().numpy() - numbers) ** 2).mean())
        total, count = model.loss(pixels, rebuilt)
        assert int(count) == 27
        assert abs(float(total.detach()) - wanted) < 1e-10
        # What was seen is not scored; and the images' sums add up.
        changed = torch.where(rebuilt.masked_BT[..., None], rebuilt.predicted_BTF, 1e3)
        assert torch.equal(model.loss(pixels, replace(rebuilt, predicted_BTF=changed))[0], total)
        parts = [
            model.loss(
                pixels[i : i + 1],
                Reconstruction(rebuilt.predicted_BTF[i : i + 1], rebuilt.masked_BT[i : i + 1], (4, 3)),
            )
            for i in range(3)
        ]
        assert abs(sum(float(part[0].detach()) for part in parts) - float(total.detach())) < 1e-10
        assert sum(int(part[1]) for part in parts) == 27


def test_a_perfect_reconstruction_is_shown_as_the_image() -> None:
    model = Mae(MAE).double()
    pixels = 0.4 + 3 * images(2, 17, 23)
    pixels[0, :, :5, :5] = 0.25  # without contrast
    rebuilt = model(pixels, torch.rand(2, 12))
    patches = patchify(pixels, 5)
    normalized = (patches - patches.mean(2, keepdim=True)) / (patches.var(2, keepdim=True) + 1e-6).sqrt()
    picture, masked = model.pictures(pixels, replace(rebuilt, predicted_BTF=normalized))
    assert torch.allclose(picture, pixels[:, :, :15, :20], atol=1e-9, rtol=0)
    assert masked.shape == (2, 1, 15, 20)
    for image, row, column in np.ndindex(2, 15, 20):
        assert masked[image, 0, row, column] == rebuilt.masked_BT[image, row // 5 * 4 + column // 5]
    plain = Mae(replace(MAE, normalize_pixels=False)).double()
    assert torch.equal(plain.pictures(pixels, replace(rebuilt, predicted_BTF=patches))[0], pixels[:, :, :15, :20])


def test_a_flat_prediction_shows_each_patch_s_own_mean() -> None:
    model, pixels = Mae(MAE).double(), 5 + images(1, 15, 20)
    rebuilt = model(pixels)
    picture, _ = model.pictures(pixels, replace(rebuilt, predicted_BTF=torch.zeros_like(rebuilt.predicted_BTF)))
    assert torch.allclose(picture[0, :, 5:10, 10:15], pixels[0, :, 5:10, 10:15].mean().expand(3, 5, 5), atol=1e-12)


def test_what_is_hidden_does_not_reach_what_is_rebuilt() -> None:
    model, pixels, noise = model_of(MAE), images(2, 15, 20), torch.rand(2, 12)
    rebuilt = model(pixels, noise)
    patches = patchify(pixels, 5)
    patches[rebuilt.masked_BT] = torch.nan
    assert torch.equal(model(unpatchify(patches, (3, 4), 5), noise).predicted_BTF, rebuilt.predicted_BTF)
    # And each place is told from the others: mask tokens differ by their positions alone.
    hidden = rebuilt.predicted_BTF[0][rebuilt.masked_BT[0]]
    assert torch.cdist(hidden, hidden).fill_diagonal_(1.0).min() > 1e-3


def test_noise_is_drawn_where_none_is_given() -> None:
    model, pixels = model_of(MAE), images(4, 15, 20)
    one, other = model(pixels), model(pixels)
    assert not torch.equal(one.masked_BT, other.masked_BT)
    assert one.masked_BT.sum(1).tolist() == [9] * 4
    torch.manual_seed(3)
    again = model(pixels)
    torch.manual_seed(3)
    assert torch.equal(model(pixels).predicted_BTF, again.predicted_BTF)


def test_the_encoder_attends_among_visible_patches_alone() -> None:
    model, pixels = model_of(MAE), images(2, 15, 20)
    with record(model) as rows:
        model(pixels)
    sizes = {name: {call.weights_HTS.shape[-1] for call in calls} for name, calls in rows.items()}
    assert sizes == {"encoder.blocks.0.self_attn": {4}, "encoder.blocks.1.self_attn": {4}, "decoder.0.self_attn": {13}}


def test_every_parameter_of_an_mae_has_a_gradient() -> None:
    for config in family("mae").tiny:
        model = model_of(config)
        pixels = images(3, *config.image_size, channels=config.num_channels)
        total, count = model.loss(pixels, model(pixels))
        (total / count).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert name.endswith("k_proj.bias") or parameter.grad.abs().max() > 1e-9, name


def test_an_mae_learns_what_eight_images_look_like() -> None:
    torch.manual_seed(0)
    model = Mae(MaeConfig((15, 20), 3, 5, 32, 2, 2, 64, 32, 1, 2, 64, 0.5))
    stripes = torch.arange(20).remainder(5).float().expand(3, 15, 20)
    pixels = torch.stack([(stripes if place % 2 else 4 - stripes) + 0.1 * torch.randn(3, 15, 20) for place in range(8)])
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, foreach=True)
    losses = []
    for _ in range(80):
        total, count = model.loss(pixels, model(pixels))
        losses.append(float(total.detach() / count))
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
    assert losses[0] > 0.9
    assert sum(losses[-5:]) / 5 < 0.2, losses[-5:]


def test_the_encoder_is_taken_out_for_fine_tuning() -> None:
    model, pixels = model_of(MAE), images(2, 20, 25)
    probe = model.take_encoder(pooling="cls", norm_pooled=False)
    assert torch.equal(probe(pixels).hidden_ND, model.encoder(pixels).hidden_ND)
    assert not probe.training
    tuned = model.take_encoder(7, drop_path=0.1)
    assert tuned.config == replace(
        MAE.encoder(), num_classes=7, positions="learned", pooling="mean", norm_pooled=True, drop_path=0.1
    )
    assert "positions.weight" in dict(tuned.named_parameters())
    assert torch.equal(tuned.positions.weight, model.encoder.positions.weight)
    assert torch.equal(tuned.norm.weight, torch.ones_like(tuned.norm.weight))
    assert tuned.classify(pixels).shape == (2, 7)
    with torch.no_grad():
        tuned.blocks[0].mlp.up_proj.weight.zero_()
    assert model.encoder.blocks[0].mlp.up_proj.weight.abs().min() > 0


def test_what_an_mae_cannot_do_is_refused() -> None:
    for ratio in (0.0, 1.0, -0.5):
        with pytest.raises(ConfigError, match=f"mask_ratio is {ratio}"):
            Mae(replace(MAE, mask_ratio=ratio))
    model = model_of(MAE)
    with pytest.raises(UsageError, match="of 2 patches 2 are hidden"):
        model(images(1, 5, 10))
    with pytest.raises(UsageError, match=r"noise of shape \(1, 11\); give \(1, 12\)"):
        model(images(1, 15, 20), torch.rand(1, 11))
    with pytest.raises(UsageError, match="multiple of 4"):
        Mae(replace(MAE, decoder_dim=10))
