"""Tests ranks that another launcher starts."""
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time

import pytest

from files import assert_near, read_latents
from harness import MODEL, SMALL
from test_ranks import LATENT, NEAR


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def torchrun_variables(rank, size, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def open_mpi_variables(rank, size, port):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "MASTER_PORT": port}


def slurm_variables(rank, size, port):
    return {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size),
            "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": str(size), "MASTER_PORT": port}


def start_ranks(box, variables, words_of):
    port = free_port()
    return [subprocess.Popen([box.program, *words], cwd=box.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **variables(rank, len(words_of), port)})
            for rank, words in enumerate(words_of)]


def finish_ranks(ranks, timeout=60):
    return [(rank.returncode, out, err) for rank in ranks for out, err in [rank.communicate(timeout=timeout)]]


def test_ranks_of_other_launchers(box):
    words = ["generate", "a cat", "--model", MODEL, "--dtype", "fp32", "--use-cfg-parallel", *SMALL, *LATENT]
    expected = box.latents("a cat", "--seed", "5", *SMALL)
    for variables in (torchrun_variables, open_mpi_variables, slurm_variables):
        # Rank 1 has other arguments, but only those of rank 0 count.
        first, second = finish_ranks(start_ranks(box, variables, [words, ["generate", "a dog", "--height", "64"]]))
        assert first[:2] == (0, "out.safetensors\n"), first
        assert second == (0, "", ""), second
        assert_near(read_latents(box.folder / "out.safetensors"), expected, NEAR)


def test_ctrl_c_ends_launched_ranks_between_steps(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", "--num-inference-steps", "300"]
    ranks = start_ranks(box, torchrun_variables, [words] * 2)
    while "load denoiser" not in ranks[0].stderr.readline():
        assert ranks[0].poll() is None
    for rank in ranks:
        rank.send_signal(signal.SIGINT)
    first, second = finish_ranks(ranks)
    place = first[2].partition("tessera: [rank 0] stopped; nothing was written, ")[2]
    assert first[0] == 130 and place.startswith(("at step", "in stage 'load denoiser'")), first  # how soon the signal came
    assert second == (130, "", ""), second


@pytest.mark.alone
def test_a_launched_rank_that_stops_ends_the_others(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", "--num-inference-steps", "300", "--timeout", "2"]
    for way in ([], ["--no-shared-memory"]):
        ranks = start_ranks(box, torchrun_variables, [[*words, *way]] * 2)
        while "load denoiser" not in ranks[0].stderr.readline():
            assert ranks[0].poll() is None
        os.kill(ranks[1].pid, signal.SIGSTOP)
        start = time.monotonic()
        _, err = ranks[0].communicate(timeout=60)
        seconds = time.monotonic() - start
        ranks[1].kill()
        assert ranks[0].returncode == 4 and "tessera: [rank 1] lost: no sign of life within 2 s, reported by rank 0 " in err, err
        assert seconds < 12, seconds
        finish_ranks(ranks[1:])
        assert box.files() == []


def test_a_rank_that_never_joins(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", "--timeout", "1"]
    alone = [start_ranks(box, lambda _, __, port, rank=rank: torchrun_variables(rank, 2, port), [words])[0] for rank in (0, 1)]
    for rank, (code, out, err) in enumerate(finish_ranks(alone)):
        assert code == 4 and out == "" and err.count("\n") == 1, (code, out, err)
        assert f"rank {rank} of 2 could not join: " in err, err
        assert rank == 1 or err.endswith("could not join: rank 1 did not arrive within 1 s, while joining\n"), err


def test_a_loopback_address_of_rank_0_is_refused(box):
    # This happens where /etc/hosts gives this host's name to the loopback device.
    box.refuse(2, "[--interface] '2130706433' is the loopback device (127.0.0.1) on this host", "generate", "a cat",
               "--model", MODEL, "--use-cfg-parallel", env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
                                                            "MASTER_ADDR": "2130706433", "MASTER_PORT": free_port()})


def test_ranks_that_differ_are_named(box):
    # As on two hosts, each rank has the model in a separate folder of the same name.
    words = ["generate", "a cat", "--model", "./model", "--use-cfg-parallel", *SMALL]

    def refused(change):
        copies = []
        for name in ("one", "two"):
            folder = box.folder / name
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(MODEL, folder / "model", ignore=shutil.ignore_patterns("golden"))
            copies.append(folder)
        change(copies[1] / "model")
        port, ranks = free_port(), []
        for rank, folder in enumerate(copies):
            ranks.append(subprocess.Popen([box.program, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          text=True, env={**os.environ, **torchrun_variables(rank, 2, port)}))
        first, second = finish_ranks(ranks)
        assert first[:2] == (3, "") and second == (3, "", ""), (first, second)
        assert first[2].startswith("tessera: [rank 0] [./model] rank 1 ") and first[2].count("\n") == 1, first
        return first[2]

    def append(path, text):
        path.write_text(path.read_text() + text)

    assert "rank 1 has a different vae/config.json: " in refused(lambda model: append(model / "vae" / "config.json", "\n"))
    assert "rank 1 has vae/extra.safetensors, which" in refused(lambda model: (model / "vae" / "extra.safetensors").write_text("x"))
    assert "refuses: [" in refused(lambda model: (model / "transformer" / "config.json").unlink())
    assert "refuses: [./model] no such folder" in refused(shutil.rmtree)


def test_a_rank_says_that_it_waits(box):
    words = ["generate", "a cat", "--model", MODEL]
    variables = torchrun_variables(0, 2, free_port())
    rank = subprocess.Popen([box.program, *words], cwd=box.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **variables})
    line = rank.stderr.readline()
    assert line == f"[rank 0] waiting at 127.0.0.1:{variables['MASTER_PORT']} for the other ranks of 2, as the launcher's variables say\n", line
    rank.send_signal(signal.SIGINT)
    rank.communicate(timeout=20)
    assert rank.returncode == 130, rank


def test_an_error_of_rank_0_ends_all_ranks(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", "--guidance-scale", "1"]
    first, second = finish_ranks(start_ranks(box, torchrun_variables, [words, words]))
    assert first[0] == second[0] == 2, (first, second)
    assert first[2].startswith("tessera: [rank 0] [parallel]") and second[2] == "", (first, second)


def test_a_launched_rank_that_dies_ends_the_others(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", "--num-inference-steps", "300", "--timeout", "20"]
    ranks = start_ranks(box, torchrun_variables, [words, words])
    while "load denoiser" not in ranks[0].stderr.readline():
        assert ranks[0].poll() is None
    ranks[1].kill()
    first, _ = finish_ranks(ranks)
    lines = [line for line in first[2].splitlines() if line.startswith("tessera:")]
    assert first[:2] == (4, "") and len(lines) == 1, first
    assert lines[0].startswith("tessera: [rank 1] lost: ") and ", reported by rank 0 " in lines[0], lines
    assert box.files() == []


def test_invalid_launcher_variables(box):
    for variables, needle in [({"RANK": "0"}, "[WORLD_SIZE] is not set, but RANK is"),
                              ({"RANK": "2", "WORLD_SIZE": "2"}, "[RANK]"),
                              ({"RANK": "0", "WORLD_SIZE": "two"}, "got 'two'"),
                              ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, "[MASTER_PORT]"),
                              ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "3"}, "[LOCAL_RANK]")]:
        box.refuse(2, needle, "generate", "a cat", "--model", MODEL, *SMALL, env=variables)
    for address in ("127.0.0.1:29512", "tcp://127.0.0.1", "[::1]:29512"):
        box.refuse(2, f"[MASTER_ADDR] '{address}' is not the name or the address of a host", "generate", "a cat", "--model", MODEL,
                   *SMALL, env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address})
    box.refuse(4, "[no-such-host.invalid] has no address: ", "generate", "a cat", "--model", MODEL, *SMALL,
               env={"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-host.invalid"}, timeout=60)


def test_a_launched_rank_that_is_alone_starts_ranks(box):
    # As in the shell of an interactive Slurm job, or in a container with these variables.
    shell = {**slurm_variables(0, 1, free_port()), "SLURM_STEP_NUM_TASKS": "1"}
    for variables in (shell, {"RANK": "0", "WORLD_SIZE": "1"}):
        box.generate("a cat", *SMALL, env=variables)
        box.generate("a cat", *SMALL, "--use-cfg-parallel", "--report", "run.json", env=variables)
        assert len(box.report()["ranks"]) == 2
        outcome = box.run("generate", "a cat", "--model", MODEL, *SMALL, "--use-cfg-parallel", "--dry-run", env=variables)
        assert outcome.code == 0, outcome


def test_a_port_in_use_is_named(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", *SMALL]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for variables in (torchrun_variables, open_mpi_variables):
            box.refuse(4, f"[127.0.0.1:{port}] rank 0 of 2 could not join: port {port} is in use, perhaps by another job; set MASTER_PORT "
                       "to a free one", *words, env=variables(0, 2, port), timeout=60)


def test_ranks_join_their_own_job_only(box):
    words = ["generate", "a cat", "--model", MODEL, "--use-cfg-parallel", *SMALL]
    port = free_port()

    def start(job, rank):
        return subprocess.Popen([box.program, *words, "-o", f"{job}.png"], cwd=box.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env={**os.environ, **open_mpi_variables(rank, 2, port), "PMIX_NAMESPACE": f"prterun-{job}"})

    first = start("A", 0)
    while True:  # until it listens
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(port))) == 0:
                break
        time.sleep(0.05)
    others = [start("B", rank) for rank in range(2)]
    for rank, (code, out, err) in enumerate(finish_ranks(others)):
        assert code == 4 and out == "" and err.count("\n") == 1, (code, out, err)
        assert f"rank {rank} of 2 could not join: port {port} is in use" in err and "by another job" in err, err
    (code, out, err), second = finish_ranks([first, start("A", 1)])
    assert (code, out) == (0, "A.png\n"), (code, out, err)
    assert second == (0, "", ""), second


def test_a_wrong_number_of_local_ranks_is_named(box):
    # Another boot stands for another host, where the ranks cannot share memory.
    boot = box.folder / "boot"
    boot.write_text("another\n")
    mount = shlex.join(["mount", "--bind", os.fspath(boot), "/proc/sys/kernel/random/boot_id"])
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode != 0:
        pytest.skip("no right to mount")
    for way in ([], ["--no-shared-memory"]):
        words = [os.fspath(word) for word in [box.program, "generate", "a cat", "--model", MODEL, "--use-cfg-parallel", *SMALL, *way]]
        port = free_port()
        ranks = [subprocess.Popen(command, cwd=box.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, **torchrun_variables(rank, 2, port)})
                 for rank, command in enumerate([words, ["unshare", "-m", "sh", "-c", f"{mount} && {shlex.join(words)}"]])]
        (code, out, err), _ = finish_ranks(ranks)  # rank 0 hosts the store, so that the other may find it gone
        assert code == 2 and out == "" and err.count("\n") == 1, (code, out, err)
        assert "[LOCAL_WORLD_SIZE] says that 2 ranks are on this host, but 1 is" in err, err
