#include "serve/http.h"

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
#include "core/text.h"
#include "serve/routes.h"
#include "tests/support/temporary_folder.h"

namespace tessera::serve {
namespace {

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

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(HttpTest, AnswersRequestsOfAConnectionOneAfterTheOther) {
  start();
  Client one = client();
  one.get("/echo/x%20y/%C3%A9?a=1+2&b=%3D");
  const std::string answer = one.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with("GET |x y|é|a=1 2|b==")) << answer;
  EXPECT_TRUE(has(answer, "Connection: keep-alive"));
  one.get("/echo/fixed/b");
  EXPECT_TRUE(one.answer().ends_with("GET |fixed|b"));  // the first of the table that fits
  one.get("/same");
  EXPECT_FALSE(has(one.read_until("\r\n\r\n"), "Content-Length"));  // that of what the client has
  // Two at once: the second waits in the server.
  one.send("GET /later HTTP/1.1\r\nHost: here\r\n\r\nGET /echo/1/2 HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_TRUE(one.answer().ends_with("later"));
  EXPECT_TRUE(one.answer().ends_with("|1|2"));
  one.send("HEAD /echo/1/2 HTTP/1.1\r\nHost: here\r\n\r\n");
  const std::string head = one.answer(false);
  EXPECT_TRUE(has(head, "Content-Length: 8")) << head;
  one.get("/open", "Connection: close\r\n");
  EXPECT_TRUE(one.answer().ends_with("open"));
  EXPECT_TRUE(one.is_closed());
}

TEST_F(HttpTest, RefusesWhatIsNoRequestForIt) {
  start();
  const auto answer_to = [&](const std::string& bytes) {
    Client one = client();
    one.send(bytes);
    return one.rest();
  };
  EXPECT_TRUE(answer_to("nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to("GET /open HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));  // without Host
  EXPECT_TRUE(answer_to("GET /none HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(answer_to("GET /echo//b HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(answer_to("GET /echo/%zz/b HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to("GET /echo/a/b?x=%ff HTTP/1.1\r\nHost: h\r\n\r\n").starts_with("HTTP/1.1 400"));
  const std::string wrong_method = answer_to("DELETE /length HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(wrong_method.starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(has(wrong_method, "Allow: POST, OPTIONS")) << wrong_method;
  EXPECT_TRUE(answer_to("GET /open HTTP/1.1\r\nHost: h\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n")
                  .starts_with("HTTP/1.1 431"));
  // Refused by its header, before the body comes.
  EXPECT_TRUE(answer_to("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n")
                  .starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(
      answer_to("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc")
          .starts_with("HTTP/1.1 415"));
  std::string chunked = "POST /length HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 20; ++i) chunked += "64\r\n" + std::string(100, 'x') + "\r\n";
  EXPECT_TRUE(answer_to(chunked + "0\r\n\r\n").starts_with("HTTP/1.1 413"));
  // A body that nobody reads is not the next request.
  EXPECT_FALSE(has(answer_to("OPTIONS /length HTTP/1.1\r\nHost: h\r\nContent-Length: 34\r\n\r\n"
                             "GET /none HTTP/1.1\r\nHost: here\r\n\r\n"),
                   "404"));
  // Both lengths at once are how requests are smuggled past proxies.
  EXPECT_TRUE(answer_to("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: "
                        "chunked\r\n\r\n0\r\n\r\n")
                  .starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(
      answer_to("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd")
          .starts_with("HTTP/1.1 400"));
  Client one = client();
  one.get("/open");
  EXPECT_TRUE(one.answer().ends_with("open"));
}

TEST_F(HttpTest, TakesBodiesUpToTheLimitOfTheRoute) {
  start();
  Client one = client();
  one.post("/length", std::string(1000, 'x'));
  EXPECT_TRUE(one.answer().ends_with("1000"));
  one.send(
      "POST /length HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_TRUE(one.answer().ends_with("\r\n\r\n5"));
  one.send("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(one.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  one.send("abc");
  EXPECT_TRUE(one.answer().ends_with("\r\n\r\n3"));
}

TEST_F(HttpTest, FailuresOfHandlersAreAnswers) {
  start();
  Client one = client();
  one.get("/nothing");
  EXPECT_TRUE(one.answer().starts_with("HTTP/1.1 500"));
  one.get("/bad");
  const std::string bad = one.answer();
  EXPECT_TRUE(bad.starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(has(bad, R"("message":"[field] is wrong")")) << bad;
  one.get("/bug");
  EXPECT_TRUE(one.answer().starts_with("HTTP/1.1 500"));
  EXPECT_EQ(served_, (std::vector<std::string>{"/nothing 500", "/bad 400", "/bug 500"}));
}

TEST_F(HttpTest, SendsFilesByRanges) {
  start();
  Client one = client();
  const auto with_range = [&](const std::string& range) {
    one.get("/file", range.empty() ? "" : "Range: " + range + "\r\n");
    return one.answer();
  };
  EXPECT_TRUE(with_range("").ends_with("\r\n\r\n0123456789"));
  const std::string part = with_range("bytes=2-4");
  EXPECT_TRUE(part.starts_with("HTTP/1.1 206"));
  EXPECT_TRUE(has(part, "Content-Range: bytes 2-4/10"));
  EXPECT_TRUE(part.ends_with("\r\n\r\n234"));
  EXPECT_TRUE(with_range("bytes=8-").ends_with("\r\n\r\n89"));
  EXPECT_TRUE(with_range("bytes=-3").ends_with("\r\n\r\n789"));
  EXPECT_TRUE(with_range("bytes=8-99").ends_with("\r\n\r\n89"));
  EXPECT_TRUE(with_range("bytes=10-").starts_with("HTTP/1.1 416"));
  std::filesystem::remove(file());
  EXPECT_TRUE(with_range("").starts_with("HTTP/1.1 404"));
}

TEST_F(HttpTest, SendsAnswersThatAreLargerThanWhatSocketsHold) {
  start();
  Client one = client();
  one.get("/big");
  EXPECT_TRUE(one.answer().ends_with("\r\n\r\n" + std::string(3'000'000, 'x')));
}

TEST_F(HttpTest, StreamsEventsAndGoesOnWithTheConnection) {
  start();
  Client one = client();
  one.get("/events");
  EXPECT_TRUE(has(one.read_until("\r\n\r\n"), "Content-Type: text/event-stream"));
  EXPECT_EQ(one.read_until("\n\n\r\n"), "24\r\nid: 7\nevent: first\ndata: a\ndata: b\n\n\r\n");
  on_server([this] {
    EXPECT_EQ(waiting_->request().path, "/events");
    EXPECT_TRUE(waiting_->request().headers.empty());  // which thousands of streams need not keep
    waiting_->send({.data = "c"});
    waiting_.reset();  // the last copy: the stream ends
  });
  EXPECT_EQ(one.read_until("0\r\n\r\n"), "9\r\ndata: c\n\n\r\n0\r\n\r\n");
  one.get("/open");
  EXPECT_TRUE(one.answer().ends_with("open"));
}

TEST_F(HttpTest, StreamsToOldClientsUntilTheConnectionEnds) {
  start();
  Client one = client();
  one.send("GET /events HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(has(one.read_until("\r\n\r\n"), "Connection: close"));
  EXPECT_EQ(one.read_until("b\n\n"), "id: 7\nevent: first\ndata: a\ndata: b\n\n");
  on_server([this] { waiting_->end_events(); });
  EXPECT_TRUE(one.is_closed());
}

TEST_F(HttpTest, KeepsQuietStreamsAlive) {
  HttpServer::Options options;
  options.limits.ping_time = HttpLimits::Seconds(0.05);
  start(options);
  Client one = client();
  one.get("/events");
  one.read_until("b\n\n\r\n");
  EXPECT_EQ(one.read_until("\n\n\r\n"), "4\r\n: \n\n\r\n");
}

TEST_F(HttpTest, KeepsManyQuietStreamsAlive) {
  HttpServer::Options options;
  options.limits.ping_time = HttpLimits::Seconds(0.05);
  start(options);
  std::deque<Client> clients;
  std::vector<std::shared_ptr<Exchange>> streams;
  for (int i = 0; i < 120; ++i) {
    Client& one = clients.emplace_back(client());
    one.get("/events");
    one.read_until("b\n\n\r\n");
    on_server([&] { streams.push_back(std::move(waiting_)); });
  }
  for (Client& one : clients) EXPECT_EQ(one.read_until("\n\n\r\n"), "4\r\n: \n\n\r\n");
  on_server([&] { streams.clear(); });
}

TEST_F(HttpTest, NoticesThatAClientGoes) {
  start();
  for (const char* const route : {"/wait", "/events"}) {
    Client one = client();
    one.get(route);
    ASSERT_TRUE(becomes([this] { return waiting_ != nullptr; }));
    one.close();
    EXPECT_TRUE(becomes([this] { return std::exchange(gone_, false); })) << route;
    on_server([this] {
      EXPECT_TRUE(waiting_->is_gone());
      waiting_->respond({.body = "to nobody"});
      waiting_.reset();
    });
    EXPECT_TRUE(becomes([this] { return server_->connections() == 0 && server_->streams() == 0; }));
  }
}

TEST_F(HttpTest, EndsClientsThatAreTooSlow) {
  HttpServer::Options options;
  options.limits.header_time = options.limits.body_time = HttpLimits::Seconds(0.1);
  options.limits.idle_time = HttpLimits::Seconds(0.3);
  start(options);
  Client header = client(), body = client(), idle = client();
  header.send("GET /open HT");
  body.send("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na");
  EXPECT_TRUE(header.is_closed());
  EXPECT_TRUE(body.is_closed());
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(becomes([this] { return server_->connections() == 0; }));
}

TEST_F(HttpTest, EndsClientsThatDoNotReadTheirEvents) {
  HttpServer::Options options;
  options.limits.unsent_bytes = 100'000;
  start(options);
  Client one = client();
  one.get("/events");
  one.read_until("b\n\n\r\n");
  on_server([this] {
    const std::string text(10'000, 'x');
    for (int i = 0; i < 1000 && !waiting_->is_gone(); ++i) waiting_->send({.data = text});
    EXPECT_TRUE(waiting_->is_gone());
    EXPECT_TRUE(gone_);
  });
}

TEST_F(HttpTest, AnEventMayBeLargerThanWhatMayWait) {
  HttpServer::Options options;
  options.limits.unsent_bytes = 100'000;
  start(options);
  Client one = client();
  one.get("/events");
  one.read_until("b\n\n\r\n");
  on_server([this] { waiting_->send({.data = std::string(300'000, 'x')}); });
  EXPECT_NE(one.read_until("x\n\n\r\n").find(std::string(300'000, 'x')), std::string::npos);
}

TEST_F(HttpTest, MoreConnectionsThanAllowedWait) {
  HttpServer::Options options;
  options.limits.connections = 2;
  start(options);
  Client one = client(), two = client(), three = client();
  one.get("/open");
  two.get("/open");
  EXPECT_TRUE(one.answer().ends_with("open"));
  EXPECT_TRUE(two.answer().ends_with("open"));
  three.get("/open");
  one.close();
  EXPECT_TRUE(three.answer().ends_with("open"));
}

TEST_F(HttpTest, DrainsAfterTheAnswersUnderWay) {
  start();
  Client idle = client(), busy = client();
  idle.get("/open");
  idle.answer();
  busy.get("/wait");
  ASSERT_TRUE(becomes([this] { return waiting_ != nullptr; }));
  on_server([this] { server_->drain(); });
  EXPECT_TRUE(idle.is_closed());
  EXPECT_FALSE(client().is_connected());
  on_server([this] { std::exchange(waiting_, nullptr)->respond({.body = "done"}); });
  const std::string answer = busy.answer();
  EXPECT_TRUE(answer.ends_with("done"));
  EXPECT_TRUE(has(answer, "Connection: close"));
  EXPECT_TRUE(busy.is_closed());
}

TEST_F(HttpTest, WatchesADescriptorUntilItIsToldNotTo) {
  start();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Descriptor ours(ends[0]), theirs(ends[1]);
  std::atomic<int> calls = 0;
  on_server([&] {
    server_->watch(theirs.number(), [&] {
      char byte;
      if (::recv(theirs.number(), &byte, 1, MSG_DONTWAIT) != 1) return;
      ++calls;
      if (byte == 'z') server_->unwatch(theirs.number());
    });
  });
  EXPECT_EQ(calls, 0);
  ASSERT_EQ(::send(ours.number(), "abz", 3, 0), 3);
  EXPECT_TRUE(becomes([&] { return calls == 3; }));
  ASSERT_EQ(::send(ours.number(), "d", 1, 0), 1);
  on_server([] {});
  on_server([] {});
  EXPECT_EQ(calls, 3);
  on_server([&] { server_->watch(theirs.number(), [&] { server_->unwatch(theirs.number()), ++calls; }); });
  EXPECT_TRUE(becomes([&] { return calls == 4; }));
}

TEST_F(HttpTest, EndsAmidRequests) {
  start();
  Client one = client(), two = client();
  one.get("/wait");
  two.get("/events");
  two.read_until("b\n\n\r\n");
  end();
  one.rest();  // both come to an end
  two.rest();
}

TEST_F(HttpTest, ServesWithKeysOriginsAndHosts) {
  HttpServer::Options options;
  options.access.keys = {{"alice", "0123456789abcdef"}, {"bob", "fedcba9876543210"}};
  options.access.origins = {"https://example.org"};
  options.access.hosts = {"here"};
  start(options);
  const auto with = [&](const std::string& headers, const std::string& path = "/echo/1/2") {
    Client one = client();
    one.get(path, headers + "Connection: close\r\n");
    return one.rest();
  };
  EXPECT_TRUE(with("").starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(has(with(""), "WWW-Authenticate: Bearer"));
  EXPECT_TRUE(has(with(""), "WWW-Authenticate: Basic"));
  // A browser that meets that asks for a name and a password itself, and its script waits.
  EXPECT_FALSE(has(with("X-Requested-With: fetch\r\n"), "WWW-Authenticate: Basic"));
  EXPECT_TRUE(with("", "/open").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(with("Authorization: Bearer 0123456789abcdeF\r\n").starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(with("Authorization: Bearer 0123456789abcdef\r\n").ends_with("GET alice|1|2"));
  EXPECT_TRUE(with("X-Api-Key: fedcba9876543210\r\n").ends_with("GET bob|1|2"));
  EXPECT_TRUE(with("Authorization: Basic " + encode_base64("anyone:fedcba9876543210") + "\r\n")
                  .ends_with("GET bob|1|2"));
  const std::string page = with("X-Api-Key: fedcba9876543210\r\nOrigin: https://example.org\r\n");
  EXPECT_TRUE(has(page, "Access-Control-Allow-Origin: https://example.org")) << page;
  EXPECT_TRUE(
      with("X-Api-Key: fedcba9876543210\r\nOrigin: https://example.com\r\n").starts_with("HTTP/1.1 403"));
  EXPECT_TRUE(with("X-Api-Key: fedcba9876543210\r\nOrigin: http://here\r\n").starts_with("HTTP/1.1 200"));
  Client stranger = client();
  stranger.send("GET /open HTTP/1.1\r\nHost: evil.example:80\r\n\r\n");
  EXPECT_TRUE(stranger.rest().starts_with("HTTP/1.1 403"));
  Client preflight = client();
  preflight.send(
      "OPTIONS /length HTTP/1.1\r\nHost: here\r\nOrigin: https://example.org\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type\r\n\r\n");
  const std::string allowed = preflight.answer();
  EXPECT_TRUE(allowed.starts_with("HTTP/1.1 204")) << allowed;
  EXPECT_TRUE(has(allowed, "Access-Control-Allow-Methods: POST, OPTIONS")) << allowed;
  EXPECT_TRUE(has(allowed, "Access-Control-Allow-Headers: content-type")) << allowed;
}

}  // namespace
}  // namespace tessera::serve
