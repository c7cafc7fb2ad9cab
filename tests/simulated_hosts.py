"""Simulated hosts: network, UTS and mount namespaces on a bridge, so that real launchers see several machines.

Needs root on Linux with unshare, nsenter and ip. Everything that is started is ended, whatever happens in between.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

_SLEEP = ("sleep", "1800")  # an upper bound, should the tests be killed


def why_unavailable():
    """Why hosts can't be simulated here, or None."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} isn't installed"
    done = subprocess.run(["unshare", "-n", "-u", "-m", "true"], capture_output=True, text=True, check=False)
    return f"namespaces aren't allowed: {done.stderr.strip()}" if done.returncode else None


class SimulatedHosts:
    """Hosts by name with addresses 10.9.0.1, …; a context manager. All share the files of this machine.

    ``aliases``: other names of hosts, for /etc/hosts; ``mounts``: per host, files to put over others.
    """

    def __init__(self, names, folder, *, aliases=None):
        self.names = list(names)
        self._folder = Path(folder)
        self._aliases = aliases or {}
        self._stack = contextlib.ExitStack()
        self._pids = {}

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._stack = stack
            bridge = self._hold("unshare", "-n")
            self._inside(bridge, "-n", "ip", "link", "add", "br0", "type", "bridge")
            self._inside(bridge, "-n", "ip", "link", "set", "br0", "up")
            lines = ["127.0.0.1 localhost"]
            for index, name in enumerate(self.names):
                lines.append(" ".join([f"10.9.0.{index + 1}", name, *self._aliases.get(name, ())]))
            hosts_file = self._folder / "hosts"
            hosts_file.write_text("\n".join(lines) + "\n")
            for index, name in enumerate(self.names):
                pid = self._pids[name] = self._hold("unshare", "-n", "-u", "-m")
                self._inside(pid, "-u", "hostname", name)
                self._inside(pid, "-m", "mount", "--bind", str(hosts_file), "/etc/hosts")
                self._inside(
                    bridge, "-n", "ip", "link", "add", f"b{index}", "type", "veth",
                    "peer", "name", "eth0", "netns", str(pid),
                )  # fmt: skip
                self._inside(bridge, "-n", "ip", "link", "set", f"b{index}", "master", "br0", "up")
                self._inside(pid, "-n", "ip", "addr", "add", f"10.9.0.{index + 1}/24", "dev", "eth0")
                self._inside(pid, "-n", "ip", "link", "set", "eth0", "up")
                self._inside(pid, "-n", "ip", "link", "set", "lo", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()

    def pid(self, name):
        """The process that holds the namespaces of a host."""
        return self._pids[name]

    def start(self, name, command, *, environment=None, folder=None, output=None):
        """Start a command on a host, in a session of its own."""
        stream = subprocess.DEVNULL if output is None else open(output, "wb")  # noqa: SIM115  closed below
        try:
            return subprocess.Popen(
                ["nsenter", "-t", str(self._pids[name]), "-n", "-u", "-m", f"--wdns={folder or self._folder}", "--"]
                + [str(word) for word in command],
                env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        finally:
            if output is not None:
                stream.close()

    def run_on_all(self, commands, *, environment, timeout, folder=None, after=None):
        """Run a command on each host (name → words): name → (exit code, output). All end within ``timeout`` seconds.

        A host that doesn't end in time has exit code None. ``after``: called with the running processes by name.
        """
        deadline = time.monotonic() + timeout
        running, outputs = {}, {}
        try:
            for name, command in commands.items():
                outputs[name] = self._folder / f"output.{name}"
                extra = environment(name) if callable(environment) else environment
                running[name] = self.start(
                    name, command, environment=os.environ | extra, output=outputs[name], folder=folder
                )
            if after is not None:
                after(running)
            codes = {}
            for name, process in running.items():
                try:
                    codes[name] = process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    codes[name] = None
        finally:
            for process in running.values():
                end(process)
        return {name: (codes[name], outputs[name].read_text(errors="replace")) for name in commands}

    def _hold(self, *command):
        process = subprocess.Popen([*command, *_SLEEP], start_new_session=True, stdout=subprocess.DEVNULL)
        self._stack.callback(end, process)
        own = os.readlink("/proc/self/ns/net")
        for _ in range(200):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/ns/net") != own:
                    return process.pid
            time.sleep(0.01)
        raise RuntimeError(f"{command} made no namespace")

    @staticmethod
    def _inside(pid, namespace, *command):
        subprocess.run(["nsenter", "-t", str(pid), namespace, *command], check=True, capture_output=True)


def end(process):
    """End a process that was started in a session of its own, with all it has started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
