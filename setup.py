"""Builds `ps_server._native` and the proto stubs; metadata is in pyproject.toml."""

import os
import shlex
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
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
    """Collects the packages, then makes the stubs: in place for an editable install."""

    def run(self) -> None:
        super().run()
        build_stubs(ROOT if self.editable_mode else Path(self.build_lib))


class BuildExt(build_ext):
    """Compiles with the system's compiler, else with the one of PyPI's `ziglang`."""

    def build_extensions(self) -> None:
        compiler = shlex.split(find_compiler() or "")
        link_flags = ["-shared"]
        if not compiler:
            # Said aloud, a target is a plain x86-64 and not this very CPU, and its headers are
            # Zig's own. 2.28 is the glibc that pyarrow's wheel needs.
            compiler = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.28"]
            # Debian keeps a part of Python's headers there; Zig looks at it no more.
            compiler += ["-idirafter", "/usr/include"]
            link_flags += ["-s"]  # Zig links its libc++ in, with 2 MB of debug information
        # Not Python's own flags, which are of the compiler that built it.
        compile_flags = ["-fPIC", *shlex.split(os.environ.get("CXXFLAGS", ""))]
        link_flags += shlex.split(os.environ.get("LDFLAGS", ""))
        self.compiler.set_executables(
            compiler_so=[*compiler, *compile_flags],
            compiler_so_cxx=[*compiler, *compile_flags],
            compiler_cxx=compiler,
            linker_exe_cxx=compiler,  # setuptools finds the flags of linker_so_cxx behind this
            linker_so=[*compiler, *link_flags],
            linker_so_cxx=[*compiler, *link_flags],
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
ParallelCompile().install()
setup(ext_modules=[native], cmdclass={"build_py": BuildPy, "build_ext": BuildExt})
