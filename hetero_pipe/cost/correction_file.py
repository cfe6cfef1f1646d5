"""The file of a machine in which its corrections are kept from run to run."""

import json
import os
import tempfile
from pathlib import Path

from hetero_pipe.codec import decode, encode
from hetero_pipe.cost.correction import Corrections
from hetero_pipe.errors import ConfigError

__all__ = ["load_corrections", "save_corrections"]


def load_corrections(path: str | Path) -> Corrections:
    """Returns the corrections of a file; none if there is no such file.

    Raises:
        ConfigError: It cannot be read, or is no such file.
    """
    try:
        return decode(Corrections, json.loads(Path(path).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Corrections()
    except OSError as error:
        raise ConfigError(f"a file of corrections must be readable, got {path}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"a file of corrections is JSON as training writes it, got {path}: {error}; delete it, "
            "and what it had is learned again"
        ) from error


def save_corrections(corrections: Corrections, path: str | Path) -> None:
    """Writes corrections to a file, at once or not at all: the last one to write wins.

    Raises:
        ConfigError: It cannot be written.
    """
    path = Path(path)
    text = json.dumps(encode(corrections), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(file, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.replace(new, path)
        except OSError:
            os.unlink(new)
            raise
    except OSError as error:
        raise ConfigError(f"a file of corrections must be writable, got {path}: {error}") from error
