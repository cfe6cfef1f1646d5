"""What is measured and predicted: a configuration, and the file that lists some."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tomllib

import hetero_pipe as hp

MODELS = ("dcn", "deepfm", "din", "dlrm", "wide_deep")
WIRES = ("float32", "float16", "bfloat16")
DEVICES = ("cpu", "emulated")
WORKERS = ("whole", "split")


@dataclass(frozen=True)
class Config:
    """One way to train a model on this machine.

    Attributes:
        name: Of the configuration.
        model: One of `MODELS`, of examples/ctr.
        batch_size: Samples of a step.
        dim: Weights of an embedding.
        slots: Categorical columns; of din, the last is a history of the one before it.
        rows: Of each table: the slots that are no history have equal shares of them.
        servers: ps-server processes; 0 keeps the tables in the worker's process.
        staleness: Pushes that a pull may miss.
        wire: What tensors between a sparse and a dense worker are sent as.
        device: `cpu`, or `emulated`: see benchmarks/emulated_device.
        device_ms: That the emulated device takes for a batch, whatever the model is.
        workers: `whole` is one worker, `split` one sparse and one dense; empty is
            split where `wire` would have no effect otherwise, else whole.

    Raises:
        hp.ConfigError: A value is out of range.
    """

    name: str
    model: str
    batch_size: int
    dim: int = 16
    slots: int = 26
    rows: int = 1_000_000
    servers: int = 0
    staleness: int = 0
    wire: str = "float32"
    device: str = "cpu"
    device_ms: float = 5.0
    workers: str = ""

    def __post_init__(self) -> None:
        if not self.workers:
            is_split = self.wire != "float32" and self.servers > 0
            object.__setattr__(self, "workers", "split" if is_split else "whole")
        for key, known in (
            ("model", MODELS),
            ("wire", WIRES),
            ("device", DEVICES),
            ("workers", WORKERS),
        ):
            if getattr(self, key) not in known:
                self._refuse(f"{key} is one of {', '.join(known)}", key)
        least = {"batch_size": 1, "dim": 1, "slots": 2, "servers": 0, "staleness": 0}
        least |= {"rows": self.slots, "device_ms": 0}
        for key, value in least.items():
            if not getattr(self, key) >= value:
                self._refuse(f"{key} is at least {value}", key)
        if self.workers == "split" and not self.servers:
            self._refuse("a sparse and a dense worker have their tables on a server", "servers")

    def _refuse(self, rule: str, key: str) -> None:
        raise hp.ConfigError(f"{rule}, got {key}={getattr(self, key)!r} of {self.name!r}")

    @property
    def is_emulated(self) -> bool:
        """Whether the dense part is on the emulated device."""
        return self.device == "emulated"

    @property
    def history(self) -> bool:
        """Whether the last slot is a history."""
        return self.model == "din"

    @property
    def values(self) -> int:
        """Distinct values of a slot."""
        return self.rows // (self.slots - self.history)


def load_configs(path: Path) -> list[Config]:
    """Returns the `[[config]]` tables of a TOML file.

    Raises:
        hp.ConfigError: The file, a key or a value is wrong.
    """
    try:
        tables = tomllib.loads(path.read_text())["config"]
    except (OSError, ValueError, KeyError) as error:
        raise hp.ConfigError(
            f"{path}: a TOML file with [[config]] tables, got {error!r}"
        ) from error
    configs = [_config(path, i, table) for i, table in enumerate(tables)]
    names = [config.name for config in configs]
    if len(set(names)) != len(names):
        raise hp.ConfigError(f"{path}: each config has a name of its own, got {', '.join(names)}")
    return configs


def _config(path: Path, number: int, table: Mapping[str, Any]) -> Config:
    types = {field.name: field.type for field in fields(Config)}
    where = f"{path}: config {table.get('name', number)!r}"
    for key, value in table.items():
        if key not in types:
            near = difflib.get_close_matches(key, types, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise hp.ConfigError(f"{where}: unknown key {key!r}{hint}; keys are {', '.join(types)}")
        wanted = (int, float) if types[key] is float else types[key]
        if not isinstance(value, wanted) or isinstance(value, bool):
            kind = types[key].__name__
            raise hp.ConfigError(f"{where}: {key} is of type {kind}, got {key}={value!r}")
    missing = {"name", "model", "batch_size"} - table.keys()
    if missing:
        raise hp.ConfigError(f"{where}: lacks {', '.join(sorted(missing))}")
    return Config(**table)
