"""Tests run_gpu.py as a rehearsal on the CPU, and without a GPU. Parts that
need PyTorch run only if CMake's FUSOR_TORCH_PYTHON names a Python that has
it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
PYTHON = sys.argv.pop(1) if len(sys.argv) > 1 else sys.executable
LEFT = {"state.json", "results.json", "results.md", "log.txt", "cache"}


class RunGpuTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def call(self, name, *arguments):
        out = self.folder / name
        done = subprocess.run(
            [sys.executable, "-B", HERE / "run_gpu.py", "--out", out, "--fusor",
             FUSOR, "--python", PYTHON, "--scratch", self.folder / "scratch",
             *arguments], capture_output=True, text=True, check=False,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
        files = {p.name for p in out.iterdir()} if out.exists() else set()
        report = (json.loads((out / "results.json").read_text())
                  if files else None)
        return done, files, report

    def rehearse(self, *phases):
        done, files, report = self.call(
            "-".join(phases), "--backend", "cpu", "--limit", "3000", "--only",
            *phases)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(files, LEFT)
        self.assertTrue(report["rehearsal"])
        return report, {name: unit["status"] for name, unit in
                        report["state"]["units"].items()}

    def test_checks(self):
        report, status = self.rehearse("smoke", "isolate", "same bits",
                                       "sanitizer")
        self.assertEqual(status["smoke/fp32"], "passed")
        self.assertEqual(status["isolate/resnet20-cifar bf16"], "passed")
        real = [s for n, s in status.items() if n.endswith(("1/2", "2/2"))]
        self.assertEqual(real, ["passed"] * 2)
        self.assertEqual(status["same bits/program file"], "passed")
        self.assertEqual(status["same bits/fusion on and off"], "passed")
        self.assertEqual(status["same bits/without CUDA graph"], "not run")
        self.assertEqual(report["counts"]["sanitizer"],
                         {"passed": 0, "failed": 0, "not run": 4})
        text = (self.folder / "smoke-isolate-same bits-sanitizer/results.md"
                ).read_text()
        self.assertIn("- sanitizer/memcheck: no GPU", text)
        self.assertIn("nothing here says anything about a GPU", text)

    def test_speed(self):
        report, status = self.rehearse("speed", "agree", "classes")
        arch = report["speeds"][0]["arch"]
        self.assertEqual(status[f"speed/{arch} bf16 4/fusor/0"], "passed")
        self.assertEqual(status[f"speed/{arch} bf16 4/torch graph/0"],
                         "not run")
        rows = {(r["dtype"], r["batch"], r["program"]): r
                for r in report["speeds"]}
        self.assertEqual(rows["bf16", 4, "fusor"]["rounds"], 2)
        self.assertGreater(rows["bf16", 4, "fusor"]["of_roofline"], 0)
        self.assertEqual(status["agree/losses of bf16"], "passed")
        self.assertGreater(rows["bf16", 4, "fusor fusion=off"][
            "images_per_second"], 0)

    def test_calls_go_on_where_the_last_stopped(self):
        # Logs when it is asked for its frameworks: once.
        python = self.folder / "python"
        python.write_text(f"#!/bin/sh\necho >> {self.folder}/asked\n"
                          f"exec {sys.executable} \"$@\"\n")
        python.chmod(0o755)
        arguments = ["--backend", "cpu", "--only", "smoke", "--python", python]
        # Leaves too little time for a second unit, so each call runs one.
        done, _, report = self.call("calls", *arguments, "--limit", "14")
        self.assertEqual(done.returncode, 75, done.stdout + done.stderr)
        self.assertEqual(report["pending"]["smoke"], 1)
        state = (self.folder / "calls/state.json").rename(
            self.folder / "moved.json")
        done, _, report = self.call("more", *arguments, "--state", state)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(report["state"]["calls"]), 2)
        self.assertEqual(report["counts"]["smoke"]["passed"], 2)
        self.assertEqual((self.folder / "asked").read_text(), "\n")
        done, _, _ = self.call("more", "--state", state)
        self.assertEqual(done.returncode, 2)
        self.assertIn("backend: expected cuda, got cpu", done.stderr)

    def test_where_smoke_fails_a_ladder_tells_why_and_no_more_is_run(self):
        broken = self.folder / "broken"
        broken.write_text(f"""#!/bin/sh
if [ "$1" = train ]; then
  seq 100
  echo 'error: no step' >&2
  exit 6
fi
exec {FUSOR} "$@"
""")
        broken.chmod(0o755)
        done, _, report = self.call("ladder", "--backend", "cpu", "--limit",
                                    "3000", "--fusor", broken)
        self.assertEqual(done.returncode, 1, done.stderr)
        status = {name: unit["status"]
                  for name, unit in report["state"]["units"].items()}
        self.assertEqual(status, {
            "smoke/bf16": "failed", "smoke/fp32": "failed",
            "ladder/doctor": "passed", "ladder/without CUDA graph": "not run",
            "ladder/each kernel and call": "passed",
            "ladder/the libraries' logs": "failed",
            "ladder/compute-sanitizer": "not run"})
        log = (self.folder / "ladder/log.txt").read_text()
        self.assertIn("\n  1\n", log.split("== ladder/the libraries")[1])

    def test_without_a_gpu_nothing_passes(self):
        doctor = subprocess.run([FUSOR, "doctor"], capture_output=True,
                                text=True, check=True).stdout
        if "cuda: driver: CUDA" in doctor:
            self.skipTest("there is a driver")
        done, files, report = self.call("none", "--only", "smoke", "isolate",
                                        "speed", "classes", "same bits")
        self.assertEqual(done.returncode, 6)
        self.assertEqual(done.stderr, "run_gpu: no GPU\n")
        self.assertEqual(files, LEFT)
        self.assertEqual({unit["status"] for unit in
                          report["state"]["units"].values()}, {"not run"})

    def test_units_are_listed_in_the_order_that_was_asked_for(self):
        done, _, _ = self.call("list", "--list", "--only", "same bits",
                               "smoke/bf16", "same bits/program")
        self.assertEqual(done.returncode, 0, done.stderr)
        names = [line.rsplit(" (")[0] for line in done.stdout.splitlines()]
        self.assertEqual(len(names), 5)
        self.assertEqual({name.split("/")[0] for name in names[:4]},
                         {"same bits"})
        self.assertEqual(names[4], "smoke/bf16")

    def test_arguments_that_cannot_be(self):
        for message, *arguments in (
                ("no phase spede; there are: smoke, ", "--only", "spede"),
                ("no phase smoke/tf32; there", "--only", "smoke/tf32"),
                ("none/fusor does not run", "--fusor", "none/fusor")):
            done, files, _ = self.call("bad", *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(message, done.stderr)
            self.assertEqual(files, set())

    @unittest.skipIf(PYTHON == sys.executable, "no Python with PyTorch named")
    def test_beside_pytorch(self):
        _, status = self.rehearse("first step", "curves", "limits")
        self.assertEqual(set(status.values()), {"passed"})


if __name__ == "__main__":
    unittest.main()
