"""Every error regard raises on purpose, each with its exit code and HTTP status.

The tree::

    RegardError
    ├── UsageError            2  422   the request itself cannot be served as asked
    │   ├── BackendError      2  422   an attention backend cannot serve this combination
    │   └── ContextError      2  413   an input is longer than the model's context
    ├── DataError             3  422   a file or its content is bad
    │   ├── FormatError       3  400   bytes that are not what they claim to be (UTF-8, JSON, TSV, …)
    │   ├── CheckpointError   3  503   a checkpoint or model folder is damaged or does not fit
    │   └── ConfigError       3  422   a recipe or config has an unknown key or a bad value
    ├── ResourceError         4  507   memory, disk, permission, a missing optional package
    ├── NumericError          5  500   a loss, gradient or weight is not finite
    └── Interrupted         130  503   a signal ended the work; state was saved (143 for SIGTERM)

An error message is one line: where it happened, what is wrong, how to mend it.
This module imports nothing, so everything may import it.
"""


class RegardError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: The cause, one clause.
        where: File, row, option or tensor that it concerns; None where the cause says it.
        mend: What the user can do about it; None where nothing sensible can be said.
    """

    exit_code = 3
    http_status = 500

    def __init__(self, what: str, *, where: str | None = None, mend: str | None = None) -> None:
        self.what, self.where, self.mend = what, where, mend
        line = f"{where}: {what}" if where else what
        super().__init__(f"{line}; {mend}" if mend else line)


class UsageError(RegardError):
    """The request itself cannot be served as asked."""

    exit_code = 2
    http_status = 422


class BackendError(UsageError):
    """An attention backend cannot serve the combination it was asked for."""


class ContextError(UsageError):
    """An input is longer than the model's context; nothing is ever cut silently."""

    http_status = 413


class DataError(RegardError):
    """A file or its content is bad."""

    exit_code = 3
    http_status = 422


class FormatError(DataError):
    """Bytes are not what they claim to be (UTF-8, JSON, TSV, …)."""

    http_status = 400


class CheckpointError(DataError):
    """A checkpoint or model folder is damaged, incomplete or does not fit the model."""

    http_status = 503


class ConfigError(DataError):
    """A recipe or config has an unknown key or a bad value."""


class ResourceError(RegardError):
    """Memory, disk, permission, or an optional package is missing."""

    exit_code = 4
    http_status = 507


class NumericError(RegardError):
    """A loss, gradient or weight is not finite."""

    exit_code = 5
    http_status = 500


class Interrupted(RegardError):
    """A signal ended the work after its state was saved.

    Args:
        what: The cause, one clause.
        signal_number: SIGINT (2) gives exit code 130, SIGTERM (15) gives 143.
        where: The run folder.
        mend: How to go on.
    """

    exit_code = 130
    http_status = 503

    def __init__(self, what: str, *, signal_number: int, where: str | None = None, mend: str | None = None) -> None:
        super().__init__(what, where=where, mend=mend)
        self.exit_code = 128 + signal_number
