"""What the guests rest on, without a guest: what is said where this machine cannot run them, what a
bed leaves behind that was killed, and options that make no sense."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.dont_write_bytecode = True
import bed
import image

HERE = pathlib.Path(__file__).resolve().parent


class PartsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def stand_in(self, name: str, script: str) -> None:
        """A program that is found before the machine's own."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def stand_ins_first(self):
        return mock.patch.dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}")

    # ---- the image ----

    def test_A_program_that_is_missing_is_named_with_its_package(self) -> None:
        for name, package in [("qemu-system-x86_64", "qemu-system-x86"), ("cpio", "cpio")]:
            with mock.patch("shutil.which", lambda wanted, path, name=name: (
                    None if wanted == name else wanted)):
                with self.assertRaisesRegex(image.Unavailable, f"{name}.*apt-get install {package}"):
                    image.image(self.folder)

    def test_Apt_is_read_in_english_whatever_the_users_language(self) -> None:
        self.stand_in("apt-cache", 'case "$LC_ALL$LANGUAGE" in C*) echo "  Depends: linux-image-6.1";;'
                                   '*) echo "  Hängt ab von: linux-image-6.1";; esac')
        self.stand_in("apt-get", '[ "$1" = download ] && touch linux-image-6.1.deb')
        with self.stand_ins_first(), mock.patch.dict(os.environ, LC_ALL="de_DE.UTF-8",
                                                     LANGUAGE="de"):
            package = image._fetch_or_update(self.folder)
        self.assertEqual(package.name, "linux-image-6.1.deb")

    def test_A_network_that_says_nothing_makes_no_guests_and_no_failure(self) -> None:
        self.stand_in("apt-cache", 'echo "  Depends: linux-image-6.1"')
        self.stand_in("apt-get", "exec sleep 600")
        with self.stand_ins_first(), mock.patch.object(image, "_DOWNLOAD_BOUND_S", 0.2):
            with self.assertRaisesRegex(image.Unavailable, "apt-get download.*network"):
                image._fetch_or_update(self.folder)

    # ---- the bed ----

    def test_The_next_bed_takes_away_what_a_killed_one_left_and_nothing_of_one_that_lives(self):
        with mock.patch.object(tempfile, "tempdir", str(self.folder)):
            living, lock = bed._make_folder()
            self.addCleanup(os.close, lock)
            killed = subprocess.Popen(
                [sys.executable, "-B", "-c", "import bed, signal; print(bed._make_folder()[0], "
                 "flush=True); signal.pause()"], cwd=HERE, stdout=subprocess.PIPE, text=True,
                env=os.environ | {"TMPDIR": str(self.folder)})
            left = pathlib.Path(killed.stdout.readline().strip())
            killed.send_signal(signal.SIGKILL)
            killed.communicate()
            self.assertTrue(left.exists())
            own, own_lock = bed._make_folder()
            self.addCleanup(os.close, own_lock)
            self.assertEqual({living, own}, set(self.folder.iterdir()))

    def test_A_guest_that_died_is_told_and_its_bed_ends_as_any_other(self) -> None:
        self.stand_in("qemu-system-x86_64", "exec true")
        made = image.Image(self.folder / "kernel", self.folder / "initramfs")
        rails = [socket.socketpair() for _ in range(bed.RAILS)]
        with self.stand_ins_first():
            guest = bed._Guest(1, self.folder, made, "tcg", [pair[0] for pair in rails])
        for pair in rails:
            for end in pair:
                end.close()
        with self.assertRaisesRegex(bed.JobFailed, "guest 1 has died"):
            guest.await_boot(20)
        guest._qemu.wait(20)
        with self.assertRaisesRegex(bed.JobFailed, "guest 1 has died"):
            guest.start("true", {})
        with self.assertRaisesRegex(bed.JobFailed, "guest 1 does not answer"):
            guest.set_link(0, False)
        guest.end()

    def test_A_guest_loses_no_line_of_which_it_has_read_half_when_a_job_ends(self) -> None:
        init = (HERE / "guest_init").read_text()
        script = (init[init.index("serve() {"):init.index("\npoweroff", init.index("serve() {"))])
        ours, theirs = socket.socketpair()
        guest = subprocess.Popen(
            ["busybox", "sh", "-c", f"exchange={self.folder}\nsetsid() {{ sleep 0.2; }}\n{script}"],
            preexec_fn=lambda: os.dup2(theirs.fileno(), 3), pass_fds=[3])
        theirs.close()
        ours.settimeout(20)
        said = ours.makefile("rw")

        def tell(words: str) -> None:
            said.write(words)
            said.flush()

        self.assertEqual(said.readline(), "up\n")
        tell("run 1\nrun 5")
        self.assertEqual(said.readline(), "done 1 0\n")
        tell("1\n")
        # Expect: the job runs, and the line behind it comes through too.
        tell("run 2\n")
        self.assertEqual({said.readline(), said.readline()}, {"done 51 0\n", "done 2 0\n"})
        ours.shutdown(socket.SHUT_WR)
        self.assertEqual(guest.wait(20), 0)
        said.close()
        ours.close()

    # ---- options ----

    def test_Options_that_make_no_sense_are_a_matter_of_usage(self) -> None:
        for words in [["run", "--seconds", "nan", "true", "--", "true"],
                      ["run", "--seconds", "0", "true", "--", "true"],
                      ["run", "--listens", "65536", "true", "--", "true"],
                      ["run", "true"], ["soak.py", "--seconds", "inf"],
                      ["figures.py", "--seconds", "nan"], ["figures.py", "--sizes", "0"],
                      ["figures.py", "--sizes", "64K"]]:
            done = subprocess.run([HERE / words[0], *words[1:]], capture_output=True, text=True,
                                  timeout=60)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("error: ", done.stderr, words)


if __name__ == "__main__":
    unittest.main()
