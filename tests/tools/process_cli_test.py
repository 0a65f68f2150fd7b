"""Tests the programs as processes: signals, terminals and memory.
process_cli_test.py FOLDER with fusor and rn50 in FOLDER."""

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import termios
import time
import unittest

from cli_case import DEVICE, MEMORY, TINY, CliTest


class SignalsTest(CliTest):

    def read_until(self, process, word):
        self.addCleanup(process.kill)
        for line in process.stdout:
            if word in line:
                return
        self.fail(process.communicate()[1])

    def interrupted(self, number):
        """Returns a run that is told to stop after its first step."""
        out = self.folder / "out"
        # The tests themselves may run under nohup.
        process = self.start(
            *TINY, "--iterations", "1000000", "--print-freq", "1",
            "--workspace", out, "--json", out / "a.json",
            preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
        self.read_until(process, "iteration")
        # Sends it twice, as timeout(1) does.
        process.send_signal(number)
        process.send_signal(number)
        process.communicate(timeout=100)
        self.assertEqual(process.returncode, 128 + number)
        self.assertEqual(sorted(p.name for p in out.iterdir()),
                         ["a.json", "checkpoints", "model.safetensors"])
        report = json.loads((out / "a.json").read_text())
        self.assertTrue(report["interrupted"])
        self.assertEqual(len(report["losses"]), report["steps"])
        self.assertLess(report["steps"], 1000000)

    def test_one_signal_ends_the_run_after_the_step_and_saves(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1,
                       signal.SIGHUP, signal.SIGUSR2, signal.SIGXCPU,
                       signal.SIGPIPE):
            self.interrupted(number)
            shutil.rmtree(self.folder / "out")

    def test_ranks_that_a_terminal_stops_save(self):
        """Ctrl-C reaches the launcher and its ranks, and the launcher forwards
        it."""
        out = self.folder / "out"
        process = self.start(
            "launch", "--nproc-per-node", "2", "--", *TINY, "--iterations",
            "1000000", "--print-freq", "1", "--workspace", out,
            start_new_session=True)
        self.read_until(process, "iteration")
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertEqual(sorted(p.name for p in out.iterdir()),
                         ["checkpoints", "model.safetensors"])

    def test_a_terminal_that_goes_away_ends_the_run_and_saves(self):
        def take_terminal():
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            os.setsid()
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)

        out = self.folder / "out"
        leader, follower = pty.openpty()
        process = self.start(*TINY, "--iterations", "1000000", "--print-freq",
                             "1", "--workspace", out, stdin=follower,
                             stdout=follower, stderr=follower,
                             preexec_fn=take_terminal)
        self.addCleanup(process.kill)
        os.close(follower)
        shown = b""
        while b"iteration" not in shown:
            shown += os.read(leader, 1 << 16)
        os.close(leader)
        self.assertEqual(process.wait(timeout=100), 128 + signal.SIGHUP)
        self.assertEqual(sorted(p.name for p in out.iterdir()),
                         ["checkpoints", "model.safetensors"])

    def test_a_reader_that_goes_away_ends_the_run_and_saves(self):
        """`fusor train | head`, and Ctrl-C in `fusor train | tee log`."""
        for interrupts in False, True:
            out = self.folder / f"out-{interrupts}"
            process = self.start(*TINY, "--iterations", "1000000",
                                 "--print-freq", "1", "--workspace", out)
            self.read_until(process, "iteration")
            if interrupts:
                process.send_signal(signal.SIGINT)
            process.stdout.close()
            self.assertEqual(process.wait(timeout=100), 128 + (
                signal.SIGINT if interrupts else signal.SIGPIPE))
            self.assertEqual(process.stderr.read(), "")
            self.assertEqual(sorted(p.name for p in out.iterdir()),
                             ["checkpoints", "model.safetensors"])
        for args in (["--help"], ["dump", "-a", "resnet50", "-b", "1",
                                  "--emit", "graph"], ["doctor"]):
            process = self.start(*args)
            process.stdout.close()
            self.assertEqual(process.wait(timeout=100), 128 + signal.SIGPIPE)
            self.assertEqual(process.stderr.read(), "")
            process.stderr.close()

    def test_nohup_continues(self):
        process = self.start(
            *TINY, "--iterations", "30", "--print-freq", "1",
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.read_until(process, "iteration")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=100)
        self.assertEqual(process.returncode, 0)

    def test_a_second_signal_ends_it_at_once(self):
        process = self.start(
            "train", "--synthetic", "--arch", "resnet18", "--image-size",
            "224", "-b", "64", "--threads", "1", "--workspace", self.folder,
            "--print-freq", "1")
        self.read_until(process, "iteration")
        time.sleep(0.2)  # during the next step
        # The system repeats XCPU until the process ends.
        for number in signal.SIGXCPU, signal.SIGXCPU, signal.SIGPIPE:
            process.send_signal(number)
            with self.assertRaises(subprocess.TimeoutExpired):
                process.wait(timeout=0.4)  # a step takes seconds
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(stderr, "")
        self.assertEqual(self.listing(), [])


class TerminalTest(CliTest):

    def on_terminal(self, columns, *args, typed=None, code=0, after=b""):
        """Returns what the command prints on its own terminal. Types `typed`
        once `after` has appeared."""
        def take_terminal():
            os.setsid()
            fcntl.ioctl(2, termios.TIOCSCTTY, 0)

        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ,
                    struct.pack("HHHH", 24, columns, 0, 0))
        process = self.start(*args, stdin=follower, stdout=follower,
                             stderr=follower, preexec_fn=take_terminal)
        self.addCleanup(process.kill)
        os.close(follower)
        drawn = b""
        # Output arrives in parts, followed by an error.
        with contextlib.suppress(OSError):
            while part := os.read(leader, 1 << 16):
                drawn += part
                if typed and after in drawn:
                    os.write(leader, typed)
                    typed = None
        os.close(leader)
        self.assertEqual(process.wait(timeout=100), code, drawn)
        return drawn.decode()

    def test_a_terminal_shows_progress_and_a_file_does_not(self):
        run = ("train", self.samples, "--arch", "resnet18", "--image-size",
               "32", "-b", "5", "--epochs", "1", "--print-freq", "2")
        for columns in 30, 80:
            drawn = self.on_terminal(columns, *run)
            self.assertRegex(drawn, r"\r(train  )?4/4 ")
            self.assertRegex(drawn, r"\r(eval  )?1/1 ")
            self.assertRegex(drawn, r" \d+:\d\d left")
            if columns == 80:
                self.assertIn("[=====", drawn)
            self.expect_clean(drawn, columns)
            self.assertEqual(len(re.findall(
                r"^epoch   0  iteration +[24]/4", drawn.replace("\x1b[K", "\n"),
                re.M)), 2)
        bench = self.on_terminal(80, "bench", *run[2:8], "--warmup", "1",
                                 "--iterations", "99")
        self.assertRegex(bench,
                         r"\rbench +0/100 .*\rbench +[1-9]\d*/100 .* left")
        self.expect_clean(bench, 80)
        out = self.folder / "out"
        evaluation = ("eval", *run[1:6], "-b", "2", "--weights",
                      out / "model.safetensors")
        for command in (*run, "--workspace", out), evaluation:
            plain = self.succeeds(*command)
            self.assertEqual(plain.stderr, "")
            self.assertNotIn("\r", plain.stdout)
        drawn = self.on_terminal(80, *evaluation)
        self.assertRegex(drawn, r"\reval  1/3 \[=.*\reval  3/3 \[=+\] 100 %")
        self.expect_clean(drawn, 80)

    def test_ctrl_c_leaves_separate_lines(self):
        drawn = self.on_terminal(
            80, *TINY, "--iterations", "1000000", "--workspace",
            self.folder / "out", typed=b"\x03", after=b" left",
            code=128 + signal.SIGINT)
        lines = self.expect_clean(drawn, 80)
        self.assertTrue([line for line in lines
                         if re.match(r"saved     .*model.safetensors$", line)])

    def expect_clean(self, drawn, columns):
        """Checks that status lines fit into a line, and that none is left over
        or joined with text. Returns the lines that a user finally sees."""
        shown = re.findall(r"\r([^\r\n]+)\x1b\[K", drawn)
        self.assertTrue(shown)
        for line in shown:
            self.assertLess(len(line), columns)
        lines, column = [""], 0
        for part in re.split(r"(\r\n|\r|\x1b\[K)", drawn):
            if part == "\r\n":
                lines.append("")
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif part != "\r":
                rest = lines[-1][column + len(part):]
                lines[-1] = lines[-1][:column] + part + rest
                column += len(part)
            if part in ("\r", "\r\n"):
                column = 0
        for line in lines:
            self.assertNotRegex(line, r" left$|\d/\d+ \[|\^C")
        return lines


AVX512 = "avx512" in pathlib.Path("/proc/cpuinfo").read_text()
# Permitted difference relative to the predicted memory. It is larger without
# AVX-512: there the interpreter runs bf16 and oneDNN multiplies matrices, and
# both allocate unplanned memory.
PEAK_TOLERANCE = 0.03 if AVX512 else 0.08


class MemoryTest(CliTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # The prediction includes what compiling needs.
        cls.environment["FUSOR_CACHE_DIR"] = str(cls.shared / "cache")

    def peak_bytes(self, *args, **options):
        process = self.start(*args, stdout=subprocess.DEVNULL, **options)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors = process.stderr.read()
        process.stderr.close()
        self.assertEqual(process.returncode, 0, errors)
        return usage.ru_maxrss << 10

    def test_the_largest_batch_needs_what_was_predicted(self):
        """Measures the whole life of the run, including start-up and
        runtime."""
        amp = ["--amp"] if AVX512 else []
        for memory, *model in (("250", "-a", "resnet20-cifar"),
                               ("420", "-a", "resnet18", "--image-size", "32",
                                *amp)):
            found = self.json_of("bench", *model, "--find-max-batch",
                                 "--memory", memory)
            peak = self.peak_bytes("bench", *model, "-b", found["batch_size"],
                                   "--warmup", "1", "--iterations", "2")
            self.assertAlmostEqual(peak / found["needed_bytes"], 1,
                                   delta=PEAK_TOLERANCE,
                                   msg=f"{model} {found}")

    def test_saving_and_loading_need_what_was_predicted(self):
        """A run that saves has one copy of its state, a run that loads has
        none."""
        model = ("-a", "resnet18", "--image-size", "32", "-b", "2",
                 "--num-classes", "32768")
        weights_and_momentum = 2 * 4 * (11176512 + 32768 * 513)
        train = ("train", "--synthetic", *model, "--iterations", "1")
        out, more = self.folder / "out", self.folder / "more"
        weights, exported = out / "model.safetensors", self.folder / "m.onnx"
        found = {}
        for name, args in (
                ("plain", train),
                ("saves", (*train, "--workspace", out)),
                ("resumes", (*train[:-1], "2", "--resume", out)),
                ("resumes and saves", (*train[:-1], "2", "--resume", out,
                                       "--workspace", more)),
                ("pretrained", (*train, "--pretrained-weights", weights)),
                ("trains, evaluates larger images",
                 ("train", self.samples, *model, "--epochs", "1",
                  "--val-crop-size", "448")),
                ("evaluates", ("eval", self.samples, *model, "--weights",
                               weights)),
                ("evaluates ONNX", ("eval", self.samples, "-a", exported,
                                    *model[4:]))):
            with self.subTest(name):
                if exported in args:
                    self.succeeds("export", *model[:4], *model[6:], "--weights",
                                  weights, "-o", exported)
                file = self.folder / "report.json"
                peak = self.peak_bytes(*args, "--json", file)
                report = json.loads(file.read_text())
                found[name] = report["needed_bytes"]
                self.assertAlmostEqual(peak / found[name], 1,
                                       delta=PEAK_TOLERANCE)
        for name, expected in (("saves", weights_and_momentum),
                               ("resumes", 0), ("pretrained", 0),
                               ("resumes and saves", weights_and_momentum)):
            self.assertAlmostEqual(found[name] - found["plain"], expected,
                                   delta=0.05 * found["plain"], msg=name)
        self.assertLess(found["evaluates"], found["plain"])

    def test_the_start_of_a_large_state_needs_what_was_predicted(self):
        """VGG16 has 1.1 GB of state, and little else on small images."""
        file = self.folder / "report.json"
        peak = self.peak_bytes("bench", "-a", "vgg16", "--image-size", "32",
                               "-b", "2", "--warmup", "0", "--iterations", "1",
                               "--json", file)
        needed = json.loads(file.read_text())["needed_bytes"]
        self.assertAlmostEqual(peak / needed, 1, delta=PEAK_TOLERANCE)

    def test_too_little_address_space_is_one_line(self):
        """Whatever fails to be allocated: a library, a thread, a pass, an
        arena."""
        done = 0
        for mib in range(80, 600, 8):
            with self.subTest(mib=mib):
                limit = (mib << 20, mib << 20)
                run = self.call(*TINY, "--iterations", "1", preexec_fn=lambda:
                                resource.setrlimit(resource.RLIMIT_AS, limit))
                # OpenMP's library ends the program itself.
                if run.stderr.startswith("\nlibgomp: Out of memory"):
                    continue
                self.assertIn(run.returncode, (0, DEVICE, MEMORY), run.stderr)
                self.assertRegex(run.stderr, r"\A(fusor: [^\n]+\n)?\Z")
                self.assertEqual(run.returncode == 0, run.stderr == "")
                self.assertNotIn("-", re.findall(r"free are (.)", run.stderr))
                done = done + 1 if run.returncode == 0 else 0
            if done == 3:
                return
        self.fail("no run succeeded")

    def test_the_largest_batch_of_a_control_group_is_not_killed(self):
        limit = 300 << 20
        group = self.control_group(limit)
        enter = {"preexec_fn": lambda: (group / "cgroup.procs").write_text(
            str(os.getpid()))}
        model = ("bench", "-a", "resnet20-cifar")
        found = json.loads(self.succeeds(*model, "--find-max-batch", "--json",
                                         "-", **enter).stdout)
        self.assertGreater(found["batch_size"], 50)
        self.assertLess(sum(found["arena_bytes"].values()), limit)
        self.peak_bytes(*model, "-b", found["batch_size"], "--warmup", "1",
                        "--iterations", "2", **enter)

    def control_group(self, limit):
        """Returns a control group below this process's own, if it may create
        one."""
        for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            top, name = {"0": ("/sys/fs/cgroup", "memory.max")}.get(
                number, ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"))
            if number != "0" and controllers != "memory":
                continue
            group = pathlib.Path(top + path) / f"fusor_test_{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir()
                self.addCleanup(group.rmdir)
                (group / name).write_text(str(limit))
                return group
        self.skipTest("no control group may be made here")

    def test_no_batch_is_advised_for_a_state_that_does_not_fit(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (1200 << 20, 1200 << 20))

        message = self.fails(MEMORY, ["batch size 4 does not fit; no batch size "
                                      "fits (state 1055."],
                             "bench", "-a", "vgg16", "--image-size", "32",
                             "-b", "4", preexec_fn=limit)
        self.assertNotRegex(message, r"batch size \d+ fits")


if __name__ == "__main__":
    unittest.main()
