"""Tests that the plug-in works with the libraries of CUDA 12, whichever CUDA it
was built with: runs NVRTC's and cuDNN's tests, and compiles a program file.

    cuda12_test.py FUSOR WHEELS TEST ...

WHEELS: prefix of `tools/install_cuda.sh --compiler`. Skipped (77) without it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FUSOR, WHEELS, *TESTS = [pathlib.Path(a).resolve() for a in sys.argv[1:]]
LIBRARIES = [WHEELS / "nvidia" / part / "lib" for part in
             ("cuda_nvrtc", "cudnn", "cublas")]
# A selection of each program's tests. The others differ only in operands.
FILTER = ("NvrtcTest.*:ConvPlanTest.EveryConvolutionOfTheStepHasAPlan:"
          "ConvPlanTest.BiasAndReluAreApplied:*PlanDevice*")


def run(*args):
    return subprocess.run(
        [str(a) for a in args], capture_output=True, text=True, check=False,
        env=dict(os.environ, FUSOR_CUDA_DIR=":".join(map(str, LIBRARIES))))


class Cuda12Test(unittest.TestCase):

    def test_the_libraries_are_those_of_cuda_12(self):
        lines = run(FUSOR, "doctor").stdout
        self.assertRegex(lines, rf"cuda: NVRTC 12\.\d+ \({LIBRARIES[0]}/")
        self.assertRegex(lines, rf"cuda: cuDNN 9\.\S+ \({LIBRARIES[1]}/")

    def test_programs_compile_and_plan(self):
        for program in TESTS:
            with self.subTest(program=program.name):
                result = run(program, f"--gtest_filter={FILTER}")
                self.assertEqual(result.returncode, 0, result.stdout[-4000:])
                self.assertNotIn("Running 0 tests", result.stdout)

    def test_a_program_file_has_kernels_and_plans(self):
        with tempfile.TemporaryDirectory() as folder:
            result = run(FUSOR, "compile", "-a", "resnet20-cifar", "-b", "8",
                         "--amp", "--backend", "cuda", "--target",
                         "nvidia-h200", "--kernel-cache", "off", "-o",
                         f"{folder}/step.fusor", "--json", f"{folder}/json")
            self.assertEqual(result.returncode, 0, result.stderr)
            facts = json.loads(pathlib.Path(folder, "json").read_text())
            self.assertGreater(facts["kernels"], 0)
            self.assertGreater(facts["library_calls"], 0)


if __name__ == "__main__":
    if not WHEELS.is_dir():
        print(f"no {WHEELS}: tools/install_cuda.sh --compiler makes it")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
