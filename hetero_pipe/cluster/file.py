"""Cluster files: TOML or JSON by their ending, and what is measured written into them."""

import json
import os
import sys
from pathlib import Path

from hetero_pipe.cluster.cluster import Cluster
from hetero_pipe.cluster.document import cluster_of_tables, rate_tables, tables_of_cluster
from hetero_pipe.cluster.toml import toml_text
from hetero_pipe.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "cluster_from_json",
    "cluster_from_toml",
    "cluster_to_json",
    "cluster_to_toml",
    "load_cluster",
    "save_cluster",
    "save_rates",
]

MEASURED = "# Measured by hetero-pipe profile, which replaces all from here on.\n"


def cluster_from_toml(text: str, *, where: str = "TOML") -> Cluster:
    """Returns the cluster that a TOML text describes.

    Args:
        text: Of a file.
        where: Its name, for errors.

    Raises:
        ConfigError: It is no TOML, or describes no cluster; names part and key.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: a cluster is TOML, got {error}") from error
    return cluster_of_tables(tables, where)


def cluster_to_toml(cluster: Cluster) -> str:
    """Returns a TOML text of which `cluster_from_toml` makes an equal cluster."""
    return toml_text(tables_of_cluster(cluster))


def cluster_from_json(text: str, *, where: str = "JSON") -> Cluster:
    """Returns the cluster that a JSON text describes, by the keys of a TOML text.

    Raises:
        ConfigError: It is no JSON, or describes no cluster; names part and key.
    """
    try:
        tables = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: a cluster is JSON, got {error}") from error
    return cluster_of_tables(tables, where)


def cluster_to_json(cluster: Cluster) -> str:
    """Returns a JSON text of which `cluster_from_json` makes an equal cluster."""
    return json.dumps(tables_of_cluster(cluster), indent=2) + "\n"


def load_cluster(path: str | Path) -> Cluster:
    """Returns the cluster of a file, by its ending `.toml` or `.json`.

    Raises:
        ConfigError: It cannot be read, or describes no cluster.
    """
    path = Path(path)
    read = cluster_from_json if _is_json(path) else cluster_from_toml
    return read(_read(path), where=str(path))


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Writes a cluster to a file, by its ending `.toml` or `.json`; at once or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    path = Path(path)
    write = cluster_to_json if _is_json(path) else cluster_to_toml
    _replace(path, write(cluster))


def save_rates(cluster: Cluster, path: str | Path) -> None:
    """Writes a cluster's rates into the file that describes the rest of it.

    In TOML, all else stays as it was written, comments too: the rates are its
    end. A file with rates of its own before that end is written anew.

    Raises:
        ConfigError: It cannot be read or written.
    """
    path = Path(path)
    kept = "" if _is_json(path) else _read(path).partition(MEASURED)[0]
    if kept and not cluster_from_toml(kept, where=str(path)).rates:
        gap = "" if kept.endswith("\n\n") else "\n" if kept.endswith("\n") else "\n\n"
        _replace(path, f"{kept}{gap}{MEASURED}\n{toml_text({'rate': rate_tables(cluster)})}")
    else:
        save_cluster(cluster, path)


def _is_json(path: Path) -> bool:
    if path.suffix not in (".toml", ".json"):
        raise ConfigError(f"a cluster file ends in .toml or .json, got {str(path)!r}")
    return path.suffix == ".json"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"a cluster file must be readable, got {path}: {error}") from error


def _replace(path: Path, text: str) -> None:
    """Puts a new file in the place of an old one, which stays whole until then."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise ConfigError(f"a cluster file must be writable, got {path}: {error}") from error
