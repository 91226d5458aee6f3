"""Maps larger than what a process may hold: a language model looked at whole, in a process of its own."""

import json
import subprocess
import sys

import pytest

# 6 layers of 16 heads over 1,021 tokens are 382 MiB of weights; the model itself is next to nothing.
SCRIPT = """
import json, pathlib, threading
import tokenizers, torch
from tokenizers import models, pre_tokenizers
from regard.decoding import DecodeOptions
from regard.looking.reading import look
from regard.models.gpt import GPT, GPTConfig
from regard.tasks.generator import Generator
from regard.tasks.public_text import PublicVocabulary

inner = tokenizers.Tokenizer(models.WordLevel({f"w{n}": n for n in range(101)}, "w0"))
inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
model = GPT(GPTConfig(101, 32, 6, 16, max_len=1024))
product = Generator(model, PublicVocabulary(inner, None, [0]), DecodeOptions(), 1024)

def held():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

look(product, "w1 w2 w3", target="")  # what the libraries keep is there
before, most, done = held(), 0, threading.Event()

def watch():
    global most
    while not done.wait(0.002):
        most = max(most, held())

thread = threading.Thread(target=watch)
thread.start()
maps = look(product, " ".join(f"w{n % 97}" for n in range(1021)), target="")
sums = [float(maps.weights(layer, head).sum()) for layer in maps.layers for head in range(16)]
means = [one.mean().weights_HTS.sum() for one in maps.maps]
done.set()
thread.join()
size = sum(one.weights_HTS.nbytes for one in maps.maps) // 2**20
print(json.dumps({"above": most - before, "size": size, "sums": [min(sums), max(sums)]}))
"""


@pytest.mark.slow
def test_all_maps_of_a_long_text_are_made_and_read_in_little_memory() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["size"] == 381
    assert found["above"] < 160, found
    assert found["sums"] == pytest.approx([1021, 1021], abs=0.1)
