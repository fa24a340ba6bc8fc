#include "tests/serve/http_fixture.h"

namespace tessera::serve {
namespace {

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

}  // namespace
}  // namespace tessera::serve
