"""Tests the wheel: wheel_test.py BIN. It must be small and need only glibc,
Python and numpy, not the source tree."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from linked_libraries import assert_links_within  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve().parent
ARCHIVE = ROOT / "tests/golden/torch_export/convolutional.pt2"
LIMIT = 60 << 20

TRAIN = """
import sys, numpy, fusor
images = numpy.zeros((3, 3, 16, 16), numpy.float32)
step = fusor.compile(sys.argv[1], images)
print(fusor.__file__, fusor.backends(), step(images, numpy.zeros(3, int)))
print(fusor.command("compile", model=sys.argv[1]).text)
"""


def pip_wheel(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation",
         "--no-deps", "--no-index", *arguments, ROOT / "tools/python"],
        capture_output=True, text=True, check=False)


class WheelTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        result = pip_wheel("-w", cls.folder,
                           "-C", f"cmake.define.FUSOR_BUILD={BUILD}")
        if result.returncode != 0:
            raise AssertionError(result.stdout + result.stderr)
        cls.wheel, = cls.folder.glob("*.whl")
        cls.site = cls.folder / "site"
        with zipfile.ZipFile(cls.wheel) as archive:
            cls.names = archive.namelist()
            archive.extractall(cls.site)
        for name in cls.names:
            if name.endswith("bin/fusor"):
                (cls.site / name).chmod(0o755)

    def run_alone(self, *command):
        """Runs as on another machine, without this one's environment."""
        result = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True,
            check=False, env={"PYTHONPATH": str(self.site),
                              "FUSOR_CACHE_DIR": str(self.folder / "cache")})
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_name_size_and_contents(self):
        version = "{}{}".format(*sys.version_info)
        self.assertRegex(
            self.wheel.name, r"^fusor-[\d.]+-cp{0}-cp{0}-manylinux_2_36_x86_64"
            r"\.whl$".format(version))
        self.assertLess(self.wheel.stat().st_size, LIMIT)
        for name in ("fusor/__init__.py", "fusor/_fusor.pyi", "fusor/py.typed",
                     "fusor/bin/fusor", "fusor/lib/fusor/fusor_cpu.so"):
            self.assertIn(name, self.names)
        self.assertTrue([n for n in self.names if n.endswith("LICENSE")])
        self.assertFalse([n for n in self.names if n.endswith(".cc")])

    def test_links_to_itself_and_glibc_alone(self):
        objects = [p for p in self.site.rglob("*")
                   if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
        assert_links_within(self, objects, self.site)

    def test_trains_alone(self):
        text = self.run_alone(sys.executable, "-B", "-c", TRAIN, ARCHIVE)
        self.assertIn(str(self.site / "fusor/__init__.py"), text)
        self.assertIn("cpu", text)
        self.assertIn("convolutional for ", text)
        self.assertIn("cpu: oneDNN", self.run_alone(
            sys.executable, "-B", "-c",
            "import sys, fusor.program; sys.argv = ['fusor', 'doctor']; "
            "fusor.program.main()"))

    def test_a_folder_without_a_build(self):
        result = pip_wheel("-w", self.folder / "none", "-C",
                           f"cmake.define.FUSOR_BUILD={self.folder}")
        self.assertNotEqual(result.returncode, 0)
        text = " ".join((result.stdout + result.stderr).split())
        self.assertIn("run bash tools/setup.sh", text)


if __name__ == "__main__":
    unittest.main()
