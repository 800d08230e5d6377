#!/usr/bin/env python3
"""Makes a virtual environment with a current PyTorch, for tests on processors alone.

    tests/python/current_pytorch.py build/pytorch
    cmake -B build -DNORIA_TORCH_PYTHON=$PWD/build/pytorch/bin/python && ./check -R python

PyPI's wheel for Linux is built for CUDA: with all that it depends on it takes 5 GB. Here it comes
alone (0.5 GB to fetch, 1.3 GB on disk), and each CUDA library that it was linked against is a small
one of stubs, made on the spot, whose functions fail: ``torch.cuda.is_available()`` is false.

Needs pip, a C compiler and binutils. Exit: 0, 2 usage, 3 something is lacking.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from collections import defaultdict
from pathlib import Path

VERSION = "2.11.0"
# What `import torch` itself imports; the rest of its requirements is CUDA.
IMPORTED = ["typing_extensions", "filelock", "sympy", "mpmath", "networkx", "jinja2", "fsspec"]
CUDA = ("libcu", "libnv", "libnccl")  # how the names of its libraries begin

Symbol = tuple[str, str]  # name and version, which may be empty


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library: Path, which: str) -> set[Symbol]:
    found = set()
    for line in output_of("nm", "-D", which, str(library)).splitlines():
        *_, kind, name = line.split()
        if kind not in "wv":  # a weak symbol may stay undefined
            base, _, version = name.partition("@")
            found.add((base, version.lstrip("@")))
    return found


def needed(library: Path) -> tuple[set[str], dict[str, str]]:
    """The libraries that one names, and which of them is to have each version of symbols."""
    dynamic = output_of("readelf", "-W", "-d", str(library))
    names = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    versions, file = {}, ""
    for line in output_of("readelf", "-W", "-V", str(library)).splitlines():
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags", line):
            versions[match[1]] = file
    return names, versions


def make_stub(folder: Path, name: str, by_version: dict[str, list[str]]) -> None:
    """A library whose functions all answer 999, CUDA's "unknown error"."""
    functions = [function for group in by_version.values() for function in group]
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch) / "stub.c", Path(scratch) / "stub.map"
        source.write_text("".join(f"int {f}(void) {{ return 999; }}\n" for f in functions))
        script.write_text(
            "".join(
                f"{version} {{ global: {' '.join(f'{f};' for f in group)} }};\n"
                for version, group in by_version.items()
                if version
            )
        )
        flags = [f"-Wl,--version-script={script}"] if script.read_text() else []
        output_of("cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", *flags, "-o",
                  str(folder / name), str(source))  # fmt: skip


def make_stubs(folder: Path) -> None:
    libraries = sorted(folder.glob("*.so*"))
    ours = {library.name for library in libraries}
    names: set[str] = set()
    versions: dict[str, str] = {}
    undefined: set[Symbol] = set()
    defined: set[str] = set()
    for library in libraries:
        more_names, more_versions = needed(library)
        names |= more_names
        versions |= more_versions
        undefined |= symbols(library, "--undefined-only")
        defined |= {name for name, _ in symbols(library, "--defined-only")}
    absent = sorted(name for name in names - ours if name.startswith(CUDA))
    stubs: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in absent}
    # Symbols without a version are CUDA's if they begin so. Which library has them does not matter,
    # as long as libtorch_cuda.so loads it.
    home = next(name for name in absent if name.startswith("libcusparseLt"))
    for name, version in sorted(undefined):
        if version and versions.get(version) in stubs:
            stubs[versions[version]][version].append(name)
        elif not version and name not in defined and name.startswith(("cu", "nv", "nccl")):
            stubs[home][version].append(name)
    for name, by_version in stubs.items():
        make_stub(folder, name, by_version)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the environment is made")
    folder = parser.parse_args().folder
    try:
        venv.create(folder, with_pip=True, clear=True)
        python = str(folder / "bin/python")
        pip = [python, "-m", "pip", "install", "--quiet"]
        output_of(*pip, "--no-deps", "--only-binary", ":all:", f"torch=={VERSION}")
        output_of(*pip, *IMPORTED)
        (libraries,) = folder.glob("lib/python3*/site-packages/torch/lib")
        make_stubs(libraries)
        seen = output_of(python, "-W", "ignore", "-c", "import torch; print(torch.__version__)")
    except subprocess.CalledProcessError as error:
        print(f"{Path(__file__).name}: {' '.join(error.cmd)}: {error.stderr}", file=sys.stderr)
        return 3
    print(f"PyTorch {seen.strip()} in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
