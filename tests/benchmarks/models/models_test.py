"""Tests models.py with fakes of fusor and PyTorch."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent

FUSOR = """{"images_per_second": 30, "planned_peak_bytes": 1048576,
"kernels": 12, "library_calls": 34, "op_classes": {
"conv2d": {"limit_us": 1, "measured_us": 2},
"copy": {"limit_us": 1, "measured_us": 4}}}"""
TORCH = '{"images_per_second": 20, "first_step_seconds": 1.5}'


class ModelsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "resnet18.pt2").touch()  # not exported again

    def fake(self, name, text, code=0):
        """A program that prints `text`, for each line of its input if asked to,
        unless it ends with an error."""
        path = self.folder / name
        answer = f"echo '{text}';" if code == 0 else (
            f"echo '{text}' >&2; exit {code};")
        path.write_text(f"""#!/bin/sh
            echo "$*" >> {self.folder}/{name}.log
            case "$*" in
            *--on-demand*) while read line; do {answer} done ;;
            *) {answer} ;;
            esac""")
        path.chmod(0o755)
        return path

    def run_models(self, fusor, python):
        done = subprocess.run(
            [sys.executable, "-B", HERE / "models.py", "--fusor", fusor,
             "--python", python, "--archives", self.folder, "--out",
             self.folder / "out", "--dtypes", "fp32", "--pairs", "2",
             "--torch", "torch tuned", "--threads", "1", "--", "resnet18"],
            capture_output=True, text=True, check=False)
        return done, (self.folder / "out.md").read_text()

    def test_a_line_has_the_ratio_and_the_share_of_the_limit(self):
        done, table = self.run_models(self.fake("fusor", FUSOR),
                                      self.fake("torch", TORCH))
        self.assertEqual(done.returncode, 0, done.stderr)
        line = [cell.strip() for cell in table.splitlines()[-1].split("|")]
        self.assertEqual(line[1:8], ["resnet18", "fp32", "30.0", "20.0",
                                     "torch tuned", "**1.50**", "1.50"])
        self.assertEqual(line[10], "1.5")   # PyTorch's first step
        self.assertEqual(line[14:19], ["1", "12", "34", "50", "25"])
        self.assertIn("Geometric mean over the best peer, fp32: 1.50.", table)
        self.assertIn("resnet18 fp32", (self.folder / "out.svg").read_text())
        log = (self.folder / "fusor.log").read_text().splitlines()
        # Two rounds, the cold step and the profile.
        self.assertEqual([words.split()[0] for words in log],
                         ["bench", "bench", "bench", "plan"])
        self.assertTrue(log[2].endswith("--kernel-cache off"))
        # PyTorch's process stays.
        self.assertEqual(
            (self.folder / "torch.log").read_text().count("--on-demand"), 1)

    def test_a_stored_model_is_not_measured_again(self):
        for _ in range(2):
            self.run_models(self.fake("fusor", FUSOR),
                            self.fake("torch", TORCH))
        log = (self.folder / "fusor.log").read_text().splitlines()
        self.assertEqual(len(log), 4)

    def test_a_row_of_another_day_is_named(self):
        programs = self.fake("fusor", FUSOR), self.fake("torch", TORCH)
        self.run_models(*programs)
        out = self.folder / "out.json"
        report = json.loads(out.read_text())
        day, report["date"] = report["date"], "2001-02-03"
        report["rows"] = []
        out.write_text(json.dumps(report))
        _, table = self.run_models(*programs)
        self.assertIn("\n2001-02-03; ", table)
        self.assertRegex(table, rf"Measured on {day}, \w+, \d+ rounds?: resnet18\.\n")

    def test_a_failing_peer_leaves_the_rest_of_the_line(self):
        done, table = self.run_models(self.fake("fusor", FUSOR),
                                      self.fake("torch", "no memory", code=1))
        self.assertEqual(done.returncode, 1)
        self.assertIn("torch tuned: exit code 1: no memory", done.stderr)
        self.assertIn("| resnet18 | fp32 | 30.0 |", table)
        rows = json.loads((self.folder / "out.json").read_text())["rows"]
        self.assertEqual(len(rows), 1)


if __name__ == "__main__":
    unittest.main()
