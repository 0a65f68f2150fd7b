"""Tests tools/install_cuda.sh with recorded fakes of pip and nvidia-smi: what
is installed for which driver, what is not installed twice, and the one-line
message of every failure."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/install_cuda.sh"

# A pip that creates its --target, or fails as $PIP says.
PYTHON = r"""#!/bin/bash
echo "$*" >>"$CALLS"
[[ $PIP != none ]] || { echo "No module named pip"; exit 1; }
[[ $* == *install* ]] || exit 0
while (($#)); do
  if [[ $1 == --target ]]; then mkdir -p "$2/nvidia/cu13/lib"; fi
  shift
done
case $PIP in
  offline) echo "WARNING: NewConnectionError(...)"
    echo "ERROR: Could not find a version that satisfies nvidia-cublas"; exit 1 ;;
  full) echo "ERROR: Could not install: [Errno 28] No space left on device"
    exit 1 ;;
esac
"""


class InstallCudaTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.prefix = self.root / "cuda"
        self.calls = self.root / "calls"
        (self.root / "bin").mkdir()
        self.fake("python3", PYTHON)
        self.fake("df", "#!/bin/bash\necho Avail\necho 99999M\n")
        self.fake("nvidia-smi", "#!/bin/bash\nexit 9\n")

    def driver(self, version):
        self.fake("nvidia-smi", "#!/bin/bash\necho '| NVIDIA-SMI 1.2    Driver "
                  f"Version: 1.2       CUDA Version: {version}     |'\n")

    def fake(self, name, text):
        file = self.root / "bin" / name
        file.write_text(text)
        file.chmod(0o755)

    def install(self, pip="works", *options, **variables):
        self.calls.write_text("")
        environment = {k: v for k, v in os.environ.items()
                       if k not in ("CUDA_HOME", "CUDA_PATH")}
        environment.update(
            variables, PIP=pip, CALLS=str(self.calls),
            PATH=f"{self.root}/bin:{os.environ['PATH']}")
        return subprocess.run(
            ["bash", SCRIPT, *options, self.prefix, self.root / "log",
             self.root / "no toolkit"], env=environment, capture_output=True,
            text=True, check=False)

    def assert_fails(self, result, line):
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.splitlines()[-1], line)
        self.assertEqual([p.name for p in self.root.glob("cuda*")], [])

    def test_wheels_are_pinned_and_installed_once(self):
        result = self.install()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, ";".join(
            f"{self.prefix}/nvidia/{part}" for part in
            ("cu13", "cudnn", "nccl")))
        words = self.calls.read_text().splitlines()[-1].split()
        wheels = [word for word in words if word.startswith("nvidia-")]
        self.assertEqual(len(wheels), 8)
        self.assertTrue(all("==" in wheel for wheel in wheels), wheels)
        self.assertIn("--no-deps", words)
        self.assertEqual(self.install().stdout, result.stdout)
        self.assertEqual(self.calls.read_text(), "")
        # Installs again for other pins.
        (self.prefix / "wheels").write_text("nvidia-cublas==1")
        self.assertEqual(self.install().returncode, 0)
        self.assertIn("install", self.calls.read_text())

    def test_a_toolkit_takes_precedence_over_wheels(self):
        toolkit = self.root / "toolkit"
        (toolkit / "include").mkdir(parents=True)
        (toolkit / "include/nvrtc.h").write_text("")
        # A toolkit without cuDNN does not count.
        self.assertIn("nvidia", self.install(CUDA_HOME=str(toolkit)).stdout)
        (toolkit / "include/cudnn_graph.h").write_text("")
        result = self.install(CUDA_HOME=str(toolkit))
        self.assertEqual((result.returncode, result.stdout), (0, ""))
        self.assertEqual(result.stderr, f"cuda       toolkit in {toolkit}\n")
        self.assertEqual(self.calls.read_text(), "")

    def test_the_driver_chooses_the_wheels(self):
        def installed():
            return [word for word in self.calls.read_text().split()
                    if word.startswith("nvidia-")]

        toolkit = self.root / "toolkit"
        (toolkit / "include").mkdir(parents=True)
        for name in ("nvrtc.h", "cudnn_graph.h"):
            (toolkit / "include" / name).write_text("")
        header = toolkit / "include/cuda.h"
        header.write_text("#define CUDA_VERSION 13000\n")
        for version, cuda in (("12.0", 12), ("12.8", 12), ("13.2", 13)):
            with self.subTest(version=version):
                self.driver(version)
                result = self.install()
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(f"8 wheels of CUDA {cuda} in ", result.stderr)
                if version != "12.8":
                    self.assertEqual(len(installed()), 8)
                    self.assertEqual("nvidia-nccl-cu12==2.28.9" in installed(),
                                     cuda == 12)
                self.assertEqual(
                    f"{self.prefix}/nvidia/cuda_nvrtc" in result.stdout,
                    cuda == 12)
                # A toolkit counts if the driver runs its code.
                result = self.install(CUDA_HOME=str(toolkit))
                self.assertEqual(result.stdout == "", cuda == 13)
        self.driver("12.8")
        header.write_text("#define CUDA_VERSION 12040\n")
        self.assertEqual(self.install(CUDA_HOME=str(toolkit)).stdout, "")
        self.driver("11.8")
        result = self.install()
        self.assertEqual((result.returncode, result.stdout, result.stderr), (
            1, "", "error: cuda: the driver is for CUDA 11.8, expected driver "
            "525.60 (CUDA 12.0) or newer\n"))

    def test_the_compiler_alone(self):
        result = self.install("works", "--compiler")
        self.assertEqual((result.returncode, result.stdout), (
            0, ";".join(f"{self.prefix}/nvidia/{part}" for part in
                        ("cublas", "cuda_nvrtc", "cudnn"))))
        self.assertIn("4 wheels of CUDA 12 in ", result.stderr)

    def test_no_pip(self):
        self.assert_fails(
            self.install("none"), "error: cuda: no CUDA toolkit, and no pip to "
            "install one: python3 -m pip does not run")

    def test_no_network(self):
        self.assert_fails(
            self.install("offline"), "error: cuda: pip could not install the "
            "wheels: the package index cannot be reached: no network")

    def test_no_space(self):
        self.fake("df", "#!/bin/bash\necho Avail\necho 4095M\n")
        self.assert_fails(
            self.install(), f"error: cuda: {self.prefix}: 4095 MiB free, "
            "expected at least 4096 for the wheels")
        self.assertNotIn("install", self.calls.read_text())
        self.fake("df", "#!/bin/bash\necho Avail\necho 4096M\n")
        self.assert_fails(
            self.install("full"), "error: cuda: pip could not install the "
            "wheels: ERROR: Could not install: [Errno 28] No space left on "
            "device")

    def test_no_folder(self):
        self.prefix = self.root / "file/cuda"
        (self.root / "file").write_text("")
        self.assert_fails(
            self.install(),
            f"error: cuda: cannot make the folder {self.prefix}")


if __name__ == "__main__":
    unittest.main()
