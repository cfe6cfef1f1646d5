"""Every error that hetero_pipe raises on purpose.

::

    HeteroPipeError
    ├── ConfigError (ValueError)      an argument, a flag or a model is wrong
    │   ├── MissingExtra (ImportError)    a package of an extra is not installed
    │   └── TraceError                a model cannot be traced; names file and line
    ├── DataError (ValueError)        a file's content is wrong; names file and line
    ├── PlanError (ValueError)        no plan, or not this plan, can run
    ├── StageError                    a stage failed; names stage and step
    │   └── NonFiniteError            a gradient or a loss is NaN or infinite
    ├── DeviceOutOfMemory             a step or a table does not fit a device
    ├── WorkerLost                    another worker of the job has ended or fallen silent
    ├── ServerError                   a parameter server refused or failed
    │   ├── ServerUnavailable         it cannot be reached, or did not answer in time
    │   ├── TableNotFound             it holds no table of that name
    │   ├── SpecMismatch              its table has another spec
    │   └── RouteMismatch             it serves with another set of servers
    └── CheckpointError               a checkpoint is missing, broken or of another model
"""

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DeviceOutOfMemory",
    "HeteroPipeError",
    "MissingExtra",
    "NonFiniteError",
    "PlanError",
    "RouteMismatch",
    "ServerError",
    "ServerUnavailable",
    "SpecMismatch",
    "StageError",
    "TableNotFound",
    "TraceError",
    "WorkerLost",
]


class HeteroPipeError(Exception):
    """The root: catch it to catch all that hetero_pipe raises on purpose.

    Attributes:
        is_of_another: Whether another worker failed first, and this one because of it.
        place: `stage read at step 5`; None if it did not happen in a pipeline.
    """

    is_of_another = False
    place: str | None = None


class ConfigError(HeteroPipeError, ValueError):
    """An argument, a flag or a model is wrong."""


class MissingExtra(ConfigError, ImportError):
    """A package is not installed that an extra of hetero_pipe brings."""


class TraceError(ConfigError):
    """What a model computes cannot be told before it runs; names the statement or op.

    Attributes:
        source: FILE:LINE of it; empty if that is not known.
    """

    def __init__(self, message: str, *, source: str = "") -> None:
        super().__init__(message)
        self.source = source


class DataError(HeteroPipeError, ValueError):
    """The content of a file is wrong; the message names the file and the line."""


class PlanError(HeteroPipeError, ValueError):
    """No plan fits, or a given plan cannot run."""


class StageError(HeteroPipeError):
    """A stage of the pipeline failed; its cause is chained."""


class NonFiniteError(StageError):
    """A gradient or a loss is NaN or infinite; nothing of the step was applied."""


class DeviceOutOfMemory(HeteroPipeError):
    """What must be on a device does not fit into its memory; nothing of a step was applied."""


class WorkerLost(HeteroPipeError):
    """Another worker of the job is gone, so that this one cannot go on; names it, and why."""

    is_of_another = True


class ServerError(HeteroPipeError):
    """A parameter server refused a request or failed at it."""


class ServerUnavailable(ServerError):
    """A parameter server cannot be reached, or did not answer in time."""


class TableNotFound(ServerError):
    """A parameter server holds no table of that name."""


class SpecMismatch(ServerError):
    """A parameter server holds a table of that name with another spec."""


class RouteMismatch(ServerError):
    """A parameter server already serves as one of another set of servers."""


class CheckpointError(HeteroPipeError):
    """A checkpoint is missing, broken, or of another model."""
