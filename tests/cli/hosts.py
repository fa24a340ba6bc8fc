#!/usr/bin/env python3
"""Tests two hosts, which are network namespaces joined by a link. Four ranks on them, started by hand, torchrun, Open MPI,
MPICH and Slurm, generate the same latents as one host, and the loss of the link or of a rank ends all of them. `make test`
does not include these tests: they need the launchers, and root or user namespaces. hosts.py PROGRAM [ARGUMENT of pytest...]
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from files import difference, read_latents
from harness import ROOT

PORT = "29517"
TORCHRUN = shutil.which("torchrun", path=f"{ROOT}/.venv/bin:{os.environ['PATH']}")
TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mpirun.openmpi": "openmpi-bin",
         "mpiexec.hydra": "mpich", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}

PROMPT = "a red circle above a blue square on a white background"
LATENT = [PROMPT, "--dtype", "fp32", "--seed", "5", "--num-inference-steps", "6", "--output-type", "latent",
          "-o", "out.safetensors"]
LONG = [PROMPT, "--num-inference-steps", "900"]
EXACT = [["--ulysses-degree", "2", "--ring-degree", "2"], ["--use-cfg-parallel", "--tensor-parallel-degree", "2"]]
PIPEFUSION = ["--pipefusion-parallel-degree", "4"]
FOUR_RANKS = [*EXACT, PIPEFUSION]
NEAR = 1e-4  # latents, largest difference


class Host:
    """A network namespace, which exists as long as the process that holds it."""

    def __init__(self, number):
        self.address, self.interface = f"10.77.0.{number}", f"wire{number}"
        self.started = []
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if not self.holder.stdout.readline():
            raise OSError(self.holder.stderr.read().decode().strip())
        self.enter = ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net"]

    def end(self):
        while left := self.processes():  # including those that launchers started
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
        for process in self.started:
            process.communicate()
        self.holder.communicate()

    def ip(self, *words):
        done = subprocess.run([*self.enter, "ip", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise OSError(done.stderr.strip())

    def start(self, folder, words, env=None):
        process = subprocess.Popen([*self.enter, *map(os.fspath, words)], cwd=folder, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={**os.environ, **(env or {})})
        self.started.append(process)
        return process

    def processes(self):
        namespace, found = os.readlink(f"/proc/{self.holder.pid}/ns/net"), []
        for path in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
            with contextlib.suppress(OSError):
                if os.readlink(path) == namespace:
                    found.append(int(path.parts[2]))
        return [process for process in found if process != self.holder.pid]

    def listeners(self):
        lines = [line.split() for name in ("tcp", "tcp6")
                 for line in pathlib.Path(f"/proc/{self.holder.pid}/net/{name}").read_text().splitlines()[1:]]
        return [fields[1] for fields in lines if fields[3] == "0A"]


@contextlib.contextmanager
def two_hosts():
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in (1, 2):
            hosts.append(Host(number))
            stack.callback(hosts[-1].end)
        first, second = hosts
        first.ip("link", "add", first.interface, "type", "veth",
                 "peer", "name", second.interface, "netns", str(second.holder.pid))
        for host in hosts:
            host.ip("link", "set", "lo", "up")
            host.ip("address", "add", f"{host.address}/24", "dev", host.interface)
            host.ip("link", "set", host.interface, "up")
        yield hosts


def variables(rank, hosts):
    """Returns the variables that torchrun would set, with two ranks on each host."""
    return {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT}


def start_ranks(box, hosts, words, interface=None, count=4):
    return [host.start(box.folder, [box.program, "generate", *words, "--interface", interface or host.interface],
                       variables(rank, hosts))
            for rank, host in enumerate([hosts[0], hosts[0], hosts[1], hosts[1]][:count])]


def finish(processes, timeout=120):
    ends = [process.communicate(timeout=timeout) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, ends)]


def latents(box):
    return read_latents(box.folder / "out.safetensors")


def local_latents(box, degrees=()):
    outcome = box.run("generate", *LATENT, *degrees)
    assert outcome.code == 0, outcome
    return latents(box)


def assert_near(box, expected, what):
    shape, values = latents(box)
    assert shape == expected[0] and max(map(abs, expected[1])) > 0.1
    largest = difference(values, expected[1])
    print(f"  {what}: largest difference {largest:.1e}", flush=True)
    assert largest <= NEAR, (what, largest)


def assert_generated(box, results, expected, what):
    assert all(code == 0 for code, _, _ in results), (what, results)
    assert "".join(out for _, out, _ in results) == "out.safetensors\n", (what, results)
    assert_near(box, expected, what)


def assert_ended(box, hosts, results, needles):
    """Checks that each rank that was not killed ended with exit code 4 and one line that contains all `needles`, and that
    nothing stays behind. Call it before other checks of such a run: a failure shows what all ranks printed."""
    left = [(rank, *result) for rank, result in enumerate(results) if result[0] != -signal.SIGKILL]
    assert all(code == 4 for _, code, _, _ in left), results
    for rank, _, out, err in left:
        lines = [line for line in err.splitlines() if line.startswith("tessera:")]
        assert out == "" and len(lines) == 1, (rank, results)
        # Of a lost rank the line names that rank first, and then who reports it.
        names_itself = lines[0].startswith(f"tessera: [rank {rank}] ") or f", reported by rank {rank} " in lines[0]
        assert names_itself and all(needle in lines[0] for needle in needles), (lines, results)
        print(f"  {lines[0]}", flush=True)
    assert box.files() == []
    for host in hosts:
        assert host.processes() == [] and host.listeners() == [], (host.processes(), host.listeners())


def test_ranks_on_two_hosts(box):
    one, pipe = local_latents(box), local_latents(box, PIPEFUSION)
    with two_hosts() as hosts:
        for degrees in FOUR_RANKS:
            results = finish(start_ranks(box, hosts, [*LATENT, *degrees]))
            assert_generated(box, results, pipe if degrees == PIPEFUSION else one, " ".join(degrees))


def test_torchrun_on_two_hosts(box):
    expected = local_latents(box)
    with two_hosts() as hosts:
        address = hosts[0].address
        for words in (["--master-addr", address, "--master-port", PORT],
                      ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{PORT}", "--rdzv-id", "7"]):
            # torchrun finds its place by the host's name, but both hosts have this machine's name.
            results = finish([host.start(box.folder, [TORCHRUN, "--no-python", "--nnodes", "2", "--nproc-per-node", "2",
                                                      "--node-rank", str(number), "--local-addr", host.address, *words,
                                                      "--rdzv-conf", f"is_host={number == 0}", box.program, "generate",
                                                      *LATENT, *EXACT[0]])
                              for number, host in enumerate(hosts)])
            assert_generated(box, results, expected, f"torchrun {words[0]}")


def fake_ssh(folder, hosts):
    """Writes a program that takes ssh's arguments and runs the command on a host."""
    path = folder / "to-host"
    cases = "".join(f"{host.address}) net=/proc/{host.holder.pid}/ns/net ;;\n" for host in hosts)
    path.write_text('#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\ncase $1 in\n' + cases +
                    'esac\nshift\nexec nsenter --net=$net sh -c "$*"\n')
    path.chmod(0o755)
    return path


def test_mpi_launchers_on_two_hosts(box):
    expected = local_latents(box)
    with two_hosts() as hosts:
        agent, hostfile = fake_ssh(box.folder, hosts), box.folder / "hostfile"
        program = [box.program, "generate", *LATENT, *EXACT[0]]
        hostfile.write_text("".join(f"{host.address} slots=2\n" for host in hosts))
        mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--hostfile", hostfile, "--mca", "plm_rsh_agent", agent,
                  "-x", f"MASTER_ADDR={hosts[0].address}", "-x", f"MASTER_PORT={PORT}"]
        assert_generated(box, finish([hosts[0].start(box.folder, [*mpirun, *program])]), expected, "Open MPI")
        hostfile.write_text("".join(f"{host.address}:2\n" for host in hosts))
        mpiexec = ["mpiexec.hydra", "-f", hostfile, "-launcher", "ssh", "-launcher-exec", agent,
                   "-iface", hosts[0].interface, "-genv", "MASTER_ADDR", hosts[0].address, "-genv", "MASTER_PORT", PORT,
                   "-n", "4"]
        assert_generated(box, finish([hosts[0].start(box.folder, [*mpiexec, *program])]), expected, "MPICH")


SLURM = """ClusterName=two
SlurmctldHost=host1(10.77.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmdParameters=config_overrides
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
NodeName=host1 NodeAddr=10.77.0.1 CPUs=2 State=UNKNOWN
NodeName=host2 NodeAddr=10.77.0.2 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=host1,host2 Default=YES State=UP
"""


@contextlib.contextmanager
def slurm(folder, hosts):
    """Yields a function that starts a command on the first host of a Slurm cluster of the two."""
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")  # tolerates missing cgroups

    def start(number, *words):
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"host{number + 1}", *words]
        return hosts[number].start(folder, named, {"SLURM_CONF": str(folder / "slurm.conf"),
                                                   "MASTER_ADDR": hosts[0].address, "MASTER_PORT": PORT})

    daemons = [start(0, "slurmctld", "-D", "-i"), start(0, "slurmd", "-D"), start(1, "slurmd", "-D")]
    deadline = time.monotonic() + 30
    while finish([start(0, "sinfo", "--noheader", "--format", "%T")])[0][1] != "idle\n":
        assert time.monotonic() < deadline and not any(daemon.poll() for daemon in daemons), "Slurm does not start"
        time.sleep(0.5)
    yield lambda *words: start(0, *words)
    for daemon in daemons:
        daemon.terminate()


def test_srun_on_two_hosts(box):
    if "4294967295" not in pathlib.Path("/proc/self/uid_map").read_text():
        pytest.skip("Slurm's daemons do not start as root of a user namespace")
    expected = local_latents(box)
    with tempfile.TemporaryDirectory() as folder, two_hosts() as hosts, slurm(pathlib.Path(folder), hosts) as start:
        for pmi in ("none", "pmi2"):
            results = finish([start("srun", f"--mpi={pmi}", f"--chdir={box.folder}", "--nodes", "2",
                                    "--ntasks-per-node", "2", box.program, "generate", *LATENT, *EXACT[0])])
            assert_generated(box, results, expected, f"srun --mpi={pmi}")
            assert " on 4 ranks (ring 2, ulysses 2) with 1 thread each" in results[0][2], results


def test_launchers_on_one_host(box):
    launchers = [[TORCHRUN, "--no-python", "--nproc-per-node", "4", "--master-port", PORT],
                 ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", "4", "-x", f"MASTER_PORT={PORT}"],
                 ["mpiexec.hydra", "-n", "4", "-genv", "MASTER_PORT", PORT]]
    with two_hosts() as (host, _):
        for degrees in FOUR_RANKS:
            expected = local_latents(box, ["--nproc", "4", *degrees])
            for launcher in launchers:
                results = finish([host.start(box.folder, [*launcher, box.program, "generate", *LATENT, *degrees])])
                assert_generated(box, results, expected, f"{pathlib.Path(launcher[0]).name}, {' '.join(degrees)}")


def wait_for_first_steps(ranks):
    while "load denoiser" not in (line := ranks[0].stderr.readline()):
        assert ranks[0].poll() is None, line
    time.sleep(1)


def test_a_link_that_goes_down_ends_all_ranks(box):
    expected = local_latents(box)
    for number, degrees in enumerate(FOUR_RANKS):
        with two_hosts() as hosts:
            ranks = start_ranks(box, hosts, [*LONG, *degrees, "--timeout", "8"])
            wait_for_first_steps(ranks)
            cut = hosts[number % 2]
            cut.ip("link", "set", cut.interface, "down")
            start = time.monotonic()
            results = finish(ranks)
            seconds = time.monotonic() - start
            assert_ended(box, hosts, results, [" lost: ", " at step "])
            assert 7 < seconds < 18, seconds
            print(f"  {' '.join(degrees)}: ended after {seconds:.1f} s", flush=True)
            # The next run shows that the port is free again.
            cut.ip("link", "set", cut.interface, "up")
            assert_generated(box, finish(start_ranks(box, hosts, [*LATENT, *EXACT[0]])), expected, "the next run")


def test_a_link_that_recovers_in_time_is_no_failure(box):
    words = [*LATENT, "--num-inference-steps", "200", *EXACT[0]]
    with two_hosts() as hosts:
        assert all(code == 0 for code, _, _ in finish(start_ranks(box, hosts, words)))
        expected = latents(box)
        ranks = start_ranks(box, hosts, [*words, "--timeout", "30"])
        wait_for_first_steps(ranks)
        hosts[1].ip("link", "set", hosts[1].interface, "down")
        time.sleep(3)
        assert all(rank.poll() is None for rank in ranks), "the link was cut too late"
        hosts[1].ip("link", "set", hosts[1].interface, "up")
        assert_generated(box, finish(ranks), expected, "3 s without a link")


def test_a_killed_rank_ends_the_ranks_of_both_hosts(box):
    for victim in (0, 3):
        with two_hosts() as hosts:
            ranks = start_ranks(box, hosts, [*LONG, *EXACT[0], "--timeout", "60"])
            wait_for_first_steps(ranks)
            ranks[victim].kill()
            start = time.monotonic()
            results = finish(ranks)
            seconds = time.monotonic() - start
            assert_ended(box, hosts, results, [" lost: ", " at step "])
            assert results[victim][0] == -signal.SIGKILL and seconds < 5, (results, seconds)
            print(f"  rank {victim} killed: ended after {seconds:.1f} s", flush=True)


def test_hosts_that_cannot_connect(box):
    words = [*LONG, *EXACT[0], "--timeout", "6"]
    with two_hosts() as hosts:
        place = f"{hosts[0].address}:{PORT}"

        def assert_unreachable(needle, ranks):
            start = time.monotonic()
            assert_ended(box, hosts, finish(ranks), [place, f"of 4 could not {needle}"])
            assert time.monotonic() - start < 18

        # The loopback device does not reach the other host.
        assert_unreachable("connect to all others through lo", start_ranks(box, hosts, words, interface="lo"))
        # The link goes down while three ranks wait for the last.
        ranks = start_ranks(box, hosts, words, count=3)
        time.sleep(2)
        assert all(rank.poll() is None for rank in ranks)
        hosts[1].ip("link", "set", hosts[1].interface, "down")
        assert_unreachable("join", ranks)
        # The link is down from the start.
        assert_unreachable("join", start_ranks(box, hosts, words))


def find_missing():
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            return f"{tool} is missing: sudo apt-get install {package}"
    if not TORCHRUN:
        return "torchrun is missing: tools/setup.sh python"
    try:
        with two_hosts():
            return None
    except OSError as error:
        return f"no network namespaces with a link between them: {error}"


def main():
    if len(sys.argv) < 2:
        return "usage: hosts.py PROGRAM [ARGUMENT of pytest...]"
    if os.geteuid() != 0:
        become_root = ["unshare", "--user", "--map-root-user"]
        if subprocess.run([*become_root, "true"], capture_output=True).returncode != 0:
            return "hosts: cannot run: needs root, or user namespaces"
        os.execvp(become_root[0], [*become_root, sys.executable, *sys.argv])
    if missing := find_missing():
        return f"hosts: cannot run: {missing}"
    return pytest.main(["-n", "0", "-s", f"--program={sys.argv[1]}", __file__, *sys.argv[2:]])


if __name__ == "__main__":
    sys.exit(main())
