"""tools/bundle.sh: the archive runs without the tree that it was made of, and
needs nothing but itself and glibc."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve().parents[1]
LOADER = "/lib64/ld-linux-x86-64.so.2"
GLIBC = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt)\.so")


def bundle(*arguments):
    return subprocess.run(
        ["bash", ROOT / "tools/bundle.sh", *arguments],
        env=dict(os.environ, XZ_OPT="-0"), capture_output=True, text=True,
        check=False)


class BundleTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.archive = cls.folder / "fusor.tar.xz"
        cls.result = bundle(cls.archive, BUILD)
        if cls.result.returncode == 0:
            subprocess.run(["tar", "-C", cls.folder, "-xf", cls.archive],
                           check=True)
        cls.top = next(cls.folder.glob("fusor-*-x86_64"), None)

    def setUp(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)

    def run_packed(self, program, *arguments):
        """As on another machine: nothing of this one's environment."""
        result = subprocess.run(
            [self.top / "bin" / program, *arguments], cwd="/",
            env={"FUSOR_CACHE_DIR": str(self.folder / "cache")},
            capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_says_where_it_is_and_leaves_nothing_else(self):
        self.assertRegex(self.result.stdout,
                         rf"^{re.escape(str(self.archive))} \(\d+ MiB\)\n$")
        self.assertEqual(list(self.folder.glob("fusor.tar.xz.*")), [])
        tops = {line.split("/")[0] for line in subprocess.run(
            ["tar", "-tf", self.archive], capture_output=True, text=True,
            check=True).stdout.splitlines()}
        self.assertEqual(tops, {self.top.name})

    def test_links_to_itself_and_glibc_alone(self):
        objects = [*self.top.glob("bin/*"), *self.top.glob("lib/*.so*"),
                   *self.top.glob("lib/backends/*.so")]
        self.assertGreater(len(objects), 10)
        for file in objects:
            result = subprocess.run([LOADER, "--list", file], env={},
                                    capture_output=True, text=True,
                                    check=False)
            self.assertEqual(result.returncode, 0, f"{file}: {result.stderr}")
            for line in result.stdout.splitlines():
                name, _, path = line.strip().partition(" => ")
                if not path or GLIBC.match(name):
                    continue
                found = pathlib.Path(path.split(" (")[0]).resolve()
                self.assertTrue(found.is_relative_to(self.top.resolve()),
                                f"{file.name}: {line}")

    def test_trains_where_it_was_unpacked(self):
        self.assertIn("cpu: oneDNN", self.run_packed("fusor", "doctor"))
        text = self.run_packed(
            "rn50", "--synthetic", "-b", "1", "--image-size", "32",
            "--iterations", "1", "--workspace", self.folder / "w")
        self.assertIn("trained   1 steps", text)

    def test_bad_places_get_one_line(self):
        for message, *arguments in (
                ("error: bundle: no folder ", self.folder / "none" / "a.xz",
                 BUILD),
                ("has no bin/fusor and bin/rn50; run bash tools/setup.sh",
                 self.folder / "a.xz", self.folder)):
            result = bundle(*arguments)
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
