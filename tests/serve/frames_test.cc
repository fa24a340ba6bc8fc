#include "serve/frames.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "core/error.h"

namespace tessera::serve {
namespace {

using std::chrono::milliseconds;

struct Pair {
  Pair() : Pair(FrameSocket::make_pair()) {}
  explicit Pair(std::pair<Descriptor, Descriptor> ends)
      : a(std::move(ends.first)), b(std::move(ends.second)) {}
  FrameSocket a, b;
};

int64_t descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return std::distance(begin(open), end(open));
}

TEST(Frames, ArriveWholeWhateverTheirSize) {
  const int64_t before = descriptors();
  {
    Pair pair;
    for (const size_t size : {0U, 1U, 32000U, 33000U, 3'000'000U}) {
      const Frame frame{.text = std::string(size / 3, 't'), .data = std::string(size, '\0') + "end"};
      pair.a.send(frame);
      pair.a.send({.text = "next", .data = ""});
      EXPECT_EQ(pair.b.read(), frame) << size;
      EXPECT_EQ(pair.b.read(), (Frame{.text = "next", .data = ""})) << size;
      EXPECT_EQ(pair.b.read(), std::nullopt);
    }
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Frames, WaitForOneThatDoesNotRead) {
  Pair pair;
  const std::string large(100'000, 'x'), small(30'000, 'y');
  for (int i = 0; i < 500; ++i) pair.a.send({.text = std::to_string(i), .data = i % 2 == 0 ? large : small});
  EXPECT_TRUE(pair.a.has_unsent());
  for (int i = 0; i < 500; ++i) {
    std::optional<Frame> frame = pair.b.read();
    if (!frame) {
      pair.a.flush();
      frame = pair.b.read();
    }
    ASSERT_TRUE(frame) << i;
    EXPECT_EQ(frame->text, std::to_string(i));
    EXPECT_EQ(frame->data, i % 2 == 0 ? large : small);
  }
  EXPECT_TRUE(pair.a.flush());
  EXPECT_EQ(pair.b.read(), std::nullopt);
}

TEST(Frames, OfAnEndThatIsClosedAreReadWhateverItHasLeftUnread) {
  Pair pair;
  pair.a.send({.text = "unread", .data = ""});
  pair.b.send({.text = "last words", .data = ""});
  pair.b = FrameSocket(Descriptor());
  EXPECT_EQ(pair.a.read()->text, "last words");
  EXPECT_THROW(pair.a.read(), Error);
  EXPECT_THROW(pair.a.read(), Error);
}

TEST(Frames, AreWaitedFor) {
  Pair pair;
  EXPECT_EQ(pair.b.read(milliseconds(20)), std::nullopt);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    pair.a.send({.text = "late", .data = ""});
  });
  EXPECT_EQ(pair.b.read(std::chrono::seconds(20)), (Frame{.text = "late", .data = ""}));
  later.join();
}

TEST(Frames, EndWithTheOtherProcess) {
  auto [near, far] = FrameSocket::make_pair();
  const pid_t child = ::fork();
  if (child == 0) {
    near = Descriptor();
    FrameSocket socket(std::move(far));
    socket.send({.text = "last", .data = ""});
    ::_exit(0);
  }
  far = Descriptor();
  ::waitpid(child, nullptr, 0);
  FrameSocket socket(std::move(near));
  EXPECT_EQ(socket.read(), (Frame{.text = "last", .data = ""}));  // what it sent before arrives
  EXPECT_THROW(socket.read(), Error);
  EXPECT_THROW(socket.send({.text = "nobody", .data = ""}), Error);
}

TEST(Frames, RefuseWhatIsNone) {
  for (const size_t size : {1U, 15U, 17U, 40'000U}) {
    auto [near, far] = FrameSocket::make_pair();
    std::string bytes(size, '\x01');
    if (size == 17) bytes.assign(17, '\0');  // sizes of 0, and a byte more
    ASSERT_GT(::send(near.number(), bytes.data(), bytes.size(), 0), 0);
    FrameSocket socket(std::move(far));
    EXPECT_THROW(socket.read(), Error) << size;
  }
}

TEST(Frames, DescriptorsArePassedOn) {
  auto [near, far] = FrameSocket::make_pair();
  FrameSocket sender(std::move(near)), receiver(std::move(far));
  auto [one, other] = FrameSocket::make_pair();
  sender.send({.text = "with it", .data = ""}, std::move(one));
  sender.send({.text = "large", .data = std::string(100'000, 'x')});
  EXPECT_EQ(receiver.take_passed().number(), -1);
  EXPECT_EQ(receiver.read()->text, "with it");
  FrameSocket passed(receiver.take_passed());
  EXPECT_EQ(receiver.read()->text, "large");
  EXPECT_EQ(receiver.take_passed().number(), -1) << "the memory of a frame is not passed";
  passed.send({.text = "through it", .data = ""});
  EXPECT_EQ(FrameSocket(std::move(other)).read(), (Frame{.text = "through it", .data = ""}));
}

}  // namespace
}  // namespace tessera::serve
