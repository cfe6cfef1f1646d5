"""What is built and installed: the build backend's choice of a compiler, sdist and wheel."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import hetero_pipe.cli
import ps_server.cli

ROOT = Path(__file__).parent.parent
WORKS, FAILS = "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 1\n"


def test_the_version_is_one():
    installed = version("hetero_pipe")
    assert {installed} == {hetero_pipe.__version__, ps_server.__version__}


@pytest.mark.parametrize(
    ("name", "module"), [("ps-server", ps_server.cli), ("hetero-pipe", hetero_pipe.cli)]
)
def test_a_command_is_the_main_of_its_module(name, module):
    (command,) = entry_points(group="console_scripts", name=name)
    assert command.load() is module.main


def test_import_loads_zlib_and_neither_paddle_nor_the_tables():
    # Paddle 2.6 loaded before zlib crashes it: hetero_pipe/nn/environment.py.
    code = (
        "import sys; before = {*sys.modules}; import hetero_pipe; print('zlib' in sys.modules, "
        "sorted({'paddle', 'ps_server._native'} & ({*sys.modules} - before)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True []\n"


@pytest.fixture
def ask_backend(tmp_path):
    """Asks for the compiler and the requirements, where only these programs are on PATH."""

    def ask(programs, **environment):
        for name, text in programs.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        code = (
            "import build_backend; print(build_backend.find_compiler()); "
            "print(build_backend.compiler_requirements())"
        )
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "scripts"), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            start_new_session=True,  # without a terminal, where the backend would write
        )
        compiler, requirements = run.stdout.splitlines()
        return compiler, "ziglang" in requirements, run.stderr

    return ask


def test_a_compiler_that_works_is_taken(ask_backend):
    assert ask_backend({"c++": WORKS, "g++": WORKS}) == ("c++", False, "")


def test_a_compiler_that_cannot_compile_is_passed_over(ask_backend):
    assert ask_backend({"c++": FAILS, "g++": FAILS, "clang++": WORKS}) == ("clang++", False, "")


def test_without_a_compiler_ziglang_is_required_and_one_line_says_so(ask_backend):
    line = "no C++ compiler found: building with the one in PyPI's ziglang\n"
    assert ask_backend({"c++": FAILS}) == ("None", True, line)


def test_a_compiler_named_by_the_user_is_taken_at_its_word(ask_backend):
    found = ask_backend({"c++": WORKS}, CXX="ccache clang++-19")
    assert found == ("ccache clang++-19", False, "")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Builds an sdist and from it a wheel; returns the names in each."""
    tree, out = tmp_path_factory.mktemp("tree") / "hetero_pipe", tmp_path_factory.mktemp("dist")
    built = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "*.so", "*_pb2*")
    shutil.copytree(ROOT, tree, ignore=built)
    command = [sys.executable, "-m", "build", "--outdir", out, tree]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tarfile.open(sdist) as files:
        in_sdist = {name.partition("/")[2] for name in files.getnames()}
    with zipfile.ZipFile(wheel) as files:
        in_wheel = set(files.namelist())
    return in_sdist, in_wheel


def files_of_tree(*patterns):
    found = {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}
    assert len(found) >= len(patterns)
    return {name for name in found if "_pb2" not in name}


PACKAGES = (
    "hetero_pipe/**/*.py",
    "hetero_pipe/py.typed",
    "ps_server/**/*.py",
    "ps_server/py.typed",
    "ps_server/**/*.pyi",
)
STUBS = {
    f"{module}_pb2{ending}"
    for module in ("ps_server/wire/ps", "hetero_pipe/pipeline/wire/stage")
    for ending in (".py", ".pyi", "_grpc.py")
}


@pytest.mark.long  # builds all anew
def test_sdist_holds_all_that_a_build_needs_and_no_data(distributions):
    in_sdist, _ = distributions
    sources = ("ps_server/native/*.cc", "ps_server/native/*.h", "proto/**/*.proto")
    meta = {"LICENSE", "README.md", "pyproject.toml", "setup.py", "scripts/build_backend.py"}
    assert in_sdist >= files_of_tree(*PACKAGES, *sources) | meta
    assert not {name for name in in_sdist if name.startswith(("tests", "examples", "benchmarks"))}
    assert not {name for name in in_sdist if name.endswith((".parquet", ".csv", ".so"))}


@pytest.mark.long
def test_wheel_holds_both_packages_their_stubs_and_the_native_core_alone(distributions):
    _, in_wheel = distributions
    packages = {name for name in in_wheel if ".dist-info/" not in name}
    assert len([name for name in packages if name.endswith(".so")]) == 1
    assert {n for n in packages if not n.endswith(".so")} == files_of_tree(*PACKAGES) | STUBS
