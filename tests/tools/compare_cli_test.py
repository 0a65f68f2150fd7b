#!/usr/bin/env python3
"""Tests fusor compare and fusor plan from the command line.

    compare_cli_test.py FUSOR
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from small_network import NETWORK

FUSOR = sys.argv.pop(1)
DRAW = pathlib.Path(__file__).resolve().parent / "draw_page.js"
SMALL = ["-a", NETWORK, "-b", "4", "--kernel-cache", "off"]


def fusor(*args):
    return subprocess.run([FUSOR, *args], capture_output=True, text=True,
                          check=False)


class CliTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def assert_usage_error(self, result, message):
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.strip().count("\n"), 0, result.stderr)
        self.assertIn(message, result.stderr)

    def drawn(self, page):
        """Returns the page's document after its scripts have run."""
        result = subprocess.run(["node", DRAW, page], capture_output=True,
                                text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout


class CompareTest(CliTest):
    def test_bad_variants_get_one_clear_line(self):
        for variant, message in (
                ("fusoin=on", "--a: unknown option fusoin; did you mean "
                              "fusion?"),
                ("fusion=maybe", "--a: fusion: expected on, off, got maybe"),
                ("fusion", "--a: fusion: expected fusion=VALUE"),
                ("threads=many", "--a: threads: expected a whole number"),
                ("amp=yes", "--a: amp: expected on, off, got yes"),
                ("mom=2", "--a: mom: expected a number from 0 to 1, got 2"),
                ("fuel=fuse", "--a: --fuel fuse: expected PASS=N"),
                ("choices=/none", "--a: cannot read /none"),
                ("disable-pass=fuze", "--a: unknown pass fuze; did you mean "
                                      "fuse?"),
                ("only-pass=simplify+fuze", "--a: unknown pass fuze")):
            with self.subTest(variant):
                self.assert_usage_error(
                    fusor("compare", *SMALL, "--a", variant), message)

    def test_options_of_ranks_need_ranks(self):
        for variant in ("bucket-policy=exact", "wire-dtype=bf16", "sync-bn=on",
                        "sharded-optimizer=on"):
            with self.subTest(variant):
                self.assert_usage_error(
                    fusor("compare", *SMALL, "--b", variant),
                    f"--b {variant}: expected several ranks: `fusor "
                    "launch --nproc-per-node 2 -- compare ...`, or "
                    "--world-size N")
        for variant, message in (
                ("bucket-policy=cup:25", "--a: --bucket-policy: expected "
                                         "exact, cap:MB, apex, horovod or one, "
                                         "got cup:25"),
                ("sync-bn=1", "--a: sync-bn: expected on, off, got 1")):
            self.assert_usage_error(
                fusor("compare", *SMALL, "--world-size", "2", "--a", variant),
                message)

    def test_plans_of_ranks_need_no_ranks(self):
        out = self.folder / "out.json"
        page = self.folder / "page.html"
        result = fusor("compare", *SMALL, "--world-size", "8", "--a",
                       "bucket-policy=exact", "--b", "bucket-policy=cap:0.2",
                       "--b", "bucket-policy=one,wire-dtype=bf16", "--json",
                       str(out), "--html", str(page))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("one of 8 ranks", result.stdout)
        self.assertRegex(result.stdout, r"\n  not overlapped, estimated( +[\d.]+ ms){3}")
        data = json.loads(out.read_text())
        self.assertEqual(data["ranks"], 8)
        exact, cap, one = [v["communication"] for v in data["variants"]]
        self.assertEqual(one["buckets"], 2)  # one of weights, one of the rest
        self.assertGreater(cap["buckets"], exact["buckets"])
        self.assertEqual(cap["bucket_bytes"], exact["bucket_bytes"])
        self.assertLess(one["bucket_bytes"], exact["bucket_bytes"])
        self.assertLess(exact["not_overlapped_ms"], one["not_overlapped_ms"])
        self.assertEqual(len(cap["collectives"]), cap["buckets"])
        for entry in data["comparisons"]:
            self.assertNotIn("numbers", entry)
        self.assertIn("Collectives: bucket-policy=exact", self.drawn(page))

    def test_variants_may_have_any_flag_that_decides(self):
        # Which calls are generated kernels depends on the CPU and the dtype.
        result = fusor("compare", *SMALL, "--rounds", "0", "--amp",
                       "--disable-pass", "fuse_contraction", "--a",
                       "dtype=fp32", "--b", "amp=on", "--b",
                       "opt-level=O2,loss-scale-window=5", "--b",
                       "dtype=fp32,mom=0,disable-pass=fuse_updates+"
                       "fuse_norm_activation+fuse_contraction", "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        casts = [v["counters"].get("casts_narrow", 0)
                 for v in data["variants"]]
        self.assertEqual([n > 0 for n in casts], [False, True, True, False])
        numbers = [c["numbers"] for c in data["comparisons"]]
        # State of a dynamic scale and of momentum that the first variant
        # lacks.
        self.assertEqual([n["unmatched_outputs"] for n in numbers], [0, 5, 30])
        self.assertEqual(data["variants"][3]["patterns"], [])
        # bf16 values of one variant are compared with fp32 values of the
        # other.
        self.assertEqual(numbers[0]["unmatched_calls"], 0)
        # Layouts, and so the values that two variants share, depend on the CPU.
        self.assertGreater(
            numbers[0]["summary"]["intermediate"]["values"], 20)

    def test_unwritable_outputs_are_reported_at_once(self):
        page = str(self.folder / "missing" / "page.html")
        self.assert_usage_error(
            fusor("compare", *SMALL, "--html", page), page)

    def test_eager_rounding_is_reported_bit_identical(self):
        page = self.folder / "page.html"
        out = self.folder / "out.json"
        result = fusor("compare", *SMALL, "--fusion-rounding", "eager",
                       "--rounds", "2", "--warmup", "0", "--html", str(page),
                       "--json", str(out))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("bit-identical: loss, 72 state outputs, 30 "
                      "gradients", result.stdout)
        self.assertRegex(result.stdout,
                         r"4 x fuse_norm_activation, residual none: "
                         r"stem.Norm, ")
        self.assertLessEqual(
            max(map(len, result.stdout.splitlines())), 130, result.stdout)
        data = json.loads(out.read_text())
        self.assertEqual(data["arch"], "module:network")
        self.assertEqual([v["name"] for v in data["variants"]],
                         ["fusion=off", "fusion=on"])
        self.assertTrue(data["comparisons"][0]["numbers"]["bit_identical"])
        document = self.drawn(page)
        self.assertIn("second.b.Norm", document)
        self.assertGreater(document.count('class="chip'), 80)
        # The name of a box's kernel, and the reason for a higher peak.
        self.assertIn('"kernel":"k_', page.read_text())
        peaks = [v["planned_peak_bytes"] for v in data["variants"]]
        higher = "fusion=on" if peaks[1] > peaks[0] else "fusion=off"
        self.assertEqual(f"Why {higher} needs more memory than" in document,
                         peaks[0] != peaks[1])
        # Times of all phases have one unit.
        times = re.findall(r">(?:forward|backward|update): ([^<]+)<", document)
        self.assertEqual(len(times), 3)
        units = {unit for time in times for unit in time.split(" ")[1::3]}
        self.assertEqual(len(units), 1, times)
        # Widths of boxes are proportional to time: the widest, and all of a
        # variant. Those below 3 pixels share the last box of their row.
        widths = {"off": 0, "on": 0}
        for strip in document.split('<div class="strip">')[1:]:
            name = re.search('title="([^"]+)"', strip)[1]
            chips = strip.split("</div>")[0]
            widths[name] += sum(map(float, re.findall(
                r'class="chip[^>]*width:([\d.]+)px', chips)))
        sections = json.loads(re.search(
            r'<script type="application/json" id="data">(.*?)</script>',
            page.read_text(), re.S)[1])["sections"]
        graphs = next(s for s in sections if s["kind"] == "graph")["variants"]
        longest = max(node.get("us", 0) for v in graphs
                      for node in v["graph"]["nodes"])
        widest = max(map(float, re.findall(
            r'class="chip (?!short)[^>]*width:([\d.]+)px', document)))
        for width, variant in zip(widths.values(), data["variants"]):
            self.assertAlmostEqual(
                width / variant["total"]["measured_us"] / (widest / longest),
                1, delta=0.01)
        timed = [node["us"] for v in graphs for node in v["graph"]["nodes"]
                 if "us" in node]
        wide = [us for us in timed if us * widest / longest >= 3]
        rows = [re.findall('class="chip ([a-z_]+)"', row.split("</div>")[0])
                for row in document.split('<div class="strip">')[1:]]
        self.assertAlmostEqual(
            sum(len(row) - row.count("short") for row in rows), len(wide),
            delta=1)  # widths are rounded
        self.assertLess(sum(map(len, rows)), len(timed))
        for row in rows:
            self.assertNotIn("short", row[:-1])

    def test_several_variants_compare_with_the_first(self):
        result = fusor("compare", *SMALL, "--rounds", "0", "--a",
                       "winograd=off", "--b", "winograd=on", "--b",
                       "fusion=off,threads=1", "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        self.assertEqual(
            [(c["first"], c["second"]) for c in data["comparisons"]],
            [("winograd=off", "winograd=on"),
             ("winograd=off", "fusion=off,threads=1")])
        self.assertIsNone(data["variants"][0]["step_ms"])

    def test_variants_may_keep_other_copies_of_weights(self):
        result = fusor("compare", *SMALL, "--rounds", "0", "--a",
                       "dtype=bf16", "--b", "dtype=fp32", "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("copy.", result.stdout)


class TraceTest(CliTest):
    def trace(self, name, means, program="p"):
        path = self.folder / name
        lines = [{"fusor_stats_trace": 1, "program": program, "target": "t"}]
        for step, mean in enumerate(means):
            lines.append({
                "run": 0, "step": step, "name": f"v{step}", "op": "fusion",
                "location": f"layer{step}", "count": 4, "min": 0.0,
                "max": 2.0, "mean": mean, "non_finite": 0,
                "checksum": f"{hash(mean) & (2**64 - 1):016x}"})
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    def test_finds_the_first_divergence(self):
        a = self.trace("a", [0.5, 0.75, 1.0])
        b = self.trace("b", [0.5, 0.80, 1.1])
        result = fusor("compare", "--traces", a, b)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("3 values in both traces, 2 differ", result.stdout)
        self.assertIn("%v1, fusion at layer1", result.stdout)
        self.assertIn("first differ at %v1", result.stderr)

    def test_equal_traces_do_not_differ(self):
        a = self.trace("a", [0.5, 0.75])
        result = fusor("compare", "--traces", a, a)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("0 differ", result.stdout)

    def test_traces_of_different_programs_are_rejected(self):
        a = self.trace("a", [0.5, 0.75])
        b = self.trace("b", [0.5, 0.75], program="q")
        result = fusor("compare", "--traces", a, b)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr,
                         "fusor: traces of different programs: p and q\n")

    def test_a_missing_trace_gets_one_line(self):
        missing = str(self.folder / "missing")
        self.assert_usage_error(
            fusor("compare", "--traces", missing, missing), missing)


class PlanTest(CliTest):
    def test_writes_trace_roofline_and_page(self):
        files = {name: self.folder / name
                 for name in ("t.json", "r.svg", "p.html", "o.json")}
        result = fusor("plan", *SMALL, "--profile", "--trace",
                       str(files["t.json"]), "--roofline",
                       str(files["r.svg"]), "--html", str(files["p.html"]),
                       "--json", str(files["o.json"]))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("measured per kernel", result.stdout)
        out = json.loads(files["o.json"].read_text())
        events = [e for e in json.loads(files["t.json"].read_text())
                  ["traceEvents"] if e["ph"] == "X"]
        self.assertEqual(len(events), len(out["steps"]))
        self.assertAlmostEqual(sum(e["dur"] for e in events),
                               out["total"]["measured_us"], places=3)
        self.assertTrue(files["r.svg"].read_text().startswith("<svg "))
        self.assertIn("of the machine's limits", self.drawn(files["p.html"]))

    def test_estimates_the_step_of_another_device(self):
        targets = {}
        for name in ("cpu-avx2", "cpu-avx512"):
            result = fusor("plan", *SMALL, "--target", name, "--json", "-")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"estimated for {name}", result.stderr)
            targets[name] = json.loads(result.stdout)
            self.assertEqual(targets[name]["target"]["name"], name)
        self.assertGreater(targets["cpu-avx2"]["total"]["modelled_us"],
                           targets["cpu-avx512"]["total"]["modelled_us"])
        for flag in ("--profile", "--tune"):
            self.assert_usage_error(
                fusor("plan", *SMALL, "--target", "cpu-avx2", flag),
                f"{flag} measures this machine")
        self.assert_usage_error(fusor("plan", *SMALL, "--target", "h200"),
                                "nvidia-h200")

    def test_the_trace_is_in_the_trace_event_format(self):
        result = fusor("plan", *SMALL, "--trace", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        trace = json.loads(result.stdout)
        self.assertIn(trace["displayTimeUnit"], ("ms", "ns"))
        named, ends = set(), {}
        for event in trace["traceEvents"]:
            self.assertIsInstance(event["pid"], int)
            self.assertTrue(event["name"])
            if event["ph"] == "M":
                self.assertIsInstance(event["args"]["name"], str)
                named.add((event["name"], event.get("tid")))
                continue
            self.assertEqual(event["ph"], "X")
            self.assertIn(("thread_name", event["tid"]), named)
            self.assertIsInstance(event["args"], dict)
            for key in ("ts", "dur"):
                self.assertIsInstance(event[key], (int, float))
                self.assertGreaterEqual(event[key], 0)
            self.assertGreaterEqual(event["ts"], ends.get(event["tid"], 0))
            ends[event["tid"]] = event["ts"] + event["dur"]
        self.assertIn(("process_name", None), named)
        self.assertTrue(ends)

    def test_unwritable_outputs_are_reported(self):
        trace = str(self.folder / "missing" / "t.json")
        result = fusor("plan", *SMALL, "--trace", trace)
        self.assertEqual(result.returncode, 2)
        self.assertIn(trace, result.stderr)


if __name__ == "__main__":
    unittest.main()
