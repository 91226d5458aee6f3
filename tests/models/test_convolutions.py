"""Convolutions, self-attention on a grid, spectral norm, the residual network and the adversarial pair: by formula."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import record
from regard.errors import ConfigError, UsageError
from regard.layers.convolution import ResidualBlock, SelfAttention2d, SpectralNorm, group_norm, spectral
from regard.models.convnet import ConvNet, ConvNetConfig
from regard.models.gan import Gan, GanConfig, inner_grids
from regard.models.registry import family
from regard.models.weights import count_parameters, fit, gather, read_tensors, write_tensors

D = torch.float64
convnets = pytest.mark.parametrize("config", family("convnet").tiny, ids=["small", "large"])
gans = pytest.mark.parametrize("config", family("gan").tiny, ids=["plain", "attending"])


def moved(model: nn.Module, seed: int = 0) -> Any:
    """A model in float64 whose zeros are gone."""
    torch.manual_seed(seed)
    model = model.to(D)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def by_hand_norm(x_BCYX: Tensor, norm: nn.GroupNorm) -> Tensor:
    parts = x_BCYX.unflatten(1, (norm.num_groups, -1))
    mean = parts.mean((2, 3, 4), keepdim=True)
    variance = (parts - mean).square().mean((2, 3, 4), keepdim=True)
    plain = ((parts - mean) / (variance + 1e-5).sqrt()).flatten(1, 2)
    return norm.weight[:, None, None] * plain + norm.bias[:, None, None]


@pytest.mark.parametrize(("channels", "groups"), [(64, 4), (16, 1), (24, 3), (6, 3), (7, 7)])
def test_groups_have_sixteen_channels_or_what_divides_them(channels: int, groups: int) -> None:
    assert group_norm(channels).num_groups == groups


def convolved(x_BCYX: Tensor, weight_OIKK: Tensor, stride: int, pad: int) -> Tensor:
    """A convolution as a sum over its taps."""
    x = torch.nn.functional.pad(x_BCYX, (pad, pad, pad, pad))
    size = weight_OIKK.shape[-1]
    rows, columns = ((n - size) // stride + 1 for n in x.shape[2:])
    total = torch.zeros(len(x), len(weight_OIKK), rows, columns, dtype=x.dtype)
    for i in range(size):
        for j in range(size):
            part = x[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride]
            total += torch.einsum("bcyx,oc->boyx", part[:, :, :rows, :columns], weight_OIKK[:, :, i, j])
    return total


@pytest.mark.parametrize(("before", "after", "stride"), [(6, 6, 1), (6, 10, 1), (6, 10, 2), (6, 6, 2)])
def test_residual_block_is_its_formula(before: int, after: int, stride: int) -> None:
    block = moved(ResidualBlock(before, after, stride))
    x_BCYX = torch.randn(2, before, 7, 5, dtype=D)
    y = by_hand_norm(convolved(x_BCYX, block.conv1.weight, stride, 1), block.norm1).clamp(min=0)
    y = by_hand_norm(convolved(y, block.conv2.weight, 1, 1), block.norm2)
    short = x_BCYX
    if (before, stride) != (after, 1):
        short = by_hand_norm(convolved(x_BCYX, block.shortcut[0].weight, stride, 0), block.shortcut[1])
    else:
        assert block.shortcut is None
    torch.testing.assert_close(block(x_BCYX), (y + short).clamp(min=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [17, 5])
def test_self_attention_is_its_formula_with_loops(channels: int) -> None:
    attention = moved(SelfAttention2d(channels))
    key_dim = max(1, channels // 8)
    assert attention.q_proj.out_channels == attention.k_proj.out_channels == key_dim
    x_BCYX = torch.randn(2, channels, 3, 2, dtype=D)
    with record(attention) as rows:
        y_BCYX = attention(x_BCYX)
    for image in range(2):
        places = [(row, column) for row in range(3) for column in range(2)]
        f, g, h = (
            {p: layer.weight[:, :, 0, 0] @ x_BCYX[image, :, *p] + layer.bias for p in places}
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        for number, p in enumerate(places):
            scores = torch.stack([f[p] @ g[other] for other in places])  # not scaled
            weights = scores.exp() / scores.exp().sum()
            o = sum(w * h[other] for w, other in zip(weights, places, strict=True))
            wanted = attention.gamma * o + x_BCYX[image, :, *p]
            torch.testing.assert_close(y_BCYX[image, :, *p], wanted, rtol=0, atol=1e-12)
            torch.testing.assert_close(rows[""][image].weights_HTS[0, number], weights, rtol=0, atol=1e-12)


def test_self_attention_starts_as_the_identity_and_learns_from_there() -> None:
    attention = SelfAttention2d(16).to(D)
    x_BCYX = torch.randn(2, 16, 3, 5, dtype=D)
    y_BCYX = attention(x_BCYX)
    assert torch.equal(y_BCYX, x_BCYX)
    (y_BCYX * torch.randn_like(y_BCYX)).sum().backward()
    assert float(attention.gamma.grad) != 0  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["linear", "conv", "transposed"])
def test_spectral_norm_is_the_greatest_singular_value(kind: str) -> None:
    torch.manual_seed(1)
    made = {"linear": nn.Linear(7, 5), "conv": nn.Conv2d(3, 5, 4), "transposed": nn.ConvTranspose2d(3, 5, 4)}
    layer = made[kind].to(D)
    weight = layer.weight.detach().clone()
    matrix = (weight.transpose(0, 1) if kind == "transposed" else weight).flatten(1)
    sigma = torch.linalg.svdvals(matrix)[0]
    assert matrix.shape[0] == 5
    spectral(layer)
    for _ in range(300):
        used = layer.weight
    torch.testing.assert_close(used, weight / sigma, rtol=0, atol=1e-9)
    # Of weights and vectors that were averaged with others the estimate is still right where they point one way.
    (norm,) = layer.parametrizations.weight
    norm.u_O *= 0.5
    norm.v_F *= 0.25
    torch.testing.assert_close(layer.eval().weight, weight / sigma, rtol=0, atol=1e-9)


def test_the_gradient_through_spectral_norm_is_torchs_and_evaluation_moves_nothing() -> None:
    torch.manual_seed(2)
    ours, theirs = nn.Conv2d(3, 5, 3).to(D), nn.Conv2d(3, 5, 3).to(D)
    theirs.load_state_dict(ours.state_dict())
    spectral(ours)
    nn.utils.parametrizations.spectral_norm(theirs)  # iterates in the other order: equal where both have converged
    x = torch.randn(2, 3, 6, 6, dtype=D)
    for layer in (ours, theirs):
        for _ in range(300):
            layer(x)
        layer(x).pow(3).sum().backward()
    wanted = {name: p.grad for name, p in theirs.named_parameters()}
    assert wanted.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-8, atol=1e-10)
    norm = ours.parametrizations.weight[0]
    norm.u_O.normal_()
    before = norm.u_O.clone()
    ours.eval()(x)
    assert torch.equal(norm.u_O, before)
    ours.train()(x)
    assert not torch.equal(norm.u_O, before)


def test_two_passes_before_one_backward() -> None:
    layer = spectral(nn.Linear(5, 3))
    loss = layer(torch.randn(2, 5)).sum() + layer(torch.randn(4, 5)).sum()
    loss.backward()
    assert layer.parametrizations.weight.original.grad.isfinite().all()


# ------------------------------------------------------------------------------------------------------------- convnet


def image(config: Any, count: int = 3, size: tuple[int, int] | None = None, dtype: torch.dtype = D) -> Tensor:
    torch.manual_seed(5)
    return torch.randn(count, config.num_channels, *(size or config.image_size), dtype=dtype)


@convnets
def test_features_are_a_grid_and_an_image_does_not_depend_on_those_beside_it(config: ConvNetConfig) -> None:
    model = moved(ConvNet(config)).eval()
    pixels_BCYX = image(config)
    features = model(pixels_BCYX)
    shrunk = (4 if config.stem == "large" else 1) * 2 ** (len(config.widths) - 1)
    rows, columns = (side // shrunk for side in config.image_size)
    assert features.grid == (rows, columns)
    assert features.grid_BYXD().shape == (3, rows, columns, model.width)
    pooled_BD = model.pool(features)
    torch.testing.assert_close(pooled_BD, features.grid_BYXD().mean((1, 2)), rtol=0, atol=1e-12)
    for place in range(3):
        alone = model.pool(model(pixels_BCYX[place : place + 1]))
        torch.testing.assert_close(alone[0], pooled_BD[place], rtol=0, atol=1e-10)
    # In training too: there is no statistic of the batch.
    torch.testing.assert_close(model.train().pool(model(pixels_BCYX)), pooled_BD, rtol=0, atol=1e-12)
    # Other sizes can be read, odd ones too.
    assert model(image(config, 1, (17, 23))).grid == tuple(-(-side // shrunk) for side in (17, 23))


def test_the_grid_stands_as_the_image_does() -> None:
    model = moved(ConvNet(ConvNetConfig((12, 20), 3, 0, (8, 8), (1, 1)))).eval()
    pixels_BCYX = image(model.config, 1)
    before_YXD = model(pixels_BCYX).grid_BYXD()[0]
    pixels_BCYX[0, :, 2, 15] += 5
    changed_YX = (model(pixels_BCYX).grid_BYXD()[0] - before_YXD).abs().sum(-1)
    row, column = divmod(int(changed_YX.argmax()), 10)
    assert abs(row - 1) <= 1
    assert abs(column - 7) <= 1


@convnets
def test_micro_batches_cannot_change_a_gradient(config: ConvNetConfig) -> None:
    model = moved(ConvNet(config))
    pixels_BCYX = image(config, 4)
    grads = []
    for size in (4, 1, 3):
        model.zero_grad()
        for part in pixels_BCYX.split(size):
            model.pool(model(part)).square().sum().backward()
        grads.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    heads = {name for name, _ in model.named_parameters() if name.startswith("head.")}
    assert grads[0].keys() == {name for name, _ in model.named_parameters()} - heads
    for name, grad in grads[0].items():
        # A bias on queries' keys moves all scores of a query alike, and softmax does not see it.
        assert grad.abs().max() > 1e-9 or name.endswith("k_proj.bias"), name
        for other in grads[1:]:
            torch.testing.assert_close(other[name], grad, rtol=0, atol=1e-10)


@convnets
def test_depths_rise_from_the_pixels_to_the_head(config: ConvNetConfig) -> None:
    model = ConvNet(config)
    depths = {name: model.depth(name) for name, _ in model.named_parameters()}
    assert {name for name, depth in depths.items() if depth == 0} == {n for n in depths if n.startswith("stem.")}
    assert sorted(set(depths.values())) == [*range(len(model.layers) + 1), *([model.num_depths - 1] * bool(model.head))]
    assert all(depth == int(name.split(".")[1]) + 1 for name, depth in depths.items() if name.startswith("layers."))


@convnets
def test_attention_follows_the_chosen_stages_and_is_recorded(config: ConvNetConfig) -> None:
    model = moved(ConvNet(config)).eval()
    with record(model) as rows:
        model(image(config, 2))
    assert len(rows) == len(config.attention_after)
    for name in rows:
        assert {row.sequence for row in rows[name]} == {0, 1}
        assert all(torch.allclose(row.weights_HTS.sum(-1), torch.ones(1, dtype=D)) for row in rows[name])
    last = rows[list(rows)[-1]][0]
    assert last.weights_HTS.shape[-1] == model(image(config, 1)).hidden_ND.shape[0]


def test_a_convnet_overfits_eight_pictures() -> None:
    torch.manual_seed(0)
    config = ConvNetConfig((8, 8), 1, 4, (16, 16), (1, 1), attention_after=(2,))
    model = ConvNet(config)
    assert torch.equal(model.classify(image(config, 2, dtype=torch.float32)), torch.zeros(2, 4))
    pixels_BCYX, labels_B = image(config, 8, dtype=torch.float32), torch.arange(8) % 4
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model.classify(pixels_BCYX), labels_B)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05


@pytest.mark.parametrize(
    "config",
    [
        ConvNetConfig((8,)),
        ConvNetConfig(widths=(8, 8), blocks=(1,)),
        ConvNetConfig(widths=(), blocks=()),
        ConvNetConfig(widths=(10**9, 8, 8)),
        ConvNetConfig(blocks=(1, 10**9, 1)),
        ConvNetConfig(blocks=(1, 0, 1)),
        ConvNetConfig(stem="middle"),  # type: ignore[arg-type]
        ConvNetConfig(attention_after=(4,)),
        ConvNetConfig(attention_after=(0,)),
        ConvNetConfig(widths=(1,) * 17, blocks=(1,) * 17),
    ],
)
def test_networks_that_cannot_be_are_refused(config: ConvNetConfig) -> None:
    with pytest.raises(ConfigError):
        ConvNet(config)


def test_images_that_a_network_cannot_read_are_refused() -> None:
    model = ConvNet(ConvNetConfig((16, 16), 3, 0, (4, 4), (1, 1), "large"))
    for shape in ((1, 1, 16, 16), (3, 16, 16), (1, 3, 7, 16), (1, 3, 16, 7)):
        with pytest.raises(UsageError):
            model(torch.zeros(shape))
    model(torch.zeros(1, 3, 8, 8))


# ----------------------------------------------------------------------------------------------------------------- gan


def test_grids_between_latents_and_image() -> None:
    assert inner_grids((28, 28)) == [(7, 7), (14, 14)]
    assert inner_grids((64, 64)) == [(4, 4), (8, 8), (16, 16), (32, 32)]
    assert inner_grids((48, 32)) == [(6, 4), (12, 8), (24, 16)]
    for size in ((29, 29), (28, 35), (6, 8), (34, 34), (32, 2048), (32,)):
        with pytest.raises(ConfigError):
            inner_grids(size)


@gans
def test_images_and_scores_have_their_shapes_and_every_parameter_a_gradient(config: GanConfig) -> None:
    model = moved(Gan(config))
    latents_BZ = torch.randn(5, config.latent_dim, dtype=D)
    images_BCYX = model(latents_BZ)
    assert images_BCYX.shape == (5, config.num_channels, *config.image_size)
    assert -1 <= float(images_BCYX.detach().min()) < -0.05 < 0.05 < float(images_BCYX.detach().max()) <= 1
    scores_B = model.discriminator(images_BCYX)
    assert scores_B.shape == (5,)
    scores_B.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-12 or name.endswith("k_proj.bias"), name
    alone_BCYX = model.eval()(latents_BZ[:1])
    torch.testing.assert_close(alone_BCYX[0], model(latents_BZ)[0], rtol=0, atol=1e-10)
    with record(model) if config.attention_size else pytest.raises(UsageError):
        record(model) if not config.attention_size else model.discriminator(model(latents_BZ))


def test_each_smaller_grid_has_twice_the_channels_up_to_the_most() -> None:
    model = Gan(GanConfig((64, 64), 3, 5, 8, 24))
    up = [m for m in model.generator.modules() if isinstance(m, nn.ConvTranspose2d)]
    down = [m for m in model.discriminator.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.in_channels, m.out_channels) for m in up] == [(24, 24), (24, 16), (16, 8), (8, 3)]
    assert [(m.in_channels, m.out_channels) for m in down] == [(3, 8), (8, 16), (16, 24), (24, 24)]
    assert model.generator.start.out_features == model.discriminator.score.in_features == 24 * 4 * 4


@gans
def test_spectral_norm_is_in_all_weights_or_none(config: GanConfig) -> None:
    model = Gan(config)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)]
    assert len(layers) == (6 if not config.spectral_norm else 6 + 6)
    assert sum(isinstance(m, SpectralNorm) for m in model.modules()) == (len(layers) if config.spectral_norm else 0)
    norms = [isinstance(m, nn.GroupNorm) for m in model.discriminator.modules()]
    assert sum(norms) == (0 if config.spectral_norm else 1)
    if config.spectral_norm:
        for layer in layers:
            for _ in range(100):
                weight = layer.weight.detach()
            weight = weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose2d) else weight
            assert float(torch.linalg.svdvals(weight.flatten(1))[0]) == pytest.approx(1, rel=1e-2)


@gans
def test_a_gan_goes_through_a_file_with_its_buffers(config: GanConfig, tmp_path: Path) -> None:
    model, other = moved(Gan(config)).float(), moved(Gan(config), seed=1).float()
    latents_BZ = torch.randn(3, config.latent_dim)
    model.discriminator(model(latents_BZ))  # moves the buffers of spectral norm
    weights = gather(model)
    assert any("u_O" in name for name in weights) is config.spectral_norm
    write_tensors(tmp_path / "model.safetensors", weights)
    fit(read_tensors(tmp_path / "model.safetensors"), other, where="here")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in gather(other).items())
    for one in (model, other):
        one.train()
    # In training the next power iteration starts from the same vectors: bit-equal scores.
    a, b = (one.discriminator(one(latents_BZ)) for one in (model, other))
    assert torch.equal(a, b)
    assert all(torch.equal(tensor, gather(model)[name]) for name, tensor in gather(other).items())
    assert count_parameters(Gan, config) == sum(p.numel() for p in model.parameters())


def test_what_a_gan_cannot_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="7, 14"):
        Gan(GanConfig((28, 28), attention_size=28))
    model = Gan(GanConfig((16, 16), 1, 5, 4))
    with pytest.raises(UsageError):
        model(torch.zeros(2, 4))
    for shape in ((1, 3, 16, 16), (1, 1, 16, 8), (1, 16, 16)):
        with pytest.raises(UsageError):
            model.discriminator(torch.zeros(shape))
