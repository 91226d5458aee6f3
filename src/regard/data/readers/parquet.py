"""Parquet pairs, through the optional package pyarrow."""

from regard.data.examples import Pair, find_column, make_pair, source_names
from regard.data.readers.text import empty_file, opened, shown
from regard.errors import DataError, FormatError, ResourceError

_BATCH_ROWS = 4096


def read_parquet(path: str, *, source: str | None, target: str | None, text_cap_bytes: int) -> list[Pair]:
    """Read pairs from two string columns; further columns are not read.

    Args:
        path: A file.
        source: Column of the source, or two with a comma between; None means ``source``.
        target: Column of the target; None means ``target``.
        text_cap_bytes: Most UTF-8 bytes that a cell may have.

    Returns:
        The pairs in file order, at least one; a pair's line is its 1-based row.

    Raises:
        DataError: The file is missing or empty, a column is missing, or a row has an empty side or too many bytes.
        FormatError: The file is not Parquet, or a column does not hold strings.
        ResourceError: pyarrow is missing, or the file cannot be read.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        mend = "install the extra: pip install 'regard[parquet]'"
        raise ResourceError("Parquet needs the package pyarrow", where=shown(path), mend=mend) from None

    pairs: list[Pair] = []
    with opened(path) as file:
        try:
            table = pyarrow.parquet.ParquetFile(file)
            schema = table.schema_arrow
            wanted = [*source_names(schema.names, source or "source", where=shown(path)), target or "target"]
            columns = [find_column(schema.names, name, where=shown(path)) for name in wanted]
            for name, column in zip(wanted, columns, strict=True):
                kind = schema.field(column).type
                value_kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
                if not (pyarrow.types.is_string(value_kind) or pyarrow.types.is_large_string(value_kind)):
                    raise FormatError(f"column {name!r} holds {kind} instead of strings", where=shown(path))
            for batch in table.iter_batches(_BATCH_ROWS, columns=wanted):
                sides = [batch.column(name).to_pylist() for name in wanted]
                for *texts, label in zip(*sides, strict=True):
                    row = len(pairs) + 1
                    where = f"{shown(path)}, row {row}"
                    for name, text in zip(wanted, (*texts, label), strict=True):
                        if text is None:
                            raise DataError(f"{name!r} is null", where=where, mend="fill it in or remove the row")
                    pairs.append(make_pair(texts, label, row, where=where, text_cap_bytes=text_cap_bytes))
        except UnicodeDecodeError as error:
            what = f"byte {error.start + 1} of a text is not UTF-8"
            rows = f"{shown(path)}, row {len(pairs) + 1} or one of the {_BATCH_ROWS - 1:,} after it"
            raise FormatError(what, where=rows) from None
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file system's own; pyarrow reports damaged pages as OSError without a number
            reason = str(error).splitlines()[0][:200]
            raise FormatError(f"not Parquet that can be read ({reason})", where=shown(path)) from None
    if not pairs:
        raise empty_file(path)
    return pairs
