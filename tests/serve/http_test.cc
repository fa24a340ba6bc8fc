#include "serve/http.h"

#include "core/text.h"
#include "tests/serve/http_fixture.h"

namespace tessera::serve {
namespace {

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
  on_server([] {});  // what it notes of an answer comes after that
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
