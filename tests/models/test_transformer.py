"""The Transformer against the paper's arithmetic and against torch.nn.Transformer, which pads where regard does not."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, Segments
from regard.errors import ConfigError
from regard.layers.block import Block
from regard.layers.embed import Embedding
from regard.models.registry import family
from regard.models.transformer import Transformer, TransformerConfig

# ---------------------------------------------------------------------------------------------------------------- sizes


def parameters(vocab: int, width: int, inner: int, layers: int) -> int:
    """Of one shared table, and per layer: attention 4 × (D² + D), MLP 2 D F + F + D, norms 2 D each."""
    attention = 4 * (width * width + width)
    mlp = width * inner + inner + inner * width + width
    encoder = attention + mlp + 2 * (2 * width)
    decoder = 2 * attention + mlp + 3 * (2 * width)
    return vocab * width + layers * (encoder + decoder)


@pytest.mark.parametrize(
    ("name", "width", "inner", "count"),
    [("transformer-base", 512, 2048, 63_082_496), ("transformer-big", 1024, 4096, 214_245_376)],
)
def test_published_sizes(name: str, width: int, inner: int, count: int) -> None:
    (size,) = (size for size in family("transformer").sizes if size.name == name)
    with torch.device("meta"):
        model = family("transformer").build(size.config)
    assert sum(parameter.numel() for parameter in model.parameters()) == count == parameters(37_000, width, inner, 6)
    # Within a vocabulary's rounding of what the paper prints.
    printed = int(size.paper.removesuffix(" M")) * 10**6
    assert abs(count - printed) / printed < 0.03


# ------------------------------------------------------------------------------------------------- torch.nn.Transformer

CONFIG = TransformerConfig(23, 29, 12, 20, 3, encoder_layers=2, decoder_layers=2, share="none", dropout=0.0)
SOURCES, TARGETS = (5, 1, 7, 3), (2, 11, 1, 4)


def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    parts = [ours.q_proj, ours.k_proj, ours.v_proj]
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.weight.copy_(ours.out_proj.weight)
    theirs.out_proj.bias.copy_(ours.out_proj.bias)


def copy_linear(theirs: nn.Module, ours: nn.Module) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_block(theirs: nn.Module, ours: Block) -> None:
    copy_attention(theirs.self_attn, ours.self_attn)
    copy_linear(theirs.norm1, ours.self_norm)
    last = theirs.norm2
    if ours.cross_attn is not None:
        copy_attention(theirs.multihead_attn, ours.cross_attn)
        copy_linear(theirs.norm2, ours.cross_norm)
        last = theirs.norm3
    copy_linear(last, ours.mlp_norm)
    copy_linear(theirs.linear1, ours.mlp.up_proj)
    copy_linear(theirs.linear2, ours.mlp.down_proj)


def peer_of(model: Transformer) -> nn.Transformer:
    """The public implementation with the same weights. Its final norms belong to pre-norm alone."""
    c, pre = model.config, model.config.norm == "pre"
    kinds = {"dropout": 0.0, "activation": c.activation, "batch_first": True, "norm_first": pre, "dtype": torch.float64}
    encoder_layer = nn.TransformerEncoderLayer(c.embed_dim, c.num_heads, c.mlp_dim, **kinds)
    decoder_layer = nn.TransformerDecoderLayer(c.embed_dim, c.num_heads, c.mlp_dim, **kinds)
    norms = [nn.LayerNorm(c.embed_dim, dtype=torch.float64) if pre else None for _ in range(2)]
    encoder = nn.TransformerEncoder(encoder_layer, c.encoder_layers, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer, c.decoder_layers, norms[1])
    peer = nn.Transformer(
        c.embed_dim, c.num_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True, dtype=torch.float64
    )
    with torch.no_grad():
        for theirs, ours in zip([*encoder.layers, *decoder.layers], [*model.encoder, *model.decoder], strict=True):
            copy_block(theirs, ours)
        if pre:
            copy_linear(norms[0], model.encoder_norm)
            copy_linear(norms[1], model.decoder_norm)
    return peer


def padded(x_ND: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Rows as (B, longest, D) with 7.0 behind each sequence, and where those are."""
    x_BTD = nn.utils.rnn.pad_sequence(x_ND.split(lengths), batch_first=True, padding_value=7.0)
    beyond_BT = torch.arange(max(lengths))[None] >= torch.tensor(lengths)[:, None]
    return x_BTD, beyond_BT


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_the_public_implementation(norm: str, activation: str) -> None:
    model = Transformer(replace(CONFIG, norm=norm, activation=activation)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    peer = peer_of(model)
    counted = [
        p for name, p in model.named_parameters() if not name.startswith(("source_embed", "target_embed", "output."))
    ]
    assert sum(p.numel() for p in counted) == sum(p.numel() for p in peer.parameters())
    source_M, target_N = (torch.randint(0, 23, (sum(lengths),)) for lengths in (SOURCES, TARGETS))
    source_segments, target_segments = Segments.ragged(SOURCES), Segments.ragged(TARGETS)
    ours_ND = model(source_M, source_segments, target_N, target_segments)

    source_BSD, beyond_BS = padded(model.source_embed(source_M, source_segments), SOURCES)
    target_BTD, beyond_BT = padded(model.target_embed(target_N, target_segments), TARGETS)
    later_TT = torch.ones(max(TARGETS), max(TARGETS), dtype=torch.bool).triu(1)
    theirs_BTD = peer(
        source_BSD,
        target_BTD,
        tgt_mask=later_TT,
        src_key_padding_mask=beyond_BS,
        tgt_key_padding_mask=beyond_BT,
        memory_key_padding_mask=beyond_BS,
    )
    theirs_ND = theirs_BTD[~beyond_BT]
    assert ours_ND.std() > 0.1
    assert (ours_ND - theirs_ND).abs().max() < 1e-10
    # Gradients too: with respect to every weight that both have.
    weights_ND = torch.randn_like(ours_ND)
    (ours_ND * weights_ND).sum().backward()
    source_BSD, target_BTD = source_BSD.detach(), target_BTD.detach()
    ours, theirs = model.encoder[1].self_attn, peer.encoder.layers[1].self_attn
    gradients = torch.autograd.grad((theirs_ND * weights_ND).sum(), [theirs.in_proj_weight, theirs.out_proj.weight])
    assert torch.allclose(
        torch.cat([p.weight.grad for p in (ours.q_proj, ours.k_proj, ours.v_proj)]), gradients[0], atol=1e-10
    )
    assert torch.allclose(ours.out_proj.weight.grad, gradients[1], atol=1e-10)


# ----------------------------------------------------------------------------------------------------------- embeddings


def test_sinusoids_and_scale_as_in_the_paper() -> None:
    width, lengths = 8, (3, 1, 5)
    embed = Embedding(11, width).double()
    tokens_N = torch.randint(0, 11, (sum(lengths),))
    x_ND = embed(tokens_N, Segments.ragged(lengths))
    row = 0
    for length in lengths:
        for position in range(length):
            for i in range(width // 2):
                angle = position / 10000 ** (2 * i / width)
                for column, wave in ((2 * i, math.sin(angle)), (2 * i + 1, math.cos(angle))):
                    token = float(embed.weight.detach()[tokens_N[row], column])
                    # The table of sinusoids is made in float32.
                    assert float(x_ND.detach()[row, column]) == pytest.approx(math.sqrt(width) * token + wave, abs=1e-6)
            row += 1


def test_positions_go_on_from_a_start() -> None:
    embed = Embedding(11, 8)
    tokens_N = torch.randint(0, 11, (6,))
    whole = embed(tokens_N, Segments.ragged([6]))
    assert torch.allclose(embed(tokens_N[4:], Segments.ragged([2]), 4), whole[4:], atol=1e-6)


def test_halves_are_the_same_waves_in_another_order() -> None:
    interleaved, halves = (Embedding(5, 8, positions=kind) for kind in ("sinusoidal", "sinusoidal-halves"))
    with torch.no_grad():
        halves.weight.zero_()
        interleaved.weight.zero_()
    tokens_N, segments = torch.zeros(7, dtype=torch.int64), Segments.ragged([4, 3])
    x_ND, y_ND = interleaved(tokens_N, segments), halves(tokens_N, segments)
    assert torch.allclose(torch.cat([x_ND[:, 0::2], x_ND[:, 1::2]], 1), y_ND, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"share": "all"},
        {"share": "some"},
        {"share": "target", "position_dim": 4},
        {"position_dim": 12},
        {"position_dim": 13},
        {"norm": "mid"},
        {"activation": "swish"},
        {"positions": "rotary"},
    ],
)
def test_settings_that_cannot_be_built_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Transformer(replace(CONFIG, **change))
