"""A server with the page and the native API of `tessera serve`, whose jobs go on as a test says, or by a clock:

    python3 tests/page/fake_server.py --port 8000
"""
import argparse
import http.server
import json
import pathlib
import re
import socket
import threading
import urllib.parse

from fake_jobs import ENDED, FIELDS, Jobs

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "serve"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def policy():
    """The policy with which the real server sends the page."""
    literal = re.search(r"kPolicy =\s*((?:\"[^\"]*\"\s*)+);", (SOURCE / "page.cc").read_text())[1]
    return "".join(re.findall(r"\"([^\"]*)\"", literal))


class Server(http.server.ThreadingHTTPServer):
    """`keys` are owners by key; none: everybody is one owner. `refuse` answers the next jobs: (status,
    message, field, headers). `lose_answers` of so many next jobs never arrive. `seen` are all requests: (method, path, headers)."""
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port=0, video=None):
        super().__init__(("127.0.0.1", port), Handler)
        self.jobs, self.keys, self.refuse, self.ready, self.fields = Jobs(video), {}, [], True, FIELDS
        self.seen, self.bodies, self.lose_answers = [], [], 0
        self.url = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # a browser that has gone


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else (json.dumps(body) + "\n").encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), "X-Content-Type-Options": "nosniff", **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, message, parameter=None, **headers):
        self.send(status, {"error": {"message": message, "type": "invalid_request_error", "param": parameter, "code": "invalid_value"}}, **headers)

    def owner(self):
        """The owner of the request's key; None after an answer that says that it has none."""
        if not self.server.keys:
            return ""
        owner = self.server.keys.get((self.headers["Authorization"] or "").removeprefix("Bearer "))
        if owner is None:
            # A browser would ask for a name and a password itself.
            scheme = "Bearer" if self.headers["X-Requested-With"] else "Basic"
            self.fail(401, "a key is needed", WWW_Authenticate=f'{scheme} realm="tessera"')
        return owner

    def handle_one(self, method):
        length = int(self.headers["Content-Length"] or 0)
        body, url = self.rfile.read(length), urllib.parse.urlsplit(self.path)
        self.server.seen.append((method, self.path, dict(self.headers)))
        if method == "GET" and (url.path == "/" or url.path.startswith("/page/")):
            return self.send_file("index.html" if url.path == "/" else url.path.removeprefix("/page/"))
        if url.path == "/ready":
            return self.send(200 if self.server.ready else 503, {"ready": self.server.ready})
        owner = self.owner()
        if owner is None:
            return None
        query = dict(urllib.parse.parse_qsl(url.query))
        if url.path == "/v1/fields":
            return self.send(200, {"object": "list", "model": "shapes", "data": self.server.fields})
        if url.path == "/v1/jobs":
            return self.submit(body, owner) if method == "POST" else self.list(query, owner)
        return self.of_job(method, url.path.split("/")[3:], query, owner)

    def do_GET(self):
        self.handle_one("GET")

    def do_POST(self):
        self.handle_one("POST")

    def do_DELETE(self):
        self.handle_one("DELETE")

    def send_file(self, name):
        path = SOURCE / "page" / name
        if path.parent != SOURCE / "page" or not path.is_file():
            return self.fail(404, "there is nothing here")
        return self.send(200, path.read_bytes(), TYPES[path.suffix], Content_Security_Policy=policy())

    def submit(self, body, owner):
        if self.server.refuse:
            status, message, parameter, headers = self.server.refuse.pop(0)
            return self.fail(status, message, parameter, **headers)
        self.server.bodies.append(body.decode())
        request = json.loads(body)
        for name in ("width", "height"):
            if request.get(name, 512) % 16:
                return self.fail(400, f"{name}: expected a multiple of 16, got {request[name]}", name)
        job = self.server.jobs.accept(request, owner, self.headers["Idempotency-Key"])
        if self.server.lose_answers > 0:
            self.server.lose_answers -= 1
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        return self.send(202, self.server.jobs.view(job), Location=f"/v1/jobs/{job['id']}")

    def list(self, query, owner):
        jobs = self.server.jobs
        with jobs.lock:
            states = query.get("state", "").split(",") if "state" in query else None
            found = [job for job in jobs.jobs.values() if job["owner"] == owner and job["id"] > query.get("after", "")
                     and (states is None or job["state"] in states)]
            limit = int(query.get("limit", 20))
            data = [jobs.view(job) for job in found[:limit]]
            return self.send(200, {"object": "list", "data": data, "has_more": len(found) > limit})

    def of_job(self, method, words, query, owner):
        jobs = self.server.jobs
        with jobs.lock:
            job = jobs.jobs.get(words[0])
            if job is None or job["owner"] != owner:
                return self.fail(404, "there is no such job")
            if method == "DELETE":
                jobs.delete(job)
                return self.send(200, jobs.view(job) if job["id"] in jobs.jobs else {"id": job["id"], "object": "job", "deleted": True})
            if words[1:] == []:
                return self.send(200, jobs.view(job))
            if words[1] == "preview":
                data = jobs.previews.get(job["id"])
                return self.send(200, data, "image/png") if data else self.fail(404, "there is no preview")
            if words[1] == "results":
                data, kind = jobs.files[job["id"]][int(words[2])], job["results"][int(words[2])]["content_type"]
        if words[1] == "results":
            return self.send_range(data, kind)
        return self.stream(job)

    def send_range(self, data, kind):
        found = re.match(r"bytes=(\d+)-(\d*)$", self.headers["Range"] or "")
        if not found:
            return self.send(200, data, kind, Accept_Ranges="bytes")
        first, last = int(found[1]), min(int(found[2] or len(data) - 1), len(data) - 1)
        return self.send(206, data[first:last + 1], kind, Content_Range=f"bytes {first}-{last}/{len(data)}")

    def stream(self, job):
        jobs, last = self.server.jobs, int(self.headers["Last-Event-ID"] or 0)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        epoch = jobs.epoch
        while True:
            with jobs.lock:
                fresh = [event for event in jobs.events.get(job["id"], []) if event[0] > last]
                if not fresh and (job["state"] in ENDED or epoch != jobs.epoch):
                    return
                if not fresh:
                    jobs.changed.wait(timeout=5)
            for number, name, data in fresh:
                self.wfile.write(f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())
                last = number
            if not fresh:
                self.wfile.write(b": still here\n\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a step")
    args = parser.parse_args()
    server = Server(args.port)
    print(server.url, flush=True)
    server.jobs.run_by_clock(args.seconds)


if __name__ == "__main__":
    main()
