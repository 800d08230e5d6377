"""Kernel and initramfs of a guest, made from Debian's packages and kept under build/soft_roce.

Nothing is installed: the package of the kernel is fetched with apt-get and unpacked with dpkg-deb.
A guest's initramfs holds busybox, guest_init and the modules of _MODULES with what they need; all
else the guest takes from the machine's own root (bed.py).

Costs 70 MB of download and about 10 s the first time, nothing afterwards. Unavailable says what is
lacking where it cannot be made.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

_KERNEL = "linux-image-amd64"  # depends on the package that has the files
# crc32_generic: rxe looks for its hash at run time, which modules.dep does not know.
_MODULES = ["virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay", "crc32_generic",
            "ib_uverbs", "rdma_ucm", "rdma_rxe", "sch_netem"]
_PROGRAMS = {"busybox": "busybox-static", "cpio": "cpio", "depmod": "kmod",
             "qemu-system-x86_64": "qemu-system-x86", "rdma": "iproute2", "apt-get": "apt",
             "dpkg-deb": "dpkg"}
_DOWNLOAD_BOUND_S = 240  # for all that apt does together
_COMMAND_BOUND_S = 120


class Unavailable(Exception):
    """This machine cannot run guests; the text says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Image:
    kernel: pathlib.Path
    initramfs: pathlib.Path


def program(name: str) -> str:
    # depmod and rdma stand where only root's PATH leads.
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Unavailable(f"there is no {name}: apt-get install {_PROGRAMS.get(name, name)}")
    return path


def _run(*words: str | os.PathLike, bound_s: float = _COMMAND_BOUND_S,
         **options) -> subprocess.CompletedProcess:
    # What apt says is read here: in English.
    environment = os.environ | {"LC_ALL": "C.UTF-8", "LANGUAGE": ""}
    try:
        return subprocess.run([os.fspath(word) for word in words], capture_output=True, text=True,
                              timeout=max(0.1, bound_s), env=environment, **options)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(map(str, words))} took longer than it may: is the network "
                          "slow, or cut off? Then repeat it by hand") from None


def _checked(*words: str | os.PathLike, **options) -> str:
    done = _run(*words, **options)
    if done.returncode != 0:
        raise Unavailable(f"{words[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _fetch(folder: pathlib.Path, deadline: float) -> pathlib.Path | None:
    """The kernel's package as apt's lists know it now; None where they are absent or old."""
    depends = _run("apt-cache", "depends", _KERNEL).stdout
    found = re.search(r"Depends: (linux-image-\d\S*)", depends)
    if found is None:
        return None
    if _run("apt-get", "download", found[1], cwd=folder,
            bound_s=deadline - time.monotonic()).returncode != 0:
        return None
    return next(folder.glob("linux-image-*.deb"), None)


def _fetch_or_update(folder: pathlib.Path) -> pathlib.Path:
    deadline = time.monotonic() + _DOWNLOAD_BOUND_S
    package = _fetch(folder, deadline)
    if package is None:
        as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
        try:
            _run(*as_root, program("apt-get"), "-qq", "update",
                 bound_s=deadline - time.monotonic())
        except FileNotFoundError:  # no sudo
            pass
        package = _fetch(folder, deadline)
    if package is None:
        raise Unavailable(f"apt-get cannot fetch {_KERNEL}: is there a network, and is this "
                          "Debian? Then apt-get update as root")
    return package


def _load_order(modules: pathlib.Path) -> list[pathlib.Path]:
    """Files of _MODULES and of what they need, each behind its own needs."""
    needs, files = {}, {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, needed = line.partition(":")
        needs[file] = needed.split()
        files[pathlib.Path(file).name.split(".")[0].replace("-", "_")] = file
    order: list[str] = []
    for name in _MODULES:
        if name not in files:
            raise Unavailable(f"the kernel's package has no module {name}")
        # modules.dep names what is needed most directly first.
        for file in [*reversed(needs[files[name]]), files[name]]:
            if file not in order:
                order.append(file)
    return [modules / file for file in order]


def _plain_name(module: pathlib.Path) -> str:
    return module.name.removesuffix(".xz")


def _pack(tree: pathlib.Path, to: pathlib.Path) -> None:
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    with open(to, "wb") as out:
        subprocess.run([program("cpio"), "--quiet", "-o", "-H", "newc", "-R", "0:0"], cwd=tree,
                       input=names.encode(), stdout=out, check=True, timeout=60)


def _make(folder: pathlib.Path) -> None:
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    unpacked, tree = work / "package", work / "tree"
    tree.mkdir(parents=True)
    _checked(program("dpkg-deb"), "-x", _fetch_or_update(work), unpacked)
    if not (unpacked / "lib").exists():
        (unpacked / "lib").symlink_to("usr/lib")  # as Debian 13 packs it
    modules = next((unpacked / "lib/modules").iterdir())
    _checked(program("depmod"), "-b", unpacked, modules.name)

    for name in ["bin", "dev", "exchange", "lower", "modules", "over", "proc", "root", "sys"]:
        (tree / name).mkdir()
    shutil.copy2(program("busybox"), tree / "bin/busybox")
    for applet in _checked(program("busybox"), "--list").split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    shutil.copy2(HERE / "guest_init", tree / "init")
    (tree / "init").chmod(0o755)
    order = _load_order(modules)
    for file in order:
        plain = lzma.decompress if file.suffix == ".xz" else bytes  # Debian 13 has them compressed
        (tree / "modules" / _plain_name(file)).write_bytes(plain(file.read_bytes()))
    (tree / "modules/order").write_text("".join(f"{_plain_name(file)}\n" for file in order))

    _pack(tree, work / "initramfs")
    shutil.move(next((unpacked / "boot").glob("vmlinuz-*")), folder / "vmlinuz")
    shutil.move(work / "initramfs", folder / "initramfs")
    shutil.rmtree(work)


def image(cache: pathlib.Path = ROOT / "build/soft_roce") -> Image:
    """The image, made anew where guest_init or this file changed since. Blocks while another
    process makes it."""
    for name in _PROGRAMS:
        program(name)
    cache.mkdir(parents=True, exist_ok=True)
    made_of = hashlib.sha256((HERE / "guest_init").read_bytes() +
                             pathlib.Path(__file__).read_bytes()).hexdigest()
    stamp = cache / "made_of"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != made_of:
            stamp.unlink(missing_ok=True)
            _make(cache)
            stamp.write_text(made_of)
    return Image(cache / "vmlinuz", cache / "initramfs")
