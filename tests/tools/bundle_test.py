"""Tests tools/bundle.sh: the archive runs without the source tree, and needs
only glibc."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from linked_libraries import GLIBC, assert_links_within

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve().parents[1]


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
        """Runs as on another machine, without this one's environment."""
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
        objects = [*self.top.glob("bin/*"), *self.top.glob("tests/*_test"),
                   *self.top.glob("lib/*.so*"),
                   *self.top.glob("lib/fusor/*.so")]
        assert_links_within(self, objects, self.top)

    def test_trains_where_it_was_unpacked(self):
        self.assertIn("cpu: oneDNN", self.run_packed("fusor", "doctor"))
        text = self.run_packed(
            "rn50", "--synthetic", "-b", "1", "--image-size", "32",
            "--iterations", "1", "--workspace", self.folder / "w")
        self.assertIn("trained   1 step in", text)

    # Runs only a few of the tests, to save time.
    FEW = "--gtest_filter=*KernelTest.*:RealGpu.*"

    def assert_tests_ran(self, result):
        lines = result.stdout.splitlines()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(lines[-1], r"^all: [1-9]\d* passed, 0 failed, \d+ skipped$")
        names = [line.split(":")[0] for line in lines[:-1]]
        self.assertEqual(names, sorted(
            p.name for p in self.top.glob("tests/*_test")))

    def test_its_tests_run(self):
        self.assert_tests_ran(subprocess.run(
            ["bash", self.top / "run_tests.sh", self.FEW], cwd="/",
            env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
            check=False))

    def test_the_gpu_script_finds_its_fusor(self):
        out = self.folder / "gpu"
        result = subprocess.run(
            [sys.executable, "-B",
             self.top / "tests/benchmarks/gpu/run_gpu.py", "--backend", "cpu",
             "--only", "smoke", "tests", "--list", "--out", out],
            capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("smoke/fp32 (10 s)\ntests/bundle (60 s)", result.stdout)
        result = subprocess.run(
            [sys.executable, "-B",
             self.top / "tests/benchmarks/gpu/run_gpu.py", "--backend", "cpu",
             "--only", "smoke", "--limit", "2000", "--out", out, "--scratch",
             self.folder / "scratch"],
            capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn(f"$ {self.top.resolve()}/bin/fusor",
                      (out / "log.txt").read_text())

    def test_one_for_gpus_alone_plans_and_compiles(self):
        if not (BUILD / "lib/fusor/fusor_cuda.so").exists():
            self.skipTest("built without the CUDA backend")
        folder = self.folder / "gpu-alone"
        folder.mkdir()
        archive = folder / "gpu.tar.xz"
        result = bundle("--gpu", archive, BUILD)
        self.assertEqual(result.returncode, 0, result.stderr)
        subprocess.run(["tar", "-C", folder, "-xf", archive], check=True)
        # 8.4 MB at -0; bundle.sh limits the default, 5.5 MB.
        self.assertLess(archive.stat().st_size, 9 << 20)
        top, = folder.glob("fusor-gpu-*-x86_64")
        self.assertEqual([p.name for p in top.glob("lib/fusor/*")],
                         ["fusor_cuda.so"])
        for unused in ("LLVM", "dnnl", "icu", "z3", "crypto"):
            self.assertEqual(list(top.glob(f"lib/*{unused}*")), [])

        def fusor(*arguments):
            done = subprocess.run(
                [top / "bin/fusor", *arguments], cwd=folder, text=True,
                capture_output=True, check=False,
                env={"FUSOR_CACHE_DIR": str(folder / "cache")})
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        if "cuda: NVRTC" not in fusor("doctor"):
            self.skipTest("NVRTC is missing")
        model = ["--backend", "cuda", "--target", "nvidia-h200", "--arch",
                 "resnet20-cifar", "-b", "64", "--amp"]
        self.assertIn("estimated for nvidia-h200", fusor("plan", *model))
        self.assertIn("wrote ", fusor("compile", *model, "-o", "step"))
        self.assertGreater((folder / "step").stat().st_size, 10000)

    def test_a_failing_test_is_named(self):
        top = self.folder / "broken"
        (top / "tests").mkdir(parents=True)
        shutil.copy(self.top / "run_tests.sh", top)
        for name, body in (
                ("a_test", "echo '[  PASSED  ] 2 tests.'\n"
                 "echo '[  FAILED  ] 1 test, listed below:'\n"
                 "echo '[  FAILED  ] Suite.Case/7'\nexit 1\n"),
                ("b_test", "kill -SEGV $$\n")):
            (top / "tests" / name).write_text("#!/bin/sh\n" + body)
            (top / "tests" / name).chmod(0o755)
        result = subprocess.run(
            ["bash", top / "run_tests.sh"], capture_output=True, text=True,
            check=False, env=dict(os.environ, TMPDIR=str(self.folder)))
        self.assertEqual(result.returncode, 1)
        self.assertIn("a_test: 2 passed, 1 failed, 0 skipped\n", result.stdout)
        self.assertIn("  [  FAILED  ] Suite.Case/7\n", result.stdout)
        self.assertIn("b_test: 0 passed, 1 failed, 0 skipped (ended with 139)",
                      result.stdout)
        self.assertTrue(result.stdout.endswith(
            "all: 2 passed, 2 failed, 0 skipped\n"))

    def test_in_a_root_that_holds_nothing_but_glibc_and_bash(self):
        root = self.folder / "root"
        inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                  'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"', root]
        for folder in ("bin", "lib64", "proc", "tmp"):
            (root / folder).mkdir(parents=True)
        libraries = set()
        for tool in ("bash", "cp", "dirname", "mkdir", "rm"):
            path = shutil.which(tool)
            shutil.copy(path, root / "bin")
            libraries.update(re.findall(
                r"(/\S+) \(0x", subprocess.run(
                    ["ldd", path], capture_output=True, text=True,
                    check=True).stdout))
        glibc = pathlib.Path(next(
            path for path in libraries if "/libc.so" in path)).parent
        libraries.update(str(path) for path in glibc.iterdir()
                         if GLIBC.match(path.name))
        for path in libraries:
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        try_it = subprocess.run([*inside, "/bin/bash", "-c", ":"],
                                capture_output=True, text=True, check=False)
        if try_it.returncode != 0:
            self.skipTest(f"no namespaces: {try_it.stderr.strip()}")
        shutil.copytree(self.top, root / "fusor", symlinks=True)
        result = subprocess.run(
            [*inside, "/bin/bash", "/fusor/run_tests.sh", self.FEW], env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True, text=True, check=False)
        self.assert_tests_ran(result)
        if (self.top / "tests/nvrtc_test").exists():
            self.assertIn(
                "nvrtc_test: skipped, NVRTC is missing (fusor doctor)\n",
                result.stdout)

    def test_bad_places_get_one_line(self):
        for message, *arguments in (
                ("error: bundle: no folder ", self.folder / "none" / "a.xz",
                 BUILD),
                ("has no bin/fusor; run bash tools/setup.sh",
                 self.folder / "a.xz", self.folder)):
            result = bundle(*arguments)
            self.assertEqual(result.returncode, 1)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
