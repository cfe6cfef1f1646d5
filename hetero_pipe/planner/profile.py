"""The profile of a machine: the file in which corrections are kept from run to run."""

import logging
import os
from contextlib import suppress
from pathlib import Path

from hetero_pipe.cost import Corrections
from hetero_pipe.errors import ConfigError

__all__ = ["load_profile", "save_profile"]

logger = logging.getLogger(__name__)


def load_profile(path: Path) -> Corrections:
    """Returns the corrections of a file; none if there is no file.

    A broken one is put aside as `NAME.broken`, with a word: what a run has learned is
    learned again.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Corrections()
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("the profile %s cannot be read, so it is left alone: %s", path, error)
        return Corrections()
    try:
        return Corrections.from_json(text)
    except ConfigError as error:
        aside = path.with_name(f"{path.name}.broken")
        path.replace(aside)
        logger.warning("the profile %s is broken, so it is now %s: %s", path, aside, error)
        return Corrections()


def save_profile(corrections: Corrections, path: Path) -> None:
    """Writes corrections into a file; at once or not at all.

    Raises:
        ConfigError: It cannot be written.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(corrections.to_json(), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise ConfigError(f"a profile must be writable, got {path}: {error}") from error
