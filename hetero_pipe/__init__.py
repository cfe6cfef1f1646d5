"""Trains CTR models whose embedding tables outgrow a GPU, on stock PaddlePaddle.

The public names, loaded on first use: importing this package imports neither
Paddle nor the native tables.
"""

# Before Paddle: `hetero_pipe.nn.environment` tells why.
import zlib  # noqa: F401
from importlib import import_module
from typing import Any

_MODULE_OF = {
    "Adagrad": "ps_server.spec",
    "Adam": "ps_server.spec",
    "BagRows": "hetero_pipe.nn",
    "Batch": "hetero_pipe.data",
    "BatchSpec": "hetero_pipe.nn",
    "Callback": "hetero_pipe.trainer",
    "CheckpointError": "hetero_pipe.errors",
    "Cluster": "hetero_pipe.cluster",
    "ConfigError": "hetero_pipe.errors",
    "Constant": "ps_server.spec",
    "DataError": "hetero_pipe.errors",
    "DeviceOutOfMemory": "hetero_pipe.errors",
    "Embedding": "hetero_pipe.nn",
    "Evaluation": "hetero_pipe.trainer",
    "FitResult": "hetero_pipe.trainer",
    "HeteroPipeError": "hetero_pipe.errors",
    "NonFiniteError": "hetero_pipe.errors",
    "Normal": "ps_server.spec",
    "Optimum": "hetero_pipe.data",
    "Plan": "hetero_pipe.plan",
    "PlanError": "hetero_pipe.errors",
    "Reader": "hetero_pipe.data",
    "RouteMismatch": "hetero_pipe.errors",
    "SGD": "ps_server.spec",
    "ServerError": "hetero_pipe.errors",
    "ServerUnavailable": "hetero_pipe.errors",
    "SpecMismatch": "hetero_pipe.errors",
    "StageError": "hetero_pipe.errors",
    "StageTime": "hetero_pipe.pipeline",
    "SyntheticReader": "hetero_pipe.data",
    "TableNotFound": "hetero_pipe.errors",
    "Timeline": "hetero_pipe.pipeline",
    "TraceError": "hetero_pipe.errors",
    "Trainer": "hetero_pipe.trainer",
    "Uniform": "ps_server.spec",
    "Worker": "hetero_pipe.plan",
    "WorkerLost": "hetero_pipe.errors",
    "WorkersPlan": "hetero_pipe.plan",
    "auto_plan": "hetero_pipe.planner",
    "default_plan": "hetero_pipe.trainer",
    "has_checkpoint": "hetero_pipe.trainer",
    "launch": "hetero_pipe",
    "read_criteo": "hetero_pipe.data",
    "read_csv": "hetero_pipe.data",
    "read_parquet": "hetero_pipe.data",
    "synthetic_criteo": "hetero_pipe.data",
    "trace": "hetero_pipe.nn",
}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  # a list, which ruff cannot see


def __getattr__(name: str) -> Any:  # any public object
    if name == "__version__":
        return import_module("ps_server.version").VERSION
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hetero_pipe' has no attribute {name!r}")
    if name == "launch":  # a package, not a name in one
        return import_module("hetero_pipe.launch")
    try:
        return getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "paddle":
            raise
        from hetero_pipe.errors import MissingExtra  # noqa: PLC0415  # on failure alone

        raise MissingExtra(
            f"hp.{name} needs PaddlePaddle, which is not installed; "
            "pip install 'hetero_pipe[cpu]' or 'hetero_pipe[gpu]'"
        ) from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
