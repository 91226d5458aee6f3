"""Image encoders looked at: weights by formula at the right places, for grids, windows, convolutions and pools."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from seeing_examples import (
    Attention2d,
    MiniConv,
    MiniPool,
    MiniViT,
    MiniWindows,
    Product,
    a_picture,
    some_seen,
    spread,
    to_pixels,
    window_rows,
)

import regard
from regard.attention import Segments, attend
from regard.errors import UsageError
from regard.looking import Maps, Places, png
from regard.looking.png import png_size
from regard.looking.seeing import look_at_image


def softmax(scores, axis=-1):
    powers = np.exp(scores - scores.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def hand_weights(attn, x_ND):
    """softmax(q · k / √K) of one sequence, head by head, in float64."""
    x = x_ND.double().numpy()
    q, k = (
        x @ p.weight.double().detach().numpy().T + p.bias.double().detach().numpy() for p in (attn.q_proj, attn.k_proj)
    )
    size = q.shape[1] // attn.num_heads
    heads = [slice(h * size, (h + 1) * size) for h in range(attn.num_heads)]
    return np.stack([softmax(q[:, one] @ k[:, one].T / math.sqrt(size)) for one in heads])


def first_patches(encoder, image):
    """Patches of 4 × 4 pixels by loops, row by row."""
    pixels = to_pixels(image)[0]
    weight, bias = encoder.patches.weight.flatten(1), encoder.patches.bias
    rows = [
        weight @ pixels[:, y : y + 4, x : x + 4].flatten() + bias
        for y in range(0, image.shape[0] - 3, 4)
        for x in range(0, image.shape[1] - 3, 4)
    ]
    return torch.stack(rows).detach()


def test_a_class_token_and_patches():
    encoder, image = spread(MiniViT()), a_picture(20, 28)
    maps = look_at_image(encoder, to_pixels(image), image, "disc.png", "disc")
    assert maps.layers == ("blocks.0.self_attn", "blocks.1.self_attn")
    assert (maps.title, maps.source, maps.output) == ("disc.png", "disc.png", "disc")
    side = Places(0, (5, 7), ("class",))
    assert [(one.kind, one.queries, one.keys) for one in maps.maps] == [("self", side, side)] * 2
    assert png_size(maps.pictures[0].png) == (20, 28)
    with torch.no_grad():
        x_ND = torch.cat([encoder.extra_ED, first_patches(encoder, image)])
        x_ND = encoder.blocks[0].self_norm(x_ND)
    np.testing.assert_allclose(maps.maps[0].weights_HTS, hand_weights(encoder.blocks[0].self_attn, x_ND), atol=2e-6)


def test_windows_put_each_weight_at_its_place():
    encoder, image = spread(MiniWindows()), a_picture(20, 28)
    maps = look_at_image(encoder, to_pixels(image), image, "t", "")
    first, second = maps.maps
    assert (first.keys.grid, second.keys.grid) == ((5, 7), (3, 4))
    with torch.no_grad():
        x_ND = encoder.blocks[0].self_norm(first_patches(encoder, image))
    # The oracle attends from every place to every place of its window, one window at a time.
    for window in window_rows((5, 7), 2):
        expected = hand_weights(encoder.blocks[0].self_attn, x_ND[window])
        for i, query in enumerate(window):
            row = first.query_tokens.index(f"row {query // 7 + 1}, column {query % 7 + 1}")
            for j, key in enumerate(window):
                names = [first.key_name(row, s) for s in range(4)]
                found = first.weights_HTS[:, row, names.index(f"row {key // 7 + 1}, column {key % 7 + 1}")]
                np.testing.assert_allclose(found, expected[:, i, j], atol=2e-6)
    # A window at the edge has fewer rows; what fills it up stands nowhere, asks nothing and weighs nothing.
    assert first.queries.rows_GW[3].tolist() == [6, 13, -1, -1]
    assert not first.weights_HTS[:, 14:16].any()
    assert not first.weights_HTS[:, 12:14, 2:].any()
    np.testing.assert_allclose(first.weights_HTS[:, 12:14].sum(-1), 1, atol=1e-6)


def test_a_convolutional_network_s_grid_is_the_one_that_its_layer_was_given():
    encoder, image = spread(MiniConv()), a_picture(24, 16)
    one = look_at_image(encoder, to_pixels(image), image, "t", "").maps[0]
    assert one.queries == one.keys == Places(0, (6, 4))
    x = first_patches(encoder, image).double().numpy()
    qkv = x @ encoder.attention.qkv.weight.double().detach().numpy()[:, :, 0, 0].T
    qkv = qkv + encoder.attention.qkv.bias.double().detach().numpy()
    np.testing.assert_allclose(one.weights_HTS[0], softmax(qkv[:, :12] @ qkv[:, 12:24].T / math.sqrt(12)), atol=2e-6)


def test_a_pool_s_queries_stand_nowhere():
    one = some_seen(MiniPool).maps[0]
    assert (one.kind, one.queries, one.keys) == ("cross", ("query 1", "query 2"), Places(0, (5, 7)))
    assert one.weights_HTS.shape == (3, 2, 35)


class Coarse(Attention2d):
    """Attention from each place to a grid half as fine."""

    def forward(self, x_BCYX):
        q, k, v = self.qkv(x_BCYX).chunk(3, 1)
        k, v = (torch.nn.functional.avg_pool2d(one, 2) for one in (k, v))
        q, k, v = (one.flatten(2)[0].mT[:, None] for one in (q, k, v))
        y_N1K = attend(q, k, v, Segments.uniform(1, len(q)), Segments.uniform(1, len(k)), site=self)
        return x_BCYX + y_N1K[:, 0].mT.reshape(x_BCYX.shape)


def test_queries_may_stand_on_another_grid_than_keys():
    encoder, image = MiniConv(), a_picture(24, 16)
    encoder.attention = Coarse(12)
    one = look_at_image(encoder, to_pixels(image), image, "t", "").maps[0]
    assert (one.kind, one.queries, one.keys) == ("cross", Places(0, (6, 4)), Places(0, (3, 2)))


class Around(torch.nn.Module):
    """Gives its attention some of an image's places, in a row."""

    def __init__(self, count):
        super().__init__()
        self.inner, self.count = Inner(12), count

    def forward(self, x_BCYX):
        self.inner(x_BCYX.flatten(2)[..., : self.count])
        return x_BCYX


class Inner(Attention2d):
    """Takes a row of places."""

    def forward(self, x_BCN):
        return super().forward(x_BCN[..., None])


def test_a_grid_may_be_known_to_the_module_around_alone():
    encoder, image = MiniConv(), a_picture(24, 16)
    encoder.attention = Around(24)
    maps = look_at_image(encoder, to_pixels(image), image, "t", "")
    assert [(one.layer, one.keys) for one in maps.maps] == [("attention.inner", Places(0, (6, 4)))]
    encoder.attention = Around(11)
    with pytest.raises(UsageError, match=r"attention\.inner: 11 rows, and their places are not told"):
        look_at_image(encoder, to_pixels(image), image, "t", "")


def test_layers_can_be_chosen():
    image, encoder = a_picture(), MiniViT()
    assert look_at_image(encoder, to_pixels(image), image, "t", "", "blocks.1.*").layers == ("blocks.1.self_attn",)
    with pytest.raises(UsageError, match="no layer 'x' attends"):
        look_at_image(encoder, to_pixels(image), image, "t", "", ["x"])


def test_training_goes_on_as_it_was():
    image, encoder = a_picture(), MiniViT().train()
    encoder.blocks[0].dropout.p = 0.9
    once, again = (look_at_image(encoder, to_pixels(image), image, "t", "").maps[1].weights_HTS for _ in range(2))
    assert once.tolist() == again.tolist()  # while it is looked at nothing is dropped
    assert encoder.training
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def test_what_cannot_be_looked_at_is_said():
    image = a_picture()
    with pytest.raises(UsageError, match="2 images; give one at a time"):
        look_at_image(MiniViT(), to_pixels(image).repeat(2, 1, 1, 1), image, "t", "")
    with pytest.raises(UsageError, match="no attention to look at"):
        look_at_image(MiniViT(num_layers=0), to_pixels(image), image, "t", "")
    encoder = MiniWindows()
    encoder.places = lambda layer, size: None
    with pytest.raises(UsageError, match=r"blocks\.0\.self_attn: attends 12 times, and its places are not told"):
        look_at_image(encoder, to_pixels(image), image, "t", "")
    encoder.places = lambda layer, size: ((5, 7), window_rows((5, 7), 3))
    with pytest.raises(UsageError, match="12 windows, places for 6"):
        look_at_image(encoder, to_pixels(image), image, "t", "")


def test_a_loaded_model_looks_at_an_image_file(tmp_path):
    product = Product()
    maps = regard.look(product, "folder/disc.png")
    assert product.read == ["folder/disc.png"]
    assert (maps.title, maps.source, maps.output) == ("disc.png", "folder/disc.png", "disc")
    assert maps.pictures[0].png == png.png(a_picture())
    same = look_at_image(product.model, to_pixels(a_picture()), a_picture(), "t", "")
    assert [a.weights_HTS.tolist() for a in maps.maps] == [b.weights_HTS.tolist() for b in same.maps]
    assert regard.look(Product(("embed",)), Path("disc.png")).output == ""
    maps.save(tmp_path / "look.json")
    assert Maps.from_json((tmp_path / "look.json").read_text()).pictures == maps.pictures
    with pytest.raises(UsageError, match="an image is a file, not a URL"):
        regard.look(product, "https://example.org/disc.png")
    product.model = torch.nn.Linear(2, 2)
    with pytest.raises(UsageError, match="a model for the task 'classify-images'"):
        regard.look(product, "a")
    product.model = MiniViT()
    with pytest.raises(UsageError, match="an output for a model that writes none"):
        regard.look(product, "disc.png", "disc")
