"""Two hosts on one machine: network namespaces with a cable between them.

What runs in them shares nothing but processors and files. Needs root and
Debian's iproute2.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess

PORT = 29500


def missing():
    """Why there can be none here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"no {program}: install iproute2"
    probe = f"fusor-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True,
                          text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


class TwoHosts:
    """Made on entry, gone on exit; processes in them are the caller's."""

    def __init__(self, subnet="10.77.0"):
        self.names = [f"fusor-{os.getpid()}-{host}" for host in "ab"]
        self.addresses = [f"{subnet}.{host}" for host in (1, 2)]
        self.first = self.addresses[0]  # as ranks are told it

    def __enter__(self):
        a, b = self.names
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            run("ip", "link", "add", "cable", "netns", a, "type", "veth",
                "peer", "name", "cable", "netns", b)
            for name, address in zip(self.names, self.addresses):
                run("ip", "-n", name, "address", "add", f"{address}/24", "dev",
                    "cable")
                run("ip", "-n", name, "link", "set", "lo", "up")
                # In place of the machine's own choice, which may be one that
                # sets a timer a packet: a quarter more processor time.
                run("ip", "netns", "exec", name, "sh", "-c", "echo reno > "
                    "/proc/sys/net/ipv4/tcp_congestion_control")
                run("ip", "-n", name, "link", "set", "cable", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False,
                           stderr=subprocess.DEVNULL)
            shutil.rmtree(self.files(name), ignore_errors=True)
            with contextlib.suppress(OSError):
                self.files(name).parent.rmdir()  # if it is empty

    @staticmethod
    def files(name):
        """What stands in /etc for processes of that host."""
        return pathlib.Path("/etc/netns") / name

    def call_first(self, own_name):
        """The first host gets a name, which means loopback to itself, as
        Debian's installer writes it."""
        for name, address in zip(self.names, ("127.0.1.1", self.addresses[0])):
            self.files(name).mkdir(parents=True)
            (self.files(name) / "hosts").write_text(
                f"127.0.0.1 localhost\n{address} {own_name}\n",
                encoding="utf-8")
        self.first = own_name

    def limit(self, mbit):
        """In each direction; None: as fast as the machine copies."""
        for name in self.names:
            subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "cable",
                            "root"], check=False, stderr=subprocess.DEVNULL)
            if mbit is not None:
                # A burst of 2 ms, and of the largest packets that there are,
                # else tc cuts them; a queue that holds what a socket may have
                # sent, so that nothing is lost.
                run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root",
                    "tbf", "rate", f"{mbit}mbit", "burst",
                    str(max(80_000, int(mbit * 250))), "limit", "8000000")

    def unplug(self, host):
        run("ip", "-n", self.names[host], "link", "set", "cable", "down")

    def start(self, host, command, environment):
        """The command on that host."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment)

    def start_ranks(self, commands, environment):
        """A command a host, each a rank of one run."""
        return [self.start(rank, command,
                           {**environment, "RANK": str(rank), "WORLD_SIZE": "2",
                            "MASTER_ADDR": self.first,
                            "MASTER_PORT": str(PORT)})
                for rank, command in enumerate(commands)]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
