"""The peer g2p-en on our held-out CMUdict words: its neural network alone, without its dictionary.

g2p-en (a GRU encoder–decoder without attention) was trained on CMUdict, these words among them: its score is that of
words it has seen, ours of words ours has not.

    pip install g2p-en==2.1.0
    python -m benchmarks.letters_to_sounds_peer
"""

from __future__ import annotations

import argparse
import json
import re
from types import SimpleNamespace

from g2p_en import g2p as peer

from regard.data import catalogue, read_pairs
from regard.metrics.strings import measure
from regard.tasks.translator import grouped


def main() -> None:
    """Score the peer, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    words, references = grouped(read_pairs(str(catalogue.get("cmudict") / "test.tsv")), "source")
    # Its dictionary holds the answers and comes from a download; the network is what is compared.
    peer.cmudict = SimpleNamespace(dict=dict)
    network = peer.G2p()
    outputs = [re.sub(r"\d", "", " ".join(network.predict(word))) for word in words]
    measures = measure(outputs, references)
    print(json.dumps({name: round(one.value, 4) for name, one in measures.items()} | {"words": len(words)}))


if __name__ == "__main__":
    main()
