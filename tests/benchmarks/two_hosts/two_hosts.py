"""Two hosts on one machine: network namespaces with a cable between them.
Processes in them share only processors and files. Needs root and Debian's
iproute2."""

import contextlib
import os
import pathlib
import shutil
import subprocess

PORT = 29500


def missing():
    """Returns why namespaces are impossible here, or ""."""
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
    """Creates both hosts on entry and removes them on exit. The caller owns
    the processes in them."""

    def __init__(self, subnet="10.77.0"):
        self.names = [f"fusor-{os.getpid()}-{host}" for host in "ab"]
        self.addresses = [f"{subnet}.{host}" for host in (1, 2)]
        self.first = self.addresses[0]  # as passed to ranks

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
                # Replaces the machine's default, which may set a timer per
                # packet and take a quarter more processor time.
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
                self.files(name).parent.rmdir()  # only if empty

    @staticmethod
    def files(name):
        """Returns the folder with the files of /etc for processes on that
        host."""
        return pathlib.Path("/etc/netns") / name

    def call_first(self, own_name):
        """Gives the first host a name that means loopback on the host itself,
        as Debian's installer does."""
        for name, address in zip(self.names, ("127.0.1.1", self.addresses[0])):
            self.files(name).mkdir(parents=True)
            (self.files(name) / "hosts").write_text(
                f"127.0.0.1 localhost\n{address} {own_name}\n",
                encoding="utf-8")
        self.first = own_name

    def limit(self, mbit):
        """Limits the rate in each direction. None: no limit."""
        for name in self.names:
            subprocess.run(["tc", "-n", name, "qdisc", "del", "dev", "cable",
                            "root"], check=False, stderr=subprocess.DEVNULL)
            if mbit is not None:
                # The burst is 2 ms, and at least the largest packet, which tc
                # would drop otherwise. The queue holds what a socket may have
                # sent, so that nothing is lost.
                run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root",
                    "tbf", "rate", f"{mbit}mbit", "burst",
                    str(max(80_000, int(mbit * 250))), "limit", "8000000")

    def unplug(self, host):
        run("ip", "-n", self.names[host], "link", "set", "cable", "down")

    def start(self, host, command, environment):
        """Starts the command on that host."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment)

    def start_ranks(self, commands, environment):
        """Starts one command per host as ranks of one run."""
        return [self.start(rank, command,
                           {**environment, "RANK": str(rank), "WORLD_SIZE": "2",
                            "MASTER_ADDR": self.first,
                            "MASTER_PORT": str(PORT)})
                for rank, command in enumerate(commands)]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
