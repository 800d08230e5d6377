"""Two hosts with real verbs and no network card: QEMU guests with the kernel's Soft-RoCE (rxe).

    with Bed() as bed:
        server = bed.start_server(0, "ib_send_bw -d rxe0", 18515)
        client = bed.start(1, "ib_send_bw -d rxe0 10.77.0.1")
        print(client.wait(), client.output())

Each guest has one processor, 512 MiB, the machine's own root under an overlay (what it writes is
gone afterwards), and two rails: rxe0 on eth0 with 10.77.0.N and fd77:0::N, rxe1 on eth1 with
10.77.1.N and fd77:1::N, where N is 1 or 2. Rails are socket pairs between the two QEMU processes:
no port is taken, and two beds do not meet. A command runs in the repository's root as root.

Each wait has a bound, after which the job is killed and JobFailed raised; QEMU dies with the
process that made the bed, however that ends; its folder in /tmp, where that was killed, with the
next bed. A boot takes about 10 s without KVM.

Threads: one; QEMU is bound to the life of the thread that boots it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from image import ROOT, Image, Unavailable, image, program

RAILS = 2
_MEMORY_MIB = 512
_FREE_MIB = 1536  # for both with their emulators
_BOOT_BOUND_S = 90
_KVM_BOOT_BOUND_S = 15  # a nested KVM may hang in early boot for ever
_ANSWER_BOUND_S = 10  # of QEMU's monitor
# Of a job that is killed: its queue pairs go with it, which takes rxe long where packets are stuck.
_KILL_BOUND_S = 70


class JobFailed(Exception):
    """A job took longer than it may, or its guest died."""


class Job:
    """A command under way on a guest, or ended."""

    def __init__(self, guest: "_Guest", name: str, command: str):
        self.command = command
        self.status: int | None = None
        self._guest, self._name = guest, name

    def output(self) -> str:
        """What it wrote to both of its streams until now."""
        path = self._guest.exchange / f"{self._name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, bound_s: float = 60) -> int:
        """Its exit status; a job that takes longer is killed."""
        if not self._guest.read_until(lambda: self.status is not None, bound_s):
            self.kill()
            raise JobFailed(f"guest {self._guest.number}: '{self.command}' did not end in "
                            f"{bound_s:g} s and was killed; its output:\n{self.output()}")
        return self.status

    def kill(self) -> None:
        """Until it has ended with all that it started; JobFailed where it does not."""
        if self.status is not None:
            return
        self._guest.say(f"kill {self._name}")
        if not self._guest.read_until(lambda: self.status is not None, _KILL_BOUND_S):
            raise JobFailed(f"guest {self._guest.number}: '{self.command}' was killed and has not "
                            f"ended in {_KILL_BOUND_S} s")


class _Guest:
    def __init__(self, number: int, folder: pathlib.Path, made: Image, accelerator: str,
                 rails: list[socket.socket]):
        self.number = number
        self.exchange = folder / f"guest{number}"
        self.exchange.mkdir()
        self._console = folder / f"console{number}"
        self._jobs: dict[str, Job] = {}
        self._said = b""
        self._is_up = False
        devices = []
        for index, rail in enumerate(rails):
            # mrg_rxbuf=off: where a packet takes several buffers, QEMU before 9.1 at times waits for
            # ever for more of them under load, and the rail is dead from then on. Datagrams: a
            # cable that is pulled in the middle of a packet costs that packet, not all behind it.
            devices += ["-netdev", f"socket,id=rail{index},fd={rail.fileno()}", "-device",
                        f"virtio-net-pci,netdev=rail{index},host_mtu=9000,mrg_rxbuf=off,romfile=,"
                        f"mac=52:54:00:77:{index:02x}:{number:02x}"]
        for tag, path, options in [("host", "/", ",readonly=on,multidevs=remap"),
                                   ("exchange", self.exchange, "")]:
            devices += ["-virtfs",
                        f"local,path={path},mount_tag={tag},security_model=none{options}"]
        monitor, theirs = socket.socketpair()
        devices += ["-chardev", f"socket,id=monitor,fd={theirs.fileno()}", "-mon",
                    "chardev=monitor,mode=control"]
        cpu = "max" if accelerator.startswith("tcg") else "host"
        # maxcpus=2: for a guest that can have one processor alone, emulation leaves out the barriers
        # between it and the devices, which other threads are: at times a notification is lost, and
        # a rail stands still.
        # setpriv: QEMU is killed with the thread that started it, even where that was killed too.
        self._qemu = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", program("qemu-system-x86_64"), "-nodefaults",
             "-no-user-config", "-display", "none", "-no-reboot", "-machine", "pc", "-accel",
             accelerator, "-cpu", cpu, "-smp", "1,maxcpus=2", "-m", str(_MEMORY_MIB), "-kernel",
             made.kernel, "-initrd", made.initramfs, "-append",
             f"console=ttyS0 quiet panic=-1 mitigations=off nokaslr host={number}", "-serial",
             f"file:{self._console}", "-serial", "stdio", *devices],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=[end.fileno() for end in (*rails, theirs)])
        os.set_blocking(self._qemu.stdout.fileno(), False)
        theirs.close()
        monitor.settimeout(_ANSWER_BOUND_S)
        self._monitor = monitor.makefile("rw")
        monitor.close()  # with the file
        self._asks_for_capabilities = True

    def await_boot(self, bound_s: float) -> bool:
        return self.read_until(lambda: self._is_up, bound_s)

    def start(self, command: str, environment: dict[str, str]) -> Job:
        name = str(len(self._jobs))
        exports = "".join(f"export {key}={shlex.quote(value)}\n"
                          for key, value in environment.items())
        (self.exchange / f"{name}.sh").write_text(
            f"echo $$ >/exchange/{name}.pid\ncd {shlex.quote(str(ROOT))}\n{exports}{command}\n")
        job = self._jobs[name] = Job(self, name, command)
        self.say(f"run {name}")
        return job

    def kill_jobs(self) -> None:
        for job in self._jobs.values():
            job.kill()

    def set_link(self, rail: int, is_up: bool) -> None:
        if self._asks_for_capabilities:
            self._ask_monitor({"execute": "qmp_capabilities"})
            self._asks_for_capabilities = False
        self._ask_monitor({"execute": "set_link",
                           "arguments": {"name": f"rail{rail}", "up": is_up}})

    def say(self, line: str) -> None:
        try:
            self._qemu.stdin.write(line.encode() + b"\n")
            self._qemu.stdin.flush()
        except BrokenPipeError:
            raise JobFailed(self._last_words("has died")) from None

    def read_until(self, is_true, bound_s: float) -> bool:
        """Takes in what the guest says until the predicate holds; False when the time is over."""
        deadline = time.monotonic() + bound_s
        while not is_true():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not select.select([self._qemu.stdout], [], [], left)[0]:
                continue
            some = self._qemu.stdout.read()
            if not some:
                raise JobFailed(self._last_words("has died"))
            *lines, self._said = (self._said + some).split(b"\n")
            for line in lines:
                self._take(line.decode(errors="replace").split())
        return True

    def _ask_monitor(self, command: dict) -> None:
        answer: dict = {}
        try:
            self._monitor.write(json.dumps(command) + "\n")
            self._monitor.flush()
            while answer.keys().isdisjoint({"return", "error"}):  # but its greeting and its events
                answer = json.loads(self._monitor.readline())
        except (OSError, ValueError):  # it has closed the line, or says nothing
            raise JobFailed(self._last_words("does not answer")) from None
        if "error" in answer:
            raise JobFailed(f"QEMU refused {command}: {answer['error']}")

    def end(self) -> None:
        self._qemu.kill()
        self._qemu.wait()
        for file in [self._monitor, self._qemu.stdin, self._qemu.stdout]:
            with contextlib.suppress(BrokenPipeError):  # what a dead guest did not read goes again
                file.close()

    def _take(self, words: list[str]) -> None:
        match words:
            case ["up"]:
                self._is_up = True
            case ["done", name, status] if name in self._jobs:
                self._jobs[name].status = int(status)
            case ["failed", *why]:
                raise JobFailed(self._last_words("did not boot: " + " ".join(why)))

    def _last_words(self, what: str) -> str:
        console = self._console.read_text(errors="replace") if self._console.exists() else ""
        said = self._said.decode(errors="replace")
        return f"guest {self.number} {what}; its console ends:\n{console[-1500:]}{said}"


def _make_folder() -> tuple[pathlib.Path, int]:
    """A folder for what guests and we exchange, and the lock that is ours while we live. Takes away
    what beds left that were killed: their locks are free."""
    prefix = "noria-guests-"
    for left in pathlib.Path(tempfile.gettempdir()).glob(prefix + "*"):
        try:
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass  # its bed is alive
        finally:
            os.close(lock)
    while True:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)  # another bed took it for one that was left, before it was locked


def _require_memory() -> None:
    """Raises Unavailable where two guests would drive the machine into its swap, or die."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    free_mib = next(int(line.split()[1]) // 1024 for line in lines
                    if line.startswith("MemAvailable:"))
    if free_mib < _FREE_MIB:
        raise Unavailable(f"two guests want {_FREE_MIB} MiB of free memory; there are {free_mib}")


class Bed:
    """Two guests that are up, with ACTIVE rails that reach each other. Raises Unavailable where
    this machine cannot run them, JobFailed where they do not boot."""

    def __init__(self):
        _require_memory()
        made = image()
        # As by Ctrl-C, which unittest lets through: the guests and the folder go.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self._folder, self._lock = _make_folder()
        self._guests: list[_Guest] = []
        try:
            self.accelerator = self._boot(made)
            self.await_rails()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Bed":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        for guest in self._guests:
            guest.end()
        self._guests = []
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def start(self, host: int, command: str, environment: dict[str, str] | None = None) -> Job:
        """Runs a line of bash on guest 0 or 1, and does not wait for it."""
        return self._guests[host].start(command, self._environment(host) | (environment or {}))

    def run(self, host: int, command: str, bound_s: float = 60) -> str:
        """Output of a command that must succeed."""
        job = self.start(host, command)
        if job.wait(bound_s) != 0:
            raise JobFailed(f"guest {host + 1}: '{command}' ended with status {job.status}:\n"
                            + job.output())
        return job.output()

    def kill_jobs(self) -> None:
        """Ends whatever still runs on the guests, so that nothing of it meets what comes next."""
        for guest in self._guests:
            guest.kill_jobs()

    @staticmethod
    def wait_all(jobs: list[Job], bound_s: float) -> list[int]:
        """Exit statuses of jobs that have so long together; else all are killed."""
        deadline = time.monotonic() + bound_s
        try:
            return [job.wait(max(0.0, deadline - time.monotonic())) for job in jobs]
        except JobFailed as error:
            for job in jobs:
                job.kill()
            raise JobFailed(f"{error}\n" + "\n".join(
                f"'{job.command}' until then:\n{job.output()}" for job in jobs)) from None

    def start_server(self, host: int, command: str, port: int,
                     environment: dict[str, str] | None = None, bound_s: float = 30) -> Job:
        """The same, and waits until it listens on the TCP port. Nothing connects to it."""
        server = self.start(host, command, environment)
        watch = self.start(host, f"until ss -Hltn | grep -q ':{port} '; do sleep 0.05; done")
        self._guests[host].read_until(
            lambda: watch.status is not None or server.status is not None, bound_s)
        if watch.status is not None and server.status is None:
            return server
        state = self.run(host, "busybox ps -o pid,stat,time,args; ss -tnap; tail -3 /proc/loadavg")
        watch.kill()
        server.kill()
        raise JobFailed(f"guest {host + 1}: '{command}' did not come to listen on port {port} in "
                        f"{bound_s:g} s; its output:\n{server.output()}\nthen:\n{state}")

    def set_link(self, host: int, rail: int, is_up: bool) -> None:
        """Pulls the cable of a guest's rail, or plugs it in: its port is down, and what the other
        guest sends is lost without a word. Not so after `ip link set eth0 down`: QEMU then takes in
        no packet, so that the other guest's stay in its own queue for ever."""
        self._guests[host].set_link(rail, is_up)

    @staticmethod
    def address(host: int, rail: int = 0, family: int = 4) -> str:
        return f"10.77.{rail}.{host + 1}" if family == 4 else f"fd77:{rail}::{host + 1}"

    def _environment(self, host: int) -> dict[str, str]:
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": f"{ROOT}/build/bin:{system}", "HOME": "/root", "LANG": "C.UTF-8",
                "NORIA_IBVERBS": "libibverbs.so.1",
                "NORIA_SOCKET_IFNAME": "eth0", "SELF": self.address(host),
                "PEER": self.address(1 - host)}

    def _boot(self, made: Image) -> str:
        if os.access("/dev/kvm", os.R_OK | os.W_OK):
            try:
                if self._boot_with(made, "kvm", _KVM_BOOT_BOUND_S):
                    return "kvm"
            except JobFailed:
                pass  # no processor for it, or a guest that it broke: emulation says what is wrong
        if not self._boot_with(made, "tcg,thread=multi", _BOOT_BOUND_S):
            raise JobFailed(f"the guests did not boot in {_BOOT_BOUND_S} s")
        return "tcg"

    def _boot_with(self, made: Image, accelerator: str, bound_s: float) -> bool:
        for guest in self._guests:
            guest.end()
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        pairs = [socket.socketpair(type=socket.SOCK_DGRAM) for _ in range(RAILS)]
        self._guests = []
        for index in range(2):
            self._guests.append(_Guest(index + 1, folder, made, accelerator,
                                       [pair[index] for pair in pairs]))
        for pair in pairs:
            for end in pair:
                end.close()
        deadline = time.monotonic() + bound_s
        return all(guest.await_boot(deadline - time.monotonic()) for guest in self._guests)

    def await_rails(self) -> None:
        """Until all ports are ACTIVE and each rail's two ends reach each other."""
        for host in range(2):
            for rail in range(RAILS):
                state = f"/sys/class/infiniband/rxe{rail}/ports/1/state"
                ping = f"busybox ping -c 1 -W 1 {self.address(1 - host, rail)}"
                self.run(host, f"until grep -q ACTIVE {state} && {ping} >/dev/null; do sleep 0.1; "
                               "done", 30)


def exit_status(name: str, body: Callable[[], int]) -> int:
    """Of a program that runs on a bed: what its body returns; 3 where this machine runs no guests, 4
    where a command took too long or failed, each with its reason."""
    try:
        return body()
    except Unavailable as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 3
    except JobFailed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 4


__all__ = ["RAILS", "Bed", "Job", "JobFailed", "Unavailable", "exit_status"]
