"""Builds `ps_server._native` and the proto stubs; metadata is in pyproject.toml."""

import os
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc
from pybind11.setup_helpers import Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PROTO = ROOT / "proto"

sys.path.insert(0, str(ROOT / "scripts"))
from build_backend import find_compiler  # noqa: E402


def build_stubs(out: Path) -> None:
    """Writes the Python stubs of every file in proto/ into the packages below `out`."""
    for source in sorted(PROTO.rglob("*.proto")):
        code = protoc.main(
            [
                "protoc",
                f"--proto_path={PROTO}",
                f"--proto_path={files('grpc_tools') / '_proto'}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                str(source),
            ]
        )
        if code != 0:
            raise SystemExit(f"protoc failed on {source} with exit code {code}")


class BuildPy(build_py):
    """Makes the stubs, in place for an editable install, then collects the packages."""

    def run(self) -> None:
        build_stubs(ROOT if self.editable_mode else Path(self.build_lib))
        super().run()


class BuildExt(build_ext):
    """Compiles with the system's compiler, else with the one of PyPI's `ziglang`."""

    def build_extensions(self) -> None:
        compiler = find_compiler()
        if compiler is None:
            compiler = f"{sys.executable} -m ziglang c++"
            # Zig traps undefined behaviour and targets this very CPU unless told otherwise.
            flags = ["-fno-sanitize=undefined", "-mcpu=x86_64"]
            for extension in self.extensions:
                extension.extra_compile_args += flags
        command = compiler.split()
        self.compiler.set_executables(
            compiler_so=[*command, "-fPIC"],
            compiler_so_cxx=[*command, "-fPIC"],
            compiler_cxx=command,
            linker_so=[*command, "-shared"],
            linker_so_cxx=[*command, "-shared"],
        )
        super().build_extensions()


native = Pybind11Extension(
    "ps_server._native",
    sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("ps_server/native/*.cc")),
    depends=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("ps_server/native/*.h")),
    cxx_std=17,
    # A fused multiply-add would make a row's bits depend on the compiler and the CPU.
    extra_compile_args=["-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"],
)

os.chdir(ROOT)
setup(ext_modules=[native], cmdclass={"build_py": BuildPy, "build_ext": BuildExt})
