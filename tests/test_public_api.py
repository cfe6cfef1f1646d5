"""Public names are sorted and documented, and need no Paddle to be imported."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from dataclasses import is_dataclass

import pytest

import hetero_pipe as hp

PACKAGES = ("hetero_pipe", "ps_server")


def modules():
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield name
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not found.name.endswith(("_pb2", "_pb2_grpc", "__main__", "_native")):
                yield found.name


MODULES = list(modules())


def public(module):
    loaded = importlib.import_module(module)
    return {name: getattr(loaded, name) for name in getattr(loaded, "__all__", ())}


PUBLIC = {
    f"{value.__module__}.{name}": value
    for module in MODULES
    for name, value in public(module).items()
    if getattr(value, "__module__", "").startswith(PACKAGES)
}


def test_there_is_something_to_check():
    assert len(MODULES) > 40
    assert {"hetero_pipe.trainer.trainer.Trainer", "ps_server.spec.Adagrad"} <= PUBLIC.keys()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_what_it_is_for(module):
    assert importlib.import_module(module).__doc__


@pytest.mark.parametrize("module", MODULES)
def test_names_are_sorted_unique_and_there(module):
    loaded = importlib.import_module(module)
    names = list(getattr(loaded, "__all__", []))

    # As ruff sorts: CONSTANTS, then Classes, then functions.
    def order(name):
        return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)

    assert names == sorted(names) or names == sorted(names, key=order)
    assert len(set(names)) == len(names)
    for name in names:
        getattr(loaded, name)


@pytest.mark.parametrize("package", [m for m in MODULES if m.count(".") == 1])
def test_a_package_has_public_names(package):
    loaded = importlib.import_module(package)
    if hasattr(loaded, "__path__"):
        assert loaded.__all__


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name):
    value = PUBLIC[name]
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    doc = inspect.getdoc(value) or ""
    assert doc
    assert doc[0].isupper()
    if is_dataclass(value):
        assert not doc.startswith(f"{value.__name__}("), "the docstring that dataclass makes"


def methods():
    for name, value in PUBLIC.items():
        if inspect.isclass(value):
            for method, found in vars(value).items():
                is_ours = inspect.isroutine(found) or isinstance(found, (property, staticmethod))
                if not method.startswith("_") and is_ours:
                    yield f"{name}.{method}"


# A method that a Protocol describes needs no words of its own where it is implemented.
DESCRIBED = {
    method.rpartition(".")[2]
    for method in methods()
    if getattr(PUBLIC[method.rpartition(".")[0]], "_is_protocol", False)
}


@pytest.mark.parametrize("method", sorted(methods()))
def test_a_public_method_is_documented(method):
    owner, _, name = method.rpartition(".")
    found = vars(PUBLIC[owner])[name]
    function = found.__func__ if isinstance(found, staticmethod) else found
    is_protocol = getattr(PUBLIC[owner], "_is_protocol", False)
    assert function.__doc__ or (name in DESCRIBED and not is_protocol)


def test_every_public_name_of_hp_is_loaded_and_listed():
    for name in hp.__all__:
        getattr(hp, name)
    assert set(hp.__all__) <= set(dir(hp))
    assert hp.__version__ == importlib.import_module("ps_server.version").VERSION
    with pytest.raises(AttributeError, match="no attribute 'Embeding'"):
        hp.Embeding  # noqa: B018


def test_every_error_is_of_one_tree():
    for name in hp.__all__:
        value = getattr(hp, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            assert issubclass(value, hp.HeteroPipeError)


# ------------------------------------------------------------------ without paddle


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "paddle":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def test_importing_hetero_pipe_imports_neither_paddle_nor_the_native_tables():
    loaded = run(
        "import sys, hetero_pipe; print([m for m in ('paddle', 'numpy', 'grpc', "
        "'ps_server._native') if m in sys.modules])"
    )
    assert loaded == ["[]"]


def test_data_and_plans_need_no_paddle():
    code = """
import hetero_pipe as hp, ps_server.cli
import sys
hp.read_csv, hp.Plan, hp.Adagrad(0.1), hp.ConfigError, hp.__version__
print('paddle' in sys.modules)
"""
    assert run(BLOCK + code) == ["False"]
    assert run(code) == ["False"]


@pytest.mark.parametrize("name", ["Embedding", pytest.param("Trainer", marks=pytest.mark.slow)])
def test_without_paddle_what_needs_it_names_the_extra(name):
    code = f"""
import hetero_pipe as hp
try:
    hp.{name}
except hp.ConfigError as error:
    print(type(error).__name__, isinstance(error, ImportError))
    print(error)
"""
    kind, said = run(BLOCK + code)
    assert kind == "MissingExtra True"
    assert said == (
        f"hp.{name} needs PaddlePaddle, which is not installed; "
        "pip install 'hetero_pipe[cpu]' or 'hetero_pipe[gpu]'"
    )


def test_a_server_runs_without_paddle():
    code = """
from ps_server.server import Server
with Server("127.0.0.1:0") as server:
    print(server.address.rpartition(":")[0])
print("paddle" in sys.modules)
"""
    assert run(BLOCK + code) == ["127.0.0.1", "False"]
