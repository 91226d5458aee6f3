"""XLNet against the public implementation: its own random start, through our map, and back."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Segments
from regard.errors import CheckpointError, RegardError
from regard.layers.relative import Memory
from regard.models.public import read_folder, write_folder
from regard.models.registry import family
from regard.models.weights import count_parameters, read_tensors, write_tensors
from regard.models.xlnet import XLNet, XLNetConfig

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.peer
LENGTHS = (5, 1, 17, 9)
Layers = list[list[Tensor]]  # of each layer, of each text


def theirs_of(**change: Any) -> nn.Module:
    """Their model, moved so far from its start that biases and norms matter."""
    torch.manual_seed(0)
    head = change.pop("head", True)
    values = {"vocab_size": 61, "d_model": 24, "n_layer": 3, "n_head": 4, "d_inner": 40, "mem_len": None, **change}
    model = (transformers.XLNetLMHeadModel if head else transformers.XLNetModel)(transformers.XLNetConfig(**values))
    shared: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.3 * torch.randn_like(parameter)
            if change.get("untie_r") is False and name.endswith(("r_w_bias", "r_r_bias", "r_s_bias")):
                parameter.copy_(shared.setdefault(name[-8:], parameter))
    return model.eval()


CASES: dict[str, dict[str, Any]] = {
    "with head": {},
    "without head": {"head": False},
    "untied table, relu": {"tie_word_embeddings": False, "ff_activation": "relu"},
    "past alone": {"attn_type": "uni", "ff_activation": "gelu_new"},
    "past alone, same length": {"attn_type": "uni", "same_length": True},
    "clamped, large epsilon": {"clamp_len": 4, "layer_norm_eps": 1e-2},
    "shared biases": {"untie_r": False},
    "short memory": {"mem_len": 7, "reuse_len": 3},
}
every_case = pytest.mark.parametrize("name", CASES)


def exact(theirs: nn.Module) -> nn.Module:
    """Their distances are encoded in float32 whatever the model is in; here in float64."""
    theirs = copy.deepcopy(theirs).double()
    body = getattr(theirs, "transformer", theirs)

    def encoded(qlen: int, klen: int, bsz: int, device: Any = None) -> Tensor:
        last = -qlen if body.attn_type == "bi" else -1
        distances_R = torch.arange(klen, last, -1, dtype=torch.float64)
        if body.clamp_len > 0:
            distances_R = distances_R.clamp(-body.clamp_len, body.clamp_len)
        steps_F = torch.arange(0, body.d_model, 2, dtype=torch.float64) / body.d_model
        angles_RF = distances_R[:, None] / 10000**steps_F
        return torch.cat([angles_RF.sin(), angles_RF.cos()], -1)[:, None].expand(-1, bsz, -1)

    body.relative_positional_encoding = encoded
    return theirs


class Given:
    """A batch of texts with types, orders and targets, as both sides are told."""

    def __init__(self, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> None:
        draws = torch.Generator().manual_seed(seed)
        self.lengths = list(lengths)
        self.tokens = [torch.randint(0, 61, (length,), generator=draws) for length in lengths]
        self.types = [torch.randint(0, 2, (length,), generator=draws) for length in lengths]
        # A third is predicted, never the first token; the others are of rank −1, see each other and are seen by all.
        self.ranks, self.targets = [], []
        for length in lengths:
            chosen = torch.randperm(max(length - 1, 0), generator=draws)[: -(-length // 3)] + 1
            ranks = torch.full((length,), -1)
            ranks[chosen] = torch.randperm(len(chosen), generator=draws)
            self.ranks.append(ranks)
            self.targets.append(chosen.sort().values)

    @property
    def segments(self) -> Segments:
        return Segments.ragged(self.lengths)

    @property
    def rows(self) -> Tensor:
        starts = self.segments.starts_B.tolist()
        return torch.cat([places + start for places, start in zip(self.targets, starts, strict=True)])

    def alone(self, place: int) -> "Given":
        """One of the texts."""
        other = copy.copy(self)
        for name in ("lengths", "tokens", "types", "ranks", "targets"):
            setattr(other, name, [getattr(self, name)[place]])
        return other

    def public(self, types: bool, order: bool, left: bool, dtype: torch.dtype) -> dict[str, Tensor]:
        """As their model is told: filled up to one length, to the left as its tokenizer does, or to the right."""
        longest, count = max(self.lengths), len(self.lengths)
        most = max(map(len, self.targets))
        told = {
            "input_ids": torch.full((count, longest), 5),
            "attention_mask": torch.zeros(count, longest, dtype=dtype),
            "token_type_ids": torch.full((count, longest), 3),
            "perm_mask": torch.zeros(count, longest, longest, dtype=dtype),
            "target_mapping": torch.zeros(count, most, longest, dtype=dtype),
        }
        for b, length in enumerate(self.lengths):
            real = self.real(length, left)
            told["input_ids"][b, real] = self.tokens[b]
            told["attention_mask"][b, real] = 1
            told["token_type_ids"][b, real] = self.types[b]
            query, key = self.ranks[b][:, None], self.ranks[b][None]
            told["perm_mask"][b, real, real] = ((key > query) | ((key == query) & (query >= 0))).to(dtype)
            told["target_mapping"][b, range(len(self.targets[b])), self.targets[b] + real.start] = 1
        dropped = {"token_type_ids": not types, "perm_mask": not order, "target_mapping": not order}
        return {name: value for name, value in told.items() if not dropped.get(name)}

    def real(self, length: int, left: bool) -> slice:
        """Where a text's tokens stand."""
        longest = max(self.lengths)
        return slice(longest - length, longest) if left else slice(0, length)


Mems = list[list[Tensor]]  # of each layer, of each text


def layers_of(
    theirs: nn.Module, given: Given, types: bool, order: bool, mems: Mems | None = None
) -> tuple[Layers, Mems]:
    """For each layer what it makes of each text (and of its targets), the logits at the end; and their memory.

    Texts are filled up to one length, to the left as their tokenizer does; or each is read alone, where theirs cannot
    read several at once: for the past alone it adds masks of unlike shapes, and memories have one length.
    """
    if theirs.config.attn_type == "uni" or mems is not None:
        found = [
            call(theirs, given.alone(b), types, order, None if mems is None else [[layer[b]] for layer in mems])
            for b in range(len(given.lengths))
        ]
        layers, new = (
            [[of for (of,) in texts] for texts in zip(*lists, strict=True)] for lists in zip(*found, strict=True)
        )
        return layers, new
    return call(theirs, given, types, order, None)


def call(theirs: nn.Module, given: Given, types: bool, order: bool, mems: Mems | None, left: bool = True) -> Any:
    told = given.public(types, order, left, next(theirs.parameters()).dtype)
    if theirs.config.attn_type == "uni":
        assert told.pop("attention_mask").all()
    before = None if mems is None or not len(mems[0][0]) else [torch.stack(layer, 1) for layer in mems]
    with torch.inference_mode():
        out = theirs(**told, mems=before, use_mems=True, output_hidden_states=True)
    real = [given.real(length, left) for length in given.lengths]
    first = [slice(0, len(of)) for of in given.targets]
    last = out.get("logits", out.get("last_hidden_state"))
    every = [(layer, first if order and number % 2 else real) for number, layer in enumerate(out.hidden_states)]
    layers = [
        [layer[b, of] for b, of in enumerate(places)] for layer, places in [*every, (last, first if order else real)]
    ]
    return layers, [list(layer.unbind(1)) for layer in out.mems]


def layers_of_ours(
    ours: XLNet, given: Given, types: bool, order: bool, memory: Memory | None = None
) -> tuple[Layers, Memory]:
    seen: list[tuple[Tensor, ...]] = []
    hooks = [block.register_forward_hook(lambda _, __, out: seen.append(out)) for block in ours.blocks]
    with torch.inference_mode():
        out = ours.streams(
            torch.cat(given.tokens),
            given.segments,
            torch.cat(given.types) if types else None,
            order_N=torch.cat(given.ranks) if order else None,
            targets_P=given.rows if order else None,
            memory=memory,
            remember=True,
        )
        last = out.hidden_ND if out.targets_PD is None else out.targets_PD
        last = ours.head(last) if ours.output is not None else last
        embedded = ours.token_embed(torch.cat(given.tokens))
        first = (embedded, ours.mask_embed_1D.expand(len(given.rows), -1)) if order else (embedded,)
    for hook in hooks:
        hook.remove()
    counts = (given.lengths, [len(of) for of in given.targets])
    layers = [
        list(stream.split(sizes)) for layer in [first, *seen] for stream, sizes in zip(layer, counts, strict=False)
    ]
    assert out.memory is not None
    layers = [*layers, list(last.split(counts[order]))]
    return [[of.detach() for of in layer] for layer in layers], out.memory


def worst(one: Layers, other: Layers) -> list[float]:
    pairs = zip(one, other, strict=True)
    return [
        max(float((a.double() - b.double()).detach().abs().max()) for a, b in zip(*pair, strict=True) if a.numel())
        for pair in pairs
    ]


# Of the same length without a memory, targets see nothing, and theirs looks at all alike; with a memory, see below.
BOTH_STREAMS = [name for name in CASES if not CASES[name].get("same_length")]


@pytest.mark.parametrize(("name", "order"), [*((n, False) for n in CASES), *((n, True) for n in BOTH_STREAMS)])
def test_every_layer_is_theirs_and_what_we_write_they_read(name: str, order: bool, tmp_path: Path) -> None:
    theirs, given = theirs_of(**CASES[name]), Given()
    theirs.double().save_pretrained(tmp_path / "theirs")
    family_name, ours, warnings = read_folder(tmp_path / "theirs")
    assert warnings == []
    for types in (False, True):
        want, _ = layers_of(exact(theirs), given, types, order)
        got, _ = layers_of_ours(ours.eval(), given, types, order)
        assert len(want) == (3 + 1) * (1 + order) + 1
        assert max(worst(got, want)) <= 1e-10
    # In float32 our error is that of arithmetic, at most twice theirs.
    theirs.float().save_pretrained(tmp_path / "float32")
    _, narrow, _ = read_folder(tmp_path / "float32")
    mine = worst(layers_of_ours(narrow.eval(), given, True, order)[0], want)
    for error, of_theirs in zip(mine, worst(layers_of(theirs, given, True, order)[0], want), strict=True):
        assert error <= 2 * of_theirs + 1e-7
    # Back: they load what we wrote, without a tensor missing or left over, and hold the same bytes.
    (tmp_path / "ours").mkdir()
    write_folder(tmp_path / "ours", family_name, narrow)
    back, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state, wanted = back.state_dict(), theirs.state_dict()
    assert state.keys() == wanted.keys()
    assert all(state[key].numpy().tobytes() == wanted[key].numpy().tobytes() for key in wanted)
    told, heard = (
        {key: getattr(model.config, key) for key in ("attn_type", "same_length", "clamp_len", "mem_len", "reuse_len")}
        for model in (back, theirs)
    )
    assert told == heard
    assert back.config.tie_word_embeddings == theirs.config.tie_word_embeddings
    again = read_folder(tmp_path / "ours")[1]
    assert again.config == narrow.config


@every_case
@pytest.mark.parametrize("order", [False, True], ids=["one stream", "two streams"])
def test_memories_of_unequal_lengths_are_theirs(name: str, order: bool, tmp_path: Path) -> None:
    """Four texts in three parts; one begins in the second part, one has nothing there; memories differ in length."""
    theirs = theirs_of(**CASES[name]).double()
    theirs.save_pretrained(tmp_path)
    ours = read_folder(tmp_path)[1].eval()
    theirs = exact(theirs)
    memory, mems = None, None
    parts = [(9, 4, 0, 12), (5, 0, 6, 17), (3, 7, 8, 1)]
    short = (
        bool(CASES[name].get("same_length")) and order
    )  # a target sees a memory that is as long as the part, or more
    for part, lengths in enumerate([(9, 4, 8, 12), (5, 0, 6, 11), (3, 4, 8, 1)] if short else parts):
        given = Given(lengths, seed=part)
        got, memory = layers_of_ours(ours, given, True, order, memory)
        layers: Layers = [[] for _ in got]
        news: Mems = [[] for _ in range(3)]
        for b, length in enumerate(lengths):
            before = [
                [torch.zeros(0, 24, dtype=torch.float64) if mems is None else mems[layer][b]] for layer in range(3)
            ]
            if length:
                want, new = call(theirs, given.alone(b), True, order, before)
            else:  # nothing is read, and what is remembered stays
                want, new = [[layer[b][:0]] for layer in got], before
            for every, (one,) in zip([*layers, *news], [*want, *new], strict=True):
                every.append(one)
        mems = news
        if part or not short:  # without a memory these targets see nothing
            assert max(worst(got, layers)) <= 1e-10
        remembered = [list(layer.split(memory.segments.lengths)) for layer in memory.hidden]
        assert [len(of) for of in remembered[0]] == [len(of) for of in mems[0]]
        assert max(worst(remembered, mems)) <= 1e-10
    assert len(set(memory.segments.lengths)) >= (2 if name == "short memory" else 4)


def test_memories_of_one_length_are_theirs_in_one_batch(tmp_path: Path) -> None:
    theirs = theirs_of().double()
    theirs.save_pretrained(tmp_path)
    ours = read_folder(tmp_path)[1].eval()
    parts = Given((6, 6, 6)), Given((5, 9, 2), seed=1)
    want, mems = call(exact(theirs), parts[0], True, True, None)
    got, memory = layers_of_ours(ours, parts[0], True, True)
    assert max(worst(got, want)) <= 1e-10
    # Their memory stands before what is filled up: to the right, so that it is next to the tokens.
    want, _ = call(exact(theirs), parts[1], True, True, mems, left=False)
    assert max(worst(layers_of_ours(ours, parts[1], True, True, memory)[0], want)) <= 1e-10


@pytest.mark.parametrize("name", ["xlnet-base", "xlnet-large"])
def test_published_sizes_have_as_many_parameters_as_theirs(name: str) -> None:
    (size,) = (size for size in family("xlnet").sizes if size.name == name)
    c = size.config
    values = {"vocab_size": c.vocab_size, "d_model": c.embed_dim, "n_layer": c.num_layers, "n_head": c.num_heads}
    with torch.device("meta"):
        theirs = transformers.XLNetLMHeadModel(transformers.XLNetConfig(**values, d_inner=c.mlp_dim))
    counted = count_parameters(XLNet, c)
    assert counted == sum(parameter.numel() for parameter in theirs.parameters())
    assert counted == {"xlnet-base": 116_750_336, "xlnet-large": 360_300_800}[name]
    # What the note says stands beyond BERT.
    with torch.device("meta"):
        named = dict(XLNet(c).named_parameters())
    extra = sum(parameter.numel() for key, parameter in named.items() if "r_proj" in key)
    assert f"{extra / 1e6:.1f} M of it" in size.note


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bi_data": True}, "bi_data is True; only False"),
        ({"attn_type": "bidirectional"}, "attn_type is 'bidirectional'; known: bi, uni"),
        ({"ff_activation": "swish9"}, "ff_activation is 'swish9'; known: gelu"),
        ({"architectures": ["XLNetForQuestionAnswering"]}, "architecture 'XLNetForQuestionAnswering'; known"),
        ({"d_head": 7}, "d_head is 7; only d_model / n_head"),
        ({"n_head": 6, "d_head": 4}, r"word_embedding|rel_attn.q has shape \(24, 4, 6\), not \(24, 6, 4\)"),
        ({"mem_len": -3}, "memory_tokens is -3"),
        ({"clamp_len": 10**30}, "clamp_distance is 1"),
        ({"untie_r": False}, "differs between layers that are said to share it"),
    ],
)
def test_settings_that_are_not_ours_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    theirs_of().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(RegardError, match=message):
        read_folder(tmp_path)


# What a stranger's config.json may hold in the place of any value.
ODD = (None, [], {}, "x", -1, 0, 10**30, 1.5, True, [[]], {"rope_type": []})


def test_any_odd_setting_is_refused_in_one_line_or_means_nothing(tmp_path: Path) -> None:
    theirs_of().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    told: list[str] = []
    for key in values:
        for odd in ODD:
            (tmp_path / "config.json").write_text(json.dumps({**values, key: odd}))
            try:
                read_folder(tmp_path)
            except RegardError as error:
                told.append(str(error))
    assert len(told) > 80
    assert not any("\n" in line for line in told)


def test_tensors_that_are_missing_or_left_over_are_refused(tmp_path: Path) -> None:
    theirs_of().save_pretrained(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    name = "transformer.layer.1.rel_attn.seg_embed"
    write_tensors(tmp_path / "model.safetensors", {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(CheckpointError, match=r"lacks layer\.1\.rel_attn\.seg_embed"):
        read_folder(tmp_path)
    write_tensors(tmp_path / "model.safetensors", {**tensors, "transformer.layer.1.gate": torch.ones(3)})
    with pytest.raises(CheckpointError, match=r"no layer here takes: transformer\.layer\.1\.gate"):
        read_folder(tmp_path)


def test_a_dropout_that_theirs_has_not_goes_through_a_folder_too(tmp_path: Path) -> None:
    model = XLNet(XLNetConfig(61, 24, 1, 4, 40, dropout=0.2, attention_dropout=0.0))
    write_folder(tmp_path, "xlnet", model)
    assert read_folder(tmp_path)[1].config == model.config
    assert transformers.XLNetLMHeadModel.from_pretrained(tmp_path).config.dropout == 0.2


def test_a_target_before_which_nothing_stands_sees_nothing_where_theirs_sees_its_own_token(tmp_path: Path) -> None:
    """Their masks subtract 10³⁰: where all keys are masked, all are alike, and the token to predict is among them."""
    theirs = theirs_of(mem_len=None).double()
    theirs.save_pretrained(tmp_path)
    ours = read_folder(tmp_path)[1].eval()
    given = Given((4,))
    given.ranks, given.targets = [torch.tensor([2, 0, 3, 1])], [torch.arange(4)]
    other = copy.copy(given)
    other.tokens = [given.tokens[0].clone()]
    other.tokens[0][1] += 1
    moved = []
    for read in (
        lambda of: call(exact(theirs), of, False, True, None)[0],
        lambda of: layers_of_ours(ours, of, False, True)[0],
    ):
        one, two = (read(of)[-1][0] for of in (given, other))
        moved.append((one - two).abs().amax(-1))
    assert moved[0][1] > 1e-3
    assert moved[1][1] == 0
    assert (moved[1][[0, 2, 3]] > 1e-3).all()
