"""Tests the order, limits and records of units. Shell programs replace
fusor."""

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import judge  # noqa: E402
import phases  # noqa: E402
import results  # noqa: E402
import run_gpu  # noqa: E402
import units  # noqa: E402


def sleeping(seconds):
    return lambda job: job.run(["sleep", str(seconds)])


class UnitsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.state = units.load_state(None, {})
        self.saves = 0
        self.has = {"gpu": "no GPU", "torch": True}

    def run_units(self, *some, seconds=60, whole=None):
        def count():
            self.saves += 1
        with contextlib.closing(units.Log(self.folder / "log.txt")) as log:
            return units.run_units(
                some, self.state, {"has": self.has}, log,
                time.monotonic() + seconds, count, lambda line: None,
                whole or seconds)

    def status(self, name):
        return self.state["units"][name]["status"]

    def unit(self, name, action, seconds=0.0, **more):
        return units.Unit(name, name.split("/")[0], seconds, action, **more)

    def test_units_that_tell_why_run_in_place_of_what_follows(self):
        def all_units(first):
            return (self.unit("smoke/a", first),
                    self.unit("smoke/b", lambda job: {}),
                    self.unit("ladder/a", lambda job: {}, if_failed="smoke"),
                    self.unit("speed/a", lambda job: {}))
        self.assertEqual(self.run_units(*all_units(lambda job: {})), [])
        self.assertEqual(list(self.state["units"]),
                         ["smoke/a", "smoke/b", "speed/a"])
        self.state = units.load_state(None, {})
        broken = all_units(lambda job: job.run(["false"]))
        self.assertEqual(self.run_units(*broken), [])
        self.assertEqual(list(self.state["units"]),
                         ["smoke/a", "smoke/b", "ladder/a"])

    def test_outputs_are_logged_to_their_end_or_whole(self):
        command = ["seq", "100"]
        self.run_units(
            self.unit("a", lambda job: job.run(command)),
            self.unit("b", lambda job: job.run(command, whole=True)))
        _, a, b = (self.folder / "log.txt").read_text().split("$ seq")
        self.assertNotIn("\n  85\n", a)
        self.assertIn("\n  86\n", a)
        self.assertIn("\n  1\n", b)
        self.assertIn("\n  100\n", b)

    def test_a_failure_is_named_and_stops_nothing(self):
        pending = self.run_units(
            self.unit("a", lambda job: job.run(
                ["sh", "-c", "echo first; echo 'error: broken' >&2; exit 3"])),
            self.unit("b", lambda job: {}["no such key"]),
            self.unit("c", lambda job: {"number": 7}))
        self.assertEqual(pending, [])
        self.assertEqual(self.state["units"]["a"]["why"],
                         "sh ended with 3: error: broken")
        self.assertEqual(self.state["units"]["b"]["why"],
                         "KeyError: 'no such key'")
        self.assertEqual(self.state["units"]["c"]["data"], {"number": 7})
        self.assertEqual(self.saves, 3)
        log = (self.folder / "log.txt").read_text()
        self.assertIn("  first\n  error: broken\n(exit code 3)\n", log)

    def test_what_was_run_is_not_run_again(self):
        runs = []
        unit = self.unit("a", runs.append)
        self.run_units(unit)
        self.run_units(unit)
        self.assertEqual(len(runs), 1)

    def test_what_the_machine_lacks_is_not_run_and_has_not_passed(self):
        def never(job):
            raise AssertionError
        self.run_units(self.unit("a", never, needs=("torch", "gpu")),
                       self.unit("b", never, needs=("spaceship",)))
        self.assertEqual(self.state["units"]["a"], {
            "status": "not run", "why": "no GPU", "phase": "a"})
        self.assertEqual(self.state["units"]["b"]["why"], "no spaceship")

    def test_no_unit_begins_without_the_time_it_should_take(self):
        quick = lambda job: {}  # noqa: E731
        pending = self.run_units(
            self.unit("first", quick, 500), self.unit("long", quick, 500),
            self.unit("short", quick, 1), seconds=100)
        self.assertEqual(pending, ["long"])
        self.assertEqual(list(self.state["units"]), ["first", "short"])

    def test_the_end_of_a_call_is_no_failure(self):
        begin = time.monotonic()
        pending = self.run_units(self.unit("first", sleeping(0.5)),
                                 self.unit("slow", sleeping(60)), seconds=1)
        self.assertEqual(pending, ["slow"])
        self.assertNotIn("slow", self.state["units"])
        self.assertLess(time.monotonic() - begin, 30)

    def test_a_unit_that_no_call_is_long_enough_for_waits_for_a_longer_one(self):
        def run(seconds, action):
            pending = self.run_units(self.unit("slow", action),
                                     self.unit("b", lambda job: {}),
                                     seconds=seconds)
            return pending, self.state["units"]["slow"]["status"]
        self.assertEqual(run(1, sleeping(60)), (["b"], "not run"))
        self.assertEqual(self.state["units"]["slow"]["why"],
                         "does not fit into a call: cut off after 1 s")
        # The unit blocks no other, and runs in a longer call.
        self.assertEqual(run(1, lambda job: {}), ([], "not run"))
        self.assertEqual(run(60, lambda job: {}), ([], "passed"))

    def test_a_unit_that_had_a_part_of_its_call_has_a_whole_one(self):
        def run(seconds):
            return self.run_units(self.unit("slow", sleeping(60)),
                                  seconds=seconds, whole=2)
        self.assertEqual(run(0.5), ["slow"])
        self.assertNotIn("slow", self.state["units"])
        self.assertEqual(run(2), [])
        self.assertEqual(self.status("slow"), "not run")

    def test_a_unit_that_takes_too_long_fails(self):
        self.run_units(self.unit("a", lambda job: {}),
                       self.unit("slow", sleeping(60), most=1))
        self.assertEqual(self.state["units"]["slow"]["why"],
                         "took longer than 1 s")

    def test_children_end_with_their_unit(self):
        file = self.folder / "child"
        self.run_units(self.unit("slow", lambda job: job.run(
            ["sh", "-c", f"(sleep 3; touch {file}) & sleep 60"]), most=1))
        time.sleep(4)
        self.assertFalse(file.exists())

    def test_a_state_goes_on_where_it_is_of_the_same_machine(self):
        path = self.folder / "state.json"
        identity = {"device": "A", "backend": "cpu"}
        state = units.load_state(path, identity)
        state["units"]["a"] = {"status": "passed"}
        units.write_text(path, json.dumps(state))
        self.assertEqual(units.load_state(path, identity), state)
        with self.assertRaisesRegex(ValueError, "device: expected B, got A"):
            units.load_state(path, {"device": "B", "backend": "cpu"})
        self.assertEqual([p.name for p in self.folder.iterdir()
                          if "state" in p.name], ["state.json"])


# Replaces fusor on a GPU. Logs its arguments, and rejects autotune results
# that it has not written.
FAKE_FUSOR = """#!/bin/sh
echo "$FUSOR_CACHE_DIR $*" >> {log}
tune=
while [ $# -gt 0 ]; do
  case $1 in
    --tune) tune=1 ;;
    --choices) choices=$2 ;;
    --json) json=$2 ;;
  esac
  shift
done
if [ -n "$tune" ]; then echo mine > "$choices"
elif [ -n "$choices" ] && [ "$(cat "$choices")" != mine ]; then exit 2; fi
echo '{{"loss": 1, "images_per_second": 2, "target": "", "steps": []}}' > "$json"
"""


class PlanTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        fusor = self.folder / "fusor"
        fusor.write_text(FAKE_FUSOR.format(log=self.folder / "log"))
        fusor.chmod(0o755)

    def plan(self, out):
        args = argparse.Namespace(
            fusor=str(self.folder / "fusor"), backend="cuda", data=None,
            out=self.folder / out, scratch=self.folder, python=sys.executable,
            tests=None, can_tune=True, can_find_batch=True,
            max_autotune=False, lowerings=("kernels", "joins"))
        args.out.mkdir(exist_ok=True)
        return phases.Plan(args, phases.Scale())

    def act(self, plan, name):
        """Returns the arguments that fusor was called with."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        unit, = (u for u in plan.all() if u.name == name)
        with contextlib.closing(units.Log(self.folder / "log.txt")) as text:
            unit.action(units.Job({}, text, time.monotonic() + 60, unit))
        return log.read_text().splitlines()

    def test_what_matters_most_comes_first(self):
        names = [u.name for u in self.plan("out").all()]
        cell = "speed/resnet50-v1.5 fp16 256/"
        order = ["smoke/fp16", "isolate/resnet18 fp16", f"{cell}fusor/0",
                 f"{cell}torch graph/0", f"{cell}torch compile-graph/0",
                 f"{cell}fusor tuned/0", "first step/resnet50-v1.5 fp16",
                 "same bits/second run", f"{cell}fusor bn-lowering=joins/0",
                 "agree/losses of fp16", "classes/resnet50-v1.5 fp16 256",
                 f"{cell}jax/0", "tests/bundle", "isolate/vgg16-bn fp16",
                 "isolate/resnet50-v1.5 fp16 256 part 4/4",
                 f"{cell}fusor/1"]
        self.assertEqual(sorted(order, key=names.index), order)

    def test_each_kernel_of_the_measured_step_is_isolated(self):
        plan = self.plan("out")
        for name, lowering in (("", ""), (" bn-lowering=joins", "joins")):
            for i in (1, 2, 3, 4):
                line, = self.act(
                    plan,
                    f"isolate/resnet50-v1.5 fp16 256{name} part {i}/4")
                self.assertIn("-b 256 --image-size 224 --num-classes 1000",
                              line)
                self.assertIn(f"--part {i}/4", line)
                self.assertEqual("--bn-lowering joins" in line, bool(lowering))

    def test_what_was_tuned_and_compiled_is_taken_up(self):
        name = "speed/resnet50-v1.5 fp16 256/fusor tuned/"
        first = self.plan("first")
        with self.assertRaisesRegex(units.NotRun, "not tuned yet"):
            self.act(first, f"{name}1")
        line, = self.act(first, f"{name}0")
        self.assertIn(f"{self.folder}/first/cache bench ", line)
        self.assertIn(f"--tune --choices {self.folder}/first/choices-fp16", line)
        for round_ in (0, 1):
            line, = self.act(first, f"{name}{round_}")
            self.assertIn(f"--choices {self.folder}/first/choices-fp16", line)
            self.assertNotIn("--tune", line)
        (self.folder / "first/cache/sub").mkdir(parents=True)
        (self.folder / "first/cache/sub/kernel").write_text("code")
        run_gpu.take_over(self.folder / "first", self.folder / "second")
        self.assertEqual((self.folder / "second/cache/sub/kernel").read_text(),
                         "code")
        line, = self.act(self.plan("second"), f"{name}0")
        self.assertIn("second/choices-fp16", line)
        self.assertNotIn("--tune", line)

    def test_results_of_other_libraries_are_tuned_anew(self):
        plan = self.plan("out")
        (self.folder / "out/choices-fp16").write_text("other")
        used, tuned = self.act(plan,
                               "speed/resnet50-v1.5 fp16 256/fusor tuned/0")
        self.assertNotIn("--tune", used)
        self.assertIn("--tune", tuned)


class ResultsTest(unittest.TestCase):

    def test_speeds_are_compared_within_rounds(self):
        state = {"units": {
            f"speed/resnet50 fp16 256/{name}/{i}": {
                "status": "passed", "data": {"images_per_second": speed}}
            for name, speeds in (("fusor", [100, 300, 200]),
                                 ("torch eager", [50, 100, 100]),
                                 ("jax", [80, 90]))
            for i, speed in enumerate(speeds)}}
        state["units"]["classes/resnet50 fp16 256"] = {
            "data": {"total": {"limit_us": 640e3}}}
        state["units"]["speed/resnet50 fp16 256/fusor/3"] = {
            "status": "failed", "why": "no"}
        rows = {row["program"]: row for row in results.speeds(state)}
        self.assertEqual(rows["fusor"]["images_per_second"], 200)
        self.assertEqual(rows["fusor"]["of_roofline"], 0.5)
        self.assertEqual(rows["torch eager"]["fusor_over_it"], 2)
        self.assertAlmostEqual(rows["jax"]["fusor_over_it"],
                               (100 / 80 + 300 / 90) / 2)
        self.assertEqual(results.best_peers(list(rows.values()))[0][:4],
                         ("resnet50", "fp16", 256, "torch eager"))

    def test_a_step_may_be_twice_as_far_away_as_pytorchs_worse_layout(self):
        def judged(fusor_all, fusor_each):
            runs = [{"all": 1e-4, "w": 1e-6}] * 3
            return judge.judge(
                [{"all": fusor_all, "w": fusor_each}] * 2 +
                [{"all": 9, "w": 9}],
                {"nchw": runs, "channels_last": [{"all": 2e-4, "w": 0}] * 3})
        self.assertEqual(judged(4e-4, 4e-5)["too_far"], [])
        self.assertEqual(judged(4.1e-4, 4e-5)["too_far"], ["all"])
        self.assertEqual(judged(0, 4.1e-5)["too_far"], ["w"])
        self.assertEqual(judged(float("nan"), 0)["too_far"], ["all"])


if __name__ == "__main__":
    unittest.main()
