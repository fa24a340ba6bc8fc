// An HTTP/1.1 server on one thread: listening sockets, limits, routes, answers that come later, streams of
// events. Who may do what is decided by an Access (serve/access.h) before a body is read. Boost.Beast reads
// and writes the messages; nothing of it is in this header.
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
  std::vector<std::string> parameters;  // what stands for the {...} of the route, decoded, in order
  NamedTexts query;                     // decoded, in order
  NamedTexts headers;                   // as sent, in order
  std::string body;
  std::string owner;  // Access::check()
  std::string id;     // of x-request-id: the client's where it is a plain short word, else a new one

  // The value of the first header of that name, compared without regard to case; empty if there is none.
  std::string_view header(std::string_view name) const { return text_of(headers, name); }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  NamedTexts headers = {};
  // Sent in place of the body, in parts if the request has a Range. It may be removed once respond() has
  // returned.
  std::filesystem::path file = {};
};

// An event of a stream (text/event-stream of the HTML standard).
struct Event {
  std::string name = {};            // without one, clients call it "message"
  std::string data;                 // UTF-8; may have several lines
  std::optional<uint64_t> id = {};  // a client that lost the stream sends the last of them: Last-Event-ID
};
std::string write_event(const Event& event);

// A request and the way back to its client. A handler keeps it for as long as it has something to say; if the
// last copy goes without an answer, the client gets status 500. All members are for the server's thread, and
// none may outlive the server.
class Exchange {
 public:
  virtual ~Exchange() = default;

  // Without its headers and its body once a stream has begun.
  virtual const HttpRequest& request() const = 0;
  // Call it once, or begin_events(). Does nothing where the client is gone.
  virtual void respond(HttpResponse response) = 0;
  // Begins a stream of events with status 200. Comments keep it alive while there are none.
  virtual void begin_events() = 0;
  // An event may have any size; one to a client for which more than HttpLimits::unsent_bytes wait, because it
  // does not read, ends its connection.
  virtual void send(const Event& event) = 0;
  virtual void end_events() = 0;
  virtual bool is_gone() const = 0;
  // Is called once if the client goes before it has its answer, or its stream before the end.
  virtual void on_gone(std::function<void()> call) = 0;
};

using Handler = std::function<void(const std::shared_ptr<Exchange>&)>;

struct Route {
  std::string method;   // "GET" answers HEAD too
  std::string pattern;  // "/v1/jobs/{id}/events": {...} stands for one segment that is not empty
  Handler handler;
  size_t body_bytes = 0;   // the most that a body may have
  bool is_public = false;  // needs no key
};

struct HttpLimits {
  using Seconds = std::chrono::duration<double>;

  size_t header_bytes = 16 << 10;
  size_t connections = 12'000;        // more wait until one ends
  size_t unsent_bytes = 1 << 20;      // of events to one client
  Seconds header_time = Seconds(10);  // from a request's first byte to the end of its header
  Seconds body_time = Seconds(120);
  Seconds idle_time = Seconds(75);   // between two requests of a connection
  Seconds write_time = Seconds(60);  // in which a client takes 64 KiB of an answer
  Seconds ping_time = Seconds(15);   // between the comments of a stream without events
};

// What the server did, for its log and metrics.
struct Served {
  const HttpRequest& request;
  std::string_view route;  // its pattern; empty where there is none
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

  // Connections come from `listeners`, listening sockets whose descriptors this object closes.
  HttpServer(std::vector<int> listeners, std::vector<Route> routes, Options options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Serves until stop(). The thread that calls it is the server's thread.
  void run();
  // Ends run(): no connection comes any more, those under way are closed. Thread-safe.
  void stop();
  // Accepts no new connection; those that are open end with their next answer.
  void drain();

  // Calls it on the server's thread. Thread-safe, and never at once.
  void post(std::function<void()> call);
  // Calls it on the server's thread after a time.
  void after(std::chrono::nanoseconds time, std::function<void()> call);
  // Calls it on the server's thread as long as there is something to read from the descriptor, or its other
  // end is closed. The descriptor stays the caller's, who keeps it open until unwatch().
  void watch(int descriptor, std::function<void()> call);
  void unwatch(int descriptor);

  size_t connections() const;  // that are open now
  size_t streams() const;      // of events among them

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns a listening socket. `address` is "HOST:PORT" (port 0: any), "[IPv6]:PORT" or "unix:PATH"; a socket
// file whose server is gone is replaced. Throws Error(kUsage) with the system's reason.
int listen_on(const std::string& address);
// The address of a listening socket in that form.
std::string address_of(int listener);

// The body of an error, in the form that clients of the path's API read: {"error": {"message", "type",
// "param", "code"}} as OpenAI has it, and AUTOMATIC1111's below /sdapi and /internal.
HttpResponse error_response(std::string_view path, int status, std::string_view code,
                            std::string_view message, std::string_view parameter = {});

}  // namespace tessera::serve
