"""Tests compare.py with fakes of every program that it runs."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import compare  # noqa: E402


class CompareTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def fake(self, name, body):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(0o755)
        return str(path)

    def answers(self, name, speed):
        """Creates a program that logs its arguments and reports `speed`."""
        return self.fake(name, f"""
            echo "{name} $*" >> {self.folder}/log
            echo 'a line of progress'
            echo '{{"images_per_second": {speed}, "versions": {{"{name}": "7"}}}}'
            """)

    def compare(self, *arguments):
        done = subprocess.run(
            [sys.executable, "-B", HERE / "compare.py", "--threads", "1",
             "--out", self.folder / "out", *arguments],
            capture_output=True, text=True, check=False)
        return done, json.loads((self.folder / "out.json").read_text())

    def test_reports_ratios_to_the_best_peer_the_floor_and_the_skeleton(self):
        skeleton = self.fake(
            "skeleton", "echo 'SKEL B8: median 0.1 s => 12.50 img/s ; RSS'")
        done, report = self.compare(
            "--fusor", self.answers("fusor", 10), "--python",
            self.answers("torch", 5), "--floor", self.answers("floor", 20),
            "--skeleton", skeleton, "--batches", "8", "--pairs", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        section = report["summary"][0]
        self.assertEqual(section["best_peer"], "torch default")
        self.assertEqual(section["ratios"]["torch default"], 2.0)
        self.assertEqual(section["ratios"]["convolution floor"], 0.5)
        self.assertEqual(section["ratios"]["skeleton"], 0.8)
        self.assertEqual(report["versions"]["torch"], "7")
        self.assertIn("| torch default (best peer) | 5.00 | 5.00 | 5.00 | 2 |"
                      " 2.000 |", done.stdout)

    def test_rounds_interleave_and_rotate_the_programs(self):
        self.compare("--fusor", self.answers("fusor", 1), "--floor",
                     self.answers("floor", 1), "--batches", "8", "--pairs", "2")
        log = (self.folder / "log").read_text().splitlines()
        self.assertEqual([line.split()[0] for line in log],
                         ["fusor", "fusor", "floor", "fusor", "floor", "fusor"])
        self.assertIn("bench --arch resnet50-v1.5 --batch-size 8", log[0])
        self.assertTrue(log[1].endswith("--json - --fusion=off"))

    def test_a_failing_program_is_named_and_the_rest_still_measured(self):
        done, report = self.compare(
            "--fusor", self.fake("fusor", "echo 'no plan' >&2; exit 7"),
            "--floor", self.answers("floor", 3), "--batches", "8", "--pairs",
            "1")
        self.assertEqual(done.returncode, 1)
        programs = report["summary"][0]["programs"]
        self.assertEqual(programs["fusor"]["errors"], ["exit code 7: no plan"])
        self.assertEqual(programs["convolution floor"]["median"], 3)
        self.assertIn("| fusor | failed: exit code 7: no plan |", done.stdout)

    def test_a_ratio_is_the_median_over_rounds(self):
        runs = [{"program": name, "batch": 8, "round": r,
                 "images_per_second": speed}
                for name, values in (("fusor", [4, 9, 6]), ("x", [2, 3, 6]))
                for r, speed in enumerate(values)]
        self.assertEqual(compare.ratio(runs, "fusor", "x", 8), 2)
        self.assertIsNone(compare.ratio(runs, "fusor", "y", 8))

    def test_json_is_found_on_one_line_and_indented(self):
        value = {"images_per_second": 2.5, "step_ms": {"median": 4}}
        for indent in (None, 2):
            text = f"epoch 1\n{json.dumps(value, indent=indent)}\n"
            self.assertEqual(compare.last_json(text), value)
        with self.assertRaises(compare.RunError):
            compare.last_json("{}\n")


if __name__ == "__main__":
    unittest.main()
