"""A real SLURM on loopback: one node, two partitions of which ``high`` preempts ``work``, everything in one scratch folder.

Needs Debian's packages slurm-wlm and munge, and root (SLURM changes users). ``Cluster.reason()`` says why it cannot be started.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

CONF = """
ClusterName=ci
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={other}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
KillWait=30
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=500 State=UNKNOWN
PartitionName=work Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes={host} State=UP PriorityTier=10
"""


class Cluster:
    """Started on entry, stopped on exit; ``environment`` is what its programs need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def reason() -> str | None:
        """Why a cluster cannot be started here, or None."""
        missing = [p for p in ("slurmctld", "slurmd", "munged", "runuser") if shutil.which(p) is None]
        if missing:
            return f"{missing[0]} is not installed (apt-get install slurm-wlm munge)"
        return None if os.getuid() == 0 else "SLURM's daemons need root"

    def __enter__(self) -> Cluster:
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir()
        ports = _free_ports(2)
        text = CONF.format(host=host, folder=self.folder, port=ports[0], other=ports[1], cpus=os.cpu_count() or 1)
        (self.folder / "slurm.conf").write_text(text)
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        for path in (munge / "key", munge):
            shutil.chown(path, "munge", "munge")
        munge.chmod(0o755)
        for above in (self.folder, *self.folder.parents):  # munge is another user
            if not above.stat().st_mode & 0o001:
                above.chmod(above.stat().st_mode | 0o011)
        files = [f"--{what}-file={munge / what}" for what in ("key", "log", "pid", "seed")]
        self._start("runuser", "-u", "munge", "--", "munged", "--foreground", f"--socket={munge / 'socket'}", *files)
        self._until(lambda: (munge / "socket").exists(), "munged")
        self._start("slurmctld", "-D", "-i")
        self._start("slurmd", "-D", "-N", host)
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"), "slurmctld")
        return self

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            environment = os.environ | self.environment
            self.daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or any(d.poll() is not None for d in self.daemons):
                logs = "\n".join(f"{p}:\n{p.read_text(errors='replace')[-1500:]}" for p in self.folder.glob("*.log"))
                raise ClusterError(f"{what} does not start.\n{logs}")
            time.sleep(0.2)

    def ask(self, *command: str) -> str:
        """What a program of SLURM prints."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | self.environment, check=False, timeout=60
        )
        return done.stdout

    def stop_controller(self) -> None:
        """As when its machine is down."""
        self.daemons[1].send_signal(signal.SIGTERM)
        self.daemons[1].wait(60)

    def __exit__(self, *_: object) -> None:
        if self.daemons[1].poll() is None:
            self.ask("scancel", "--me")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


class ClusterError(Exception):
    """A cluster that should start does not."""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports
