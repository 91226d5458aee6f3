"""onnxruntime: GPT-2 with a cache and BERT, as graphs of its own fused operators, with the weights of our folders."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from regard.models.weights import read_tensors

FUSED = "com.microsoft"
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


class _Graph:
    """Nodes and weights of a graph in the making."""

    def __init__(self, eps: float) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.eps = eps

    def weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(
        self, kind: str, inputs: Sequence[str], outputs: str | Sequence[str], fused: bool = False, **how: Any
    ) -> str:
        outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, domain=FUSED if fused else "", **how))
        return outputs[0]

    def norm(self, x: str, gamma: str, beta: str, out: str) -> str:
        return self.node("LayerNormalization", [x, gamma, beta], out, axis=-1, epsilon=self.eps)

    def save(self, path: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        graph = helper.make_graph(self.nodes, "model", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))


def write_gpt2(folder: Path, public: Path, heads: int, eps: float = 1e-5) -> None:
    """Write a decoder that reads tokens and its past, and gives the last token's scores and the new past.

    Args:
        folder: Where ``model.onnx`` goes.
        public: A public folder of GPT-2.
        heads: Heads H.
        eps: Of layer norms.
    """
    ours = _weights(public, "transformer.")
    graph = _Graph(eps)
    w = {name: graph.weight(name, array) for name, array in ours.items() if not name.startswith("lm_head")}
    layers = _layers(ours, "h.")
    tokens = graph.node("Gather", [w["wte.weight"], "ids"], "tokens")
    x = graph.node("Add", [tokens, _places(graph, w["wpe.weight"])], "x")
    pasts, presents = [], []
    for i in range(layers):
        p = f"h.{i}."
        size = ours["wte.weight"].shape[1]
        pasts.append(helper.make_tensor_value_info(f"past.{i}", FLOAT, [2, "B", heads, "P", size // heads]))
        presents.append(helper.make_tensor_value_info(f"present.{i}", FLOAT, [2, "B", heads, "S", size // heads]))
        y = graph.norm(x, w[p + "ln_1.weight"], w[p + "ln_1.bias"], p + "n1")
        inputs = [y, w[p + "attn.c_attn.weight"], w[p + "attn.c_attn.bias"], "", f"past.{i}"]
        y = graph.node("Attention", inputs, [p + "a", f"present.{i}"], True, num_heads=heads, unidirectional=1)
        y = graph.node("MatMul", [y, w[p + "attn.c_proj.weight"]], p + "o")
        x, y = _add_norm(graph, y, x, w[p + "ln_2.weight"], w[p + "ln_2.bias"], w[p + "attn.c_proj.bias"], p + "1")
        y = graph.node("MatMul", [y, w[p + "mlp.c_fc.weight"]], p + "up")
        y = graph.node("FastGelu", [y, w[p + "mlp.c_fc.bias"]], p + "gelu", True)
        y = graph.node("MatMul", [y, w[p + "mlp.c_proj.weight"]], p + "down")
        y = graph.node("Add", [y, w[p + "mlp.c_proj.bias"]], p + "biased")
        x = graph.node("Add", [x, y], p + "x")
    last = graph.node("Gather", [x, graph.weight("last", np.array(-1, np.int64))], "row", axis=1)
    last = graph.norm(last, w["ln_f.weight"], w["ln_f.bias"], "normed")
    graph.node("MatMul", [last, graph.weight("output", ours["wte.weight"].T)], "logits")
    ids = helper.make_tensor_value_info("ids", INT64, ["B", "T"])
    positions = helper.make_tensor_value_info("positions", INT64, ["T"])
    logits = helper.make_tensor_value_info("logits", FLOAT, ["B", len(ours["wte.weight"])])
    graph.save(folder / "model.onnx", [ids, positions, *pasts], [logits, *presents])


def write_bert(folder: Path, public: Path, heads: int, eps: float = 1e-12) -> None:
    """Write an encoder that reads padded texts and their lengths."""
    ours = _weights(public, "bert.")
    graph = _Graph(eps)
    e = "embeddings."
    names = ("word_embeddings.weight", "position_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")
    table, places, gamma, beta = (graph.weight(e + name, ours[e + name]) for name in names)
    x = graph.node("Add", [graph.node("Gather", [table, "ids"], "tokens"), _places(graph, places)], "placed")
    x = graph.node("Add", [x, graph.weight("type", ours[e + "token_type_embeddings.weight"][0])], "typed")
    x = graph.norm(x, gamma, beta, "x")
    for i in range(_layers(ours, "encoder.layer.")):
        p = f"encoder.layer.{i}."
        parts = [f"{p}attention.self.{part}" for part in ("query", "key", "value")]
        weight = graph.weight(p + "qkv", np.concatenate([ours[f"{part}.weight"].T for part in parts], 1))
        bias = graph.weight(p + "qkv.bias", np.concatenate([ours[f"{part}.bias"] for part in parts]))
        y = graph.node("Attention", [x, weight, bias, "lengths"], p + "a", True, num_heads=heads)
        x = _sublayer(graph, ours, x, y, p + "attention.output.")
        up = graph.weight(p + "up", ours[p + "intermediate.dense.weight"].T)
        y = graph.node("MatMul", [x, up], p + "upped")
        bias = graph.weight(p + "up.bias", ours[p + "intermediate.dense.bias"])
        y = graph.node("BiasGelu", [y, bias], p + "gelu", True)
        x = _sublayer(graph, ours, x, y, p + "output.")
    graph.node("Identity", [x], "hidden")
    inputs = [helper.make_tensor_value_info("ids", INT64, ["B", "T"])]
    inputs += [helper.make_tensor_value_info("positions", INT64, ["T"])]
    inputs += [helper.make_tensor_value_info("lengths", INT32, ["B"])]
    width = ours[e + "word_embeddings.weight"].shape[1]
    graph.save(folder / "model.onnx", inputs, [helper.make_tensor_value_info("hidden", FLOAT, ["B", "T", width])])


def _sublayer(graph: _Graph, ours: Mapping[str, np.ndarray], x: str, y: str, name: str) -> str:
    """A dense layer, the way around it, and the norm behind."""
    y = graph.node("MatMul", [y, graph.weight(name + "w", ours[name + "dense.weight"].T)], name + "y")
    bias = graph.weight(name + "b", ours[name + "dense.bias"])
    gamma, beta = (graph.weight(name + end, ours[f"{name}LayerNorm.{end}"]) for end in ("weight", "bias"))
    inputs = [y, x, gamma, beta, bias]
    return graph.node("SkipLayerNormalization", inputs, name + "x", True, epsilon=graph.eps)


def _add_norm(graph: _Graph, y: str, x: str, gamma: str, beta: str, bias: str, name: str) -> tuple[str, str]:
    """Add x, y and a bias, and give the sum and its norm."""
    outputs = [name + "n", "", "", name + "x"]
    graph.node("SkipLayerNormalization", [y, x, gamma, beta, bias], outputs, True, epsilon=graph.eps)
    return outputs[3], outputs[0]


def _places(graph: _Graph, table: str) -> str:
    return graph.node("Gather", [table, "positions"], "places")


def _weights(public: Path, prefix: str) -> dict[str, np.ndarray]:
    tensors = read_tensors(public / "model.safetensors")
    return {name.removeprefix(prefix): tensor.numpy() for name, tensor in tensors.items()}


def _layers(ours: Mapping[str, np.ndarray], prefix: str) -> int:
    return 1 + max(int(name.removeprefix(prefix).split(".")[0]) for name in ours if name.startswith(prefix))


def quantize(folder: Path) -> None:
    """Write ``int8.onnx`` beside a graph: weights of 8 bits, what they multiply rounded as it comes."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)  # it advises steps for graphs that others have exported
    quantize_dynamic(
        str(folder / "model.onnx"),
        str(folder / "int8.onnx"),
        op_types_to_quantize=["MatMul", "Attention"],
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": FLOAT},
    )


def session(path: Path) -> Any:
    """Open a graph, with as many threads as torch has."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def greedy(one: Any, prompts_BT: Tensor, count: int) -> Callable[[], list[list[int]]]:
    """Give a round of writing a number of tokens behind each prompt; the past stays where the engine put it."""
    prompt = prompts_BT.numpy()
    names = [value.name for value in one.get_inputs()][2:]
    _, _, heads, _, size = one.get_inputs()[2].shape
    empty = np.zeros((2, len(prompt), heads, 0, size), np.float32)

    def run() -> list[list[int]]:
        ids, past = prompt, dict.fromkeys(names, empty)
        written: list[np.ndarray] = []
        start = 0
        for _ in range(count):
            positions = np.arange(start, start + ids.shape[1])
            logits, *presents = one.run(None, {"ids": ids, "positions": positions, **past})
            past, start = dict(zip(names, presents, strict=True)), start + ids.shape[1]
            ids = logits.argmax(-1)[:, None]
            written.append(ids)
        return np.concatenate(written, 1).tolist()

    return run


def encode(one: Any, texts: Sequence[Tensor]) -> Callable[[], np.ndarray]:
    """Give a round of encoding texts, padded to the longest."""
    lengths = np.array([len(text) for text in texts], np.int32)
    ids = torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True).numpy()
    positions = np.arange(ids.shape[1])
    return lambda: one.run(None, {"ids": ids, "positions": positions, "lengths": lengths})[0]
