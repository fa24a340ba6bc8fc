// An HTTP server with a few routes, and clients that send it bytes as they are.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/system_call.h"
#include "serve/http.h"
#include "serve/routes.h"
#include "tests/support/temporary_folder.h"

namespace tessera::serve {

using std::chrono::milliseconds;

// A client that sends bytes as they are and reads what comes.
class Client {
 public:
  explicit Client(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    is_connected_ =
        ::connect(socket_.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  bool is_connected() const { return is_connected_; }
  void send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket_.number(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<size_t>(sent);
    }
  }
  void get(const std::string& path, const std::string& headers = "") {
    send("GET " + path + " HTTP/1.1\r\nHost: here\r\n" + headers + "\r\n");
  }
  void post(const std::string& path, const std::string& body, const std::string& headers = "") {
    send("POST " + path + " HTTP/1.1\r\nHost: here\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n" + headers + "\r\n" + body);
  }
  // Reads until the text has been read, or the server closes the connection.
  std::string read_until(const std::string& text) {
    std::string bytes;
    char byte;
    const auto read_byte = [&] { return ::recv(socket_.number(), &byte, 1, 0); };
    while (!bytes.ends_with(text) && uninterrupted(read_byte) == 1) bytes += byte;
    return bytes;
  }
  // The head and the body of an answer that has a Content-Length; `has_body` is false for HEAD.
  std::string answer(bool has_body = true) {
    std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (!has_body || at == std::string::npos) return head;
    const size_t length = std::stoul(head.substr(at + 16));
    if (length == 0) return head;
    std::string body(length, '\0');
    if (::recv(socket_.number(), body.data(), length, MSG_WAITALL) < 0) return head;
    return head + body;
  }
  std::string rest() { return read_until("\x01 never"); }
  bool is_closed() { return rest().empty(); }
  void close() { socket_ = Descriptor(); }
  void end_sending() { ::shutdown(socket_.number(), SHUT_WR); }

 private:
  Descriptor socket_;
  bool is_connected_ = false;
};

// A server with a few routes, on a thread of its own.
class HttpTest : public ::testing::Test {
 protected:
  void TearDown() override { end(); }

  void start(HttpServer::Options options = {}) {
    std::ofstream(file()) << "0123456789";
    options.on_served = [this](const Served& served) {
      const std::lock_guard lock(mutex_);
      served_.push_back(fmt::format("{} {}", served.route, served.status));
    };
    std::vector<Route> routes = {
        {"GET", "/echo/{a}/{b}",
         [](const auto& exchange) {
           std::string text = exchange->request().method + " " + exchange->request().owner;
           for (const auto& parameter : exchange->request().parameters) text += "|" + parameter;
           for (const auto& [name, value] : exchange->request().query) text += "|" + name + "=" + value;
           exchange->respond({.content_type = "text/plain", .body = text});
         }},
        {"GET", "/echo/fixed/b", [](const auto& exchange) { exchange->respond({.body = "fixed"}); }},
        {"GET", "/open", [](const auto& exchange) { exchange->respond({.body = "open"}); }, 0, true},
        {"GET", "/same", [](const auto& exchange) { exchange->respond({.status = 304, .body = ""}); }},
        {"POST", "/length",
         [](const auto& exchange) {
           exchange->respond({.body = std::to_string(exchange->request().body.size())});
         },
         1000},
        {"GET", "/file",
         [this](const auto& exchange) {
           exchange->respond({.content_type = "video/mp4", .body = "", .headers = {}, .file = file()});
         }},
        {"GET", "/big",
         [](const auto& exchange) { exchange->respond({.body = std::string(3'000'000, 'x')}); }},
        {"GET", "/nothing", [](const auto&) {}},
        {"GET", "/bad", [](const auto&) { usage_error("field", "is wrong"); }},
        {"GET", "/bug", [](const auto&) { throw std::runtime_error("a bug"); }},
        {"GET", "/later",
         [this](const auto& exchange) {
           server_->after(milliseconds(50), [exchange] { exchange->respond({.body = "later"}); });
         }},
        {"GET", "/wait",
         [this](const auto& exchange) {
           exchange->on_gone([this] { gone_ = true; });
           waiting_ = exchange;
         }},
        {"GET", "/events", [this](const auto& exchange) {
           exchange->begin_events();
           exchange->on_gone([this] { gone_ = true; });
           waiting_ = exchange;
           exchange->send({.name = "first", .data = "a\nb", .id = 7});
         }}};
    server_ = std::make_unique<HttpServer>(std::vector{listen_on("unix:" + path())}, std::move(routes),
                                           std::move(options));
    thread_ = std::thread([this] { server_->run(); });
  }
  void end() {
    if (!server_) return;
    on_server([this] { waiting_.reset(); });
    server_->stop();
    thread_.join();
    server_.reset();
  }
  // Runs it on the server's thread, and waits for its end.
  void on_server(const std::function<void()>& call) {
    std::promise<void> done;
    server_->post([&] {
      call();
      done.set_value();
    });
    done.get_future().wait();
  }
  bool becomes(const std::function<bool()>& is) {
    for (int i = 0; i < 500; ++i) {
      bool now = false;
      on_server([&] { now = is(); });
      if (now) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }
  std::string path() const { return (folder_.path() / "socket").string(); }
  std::filesystem::path file() const { return folder_.path() / "file"; }
  Client client() const { return Client(path()); }

  TemporaryFolder folder_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::shared_ptr<Exchange> waiting_;
  bool gone_ = false;
  std::mutex mutex_;
  std::vector<std::string> served_;
};

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace tessera::serve
