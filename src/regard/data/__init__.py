"""From files to examples: readers, splits, and data sets that public packages hold.

``read_pairs`` and ``read_lines`` read files, ``split_pairs`` parts them without leaks, ``regard.data.images`` reads
pictures and ``regard.data.augment`` changes them, ``regard.data.catalogue`` fetches real data to start with. Nothing
here imports torch but what pictures need.
"""

from regard.data.examples import Pair
from regard.data.readers import read_lines, read_pairs
from regard.data.split import Splits, split_pairs

__all__ = ["Pair", "Splits", "read_lines", "read_pairs", "split_pairs"]
