// An HTTP/1.1 server on one thread: listening sockets, limits, routes, deferred answers, streams of events.
// An Access (serve/access.h) decides who may do what before a body is read. Boost.Beast reads and writes the
// messages; this header does not depend on it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/access.h"
#include "serve/web_text.h"

namespace tessera::serve {

struct HttpRequest {
  std::string method;                   // "GET" for HEAD too
  std::string path;                     // as sent, without the query
  std::vector<std::string> parameters;  // the values for the {...} of the route, decoded, in order
  NamedTexts query;                     // decoded, in order
  NamedTexts headers;                   // as sent, in order
  std::string body;
  std::string owner;  // Access::check()
  std::string id;     // x-request-id: the client's if it is a plain short word, else a new one

  // The value of the first header with that name, ignoring case; empty if there is none.
  std::string_view header(std::string_view name) const { return text_of(headers, name); }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  NamedTexts headers = {};
  // Sent in place of the body; if the request has a Range, only that part. The file may be removed once
  // respond() has returned.
  std::filesystem::path file = {};
};

// An event of a stream (text/event-stream of the HTML standard).
struct Event {
  std::string name = {};            // if empty, clients call it "message"
  std::string data;                 // UTF-8; may have several lines
  std::optional<uint64_t> id = {};  // a client that reconnects sends the last one it got: Last-Event-ID
};
std::string write_event(const Event& event);

// A request and the way back to its client. A handler keeps it as long as it has something to send; if the
// last copy is destroyed without an answer, the client gets status 500. All members must be called on the
// server's thread, and no copy may outlive the server.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Lacks its headers and its body once a stream has begun.
  virtual const HttpRequest& request() const = 0;
  // Call this or begin_events(), once. Does nothing if the client has gone.
  virtual void respond(HttpResponse response) = 0;
  // Begins a stream of events with status 200. Comments keep it alive between events.
  virtual void begin_events() = 0;
  // An event may have any size. If the client does not read and more than HttpLimits::unsent_bytes are
  // waiting for it, an event ends its connection.
  virtual void send(const Event& event) = 0;
  virtual void end_events() = 0;
  virtual bool is_gone() const = 0;
  // The call is made once, if the client goes before it has its answer or the end of its stream.
  virtual void on_gone(std::function<void()> call) = 0;
};

using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

struct Route {
  std::string method;   // "GET" answers HEAD too
  std::string pattern;  // "/v1/jobs/{id}/events": {...} stands for one nonempty segment
  Handler handler;
  size_t body_bytes = 0;   // the maximum size of a body
  bool is_public = false;  // works without a key
};

struct HttpLimits {
  using Seconds = std::chrono::duration<double>;

  size_t header_bytes = 16 << 10;
  size_t connections = 12'000;        // further ones wait until one ends
  size_t unsent_bytes = 1 << 20;      // of events for one client
  Seconds header_time = Seconds(10);  // from the first byte of a request to the end of its header
  Seconds body_time = Seconds(120);
  Seconds idle_time = Seconds(75);   // between two requests on a connection
  Seconds write_time = Seconds(60);  // within which a client must take 64 KiB of an answer
  Seconds ping_time = Seconds(15);   // between the comments of a stream without events
};

// A request that was served, for log and metrics.
struct Served {
  const HttpRequest& request;
  std::string_view route;  // its pattern; empty if there is none
  int status = 0;
  double seconds = 0;  // from the end of the request's header to the first byte of the answer
};

class HttpServer {
 public:
  struct Options {
    HttpLimits limits = {};
    Access access = {};
    std::function<void(const Served&)> on_served = {};
  };

  // Connections are accepted from `listeners`, listening sockets that this object closes.
  HttpServer(std::vector<int> listeners, std::vector<Route> routes, Options options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Serves until stop(). The calling thread is the server's thread.
  void run();
  // Ends run(): no further connection is accepted, and the open ones are closed. Thread-safe.
  void stop();
  // Accepts no further connection; open ones end after their next answer.
  void drain();

  // Makes the call later, on the server's thread. Thread-safe.
  void post(std::function<void()> call);
  // Makes the call on the server's thread after a delay.
  void after(std::chrono::nanoseconds time, std::function<void()> call);
  // Makes the call on the server's thread as long as there is something to read from the descriptor, or its
  // other end is closed. The descriptor stays the caller's, who must keep it open until unwatch().
  void watch(int descriptor, std::function<void()> call);
  void unwatch(int descriptor);

  size_t connections() const;  // those that are open now
  size_t streams() const;      // those of them that are streams of events

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns a listening socket. `address` is "HOST:PORT" (port 0: any), "[IPv6]:PORT" or "unix:PATH"; a socket
// file whose server has gone is replaced. Throws Error(kUsage) with the system's reason.
int listen_on(const std::string& address);
// Returns the address of a listening socket in that form.
std::string address_of(int listener);

// The body of an error, in the form that clients of the path's API expect: {"error": {"message", "type",
// "param", "code"}} as in OpenAI's API, or AUTOMATIC1111's form below /sdapi and /internal.
HttpResponse error_response(std::string_view path, int status, std::string_view code,
                            std::string_view message, std::string_view parameter = {});

}  // namespace tessera::serve
