"""Two hosts on one machine: network namespaces joined by a cable, each with its own name and hosts
file.

`ip netns exec` lays what is in /etc/netns/NAME over /etc; here that is a link to a temporary
folder, so each host has its own /etc/hosts. Each resolves its own name to the address that the
other one reaches, as Gloo needs it (Debian's usual 127.0.1.1 would not do). `ssh` is a script that
enters the other namespace, with an empty environment as a login has it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NETNS_ETC = Path("/etc/netns")
INTERFACE = "eth0"  # of the same name on both hosts, since horovodrun looks for a common one
DOCKER = "docker0"  # as on many machines: the same address on each, and no route to the other
DOCKER_ADDRESS = "172.17.0.1/16"
NETWORK = "192.0.2"  # set aside for examples (RFC 5737); nothing outside the two namespaces sees it
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # where a plain user's PATH does not look

SSH = """\
#!/bin/sh
host=
while [ $# -gt 0 ]; do
    case "$1" in -o|-p|-i) shift 2;; -*) shift;; *) [ -z "$host" ] || break; host=$1; shift;; esac
done
exec env -i PATH="$PATH" HOME="$HOME" ip netns exec "$host" unshare --uts sh -c \
    'echo "$0" > /proc/sys/kernel/hostname && exec sh -c "$1"' "$host" "$*"
"""
# sh, with the name as $0 and the command as arguments: its UTS namespace is its own, so nobody else
# is renamed
BECOME = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'


@dataclass(frozen=True)
class Host:
    """A namespace that looks like a machine; its name is also that of the namespace."""

    name: str
    address: str
    folder: Path

    @property
    def etc(self) -> Path:
        """What lies over its /etc."""
        return self.folder / "etc"

    def line(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` there."""
        enter = f"{find('ip')} netns exec {self.name} unshare --uts sh -c".split()
        return [*enter, BECOME, self.name, *command]

    def processes(self) -> set[int]:
        """Everything that runs there; nothing was there before us."""
        return {int(pid) for pid in run(["ip", "netns", "pids", self.name]).split()}


@dataclass(frozen=True)
class TwoHosts:
    """Both hosts; a command that they run has `ssh` on its PATH."""

    first: Host
    second: Host
    folder: Path

    def run(
        self,
        commands: Mapping[Host, Sequence[str]],
        environment: Mapping[str, str],
        *,
        timeout: float,
    ) -> list[tuple[int | None, str]]:
        """Run a command on each host of `commands` at once.

        Afterwards none of what they started is left, anywhere.

        Returns exit codes and outputs. The code is None where a command was killed, since its time
        was up or the other host's failed. Output goes through files: a pipe stays open as long as
        some grandchild on the other host has it.
        """
        outputs = {host: self.folder / f"{host.name}.txt" for host in commands}
        started: dict[Host, subprocess.Popen[bytes]] = {}
        try:
            for host, command in commands.items():
                with outputs[host].open("wb") as file:
                    started[host] = subprocess.Popen(
                        host.line(command),
                        cwd=self.folder,
                        env={
                            **environment,
                            "PATH": f"{self.folder / 'bin'}:{environment['PATH']}:{SBIN}",
                        },
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                    )
            wait(list(started.values()), timeout)
            codes = {host: process.poll() for host, process in started.items()}
        finally:
            self.clear()
            for process in started.values():
                process.kill()
                process.wait(10)
        return [(codes[host], outputs[host].read_text(errors="replace")) for host in commands]

    def clear(self) -> None:
        """End what is left on both hosts, until nothing is: a killed parent may just have had a
        child.
        """
        deadline = time.monotonic() + 20
        while left := self.first.processes() | self.second.processes():
            assert time.monotonic() < deadline, f"processes {sorted(left)} do not end"
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Build two hosts whose files are in `folder`.

    Whatever happens, namespaces and processes are gone afterwards; their cable goes with them.
    Raises CannotRun where this machine does not allow network namespaces.
    """
    with ExitStack() as stack:
        first, second = (
            Host(f"retina-{os.getpid()}-{letter}", f"{NETWORK}.{number}", folder / letter)
            for number, letter in enumerate("ab", start=1)
        )
        for host in (first, second):
            write_hosts_file(host, [first, second])
            stack.enter_context(namespace(host))
        hosts = TwoHosts(first, second, folder)
        stack.callback(hosts.clear)
        connect(first, second)
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(SSH)
        (folder / "bin" / "ssh").chmod(0o755)
        yield hosts


class CannotRun(RuntimeError):
    """A command that failed, in one line with what it said."""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a short command and return its output; raises CannotRun."""
    try:
        done = subprocess.run(
            command, env=environment or with_sbin(), capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(str(error)) from error
    if done.returncode:
        raise CannotRun(
            f"{' '.join(command[:4])}: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"
        )
    return done.stdout


def find(program: str) -> str | None:
    return shutil.which(program, path=with_sbin()["PATH"])


def with_sbin() -> dict[str, str]:
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), SBIN])}


def wait(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
    """Until all have ended, one has failed (the others may never notice), or the time is up."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if any(codes) or None not in codes:
            return
        time.sleep(0.1)


@contextmanager
def namespace(host: Host) -> Iterator[None]:
    """The host's network namespace, with its folder over /etc."""
    overlay = NETNS_ETC / host.name
    with ExitStack() as stack:
        NETNS_ETC.mkdir(exist_ok=True)
        overlay.symlink_to(host.etc, target_is_directory=True)
        stack.callback(overlay.unlink)
        run(["ip", "netns", "add", host.name])
        stack.callback(run, ["ip", "netns", "delete", host.name])
        yield


def write_hosts_file(host: Host, everyone: Sequence[Host]) -> None:
    host.etc.mkdir(parents=True)
    entries = ["127.0.0.1 localhost", *(f"{other.address} {other.name}" for other in everyone)]
    (host.etc / "hosts").write_text("\n".join(entries) + "\n")


def cable(first: str, second: str) -> list[str]:
    """Makes both ends within the namespaces, so that no interface is ever seen outside."""
    return [
        "ip",
        "link",
        "add",
        INTERFACE,
        "netns",
        first,
        "type",
        "veth",
        "peer",
        "name",
        INTERFACE,
        "netns",
        second,
    ]


def connect(first: Host, second: Host) -> None:
    """Plug the cable in, and give each host an interface that leads nowhere."""
    run(cable(first.name, second.name))
    for host in (first, second):
        ip = ["ip", "-n", host.name]
        run([*ip, "link", "add", DOCKER, "type", "veth", "peer", "name", f"{DOCKER}-end"])
        run([*ip, "address", "add", DOCKER_ADDRESS, "dev", DOCKER])
        run([*ip, "address", "add", f"{host.address}/24", "dev", INTERFACE])
        for interface in ("lo", INTERFACE, DOCKER, f"{DOCKER}-end"):
            run([*ip, "link", "set", interface, "up"])
