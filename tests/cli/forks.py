"""A server that runs command lines in forks of a process which has loaded libtorch (forks.cc): loading takes longer than most
command lines that are tested."""
import array
import contextlib
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import tempfile
import time


def server_of(program):
    """The server's program beside the one under test, or None where it is missing or of an older build."""
    path = pathlib.Path(program).with_name("tessera_forks")
    return path if path.exists() and path.stat().st_mtime_ns >= pathlib.Path(program).stat().st_mtime_ns else None


@contextlib.contextmanager
def serving(program):
    """Yields the path of the server's socket, or None where no server is built."""
    path = server_of(program)
    if path is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        where = os.path.join(folder, "socket")
        server = subprocess.Popen([path, "--serve", where], stdin=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            while not os.path.exists(where):
                assert server.poll() is None, "tessera_forks ended"
                time.sleep(0.01)
            yield where
        finally:
            server.kill()
            server.wait()


def connect(where):
    """Connects once the server listens, which it does right after its socket is there."""
    connection = socket.socket(socket.AF_UNIX)
    for _ in range(500):
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect(where)
            return connection
        time.sleep(0.01)
    raise OSError(f"no server at {where}")


def run(where, words, folder, variables, stdin, timeout):
    """Returns (exit code, standard output, standard error) of a command line, as subprocess.run does."""
    deadline = time.monotonic() + timeout
    given = [os.pipe() for _ in range(3)]
    theirs, ours = [given[0][0], given[1][1], given[2][1]], [given[0][1], given[1][0], given[2][0]]
    with connect(where) as connection:
        head = [os.fspath(folder), str(len(variables)), *(f"{name}={value}" for name, value in variables.items())]
        message = b"".join(os.fsencode(word) + b"\0" for word in [*head, *words])
        sent = connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))])
        connection.sendall(message[sent:])
        connection.shutdown(socket.SHUT_WR)
        for descriptor in theirs:
            os.close(descriptor)
        assert stdin is None or len(stdin) <= 4096, "more than a pipe surely takes at once"
        with contextlib.suppress(BrokenPipeError):
            os.write(ours[0], stdin or b"")
        os.close(ours[0])
        texts = {connection.fileno(): b"", ours[1]: b"", ours[2]: b""}
        with selectors.DefaultSelector() as selector:
            for descriptor in texts:
                selector.register(descriptor, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0, deadline - time.monotonic()))
                if not ready:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(texts[connection.fileno()].split()[0]), signal.SIGKILL)
                    raise subprocess.TimeoutExpired(words, timeout)
                for key, _ in ready:
                    block = os.read(key.fd, 65536)
                    texts[key.fd] += block
                    if not block:
                        selector.unregister(key.fd)
        _, code = texts[connection.fileno()].split()
        for descriptor in ours[1:]:
            os.close(descriptor)
        return int(code), texts[ours[1]], texts[ours[2]]
