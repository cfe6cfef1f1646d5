"""A model that a flag names: FILE:CLASS."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hetero_pipe.errors import ConfigError

__all__ = ["load_model"]


def load_model(name: str, **arguments: Any) -> Any:  # a paddle.nn.Layer, which has no types
    """Returns a new model of the class at FILE:CLASS, such as `models/deepfm.py:DeepFM`.

    What the file imports is found beside it, and beside the package that it is in.

    Raises:
        ConfigError: There is no such file or class, it is no Python, or the class cannot be made
            of the arguments.
    """
    path, colon, class_name = name.rpartition(":")
    if not colon or not class_name.isidentifier():
        raise ConfigError(f"a model is FILE:CLASS, got {name!r}; as in models/deepfm.py:DeepFM")
    module = _load(Path(path))
    made = getattr(module, class_name, None)
    if not isinstance(made, type):
        classes = [
            each
            for each, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise ConfigError(
            f"a model is a class of {path}, got {class_name!r}; "
            f"it has {', '.join(classes) or 'none'}"
        )
    try:
        model = made(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"a model is made without arguments, or with num_dense= and slots= where there are "
            f"such flags; got {error} of {name}; give its arguments defaults"
        ) from error
    if not hasattr(model, "named_sublayers"):  # nobody but hetero_pipe.nn knows Paddle
        raise ConfigError(f"a model is a paddle.nn.Layer, got the class {name}")
    return model


def _load(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"a model is in a Python file, got no file {str(path)!r}")
    folder = path.resolve().parent
    package = [path.stem]
    while (folder / "__init__.py").is_file():
        package.insert(0, folder.name)
        folder = folder.parent
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(".".join(package))
    except SyntaxError as error:  # of the file, or of one that it imports
        found = (error.text or "").strip()
        raise ConfigError(
            f"a model's file must be Python, got {error.msg} at {error.filename}:{error.lineno}"
            f"{f': {found}' if found else ''}; correct that line"
        ) from error
    except ImportError as error:
        raise ConfigError(f"a model's file must be importable, got {path}: {error}") from error
    finally:
        sys.path.remove(str(folder))
