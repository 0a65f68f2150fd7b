"""Other launchers start ranks: launchers_cli_test.py FUSOR. Uses Open MPI's
mpirun, which tools/setup.sh installs."""

import json
import os
import pathlib
import signal
import subprocess
import unittest

from rank_case import FUSOR, SIZE, RankCase, end, environment, free_port

# Permits root in a container, and more ranks than the machine has cores.
MPIRUN = environment(OMPI_ALLOW_RUN_AS_ROOT="1",
                     OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                     OMPI_MCA_rmaps_base_oversubscribe="1")
RUN = ["--iterations", "5", "--lr", "0.01", "--training-only"]


class LaunchersTest(RankCase):
    def mpirun(self, ranks, *args):
        # mpirun may mix the bytes of characters that two ranks print at once.
        return subprocess.run(
            ["mpirun", "-n", str(ranks), FUSOR, "train", self.data, *SIZE, *RUN,
             *map(str, args)],
            capture_output=True, text=True, errors="replace", timeout=300,
            check=False,
            env=MPIRUN | {"FUSOR_CACHE_DIR": str(self.root / "cache")})

    def test_ranks_of_mpirun_are_those_of_fusor_launch(self):
        for ranks in (2, 4):
            out = self.root / f"mpirun-{ranks}.json"
            done = self.mpirun(ranks, "--json", out)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(
                done.stdout,
                rf"ranks     {ranks} by Open MPI: 0-{ranks - 1} on .*; gloo "
                r"over lo \(127.0.0.1\), rank 0 at 127.0.0.1:\d+\n")
            self.assertIn(f"parameters are identical on all {ranks}",
                          done.stdout)
            launched, _ = self.train(ranks, *RUN)
            report = json.loads(out.read_text())
            self.assertEqual(report["ranks"], ranks)
            self.assertEqual(report["losses"], launched["losses"])
            self.assertEqual(report["parameter_hash"],
                             launched["parameter_hash"])

    def two_nodes(self, *args):
        """Starts launchers of one rank each, as on two hosts."""
        port = free_port()
        nodes = [self.launch(
            "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 1,
            "--master-port", port, "--token", "word", "--", "train", self.data,
            *SIZE, *args) for node in (0, 1)]
        for node in nodes:
            self.addCleanup(end, node)
        return nodes

    def hosts(self, *args):
        """Starts a launcher for two hosts. The second is this host, too,
        reached by a stand-in for ssh that runs the command in a shell."""
        ssh = self.root / "bin" / "ssh"
        ssh.parent.mkdir(exist_ok=True)
        ssh.write_text('#!/bin/bash\necho "$@" >>"$0.log"\n'
                       'cd / && exec bash -c "${@: -1}"\n')
        ssh.chmod(0o755)
        run = subprocess.Popen(
            [FUSOR, "launch", *map(str, args)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=self.root, env=environment(
                FUSOR_CACHE_DIR=str(self.root / "cache"),
                PATH=f"{ssh.parent}:{os.environ['PATH']}"))
        self.addCleanup(end, run)
        return run

    def test_ranks_of_several_hosts_start_by_ssh(self):
        out = self.root / "hosts.json"
        run = self.hosts("-H", "127.0.0.1:1,127.0.0.2:1", "train", self.data,
                         *SIZE, *RUN, "--json", "hosts.json")
        text, errors = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 0, errors)
        self.assertIn("ranks     2 by fusor launch: 0-1 on ", text)
        launched, _ = self.train(2, *RUN)
        report = json.loads(out.read_text())
        self.assertEqual(report["parameter_hash"], launched["parameter_hash"])
        words = (self.root / "bin" / "ssh.log").read_text().split()
        self.assertEqual(words[:3], ["-o", "BatchMode=yes", "127.0.0.2"])

    def test_signals_reach_other_hosts(self):
        run = self.hosts("-H", "127.0.0.1,127.0.0.2", "train", self.data, *SIZE,
                         "--epochs", 10_000, "--training-only", "-p", 1,
                         "--workspace", "out")
        for line in run.stdout:
            if line.startswith("epoch"):
                break
        run.send_signal(signal.SIGTERM)
        run.stdout.read()
        self.assertEqual(run.wait(100), 128 + signal.SIGTERM,
                         run.stderr.read())
        self.assertTrue((self.root / "out" / "model.safetensors").exists())

    def test_hosts_that_cannot_be_used_are_named(self):
        for hosts, message in (
                ("a:2,b:1", "--hosts: expected the same number of ranks on "
                 "each host, got a:2 and b:1"),
                ("a:x", "--hosts: expected NAME:RANKS, got a:x"),
                ("a:0", "--hosts: expected NAME:RANKS, got a:0"),
                ("-oProxyCommand=x", "--hosts: expected NAME:RANKS, got "
                 "-oProxyCommand=x")):
            done = self.launch(f"--hosts={hosts}", "train")
            _, errors = done.communicate(timeout=100)
            self.assertEqual((done.returncode, errors.strip()),
                             (2, f"fusor: {message}"))
        done = self.launch("-H", "no-such-host", "train")
        _, errors = done.communicate(timeout=100)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(errors, r"fusor launch: host no-such-host ended with "
                         r"exit code \d+\n")

    def launch(self, *args):
        return subprocess.Popen(
            [FUSOR, "launch", *map(str, args)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment(
                FUSOR_CACHE_DIR=str(self.root / "cache")))

    def test_launchers_of_two_nodes_make_one_run(self):
        out = self.root / "nodes.json"
        nodes = self.two_nodes(*RUN, "--json", out)
        text, errors = nodes[0].communicate(timeout=300)
        self.assertEqual(nodes[0].returncode, 0, errors)
        self.assertEqual(nodes[1].wait(100), 0)
        self.assertIn("ranks     2 by fusor launch: 0-1 on ", text)
        launched, _ = self.train(2, *RUN)
        report = json.loads(out.read_text())
        self.assertEqual(report["parameter_hash"], launched["parameter_hash"])

    def test_a_launcher_names_the_failed_rank_and_ends_the_others(self):
        run = self.launch("--nproc-per-node", 2, "--grace", 1, "--", "train",
                          self.data, *SIZE, *RUN, "--resume", "nowhere")
        _, errors = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 5, errors)
        self.assertRegex(
            errors, r"fusor launch: rank [01] ended with exit code 5\n")
        run = self.launch("--nnodes", 2, "--node-rank", 2, "--", "train")
        _, errors = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 2, errors)
        self.assertIn("--node-rank: expected a number below 2, got 2", errors)

    def test_a_lost_rank_is_one_exit_code_to_all_launchers(self):
        nodes = self.two_nodes("--epochs", 1000, "-p", 1, "--training-only")
        for line in nodes[0].stdout:
            if "iteration  " in line:
                break
        launcher = nodes[1].pid
        children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children")
        os.kill(int(children.read_text()), signal.SIGKILL)
        for node in nodes:
            _, errors = node.communicate(timeout=100)
            self.assertEqual(node.returncode, 75, errors)
        self.assertIn("fusor launch: rank 1 was killed by signal 9\n", errors)

    def test_mpirun_hands_on_the_exit_code(self):
        done = self.mpirun(2, "--resume", self.root / "nowhere")
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("nowhere", done.stderr)

    def test_a_signal_to_mpirun_leaves_a_checkpoint(self):
        work = self.root / "signal"
        run = subprocess.Popen(
            ["mpirun", "-n", "2", FUSOR, "train", self.data, *SIZE, "--epochs",
             "100000", "-p", "1", "--training-only", "--lr", "0.001",
             "--workspace", work],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=MPIRUN | {"FUSOR_CACHE_DIR": str(self.root / "cache")})
        self.addCleanup(end, run)
        for line in run.stdout:
            if "iteration  " in line:
                break
        run.send_signal(signal.SIGUSR1)
        _, errors = run.communicate(timeout=100)
        self.assertEqual(run.returncode, 128 + signal.SIGUSR1, errors)
        _, text = self.train(2, "--epochs", 100_000, "--prof", 1, "--lr", 0.001,
                             "--training-only", "--workspace", work,
                             "--resume", "auto")
        self.assertIn("resumed", text)


if __name__ == "__main__":
    unittest.main()
