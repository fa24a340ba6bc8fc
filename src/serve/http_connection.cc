#include "serve/http_connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <ctime>
#include <limits>

#include "core/error.h"
#include "core/log.h"
#include "core/system_call.h"
#include "core/text.h"

namespace tessera::serve {

constexpr size_t kPiece = 64 << 10;  // bytes of an answer that are written at a time

// The bytes of an answer after its header: a text, or a range of a file.
class Content {
 public:
  Content() = default;
  explicit Content(std::string text) : text_(std::move(text)), end_(text_.size()) {}
  Content(Descriptor file, uint64_t begin, uint64_t end) : file_(std::move(file)), at_(begin), end_(end) {}

  uint64_t left() const { return end_ - at_; }
  // Returns the next bytes, which are valid until the next call; empty at the end, or if the file cannot be
  // read.
  std::string_view next() {
    const size_t size = std::min<uint64_t>(kPiece, left());
    if (file_.number() < 0) {
      const std::string_view piece = std::string_view(text_).substr(at_, size);
      at_ += size;
      return piece;
    }
    text_.resize(size);
    const ssize_t got =
        uninterrupted([&] { return ::pread(file_.number(), text_.data(), size, static_cast<off_t>(at_)); });
    if (got <= 0) return {};
    at_ += static_cast<uint64_t>(got);
    return std::string_view(text_).substr(0, static_cast<size_t>(got));
  }

 private:
  std::string text_;
  Descriptor file_;
  uint64_t at_ = 0, end_ = 0;
};

namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using Clock = std::chrono::steady_clock;

constexpr size_t kLinger = 1 << 20;  // bytes that a refused request may still send
constexpr auto kLingerTime = std::chrono::seconds(2);

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

// Opens the file of a response at the range that the request asks for, and sets the status and headers that
// follow from it.
std::unique_ptr<Content> open_file(const HttpRequest& request, HttpResponse& response) {
  Descriptor file(::open(response.file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) {
    response = error_response(request.path, 404, "not_found", "the result is not there any more");
    return std::make_unique<Content>(std::move(response.body));
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  response.headers.emplace_back("Accept-Ranges", "bytes");
  const auto range = parse_range(request.header("range"), size);
  if (!range) {
    response.status = 416;
    response.headers.emplace_back("Content-Range", fmt::format("bytes */{}", size));
    return std::make_unique<Content>();
  }
  const auto [begin, end] = *range;
  if (end - begin < size) {
    response.status = 206;
    response.headers.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", begin, end - 1, size));
  }
  return std::make_unique<Content>(std::move(file), begin, end);
}

// Clients do not learn the error: it may name files of the server.
void failed(Exchange& exchange, const std::exception& error) {
  log_warning("request {} has failed: {}", exchange.request().id, error.what());
  exchange.respond(error_response(exchange.request().path, 500, "internal_error",
                                  "the server has failed at this request; its log says why"));
}

}  // namespace

class Answer final : public Exchange {
 public:
  Answer(std::shared_ptr<Connection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}
  ~Answer() override {
    if (is_begun_) {
      end_events();
    } else {
      respond(error_response(request_.path, 500, "internal_error", "the server gave no answer"));
    }
  }

  const HttpRequest& request() const override { return request_; }
  void respond(HttpResponse response) override {
    if (std::exchange(is_begun_, true)) return;
    is_over_ = true;
    if (!connection_->is_gone()) connection_->answer(request_, std::move(response));
  }
  void begin_events() override {
    if (std::exchange(is_begun_, true) || connection_->is_gone()) return;
    connection_->begin_events(request_);
    // A stream may be open for hours, and there may be thousands. Assigning an empty text would keep the
    // memory.
    NamedTexts().swap(request_.headers);
    std::string().swap(request_.body);
  }
  void send(const Event& event) override {
    if (is_begun_ && !is_over_ && !connection_->is_gone()) connection_->send(write_event(event));
  }
  void end_events() override {
    if (is_begun_ && !std::exchange(is_over_, true) && !connection_->is_gone()) connection_->end_events();
  }
  bool is_gone() const override { return connection_->is_gone(); }
  void on_gone(std::function<void()> call) override { on_gone_ = std::move(call); }

  void gone() {
    if (auto call = std::exchange(on_gone_, nullptr); call && !is_over_) call();
  }

 private:
  std::shared_ptr<Connection> connection_;
  HttpRequest request_;
  std::function<void()> on_gone_;
  bool is_begun_ = false, is_over_ = false;
};

Connection::Connection(Shared& server, Protocol protocol, int socket)
    : server_(server),
      stream_(server.context),
      buffer_(std::max(server.options.limits.header_bytes, kPiece)) {
  stream_.socket().assign(protocol, socket);
  server_.connections.insert(this);
}

Connection::~Connection() {
  if (server_.is_over) return;
  server_.connections.erase(this);
  server_.streams.erase(this);
  server_.left();
}

// ---- reading

void Connection::wait_for_request() {
  if (server_.is_draining) return close();
  if (buffer_.size() > 0) return read_header();  // the client did not wait for the answer
  is_idle_ = true;
  buffer_.shrink_to_fit();
  stream_.expires_after(duration_of(limits().idle_time));
  stream_.async_read_some(buffer_.prepare(1024),
                          [self = shared_from_this()](const ErrorCode& code, size_t bytes) {
                            self->is_idle_ = false;
                            if (code) return self->close();
                            self->buffer_.commit(bytes);
                            self->read_header();
                          });
}

void Connection::read_header() {
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(static_cast<uint32_t>(limits().header_bytes));
  // The route determines the limit: read_body(). (In Boost 1.74, boost::none would refuse every length.)
  parser_->body_limit(std::numeric_limits<uint64_t>::max());
  stream_.expires_after(duration_of(limits().header_time));
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](const ErrorCode& code, size_t) {
                            if (code) return self->fail(code);
                            self->take_header();
                          });
}

void Connection::fail(const ErrorCode& code) {
  if (code == http::error::end_of_stream || code == net::error::operation_aborted ||
      code == net::error::connection_reset || code == http::error::partial_message)
    return close();
  method_ = "GET";
  request_ = {};
  request_.method = method_;
  request_.path = "/";
  request_.id = random_name();
  began_ = Clock::now();
  route_ = nullptr;
  access_headers_.clear();
  if (code == beast::error::timeout) return close();  // the stream has closed the socket
  if (code == http::error::header_limit)
    return refuse(431, "header_too_large",
                  fmt::format("the header has more than {}", bytes_text(limits().header_bytes)));
  if (code == http::error::body_limit) return refuse(413, "body_too_large", "the body is too large");
  refuse(400, "bad_request", fmt::format("this is no HTTP request: {}", code.message()));
}

void Connection::take_header() {
  const auto& message = parser_->get();
  began_ = Clock::now();
  method_ = std::string(message.method_string());
  is_http_1_1_ = message.version() == 11;
  keeps_alive_ = message.keep_alive();
  access_headers_.clear();
  const std::string_view target(message.target().data(), message.target().size());
  const size_t question = std::min(target.find('?'), target.size());
  request_ = {};
  request_.method = method_ == "HEAD" ? "GET" : method_;
  request_.path = target.substr(0, question);
  for (const auto& field : message)
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  const std::string_view id = request_.header("x-request-id");
  const bool is_plain =
      !id.empty() && id.size() <= 64 &&
      id.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
          std::string_view::npos;
  request_.id = is_plain ? std::string(id) : random_name();

  const Routes::Match match = server_.routes.find(request_.method, request_.path);
  route_ = match.route;
  if (is_http_1_1_ && request_.header("host").empty())
    return refuse(400, "bad_request", "the request has no Host");
  if (method_ == "OPTIONS" && !match.methods.empty() && !route_) {
    const auto verdict = server_.options.access.preflight(request_.headers, match.methods);
    if (verdict.status != 204) return refuse(verdict.status, "forbidden", verdict.message, verdict.headers);
    if (!parser_->is_done()) keeps_alive_ = false;  // the rest of the body is not a request
    HttpResponse response;
    response.status = 204;
    response.content_type.clear();
    response.headers = verdict.headers;
    response.headers.emplace_back("Allow", match.methods);
    return answer(request_, std::move(response));
  }
  auto verdict = server_.options.access.check(request_.headers, route_ != nullptr && route_->is_public);
  if (verdict.status != 200)
    return refuse(verdict.status, verdict.status == 401 ? "invalid_api_key" : "forbidden", verdict.message,
                  std::move(verdict.headers));
  access_headers_ = std::move(verdict.headers);
  request_.owner = std::move(verdict.owner);
  if (!route_) {
    if (match.methods.empty())
      return refuse(404, "not_found", fmt::format("there is nothing at {}", printable(request_.path)));
    return refuse(405, "method_not_allowed", fmt::format("{} takes {}", request_.path, match.methods),
                  {{"Allow", match.methods}});
  }
  auto query = parse_query(target.substr(std::min(question + 1, target.size())));
  if (!query || !match.parameters)
    return refuse(400, "bad_request",
                  "the address is not UTF-8 in which % stands before two hexadecimal digits");
  request_.query = std::move(*query);
  request_.parameters = *match.parameters;
  read_body(*route_);
}

void Connection::read_body(const Route& route) {
  const auto too_large = [&] {
    refuse(413, "body_too_large",
           route.body_bytes == 0
               ? fmt::format("{} takes no body", request_.path)
               : fmt::format("{} takes a body of at most {}", request_.path, bytes_text(route.body_bytes)));
  };
  if (const auto length = parser_->content_length(); length && *length > route.body_bytes) return too_large();
  if (const auto encoding = request_.header("content-encoding");
      !encoding.empty() && !equal_names(encoding, "identity"))
    return refuse(415, "unsupported_encoding", "a body must come without Content-Encoding");
  parser_->body_limit(route.body_bytes);
  if (parser_->is_done()) return dispatch();
  const auto read = [self = shared_from_this()](const ErrorCode& code) {
    if (code) return self->fail(code);
    self->stream_.expires_after(duration_of(self->limits().body_time));
    http::async_read(self->stream_, self->buffer_, *self->parser_, [self](const ErrorCode& failure, size_t) {
      if (failure == http::error::body_limit)
        return self->refuse(413, "body_too_large",
                            fmt::format("{} takes a body of at most {}", self->request_.path,
                                        bytes_text(self->route_->body_bytes)));
      if (failure) return self->fail(failure);
      self->dispatch();
    });
  };
  if (!equal_names(request_.header("expect"), "100-continue")) return read({});
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  stream_.expires_after(duration_of(limits().write_time));
  net::async_write(stream_, net::buffer(kContinue.data(), kContinue.size()),
                   [read](const ErrorCode& code, size_t) { read(code); });
}

void Connection::dispatch() {
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  stream_.expires_never();
  const auto answer = std::make_shared<Answer>(shared_from_this(), std::move(request_));
  answer_ = answer;
  watch();
  try {
    route_->handler(answer);
  } catch (const Error& error) {
    const bool is_theirs = error.exit_code() == 2 || error.exit_code() == 3;
    if (!is_theirs) return failed(*answer, error);
    answer->respond(error_response(answer->request().path, 400, "invalid_value", error.what()));
  } catch (const std::exception& error) {
    failed(*answer, error);
  }
}

// Notices when the client goes while its request is being answered.
void Connection::watch() {
  if (is_watched_) return;
  is_watched_ = true;
  stream_.socket().async_wait(net::socket_base::wait_read, [weak = weak_from_this()](const ErrorCode& code) {
    const auto self = weak.lock();
    if (!self) return;
    self->is_watched_ = false;
    if (code || self->answer_.expired()) return;
    char byte;
    const ssize_t got = ::recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    // If there is anything to read, it is the next request, which waits for this answer.
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return self->gone();
    if (got < 0) self->watch();
  });
}

void Connection::gone() {
  if (std::exchange(is_gone_, true)) return;
  const auto answer = answer_.lock();
  close();
  if (answer) answer->gone();
}

// ---- writing

void Connection::refuse(int status, std::string_view code, std::string_view message, NamedTexts headers) {
  HttpResponse response = error_response(request_.path, status, code, message);
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  keeps_alive_ = false;  // a body may be on its way, and nobody will read it
  const HttpRequest request = std::move(request_);
  answer(request, std::move(response));
}

void Connection::answer(const HttpRequest& request, HttpResponse response) {
  if (server_.is_over) return;
  std::unique_ptr<Content> content = response.file.empty()
                                         ? std::make_unique<Content>(std::move(response.body))
                                         : open_file(request, response);
  status_ = response.status;
  if (server_.is_draining) keeps_alive_ = false;
  NamedTexts& headers = response.headers;
  headers.insert(headers.end(), access_headers_.begin(), access_headers_.end());
  headers.emplace_back("X-Request-Id", request.id);
  // With 304, the length would be that of a body that is not sent.
  if (response.status != 204 && response.status != 304)
    headers.emplace_back("Content-Length", std::to_string(content->left()));
  if (!response.content_type.empty()) headers.emplace_back("Content-Type", response.content_type);
  headers.emplace_back("Connection", keeps_alive_ ? "keep-alive" : "close");
  if (method_ == "HEAD") content = std::make_unique<Content>();
  write(write_head(response.status, headers, date()), std::move(content));
  served(request);  // so that no client waits for the log
}

void Connection::served(const HttpRequest& request) {
  if (!server_.options.on_served) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  server_.options.on_served({request, route_ ? std::string_view(route_->pattern) : "", status_, seconds});
}

void Connection::write(std::string head, std::unique_ptr<Content> content) {
  head_ = std::move(head);
  content_ = std::move(content);
  if (content_->left() > 0 && content_->left() <= kPiece) head_ += content_->next();
  stream_.expires_after(duration_of(limits().write_time));
  net::async_write(stream_, net::buffer(head_), [self = shared_from_this()](const ErrorCode& code, size_t) {
    if (code) return self->gone();
    self->write_next();
  });
}

void Connection::write_next() {
  if (content_->left() == 0) return finish();
  const std::string_view piece = content_->next();
  if (piece.empty()) return close();  // the file is shorter now; the client notices that bytes are missing
  stream_.expires_after(duration_of(limits().write_time));
  net::async_write(stream_, net::buffer(piece.data(), piece.size()),
                   [self = shared_from_this()](const ErrorCode& code, size_t) {
                     if (code) return self->gone();
                     self->write_next();
                   });
}

void Connection::finish() {
  content_.reset();
  std::string().swap(head_);
  answer_.reset();
  if (keeps_alive_) return wait_for_request();
  ErrorCode ignored;
  stream_.socket().shutdown(net::socket_base::shutdown_send, ignored);
  stream_.expires_after(kLingerTime);
  linger(kLinger);
}

// Reads what a client still sends, because closing the socket earlier could discard the answer.
void Connection::linger(size_t left) {
  if (left == 0) return close();
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this(), left](const ErrorCode& code, size_t bytes) {
                            if (code) return self->close();
                            self->linger(left - std::min(bytes, left));
                          });
}

void Connection::close() {
  ErrorCode ignored;
  stream_.socket().close(ignored);
  if (!server_.is_over) server_.streams.erase(this);
}

// ---- events

void Connection::begin_events(const HttpRequest& request) {
  is_stream_ = true;
  is_ending_ = false;
  status_ = 200;
  server_.streams.insert(this);
  NamedTexts headers = access_headers_;
  headers.emplace_back("X-Request-Id", request.id);
  headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  headers.emplace_back("Cache-Control", "no-store");
  headers.emplace_back("X-Accel-Buffering", "no");  // a proxy must not buffer events
  if (is_http_1_1_) {
    headers.emplace_back("Transfer-Encoding", "chunked");
  } else {
    keeps_alive_ = false;
  }
  headers.emplace_back("Connection", keeps_alive_ ? "keep-alive" : "close");
  pending_ = write_head(200, headers, date());
  write_events();
  served(request);
}

void Connection::send(std::string_view text) {
  if (is_ending_) return;
  if (pending_.size() > limits().unsent_bytes) return gone();
  if (is_http_1_1_) {
    pending_ += fmt::format("{:x}\r\n{}\r\n", text.size(), text);
  } else {
    pending_ += text;
  }
  was_sent_ = true;
  write_events();
}

void Connection::ping() {
  if (!std::exchange(was_sent_, false)) send(": \n\n");
  was_sent_ = false;
}

void Connection::end_events() {
  if (is_http_1_1_) pending_ += "0\r\n\r\n";
  is_ending_ = true;
  write_events();
}

void Connection::write_events() {
  if (is_writing_ || is_gone_ || server_.is_over) return;
  if (pending_.empty()) {
    std::string().swap(piece_);
    if (!is_ending_) return;
    is_stream_ = false;
    server_.streams.erase(this);
    return finish();
  }
  is_writing_ = true;
  piece_ = std::exchange(pending_, {});
  stream_.expires_after(duration_of(limits().write_time));
  net::async_write(stream_, net::buffer(piece_), [self = shared_from_this()](const ErrorCode& code, size_t) {
    self->is_writing_ = false;
    if (code) return self->gone();
    self->write_events();
  });
}

}  // namespace tessera::serve
