"""Where CUDA's libraries are searched, and what `fusor doctor` reports about
missing, old or broken ones. The test puts a fake driver into folders that the
loader does not know."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
DRIVER = pathlib.Path(sys.argv.pop(1)).resolve()
OLD_DRIVER = pathlib.Path(sys.argv.pop(1)).resolve()
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

    def line(self, library, **variables):
        """Returns the line of `fusor doctor` about the library. There is no
        python3 on PATH."""
        result = subprocess.run(
            [FUSOR, "doctor"], capture_output=True, text=True, check=False,
            env=dict(os.environ, PATH=str(self.empty), **variables))
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [line for line in result.stdout.splitlines()
                 if line.startswith(f"cuda: {library}")]
        self.assertEqual(len(lines), 1, result.stdout)
        return lines[0]

    def driver(self, **variables):
        return self.line("driver: ", **variables)

    def place(self, folder, source=DRIVER, name=NAME):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)

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

    def test_an_old_driver(self):
        self.place(self.folder, OLD_DRIVER)
        self.assertEqual(
            self.driver(FUSOR_CUDA_DIR=str(self.folder)),
            "cuda: driver: CUDA 11.8, 0 devices: too old: the driver is for CUDA "
            "11.8, expected driver 525.60 (CUDA 12.0) or newer")

    def test_a_driver_chooses_the_libraries_that_it_runs(self):
        self.place(self.folder / "driver")
        self.place(self.folder / "newer", name="libcublasLt.so.13")
        self.place(self.folder / "older", name="libcublasLt.so.12")

        def library(version, *folders):
            path = ":".join(f"{self.folder}/{f}" for f in ("driver", *folders))
            return self.line("cuBLASLt", FUSOR_CUDA_DIR=path,
                             SUBSTITUTE_CUDA_VERSION=version)

        newer = f"cuda: cuBLASLt 99.1.0 ({self.folder}/newer/libcublasLt.so.13)"
        older = f"cuda: cuBLASLt 99.1.0 ({self.folder}/older/libcublasLt.so.12)"
        for version, folders, line in (
                ("13000", ("newer", "older"), newer),
                ("12040", ("newer", "older"), older),
                # The variable's folders take precedence over the loader's.
                ("13000", ("older",), older),
                ("12040", ("newer",),
                 f"{newer}: the driver is for CUDA 12.4, expected libraries of "
                 "CUDA 12, or driver 580 (CUDA 13.0) or newer")):
            with self.subTest(version=version, folders=folders):
                self.assertEqual(library(version, *folders), line)
        self.assertEqual(
            self.driver(FUSOR_CUDA_DIR=f"{self.folder}/driver",
                        SUBSTITUTE_CUDA_VERSION="12000"),
            "cuda: driver: CUDA 12.0, 2 devices")

    def test_files_that_are_no_libraries(self):
        (self.folder / NAME).write_text("not a library")
        self.assertEqual(
            self.driver(FUSOR_CUDA_DIR=str(self.folder)),
            f"cuda: driver: none ({self.folder}/{NAME}: file too short): "
            "kernels compile here and run elsewhere")
        # The loader stops at the first file of that name.
        for title, name, without in (
                ("cuDNN", "libcudnn.so.9",
                 "convolutions are not planned and do not run"),
                ("cuBLASLt", "libcublasLt.so.13", "matmuls do not run"),
                ("NCCL", "libnccl.so.2", "one rank runs alone")):
            (self.folder / name).write_text("not a library" * 9)
            line = self.line(title, LD_LIBRARY_PATH=str(self.folder),
                             FUSOR_CUDA_DIR=str(self.folder))
            broken = re.escape(f"{self.folder}/{name}: invalid ELF header")
            # A toolkit in a default folder has another one.
            self.assertRegex(line, (
                rf"^cuda: {title}(: missing \({broken}\): {without}"
                rf"| [0-9.]+ \((?!{self.folder})/\S+/{name}\))$"))

    def test_a_library_that_says_no_version(self):
        self.place(self.folder, name="libnccl.so.2")
        self.assertEqual(
            self.line("NCCL", LD_LIBRARY_PATH=str(self.folder)),
            "cuda: NCCL: libnccl.so.2 does not say its version")

    def assert_no_kernels(self, reason):
        """Checks that nothing compiles with the libraries in the folder."""
        self.assertIn(f"{reason}: no kernels can be compiled",
                      self.line("NVRTC", LD_LIBRARY_PATH=str(self.folder)))
        result = subprocess.run(
            [FUSOR, "compile", "-a", "resnet20-cifar", "--backend", "cuda",
             "--target", "nvidia-h200"], capture_output=True, text=True,
            check=False, env=dict(os.environ, PATH=str(self.empty),
                                  LD_LIBRARY_PATH=str(self.folder)))
        self.assertEqual(result.returncode, 6)
        self.assertIn("no NVRTC: ", result.stderr)
        self.assertIn(reason, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1)

    def test_an_nvrtc_whose_builtins_are_missing(self):
        self.place(self.folder, name="libnvrtc.so.13")
        self.assert_no_kernels(
            "libnvrtc.so.13 needs libnvrtc-builtins.so.77.7, which cannot be "
            "opened")

    def test_a_driver_that_nvrtc_would_crash_with(self):
        if "missing" in self.line("NVRTC"):
            self.skipTest("no NVRTC")
        self.place(self.folder)
        self.assert_no_kernels("needs cuGetExportTable, which libcuda.so.1 "
                               "lacks")


if __name__ == "__main__":
    unittest.main()
