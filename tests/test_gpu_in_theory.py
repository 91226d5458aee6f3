"""What a GPU would be asked to do, on a machine without one: operations on tensors of its device that hold no numbers.

PyTorch infers what each gives; one that no GPU has, that mixes devices, or whose result the host waits for, ends in an
error. So what a step of decoding asks for can be captured as a graph, if it asks the host for nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# Whoever makes tensors on a device, and the backward pass, ask for its current stream and how many there are; a build
# without CUDA has nobody who would say. The hooks have to be there before PyTorch looks for them.
DEVICES = """
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
struct OneDevice final : c10::impl::DeviceGuardImplInterface {
  c10::Device here() const { return {c10::DeviceType::CUDA, 0}; }
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device) const override { return here(); }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, here()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, OneDevice)
}
namespace at {
struct OneDeviceHooks final : CUDAHooksInterface {
  explicit OneDeviceHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
};
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, OneDeviceHooks)
}
"""

RUN = """
import ctypes, sys
from collections import Counter
from types import SimpleNamespace
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import torch
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.attention import Segments
from regard.decoding.choosing import best, log_norms, widened
from regard.attention.tree import FixedTree
from regard.decoding.fixed import FixedSteps, _Kind
from regard.layers.packed import ready
from regard.models.bert import Bert, BertConfig
from regard.models.gpt import GPT, GPTConfig
from regard.models.llama import Llama, LlamaConfig
from regard.models.states import Room
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import Vit, VitConfig
from regard.tasks import vocabulary
from regard.training import optimizers
from regard.training.blocks import compile_blocks, quicken
from regard.training.config import TrainingConfig

torch.cuda.is_available = torch.cuda.is_bf16_supported = lambda *given: True
made = torch.tensor
torch.tensor = lambda data, *given, device=None, **more: made(data, *given, **more).to(device or "cpu")  # asks one too
vocabulary.FEW_SCORES, vocabulary.MIN_ROWS = 4096, 1
torch.cuda.get_device_properties = lambda device: SimpleNamespace(total_memory=256 * 4096)  # several lots
torch.cuda.get_rng_state, torch.cuda.set_rng_state = torch.get_rng_state, torch.set_rng_state
torch.cuda._lazy_init, torch.cuda.current_device = lambda: None, lambda: 0
cuda = torch.device("cuda")


class OnDevice(TorchDispatchMode):
    '''Notes operations on tensors of the host.'''

    def __init__(self):
        super().__init__()
        self.on_host, self.count = [], Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count[func.overloadpacket.__name__] += 1
        if any(isinstance(x, torch.Tensor) and not x.is_cuda for x in tree_leaves((args, kwargs, result))):
            self.on_host.append(str(func))
        return result


def moved(model, dtype=None):
    '''Give a model parameters on the device, those that are one still one.'''
    there = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, x in held.items():
                if x is not None and id(x) not in there:
                    y = torch.empty(x.shape, dtype=dtype if dtype and x.is_floating_point() else x.dtype, device=cuda)
                    there[id(x)] = torch.nn.Parameter(y) if isinstance(x, torch.nn.Parameter) else y
                if x is not None:
                    held[name] = there[id(x)]
    return model


def words(*shape):
    return torch.empty(*shape, dtype=torch.int64, device=cuda)


def trained(model, hidden):
    '''A step of training.'''
    quicken(moved(model.train()), "bf16")
    optimizer = optimizers.make(model, TrainingConfig(max_steps=1, learning_rate=1e-4))
    with torch.autocast("cuda", torch.bfloat16):
        loss = vocabulary.VocabularyLoss()(model, hidden(model), words(90), 0.1)
    with torch.autograd.set_multithreading_enabled(False):  # other threads would not know that nothing holds numbers
        loss.sum.backward()
    assert all(parameter.grad.is_cuda for parameter in model.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    return loss.sum


def compiled(model, hidden):
    '''Blocks are one graph for every batch, whatever its sizes, attention and the backward pass among them.'''
    quicken(moved(model.train()), "bf16")
    compile_blocks(model, backend="aot_eager")
    for lengths in ([20, 30, 40], [30, 17, 5, 8, 30], [9, 9, 9, 9], [7, 7]):
        kind = "uniform" if len(set(lengths)) == 1 else "ragged"
        stance = "default" if lengths in ([20, 30, 40], [9, 9, 9, 9]) else "fail_on_recompile"
        with torch.compiler.set_stance(stance), torch.autocast("cuda", torch.bfloat16):
            hidden_ND = hidden(model, words(sum(lengths)), Segments.ragged(lengths, cuda))
        with torch.autograd.set_multithreading_enabled(False):
            hidden_ND.sum().backward()
        assert not counters["graph_break"], counters["graph_break"]
    return hidden_ND


def steps(model, state, beams):
    '''What a graph holds: nothing of the host; one product for queries, keys and values.'''
    with OnDevice() as watched:
        fixed = FixedSteps(model)
        inner, fixed._step = fixed._run, lambda kind, laid, stores: watching(kind, [x.clone() for x in laid], stores)

        def watching(*given):
            watched.on_host.clear(), watched.count.clear()
            found = inner(*given)
            assert not watched.on_host, watched.on_host
            return found

        chosen, state = fixed.choose(words(3 * beams), state)
        assert chosen.token_R.dtype == torch.int64 and chosen.told.shape == (2, 3 * beams)
        logits, state = fixed.step(chosen.token_R, state)
    return watched.count, logits, state


@torch.inference_mode()
def written(model):
    '''Read prompts, and go on from them.'''
    ready(moved(model.eval(), torch.bfloat16), "fp32")
    state = model.start(words(9), Segments.ragged([2, 3, 4], cuda), 1, Room(3, 40, 30))
    _, state = model.step(words(3), state)
    count, logits, _ = steps(model, state, 1)
    layers, more = len(model.blocks), model.blocks[0].mlp.gate_proj is not None
    assert count["linear"] == layers * (4 + more) + 1, count
    # Nothing is made of queries without keys, which there are none of.
    assert count["scaled_dot_product_attention"] == layers and not count["all"], count
    scores = widened(logits)
    assert scores.dtype == torch.float32 and log_norms(scores).dtype == torch.float64
    return best(scores, 1)[1]


@torch.inference_mode()
def translated(model):
    '''Read sources, and go on from one start each.'''
    ready(moved(model.eval(), torch.bfloat16), "fp32")
    state = model.start(words(9), Segments.ragged([2, 3, 4], cuda), 1, Room(3, 40, 30, 4))
    _, state = model.step(words(3), state)
    count, logits, _ = steps(model, state, 1)
    assert count["linear"] == len(model.blocks) * 6 + 1 and not count["all"], count
    return logits


@torch.inference_mode()
def beams(model):
    '''Several rows of each source: what the host knows of them stays on it, and is laid out before.'''
    ready(moved(model.eval(), torch.bfloat16), "fp32")
    reach, depth = torch.zeros(3, 4, 24, dtype=torch.bool, device=cuda), words(12)
    past = FixedTree(depth, words(12), words(12), reach, 23)
    size = (3, 24, model.blocks[0].self_attn.num_kv_heads, model.blocks[0].self_attn.head_dim)
    stores = [torch.empty(size, dtype=torch.bfloat16, device=cuda) for _ in range(4 * len(model.blocks))]
    laid = [words(12), depth, words(12), words(12), reach, words(3)]
    with OnDevice() as watched:
        (logits,) = FixedSteps(model)._run(_Kind(4, 1), laid, stores)
    assert not watched.on_host, watched.on_host
    return logits


@torch.inference_mode()
def encoded(model):
    return moved(model.eval(), torch.bfloat16)(words(90), Segments.ragged([20, 30, 40], cuda))


def pictured(model):
    moved(model.train())
    with torch.autocast("cuda", torch.bfloat16):
        logits_BV = model.head(model.pool(model(torch.empty(4, 3, 32, 32, device=cuda))))
    with torch.autograd.set_multithreading_enabled(False):
        logits_BV.sum().backward()
    return logits_BV


def gpt():
    return GPT(GPTConfig(97, 32, 2, 4, max_len=64, attention_dropout=0.0))


def llama():
    return Llama(LlamaConfig(97, 32, 2, 4, 2, mlp_dim=64, max_len=64))


def transformer():
    return Transformer(TransformerConfig(97, 97, 32, 64, 4, encoder_layers=2, decoder_layers=2))


def bert():
    return Bert(BertConfig(97, 32, 2, 4, 64, attention_dropout=0.0, head="masked"))


def ragged():
    return Segments.ragged([20, 30, 40], cuda)


def on_pairs(model):
    return trained(model, lambda m: m(words(90), ragged(), words(90), ragged()))


def on_texts(model):
    return trained(model, lambda m: m(words(90), ragged()))


def compiled_pairs(model):
    return compiled(model, lambda m, tokens_N, segments: m(tokens_N, segments, tokens_N, segments))


model, work = {
    "gpt is trained": (gpt, lambda m: trained(m, lambda m: m(words(90), Segments.uniform(3, 30, cuda)))),
    "llama is trained": (llama, on_texts),
    "transformer is trained": (transformer, on_pairs),
    "bert is trained": (bert, on_texts),
    "gpt is compiled": (gpt, lambda m: compiled(m, lambda m, tokens_N, segments: m(tokens_N, segments))),
    "transformer is compiled": (transformer, compiled_pairs),
    "bert encodes": (bert, encoded),
    "vit is trained": (lambda: Vit(VitConfig((32, 32), 3, 10, 8, 32, 2, 2, 64)), pictured),
    "gpt writes": (gpt, written),
    "llama writes": (llama, written),
    "transformer translates": (transformer, translated),
    "transformer translates with beams": (transformer, beams),
}[sys.argv[2]]
built = model()
with FakeTensorMode():
    found = work(built)
print(found.device, tuple(found.shape))
"""

WORK = {
    "gpt is trained": "()",
    "llama is trained": "()",
    "transformer is trained": "()",
    "bert is trained": "()",
    "gpt is compiled": "(14, 32)",
    "transformer is compiled": "(14, 32)",
    "bert encodes": "(90, 32)",
    "vit is trained": "(4, 10)",
    "gpt writes": "(3, 1)",
    "llama writes": "(3, 1)",
    "transformer translates": "(3, 97)",
    "transformer translates with beams": "(12, 97)",
}


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that stands for the devices of CUDA."""
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    assert compiler is not None, "our kernels want one too"
    folder, torchs = tmp_path_factory.mktemp("devices"), Path(torch.__file__).parent
    (folder / "devices.cpp").write_text(DEVICES)
    command = [compiler, "-std=c++20", "-fPIC", "-shared", f"-I{torchs / 'include'}", "-o", folder / "devices.so"]
    libraries = [f"-L{torchs / 'lib'}", f"-Wl,-rpath,{torchs / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run([*command, folder / "devices.cpp", *libraries], check=True, timeout=300)
    return folder / "devices.so"


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build of PyTorch knows the devices of CUDA itself")
@pytest.mark.parametrize("work", WORK)
def test_what_a_gpu_is_asked_to_do(work: str, devices: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(devices), work], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split(maxsplit=1) == ["cuda:0", f"{WORK[work]}\n"]
