"""Tests the installed C++ package: what CMake and pkg-config find, what the
library exports, and that the prefix can be moved."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve().parents[1]
CONSUMER = ROOT / "tests/examples/consumer"


class PackageTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        installed = cls.folder / "installed"
        subprocess.run(["cmake", "--install", BUILD, "--prefix", installed],
                       check=True, stdout=subprocess.DEVNULL)
        cls.prefix = cls.folder / "moved"
        installed.rename(cls.prefix)

    def run_ok(self, *command, **settings):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False,
            env={**os.environ, "FUSOR_CACHE_DIR": str(self.folder / "cache"),
                 **settings})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def expect_training(self, output):
        losses = [float(line.split()[-1]) for line in output.splitlines()]
        self.assertEqual(len(losses), 3, output)
        self.assertGreater(losses[0], losses[1])
        self.assertGreater(losses[1], losses[2])

    def test_cmake_finds_it(self):
        build = self.folder / "cmake"
        self.run_ok("cmake", "-G", "Ninja", "-S", CONSUMER, "-B", build,
                    f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_ok("cmake", "--build", build)
        self.expect_training(self.run_ok(build / "consumer"))

    def test_cmake_rejects_another_minor_version(self):
        source = self.folder / "newer"
        shutil.copytree(CONSUMER, source)
        lists = source / "CMakeLists.txt"
        lists.write_text(lists.read_text().replace("(fusor 0.2", "(fusor 0.9"))
        result = subprocess.run(
            ["cmake", "-G", "Ninja", "-S", source, "-B", source / "build",
             f"-DCMAKE_PREFIX_PATH={self.prefix}"],
            capture_output=True, text=True, check=False)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("requested version", result.stderr)

    def test_pkg_config_finds_it(self):
        flags = shlex.split(self.run_ok(
            "pkg-config", "--cflags", "--libs", "fusor",
            PKG_CONFIG_PATH=str(self.prefix / "lib/pkgconfig")))
        program = self.folder / "by_pkg_config"
        self.run_ok("c++", CONSUMER / "main.cc", "-o", program, *flags)
        self.expect_training(self.run_ok(
            program, LD_LIBRARY_PATH=str(self.prefix / "lib")))

    def test_programs_find_the_library_and_plug_ins_of_the_prefix(self):
        for name in ("man/man1/fusor-train.1", "zsh/site-functions/_fusor",
                     "bash-completion/completions/rn50",
                     "fish/vendor_completions.d/fusor.fish"):
            self.assertTrue((self.prefix / "share" / name).is_file(), name)
        doctor = self.run_ok(self.prefix / "bin/fusor", "doctor")
        self.assertIn("cpu: oneDNN", doctor)

    def test_the_library_exports_its_namespace_alone(self):
        library, = self.prefix.glob("lib/libfusor.so.*.*.*")
        symbols = [line.split(maxsplit=2)[2] for line in self.run_ok(
            "nm", "-DC", "--defined-only", library).splitlines()]
        self.assertGreater(len(symbols), 1000)
        self.assertEqual([s for s in symbols if "fusor::" not in s], [])


if __name__ == "__main__":
    unittest.main()
