"""Opens pages of a local server in headless Chromium and takes what they send back."""
import contextlib
import http.server
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading


def serve(answers, seen):
    """Starts a server and returns its address. `answers` gives (bytes, type) for a path; what a page posts goes into the queue `seen`, and
    so does {"missing": path} for a path without an answer."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, body, kind, code=200):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            if self.path in answers:
                return self.answer(*answers[self.path])
            if self.path != "/favicon.ico":  # which browsers ask for by themselves
                seen.put({"missing": self.path})
            return self.answer(b"", "text/plain", 404)

        def do_POST(self):
            seen.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(b"", "text/plain")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


@contextlib.contextmanager
def browser(program, *arguments, **options):
    """Runs a browser with these arguments, the last of which may be an address; `options` are those of Popen."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        words = [program, "--headless", "--disable-gpu", "--no-first-run", "--mute-audio", "--disable-background-networking",
                 "--autoplay-policy=no-user-gesture-required", f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # Chromium does not start as root otherwise
        try:
            process = subprocess.Popen([*words, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, **options)
        except OSError as error:
            sys.exit(f"{program}: {error.strerror}; install it (Debian: apt-get install chromium), or name another with --browser")
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def next_seen(seen, timeout, what):
    try:
        return seen.get(timeout=timeout)
    except queue.Empty:
        sys.exit(f"{what}: the browser said nothing for {timeout:g} s")
