#include "serve/front.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <future>
#include <thread>

#include "core/error.h"
#include "core/system_call.h"
#include "serve/control.h"
#include "serve/http.h"
#include "serve/world_frames.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

namespace tessera::serve {
namespace {

using std::chrono::milliseconds;
using Kind = ControlMessage::Kind;

// A front on a thread, and its supervisor, which is the test.
class FrontTest : public ::testing::Test {
 protected:
  void begin() {
    auto [mine, its] = FrameSocket::make_pair();
    control_.emplace(std::move(mine));
    FrontOptions options{.serve = {}, .listeners = {listen_on("unix:" + path())}, .control = its.release()};
    options.serve.model = golden_folder("tiny-pixart");
    options.serve.folder = (folder_.path() / "state").string();
    exit_code_ = std::async(std::launch::async, [options] { return run_front(options); });
    const auto message = control_->read(std::chrono::seconds(60));
    ASSERT_TRUE(message);
    EXPECT_EQ(message->kind, Kind::kServing);
  }
  void TearDown() override { control_.reset(); }  // so that the front ends
  std::string path() const { return (folder_.path() / "socket").string(); }
  // The head and the body of an answer.
  std::string get(const std::string& target) {
    const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path().data(), path().size());
    if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return "";
    const std::string text = "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (::send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return "";
    std::string answer;
    char bytes[4096];
    ssize_t got = 0;
    while ((got = ::recv(socket.number(), bytes, sizeof bytes, 0)) > 0)
      answer.append(bytes, static_cast<size_t>(got));
    return answer;
  }
  bool becomes(const std::string& target, const std::string& text) {
    for (int i = 0; i < 500; ++i) {
      if (get(target).find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  }

  TemporaryFolder folder_;
  std::optional<ControlSocket> control_;
  std::future<int> exit_code_;
};

TEST_F(FrontTest, ServesWithTheWorldsThatItIsGivenUntilItIsDrained) {
  begin();
  EXPECT_TRUE(get("/health").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get("/ready").starts_with("HTTP/1.1 503"));
  auto [front_end, world_end] = FrameSocket::make_pair();
  ControlMessage given{.kind = Kind::kWorld, .world = 3};
  given.socket = std::move(front_end);
  control_->tell(std::move(given));
  {
    SocketPort port(std::move(world_end));
    const auto orders = port.orders(std::chrono::seconds(60));
    ASSERT_EQ(orders.size(), 1U);
    EXPECT_EQ(orders[0].kind, WorldOrder::Kind::kDropAll);
    port.tell({.kind = WorldEvent::Kind::kReady, .ranks = 2});
    EXPECT_TRUE(becomes("/ready", "HTTP/1.1 200"));
    EXPECT_TRUE(becomes("/v1/status", R"("ranks":2)"));
  }
  EXPECT_TRUE(becomes("/ready", "HTTP/1.1 503"));  // it is gone
  EXPECT_TRUE(get("/v1/fields").find("num_inference_steps") != std::string::npos);
  EXPECT_TRUE(get("/v1/models").starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(get("/sdapi/v1/options").starts_with("HTTP/1.1 200"));
  ControlMessage drain{.kind = Kind::kDrain};
  drain.seconds = 30;
  control_->tell(std::move(drain));
  EXPECT_EQ(exit_code_.get(), 0);
}

TEST_F(FrontTest, SaysThatItsLoopTurns) {
  begin();
  for (int i = 0; i < 2; ++i) {
    const auto message = control_->read(std::chrono::seconds(60));
    ASSERT_TRUE(message);
    EXPECT_EQ(message->kind, Kind::kAlive);
  }
  control_.reset();
  exit_code_.get();
}

TEST_F(FrontTest, EndsWithItsSupervisor) {
  begin();
  control_.reset();
  EXPECT_EQ(exit_code_.get(), static_cast<int>(ErrorKind::kPeer));
}

TEST_F(FrontTest, AnswersToNamesOfThisHostAlone) {
  begin();
  const std::string answer =
      get("/health\x20HTTP/1.1\r\nHost: evil.example\r\nConnection: "
          "close\r\n\r\nGET /health");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 403")) << answer;
  control_.reset();
  exit_code_.get();
}

}  // namespace
}  // namespace tessera::serve
