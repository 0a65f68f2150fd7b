"""Where CUDA's libraries are looked for, as `fusor doctor` says it: with a
driver of our own in folders that the loader does not know."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
DRIVER = pathlib.Path(sys.argv.pop(1)).resolve()
NAME = "libcuda.so.1"


class LibraryFoldersTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.empty = self.folder / "bin"
        self.empty.mkdir()
        if "(libcuda.so.1 not found)" not in self.driver():
            self.skipTest("there is a driver, and the loader comes first")

    def driver(self, **variables):
        """The line of `fusor doctor` about the driver; no python3 on PATH."""
        result = subprocess.run(
            [FUSOR, "doctor"], capture_output=True, text=True, check=False,
            env=dict(os.environ, PATH=str(self.empty), **variables))
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [line for line in result.stdout.splitlines()
                 if line.startswith("cuda: driver: ")]
        self.assertEqual(len(lines), 1, result.stdout)
        return lines[0]

    def place(self, folder):
        folder.mkdir(parents=True)
        shutil.copy(DRIVER, folder / NAME)

    def test_those_of_the_variable_in_their_order(self):
        self.place(self.folder / "lib")
        self.assertEqual(
            self.driver(FUSOR_CUDA_DIR=f"/none::{self.folder}/lib"),
            "cuda: driver: CUDA 13.7, 2 devices")

    def test_wheels_of_the_python_on_the_path(self):
        self.place(self.folder / "site-packages/nvidia/cu13/lib")
        python = self.empty / "python3"
        python.write_text(f"#!/bin/sh\necho\necho {self.folder}/none\n"
                          f"echo {self.folder}/site-packages\n")
        python.chmod(0o755)
        self.assertEqual(self.driver(), "cuda: driver: CUDA 13.7, 2 devices")

    def test_a_python_that_fails_is_no_error(self):
        python = self.empty / "python3"
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
        self.assertIn("(libcuda.so.1 not found)", self.driver())


if __name__ == "__main__":
    unittest.main()
