"""Kills, freezes or omits ranks: faults_cli_test.py FUSOR [--trials N]. All
others must exit with code 75 and a line that names the rank, and the run must
resume from its checkpoint. --trials repeats kills and freezes N times and
prints the seconds until the others have exited."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

import rank_case
from rank_case import RankCase, free_port

TRIALS = 0
if "--trials" in sys.argv:
    at = sys.argv.index("--trials")
    TRIALS = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]

PEER_LOST = 75
HOST = socket.gethostname()
# Far longer than needed, since tests share the machine.
PATIENCE = 100
ENDLESS = ["--epochs", 100_000, "-p", 1, "--training-only", "--lr", 0.001]


def settle(run):
    """Returns the exit code of a rank and its stderr."""
    _, errors = run.communicate(timeout=PATIENCE)
    return run.returncode, errors


def hang(pid):
    """Stops only a child's main thread, permanently. Returns False if that is
    not permitted."""
    attach, anything = 16, 0x40000000  # PTRACE_ATTACH, __WALL
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(attach, pid, 0, 0) != 0:
        return False
    os.waitpid(pid, anything)
    return True


class FaultsTest(RankCase):
    def start_all(self, ranks, *args):
        """Starts a run. Waits until it trains and has saved a checkpoint."""
        port = free_port()
        runs = [self.start(rank, ranks, port, *ENDLESS, *args)
                for rank in range(ranks)]
        awaited = "saved     " if "--workspace" in args else "iteration  "
        for line in runs[0].stdout:
            if awaited in line:
                return runs
        self.fail(runs[0].stderr.read())

    def lose(self, signal_number, victim, *args, ranks=3):
        """Returns the seconds until all others have exited. They must name the
        victim."""
        runs = self.start_all(ranks, *args)
        sent = time.monotonic()
        runs[victim].send_signal(signal_number)
        for rank, run in enumerate(runs):
            if rank == victim:
                continue
            code, errors = settle(run)
            self.assertEqual(code, PEER_LOST, errors)
            lines = errors.splitlines()
            self.assertEqual(len(lines), 1, errors)
            self.assertRegex(lines[0],
                             rf"^fusor: rank {victim} on {re.escape(HOST)} is ")
            self.assertIn(f"rank {rank} exits", lines[0])
        seconds = time.monotonic() - sent
        rank_case.end(runs[victim])
        return seconds, lines[0]

    def check_goes_on(self, work):
        report, text = self.train(
            3, *ENDLESS, "--prof", 2, "--workspace", work, "--resume", "auto")
        self.assertIn("resumed", text)
        self.assertIn("parameters are identical on all 3", text)
        self.assertEqual(report["steps"], 2)

    def test_a_killed_rank_ends_all_others(self):
        for victim in (1, 0):
            work = self.root / f"killed-{victim}"
            _, line = self.lose(signal.SIGKILL, victim, "--workspace", work,
                                "--checkpoint-every", 1)
            self.assertIn("gone: the connection ended without a word", line)
            self.check_goes_on(work)

    def test_an_unresponsive_rank_ends_all_others(self):
        for victim in (2, 0):
            work = self.root / f"frozen-{victim}"
            seconds, line = self.lose(
                signal.SIGSTOP, victim, "--workspace", work,
                "--checkpoint-every", 1, "--comm-timeout", 6)
            self.assertIn("frozen or unreachable: not heard of for", line)
            self.assertGreater(seconds, 4)
            self.check_goes_on(work)

    def test_a_rank_that_pauses_for_less_is_waited_for(self):
        runs = self.start_all(2, "--comm-timeout", 60)
        runs[1].send_signal(signal.SIGSTOP)
        time.sleep(1)
        runs[1].send_signal(signal.SIGCONT)
        for _ in range(3):
            self.assertIn("iteration", runs[0].stdout.readline())
        for run in runs:
            run.send_signal(signal.SIGTERM)
        for run in runs:
            code, errors = settle(run)
            self.assertEqual(code, 128 + signal.SIGTERM, errors)

    def hang_one(self):
        """Returns what ranks 0 and 2 print once the main thread of 1 hangs."""
        runs = self.start_all(3, "--comm-timeout", 6)
        if not hang(runs[1].pid):
            self.skipTest("no ptrace")
        printed = {}
        for rank in (0, 2):
            code, printed[rank] = settle(runs[rank])
            self.assertEqual(code, PEER_LOST, printed[rank])
        rank_case.end(runs[1])
        return printed

    def test_a_rank_whose_main_thread_hangs_is_named_by_all(self):
        # If it hangs inside a collective, it has begun as many as the others,
        # and none can be named.
        for _ in range(3):
            printed = self.hang_one()
            if not any("Timed out waiting" in text
                       for text in printed.values()):
                break
        for rank, errors in printed.items():
            self.assertRegex(
                errors, rf"^fusor: rank 1 on {re.escape(HOST)} is stuck: \d+ "
                r"collectives begun, others \d+, and none for 6.0 s; rank "
                rf"{rank} exits")

    def test_a_missing_rank_is_named_by_all(self):
        port = free_port()
        runs = [self.start(rank, 3, port, "--comm-timeout", 2)
                for rank in (0, 2)]
        for run in runs:
            code, errors = settle(run)
            self.assertEqual(code, PEER_LOST, errors)
            self.assertIn("rank 1 is missing after 2 s", errors)

    def test_a_rank_that_fails_tells_the_others_why(self):
        full = ["--log-jsonl", "/dev/full"]
        port = free_port()
        runs = [self.start(rank, 2, port, *ENDLESS, *full) for rank in (0, 1)]
        code, errors = settle(runs[0])
        self.assertEqual(code, 2, errors)
        self.assertIn("cannot write /dev/full", errors)
        code, errors = settle(runs[1])
        self.assertEqual(code, PEER_LOST, errors)
        self.assertIn(f"fusor: rank 0 on {HOST} failed: cannot write /dev/full",
                      errors)

    @unittest.skipIf(TRIALS == 0, "measures only when told how often")
    def test_how_long_it_takes(self):
        timeout = 5
        for name, number in (("kill", signal.SIGKILL),
                             ("freeze", signal.SIGSTOP)):
            seconds = sorted(
                self.lose(number, trial % 4, "--comm-timeout", timeout,
                          ranks=4)[0] for trial in range(TRIALS))
            print(f"{name}: {TRIALS} of {TRIALS} named the rank; all others "
                  f"ended after {seconds[TRIALS // 2]:.2f} s in the median, "
                  f"{seconds[-1]:.2f} s at most (timeout {timeout} s)")


if __name__ == "__main__":
    unittest.main()
