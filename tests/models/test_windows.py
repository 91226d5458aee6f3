"""Attention in windows of a grid, against loops in float64 that know where each token stands and nothing of gathers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments, record
from regard.attention import masks as masking
from regard.attention.positions import WindowBias
from regard.errors import UsageError
from regard.layers.block import Block
from regard.layers.windows import WindowPadding, windows_of
from regard.models.swin import Swin, SwinConfig

Pair = tuple[int, int]
COUNT, WIDTH, HEADS = 2, 6, 2
CASES: list[tuple[Pair, Pair, Pair, int]] = [  # grid, window, shift, side of the table
    ((4, 6), (2, 2), (0, 0), 2),  # divided, not shifted
    ((4, 6), (2, 2), (1, 1), 2),
    ((5, 7), (3, 3), (0, 0), 3),  # filled up on both sides
    ((5, 7), (3, 3), (1, 1), 3),
    ((5, 6), (3, 3), (1, 1), 3),  # on one side
    ((7, 5), (3, 2), (1, 0), 3),  # windows that are lower or narrower than the table
    ((2, 7), (2, 3), (0, 1), 3),
    ((6, 3), (2, 3), (0, 0), 4),  # as wide as the grid: nothing is moved
    ((3, 4), (3, 4), (0, 0), 4),
    ((1, 1), (1, 1), (0, 0), 5),
]
PADDINGS = get_args(WindowPadding)


@dataclass(frozen=True)
class At:
    """A place of the windows: the token that stands there, and in which window, part and place of the window it is."""

    token: int | None
    window: Pair
    part: tuple[object, ...]
    place: Pair


def standing(grid: Pair, size: Pair, shift: Pair, padding: str) -> list[At]:
    """All places: where windows begin is told from the cuts between tokens; of timm's, from its own order of things."""
    full = tuple(-(-length // side) * side for length, side in zip(grid, size, strict=True))
    places = []
    for row in range(full[0]):
        for column in range(full[1]):
            at = (row, column)
            if padding == "zeros-after-shift":  # what stands where, after the shift and the filling up
                window = tuple(a // s for a, s in zip(at, size, strict=True))
                part = tuple(a >= f - s for a, f, s in zip(at, full, shift, strict=True))
                inside = tuple(a % s for a, s in zip(at, size, strict=True))
                source = tuple((a + s) % length for a, s, length in zip(at, shift, grid, strict=True))
                real = all(a < length for a, length in zip(at, grid, strict=True))
            else:  # cuts are `shift` tokens behind the multiples of the size
                window = tuple((a - s) // m for a, s, m in zip(at, shift, size, strict=True))
                part = ()
                inside = tuple((a - s) % m for a, s, m in zip(at, shift, size, strict=True))
                source, real = at, all(a < length for a, length in zip(at, grid, strict=True))
            if real or padding != "masked":
                token = source[0] * grid[1] + source[1] if real else None
                places.append(At(token, window, part, inside))
    return places


def oracle(
    block: Block, table: Tensor, x_ND: Tensor, grid: Pair, size: Pair, shift: Pair, padding: str
) -> tuple[Tensor, Tensor]:
    """The block's output, and the weights of each image's tokens over its tokens."""
    attn, places, side = block.self_attn, standing(grid, size, shift, padding), int(len(table) ** 0.5)
    tokens, middle = grid[0] * grid[1], side // 2
    out, weights = [], torch.zeros(len(x_ND) // tokens, HEADS, tokens, tokens, dtype=torch.float64)
    for image, x_TD in enumerate(x_ND.split(tokens)):
        normed = nn.functional.layer_norm(
            x_TD, (WIDTH,), block.self_norm.weight, block.self_norm.bias, block.self_norm.eps
        )
        rows = [torch.zeros(WIDTH, dtype=torch.float64) if p.token is None else normed[p.token] for p in places]
        q, k, v = (
            [layer.weight @ row + layer.bias for row in rows] for layer in (attn.q_proj, attn.k_proj, attn.v_proj)
        )
        update: dict[int, Tensor] = {}
        for i, one in enumerate(places):
            if one.token is None:
                continue
            seen = [j for j, other in enumerate(places) if (other.window, other.part) == (one.window, one.part)]
            heads = []
            for head in range(HEADS):
                part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
                scores = []
                for j in seen:
                    down, right = (a - b for a, b in zip(one.place, places[j].place, strict=True))
                    offset = (down + middle) * side + right + middle
                    scores.append(q[i][part] @ k[j][part] / (WIDTH // HEADS) ** 0.5 + table[offset, head])
                soft = torch.stack(scores).softmax(0)
                heads.append(sum(weight * v[j][part] for weight, j in zip(soft, seen, strict=True)))
                for weight, j in zip(soft, seen, strict=True):
                    if places[j].token is not None:
                        weights[image, head, one.token, places[j].token] = weight.detach()
            update[one.token] = attn.out_proj.weight @ torch.cat(heads) + attn.out_proj.bias
        assert sorted(update) == list(range(tokens))
        out.append(x_TD + torch.stack([update[token] for token in range(tokens)]))
    x_ND = torch.cat(out)
    return x_ND + block.mlp(block.mlp_norm(x_ND)), weights


def made(side: int) -> tuple[Block, WindowBias]:
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, 5, norm="pre", activation="gelu").double()
    bias = WindowBias(HEADS, side).double()
    with torch.no_grad():
        for parameter in (*block.parameters(), *bias.parameters()):
            parameter += 0.5 * torch.randn_like(parameter)
    return block, bias


def rows_of(grid: Pair) -> tuple[Tensor, Segments]:
    tokens = grid[0] * grid[1]
    draws = torch.Generator().manual_seed(1)
    x_ND = torch.randn(COUNT * tokens, WIDTH, generator=draws, dtype=torch.float64)
    return x_ND.requires_grad_(), Segments.uniform(COUNT, tokens)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("grid", "size", "shift", "side"), CASES)
def test_a_block_in_windows_is_the_oracle_s_and_so_are_its_gradients(
    grid: Pair, size: Pair, shift: Pair, side: int, padding: WindowPadding
) -> None:
    block, bias = made(side)
    x_ND, segments = rows_of(grid)
    windows = windows_of(COUNT, grid, size, shift, padding)
    inputs = [x_ND, bias.weight, *block.parameters()]
    y_ND = block(x_ND, segments, bias=bias.within(size), windows=windows)
    wanted_ND, _ = oracle(block, bias.weight, x_ND, grid, size, shift, padding)
    assert (y_ND - wanted_ND).abs().max() < 1e-12
    direction = torch.randn_like(y_ND)
    own = torch.autograd.grad((y_ND * direction).sum(), inputs, allow_unused=True)
    theirs = torch.autograd.grad((wanted_ND * direction).sum(), inputs, allow_unused=True)
    assert all((a - b).abs().max() < 1e-11 for a, b in zip(own, theirs, strict=True))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("grid", "size", "shift", "side"), CASES)
def test_recorded_weights_stand_where_the_windows_say(
    grid: Pair, size: Pair, shift: Pair, side: int, padding: WindowPadding
) -> None:
    block, bias = made(side)
    x_ND, segments = rows_of(grid)
    windows, tokens = windows_of(COUNT, grid, size, shift, padding), grid[0] * grid[1]
    with record(block) as rows:
        block(x_ND, segments, bias=bias.within(size), windows=windows)
    found = torch.zeros(COUNT, HEADS, tokens, tokens, dtype=torch.float64)
    for row in rows["self_attn"]:
        image, places_W = windows.locate(row.sequence)
        real = places_W >= 0
        within = row.weights_HTS[:, real][:, :, real]
        found[image][:, places_W[real][:, None], places_W[real]] = within
        if padding == "masked":
            assert not row.weights_HTS[:, real][:, :, ~real].any()
    _, wanted = oracle(block, bias.weight, x_ND, grid, size, shift, padding)
    assert (found - wanted).abs().max() < 1e-12
    if padding == "masked":
        assert (found.sum(-1) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("grid", "size", "shift", "side"), CASES)
def test_every_place_of_the_grid_is_in_one_window(
    grid: Pair, size: Pair, shift: Pair, side: int, padding: WindowPadding
) -> None:
    windows = windows_of(COUNT, grid, size, shift, padding)
    tokens = grid[0] * grid[1]
    counts = tuple(-(-length // one) for length, one in zip(grid, size, strict=True))
    assert windows.places_BW.shape == (counts[0] * counts[1], size[0] * size[1])
    assert windows.segments.form == "uniform"
    assert windows.segments.lengths == (size[0] * size[1],) * (COUNT * len(windows.places_BW))
    assert sorted(place for place in windows.places_BW.flatten().tolist() if place >= 0) == list(range(tokens))
    if shift == (0, 0):
        assert int(windows.places_BW[0, 0]) == 0
        assert windows.places_BW[0, size[1] :: size[1]].tolist() == [r * grid[1] for r in range(1, size[0])]
    x_ND, _ = rows_of(grid)
    assert torch.equal(windows.give(windows.take(x_ND)), x_ND)


def test_windows_of_a_grid_by_hand() -> None:
    """4 × 4 tokens, windows of 2, shifted by 1: the four corners meet in the last window and do not see each other."""
    windows = windows_of(1, (4, 4), (2, 2), (1, 1))
    assert windows.places_BW.tolist() == [[5, 6, 9, 10], [7, 4, 11, 8], [13, 14, 1, 2], [15, 12, 3, 0]]
    sees = windows.mask.allowed_BHTS[:, 0]
    assert sees[0].all()
    assert sees[1].tolist() == [[i % 2 == j % 2 for j in range(4)] for i in range(4)]
    assert sees[2].tolist() == [[i // 2 == j // 2 for j in range(4)] for i in range(4)]
    assert sees[3].tolist() == torch.eye(4, dtype=torch.bool).tolist()
    assert windows.locate(3)[1].tolist() == [15, 12, 3, 0]
    assert windows_of(2, (4, 4), (2, 2), (1, 1)).locate(5) == (1, pytest.approx(windows.places_BW[1]))


def test_without_shift_or_filling_there_is_no_mask_and_where_rows_lie_together_no_gather() -> None:
    x_ND, _ = rows_of((6, 4))
    assert windows_of(2, (6, 4), (3, 2)).mask is None
    assert windows_of(2, (6, 4), (4, 2)).mask is not None
    assert windows_of(2, (6, 4), (4, 2), padding="zeros").mask is None
    for size, is_moved in (((3, 2), True), ((3, 4), False), ((6, 4), False)):
        windows = windows_of(2, (6, 4), size)
        assert (windows.take(x_ND) is not x_ND) == is_moved
        assert (windows.give(x_ND) is not x_ND) == is_moved


def test_windows_are_made_once_and_serve_training_after_inference() -> None:
    with torch.inference_mode():
        first = windows_of(3, (5, 5), (3, 3), (1, 1))
    assert windows_of(3, (5, 5), (3, 3), (1, 1)) is first
    assert windows_of(3, (5, 5), (3, 3), (1, 1), device="cpu") is first
    assert windows_of(2, (5, 5), (3, 3), (1, 1)) is not first
    assert windows_of(3, (5, 5), (3, 3), (1, 1), "zeros") is not first
    block, bias = made(3)
    x_ND = torch.randn(75, WIDTH, dtype=torch.float64, requires_grad=True)
    block(x_ND, Segments.uniform(3, 25), bias=bias, windows=first).sum().backward()
    assert x_ND.grad.abs().min() > 0


@pytest.mark.parametrize("turn", [lambda windows: windows.take, lambda windows: windows.give])
def test_gradients_of_the_gathers(turn: Callable) -> None:
    windows = windows_of(2, (3, 5), (2, 2), (1, 1))
    num_rows = 30 if turn(windows) == windows.take else 48
    x_ND = torch.randn(num_rows, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(turn(windows), (x_ND,))
    assert torch.autograd.gradgradcheck(turn(windows), (x_ND,))


def test_a_mask_of_one_s_own_is_added_to_that_of_the_windows() -> None:
    block, _ = made(3)
    x_ND, segments = rows_of((5, 7))
    windows = windows_of(COUNT, (5, 7), (3, 3), (1, 1))
    with record(block) as rows:
        block(x_ND, segments, mask=masking.causal(), windows=windows)
    for row in rows["self_attn"]:
        assert not row.weights_HTS.triu(1).any()
        _, places_W = windows.locate(row.sequence)
        real = places_W >= 0
        assert not row.weights_HTS[:, real][:, :, ~real].any()


def test_a_whole_image_goes_past_a_sublayer() -> None:
    """Stochastic depth draws for an image, not for each of its windows."""
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, 5, norm="pre", drop_path_p=0.5).double().train()
    with torch.no_grad():
        block.mlp.down_proj.weight.zero_()
    x_BTD = torch.randn(64, 16, WIDTH, dtype=torch.float64)
    windows = windows_of(64, (4, 4), (2, 2), (1, 1))
    y_BTD = block(x_BTD.flatten(0, 1), Segments.uniform(64, 16), windows=windows).unflatten(0, (64, 16))
    moved_BT = (y_BTD != x_BTD).any(-1)
    assert torch.equal(moved_BT.all(1), moved_BT.any(1))
    assert 16 < int(moved_BT.all(1).sum()) < 48


def test_a_bias_for_other_heads_or_more_tokens_is_refused() -> None:
    block, bias = made(3)
    x_ND, segments = rows_of((5, 7))
    for size, wrong in (((3, 3), bias.within((2, 3))), ((3, 2), WindowBias(3, 3).double().within((3, 2)))):
        with pytest.raises(UsageError):
            block(x_ND, segments, bias=wrong, windows=windows_of(COUNT, (5, 7), size))


def test_the_model_says_which_windows_its_layers_see() -> None:
    model = Swin(SwinConfig((32, 32), 3, 0, 2, 8, (2, 3), (2, 4), (4,))).double().eval()
    pixels = torch.randn(2, 3, 43, 32, dtype=torch.float64)
    windows = model.windows(pixels)
    with record(model) as rows, torch.inference_mode():
        model(pixels)
    assert windows.keys() == set(rows)
    for name, seen in windows.items():
        assert len(rows[name]) == len(seen.segments)
        sums = torch.stack([row.weights_HTS.sum(-1) for row in rows[name]])
        assert (sums - 1).abs().max() < 1e-12
        grid = (22, 16) if name.startswith("stages.0") else (11, 8)
        assert int(seen.places_BW.max()) == grid[0] * grid[1] - 1
        assert bool(seen.places_BW[0, 0] != 0) == (name.split(".")[3] == "1")
