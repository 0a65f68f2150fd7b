#!/usr/bin/env python3
"""Tests fusor bench --sweep, fusor report and fusor scale from the command
line.

    scaling_cli_test.py FUSOR
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

FUSOR = sys.argv.pop(1)
SMALL = ["-a", "resnet20-cifar", "-b", "4", "--num-classes", "10"]


def fusor(*args):
    return subprocess.run([FUSOR, *map(str, args)], capture_output=True,
                          text=True, check=False)


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_error(self, result, code, message):
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.strip().count("\n"), 0, result.stderr)
        self.assertIn(message, result.stderr)


class SweepTest(CliTest):
    def sweep(self, *args):
        return fusor("bench", *SMALL, "--sweep", self.folder / "logs",
                     "--warmup", "2", "--iterations", "3", *args)

    def report(self, *args):
        """Reports the steps that the sweep has measured."""
        return fusor("report", self.folder / "logs", *args)

    def test_a_grid_is_measured_kept_and_reported(self):
        grid = ("--batches", "2,4", "--fusions", "on,off", "--runs", "2")
        result = self.sweep(*grid)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("8 measured, 0 kept", result.stdout)
        logs = self.folder / "logs/1n1g"
        self.assertEqual(len(list(logs.iterdir())), 8)
        one = logs / "resnet20-cifar_b4_fp32-unfused_2.log"
        before = one.stat().st_mtime_ns
        (logs / "resnet20-cifar_b2_fp32_1.log").unlink()
        result = self.sweep(*grid)
        self.assertIn("1 measured, 7 kept", result.stdout)
        self.assertEqual(one.stat().st_mtime_ns, before)

        svg = self.folder / "speeds.svg"
        result = self.report("--json", "-", "--svg", svg)
        self.assertEqual(result.returncode, 0, result.stderr)
        speeds = json.loads(result.stdout)
        self.assertEqual(sorted(speeds), [
            "resnet20-cifar_b2_fp32", "resnet20-cifar_b2_fp32-unfused",
            "resnet20-cifar_b4_fp32", "resnet20-cifar_b4_fp32-unfused"])
        case = speeds["resnet20-cifar_b4_fp32"]["1n1g"]
        self.assertEqual(case["batch_size_per_device"], 4)
        self.assertEqual(case["speedup"], 1)
        self.assertGreater(case["median_speed"], 1)
        self.assertIn("(DLLogger format)", result.stderr)
        self.assertIn("end of step 2 to the end of step 5\n", result.stderr)
        gain = case["speedup_over_unfused"]
        self.assertAlmostEqual(
            gain, case["median_speed"] / speeds[
                "resnet20-cifar_b4_fp32-unfused"]["1n1g"]["median_speed"], 2)
        self.assertNotIn("speedup_over_unfused",
                         speeds["resnet20-cifar_b4_fp32-unfused"]["1n1g"])
        self.assertRegex(
            result.stderr, r"speedup of fused over unfused\n.*\n "
            rf" *resnet20-cifar +2 +fp32  1n1g .*\n +resnet20-cifar +4 +fp32  1n1g +{gain:.2f}\n")
        # Speed over batch size: two lines of two points each.
        picture = svg.read_text()
        for word in (">images/s<", ">images per step and rank<", ">2<", ">4<",
                     ">resnet20-cifar, fp32<", ">resnet20-cifar, fp32-unfused<",
                     f">{gain:.2f} x unfused<"):
            self.assertIn(word, picture)
        self.assertNotIn("ranks", picture)
        places = set(re.findall(r'<circle cx="([^"]*)" cy="([^"]*)"', picture))
        self.assertEqual(len(places), 4)
        self.assertEqual(len({x for x, _ in places}), 2)

    def test_ranks_are_a_dimension_of_the_grid(self):
        result = self.sweep("--ranks", "1,2,3", "--threads", "1", "--runs", "1",
                            "--precisions", "fp32,amp")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("6 measured, 0 kept", result.stdout)
        log = self.folder / "logs/1n3g/resnet20-cifar_b4_amp_1.log"
        self.assertRegex(log.read_text(), "ranks     3 by fusor bench: 0-2 on ")
        svg = self.folder / "speeds.svg"
        result = self.report("--json", "-", "--svg", svg)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(">speedup over 1n1g<", svg.read_text())
        # Axis ticks are whole numbers of ranks.
        ticks = re.findall(r'text-anchor="middle"[^>]*>([\d.]+)<',
                           svg.read_text())
        self.assertEqual(ticks, ["0", "1", "2", "3"])
        speeds = json.loads(result.stdout)
        self.assertEqual(sorted(speeds), ["resnet20-cifar_b4_amp",
                                          "resnet20-cifar_b4_fp32"])
        for cases in speeds.values():
            self.assertEqual(sorted(cases), ["1n1g", "1n2g", "1n3g"])
            self.assertEqual(cases["1n3g"]["batch_size_per_device"], 4)
            self.assertAlmostEqual(
                cases["1n3g"]["speedup"],
                cases["1n3g"]["median_speed"] / cases["1n1g"]["median_speed"],
                1)

    def test_ranks_of_a_launcher_measure_together(self):
        result = fusor("launch", "--nproc-per-node", "2", "--", "bench", *SMALL,
                       "--threads", "1", "--warmup", "1", "--iterations", "3",
                       "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["ranks"], 2)
        self.assertGreater(report["counters"]["gradient_buckets"], 0)
        # Includes both ranks' images.
        self.assertAlmostEqual(report["images_per_second"],
                               8e3 / report["step_ms"]["median"], 3)
        result = fusor("launch", "--nproc-per-node", "2", "--", "bench", *SMALL,
                       "--sweep", self.folder / "logs")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--sweep starts ranks itself: expected no launcher",
                      result.stderr)

    def test_a_rank_that_cannot_start_fails_the_cell(self):
        result = self.sweep("--ranks", "2", "--interface", "nowhere0")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("1n2g/resnet20-cifar_b4_fp32_1.log: gloo: network "
                      "interface", result.stderr)
        self.assertEqual(list((self.folder / "logs/1n2g").iterdir()), [])

    def test_a_cell_that_fails_leaves_no_log(self):
        result = fusor("bench", "-a", "vgg16", "-b", "4", "--image-size", "8",
                       "--sweep", self.folder / "logs")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("1n1g/vgg16_b4_fp32_1.log: ", result.stderr)
        self.assertEqual(list((self.folder / "logs/1n1g").iterdir()), [])

    def test_wrong_flags_get_one_line(self):
        for args, message in (
                (("--sweep", self.folder, "--json", "-"),
                 "--sweep and --json: expected one of them"),
                (("--sweep", self.folder, "--precisions", "fp8"),
                 "--precisions: expected"),
                (("--batches", "2,4"), "--batches requires --sweep")):
            with self.subTest(args):
                self.assert_error(fusor("bench", *SMALL, *args), 2, message)


class ReportTest(CliTest):
    def test_reads_what_training_logs_in_each_form(self):
        for name, flag in (("text", []), ("dll", ["--log-format", "dll"])):
            result = fusor("train", *SMALL, "--synthetic", "--prof", "6",
                           "--training-only",
                           "-p", "1", "--log-jsonl", self.folder / "lines",
                           "--raport-file", self.folder / "raport", *flag)
            self.assertEqual(result.returncode, 0, result.stderr)
            logs = self.folder / "logs/1n1g"
            logs.mkdir(parents=True, exist_ok=True)
            (logs / f"{name}_b4_fp32_1.log").write_text(result.stdout)
        for name in ("lines", "raport"):
            (self.folder / name).rename(logs / f"{name}_b4_fp32_1.log")
        result = fusor("report", self.folder / "logs/", "--skip", "2",
                       "--average", "4", "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        speeds = json.loads(result.stdout)
        self.assertEqual(sorted(speeds), ["dll", "lines", "raport", "text"])
        for form, cases in speeds.items():
            self.assertGreater(cases["1n1g"]["median_speed"], 1, form)
        self.assertIn('speedup by "mean"', result.stderr)

    def test_bad_folders_get_one_line(self):
        logs = self.folder / "1n1g"
        logs.mkdir()
        self.assert_error(fusor("report", self.folder), 4, "found none")
        self.assert_error(fusor("report", self.folder / "none"), 4, "none")
        self.assert_error(fusor("report"), 2, "LOG_DIR")
        (logs / "r_b4_fp32_1.log").write_text(
            "worker_index: 0, step0 cost = 6.8, speed: 12.1\n")
        self.assert_error(fusor("report", self.folder), 4, "too short")
        self.assert_error(
            fusor("report", self.folder, "--skip", "0", "--average", "1",
                  "--json", self.folder / "no/such/file"), 2, "no/such/file")
        self.assert_error(
            fusor("report", self.folder, "--definition", "best"), 2,
            "--definition")


class ScaleTest(CliTest):
    def test_predicts_from_the_model(self):
        out, svg = self.folder / "out.json", self.folder / "step.svg"
        result = fusor("scale", *SMALL, "--backend", "null", "--target",
                       "nvidia-h200", "--nodes", "4", "--gpus", "8",
                       "--cluster", "v100-dlperf", "--json", out, "--svg", svg)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("on 4 x 8 ranks of v100-dlperf", result.stdout)
        self.assertIn("(estimated for nvidia-h200): forward", result.stdout)
        self.assertIn("sharded optimizer", result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 130)
        data = json.loads(out.read_text())
        self.assertEqual(data["one_rank"]["gradient_elements"],
                         sum_of_parameters())
        self.assertLess(data["speedup"], 32)
        self.assertEqual(data["limit"], "communication")
        self.assertTrue(svg.read_text().startswith("<svg "))

    def test_predicts_from_a_measured_step(self):
        result = fusor("scale", *SMALL, "--profile", "--nodes", "2", "--gpus",
                       "1", "--cluster", "ethernet-10g", "--bucket-policy",
                       "cap:0.5", "--rank-rate", "100", "--input-rate", "50",
                       "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        self.assertAlmostEqual(data["one_rank"]["step_ms"], 40)
        self.assertAlmostEqual(data["images_per_second"], 100)
        self.assertEqual(data["limit"], "input")
        self.assertEqual(data["times_from"], "measured, scaled to "
                                             "--rank-rate")
        self.assertGreater(len(data["buckets"]), 1)

    def test_names_the_devices_of_times_and_links(self):
        svg = self.folder / "step.svg"

        def warning(*args):
            out = self.folder / "out.json"
            result = fusor("scale", *SMALL, *args, "--json", out, "--svg", svg)
            self.assertEqual(result.returncode, 0, result.stderr)
            said = json.loads(out.read_text()).get("warning", "")
            self.assertIn(f"\nwarning   {said}\n" if said else "",
                          result.stdout)
            return said

        self.assertRegex(warning(), r"^times of cpu-\S+ on links "
                         "between devices nvidia-h200: choose ")
        self.assertIn("times of cpu-", svg.read_text())
        self.assertIn("times of nvidia-a100 on links", warning(
            "--backend", "null", "--target", "nvidia-a100"))
        for args in (("--cluster", "ethernet-10g"), ("--rank-rate", "100"),
                     ("--backend", "null", "--target", "nvidia-h200")):
            self.assertEqual(warning(*args), "")

    def test_reads_a_cluster_from_a_file(self):
        mine = self.folder / "mine.textproto"
        mine.write_text('name: "mine" node { ranks: 4 gb_per_s: 10 }\n'
                        "network_gb_per_s: 1 network_latency_factor: 1\n")
        result = fusor("scale", *SMALL, "--backend", "null", "--cluster", mine)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ranks of mine", result.stdout)
        self.assertNotIn("warning", result.stdout)  # it may link any device
        mine.write_text("name: mine")
        self.assert_error(
            fusor("scale", *SMALL, "--backend", "null", "--cluster", mine), 3,
            "mine.textproto:1:")

    def test_wrong_flags_get_one_line(self):
        for args, message in (
                (("--cluster", "dgx-h20"), "did you mean dgx-h200?"),
                (("--bucket-policy", "cap:x"), "--bucket-policy: expected"),
                (("--nodes", "0"), "--nodes: expected"),
                (("--wire", "8"), "--wire: expected"),
                (("--profile", "--target", "nvidia-h200"),
                 "--profile and --target: expected one of them")):
            with self.subTest(args):
                self.assert_error(fusor("scale", *SMALL, *args), 2, message)


def sum_of_parameters():
    result = fusor("dump", *SMALL, "--json", "-")
    return json.loads(result.stdout)["parameters"]


if __name__ == "__main__":
    unittest.main()
