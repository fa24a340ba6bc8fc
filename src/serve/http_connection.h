// One client of an HTTP server. This header includes Boost, so only the server's sources include it.
#pragma once

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "serve/http.h"
#include "serve/routes.h"

namespace tessera::serve {

namespace net = boost::asio;
using ErrorCode = boost::system::error_code;
using Protocol = net::generic::stream_protocol;

class Answer;
class Connection;
class Content;

inline std::chrono::steady_clock::duration duration_of(HttpLimits::Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(seconds);
}

// State that the connections of a server share.
struct Shared {
  HttpServer::Options options;
  Routes routes;
  std::function<void()> left;  // called when a connection has ended
  bool is_draining = false, is_over = false;
  std::unordered_set<Connection*> connections = {}, streams = {};
  net::io_context context{1};  // destroyed first: its operations hold connections
};

// One client. It lives as long as one of its operations is in progress or its request is being answered.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& server, Protocol protocol, int socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void wait_for_request();
  void close();
  bool is_idle() const { return is_idle_; }
  void ping();

  // For the answer to the current request.
  void answer(const HttpRequest& request, HttpResponse response);
  void begin_events(const HttpRequest& request);
  void send(std::string_view text);
  void end_events();
  bool is_gone() const { return is_gone_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Stream = boost::beast::basic_stream<Protocol, net::io_context::executor_type>;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  const HttpLimits& limits() const { return server_.options.limits; }
  void read_header();
  void take_header();
  void read_body(const Route& route);
  void dispatch();
  void fail(const ErrorCode& code);
  void refuse(int status, std::string_view code, std::string_view message, NamedTexts headers = {});
  void served(const HttpRequest& request);
  void watch();
  void gone();
  void write(std::string head, std::unique_ptr<Content> content);
  void write_next();
  void write_events();
  void finish();
  void linger(size_t left);

  Shared& server_;
  Stream stream_;
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<Parser> parser_;  // while a request is read
  HttpRequest request_;             // until an answer takes it
  const Route* route_ = nullptr;    // of the current request; null if no route matches
  NamedTexts access_headers_;       // of its answer
  std::string method_;              // of the current request, HEAD too
  bool is_http_1_1_ = true;
  std::weak_ptr<Answer> answer_;
  Clock::time_point began_;
  int status_ = 0;
  bool is_idle_ = false, is_gone_ = false, keeps_alive_ = false, is_watched_ = false;

  std::string head_, piece_;          // being written
  std::unique_ptr<Content> content_;  // that follows
  // of a stream of events: what follows piece_
  std::string pending_;  // behind piece_
  bool is_stream_ = false, is_writing_ = false, is_ending_ = false, was_sent_ = false;
};

}  // namespace tessera::serve
