#include "serve/world_frames.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "core/error.h"
#include "core/json.h"
#include "tests/support/rank_threads.h"
#include "tests/support/tiny_pixart.h"

namespace tessera::serve {
namespace {

using Kind = WorldOrder::Kind;
using What = WorldEvent::Kind;

TEST(WorldFrames, OrdersComeBackAsTheyWere) {
  const WorldOrder order{.kind = Kind::kResume,
                         .run = int64_t{1} << 40,
                         .requests = {R"({"prompt": "a \"cat\""})", "é"},
                         .saved = std::string("\0bytes\xff", 7),
                         .preview_every = 3};
  const WorldOrder read = order_of(frame_of(order));
  EXPECT_EQ(read.kind, order.kind);
  EXPECT_EQ(read.run, order.run);
  EXPECT_EQ(read.requests, order.requests);
  EXPECT_EQ(read.saved, order.saved);
  EXPECT_EQ(read.preview_every, 3);
}

TEST(WorldFrames, EventsComeBackAsTheyWere) {
  WorldEvent ready{.kind = What::kReady};
  ready.ranks = 2;
  ready.weights_bytes = uint64_t{5} << 33;
  EXPECT_EQ(event_of(frame_of(ready)).ranks, 2);
  EXPECT_EQ(event_of(frame_of(ready)).weights_bytes, uint64_t{5} << 33);
  EXPECT_EQ(event_of(frame_of({.kind = What::kAlive})).kind, What::kAlive);
  EXPECT_EQ(event_of(frame_of({.kind = What::kBegun, .run = 4})).run, 4);
  EXPECT_EQ(event_of(frame_of({.kind = What::kDropped, .run = 4})).run, 4);
  for (const What kind : {What::kPreview, What::kPicture}) {
    WorldEvent picture{.kind = kind, .run = 1, .step = 2};
    picture.index = 7;
    picture.image = {.height = 2, .width = 1, .pixels = {0, 1, 2, 253, 254, 255}};
    const WorldEvent read = event_of(frame_of(picture));
    EXPECT_EQ(read.kind, kind);
    EXPECT_EQ(read.image, picture.image);
    EXPECT_EQ(read.index, 7);
    EXPECT_EQ(read.step, 2);
  }
  WorldEvent video{.kind = What::kFrames, .run = 1};
  video.index = 3;
  video.frames = {.first = 5, .count = 2, .total = 9, .height = 1, .width = 2, .fps = 7.5};
  video.frames.pixels = std::string("\0twelve\xff....", 12);
  EXPECT_EQ(event_of(frame_of(video)).frames, video.frames);
  EXPECT_EQ(event_of(frame_of(video)).index, 3);
  WorldEvent saved{.kind = What::kSaved, .run = 1, .step = 4};
  saved.saved = std::string("\0x", 2);
  EXPECT_EQ(event_of(frame_of(saved)).saved, saved.saved);
  EXPECT_EQ(event_of(frame_of(saved)).step, 4);
  WorldEvent ended{.kind = What::kEnded, .run = 1};
  ended.seconds = {.load = 1, .encode = 2, .denoise = 3, .decode = 4, .write = 5, .total = 6.25};
  EXPECT_EQ(event_of(frame_of(ended)).seconds.total, 6.25);
  WorldEvent warning{.kind = What::kWarning, .run = 1};
  warning.message = "it is too long";
  EXPECT_EQ(event_of(frame_of(warning)).message, "it is too long");
  WorldEvent failed{.kind = What::kFailed, .run = 1};
  failed.exit_code = 5;
  failed.message = "no memory\xff";  // not UTF-8, as a path may be
  EXPECT_EQ(event_of(frame_of(failed)).exit_code, 5);
  EXPECT_TRUE(event_of(frame_of(failed)).message.starts_with("no memory"));
}

TEST(WorldFrames, RefusesOtherFrames) {
  const auto expect_refused = [](const std::string& text, const std::string& data) {
    EXPECT_THROW(order_of({.text = text, .data = data}), Error) << text;
    EXPECT_THROW(event_of({.text = text, .data = data}), Error) << text;
  };
  for (const char* const text :
       {"", "{", "[]", "{}",
        R"({"kind": 12, "run": 1, "requests": [], "preview_every": 0, "step": 0, "steps": 0})",
        R"({"kind": -1, "run": 1, "requests": [], "preview_every": 0, "step": 0, "steps": 0})",
        R"({"kind": 0, "run": "x", "requests": [], "preview_every": 0, "step": 0, "steps": 0})"})
    expect_refused(text, "");
  const Frame picture = frame_of({.kind = What::kPicture, .run = 1});
  EXPECT_THROW(event_of({.text = picture.text, .data = "one byte too many"}), Error);
  const auto expect_impossible = [](What kind, const std::string& size, const std::string& data) {
    const Frame frame{
        .text = fmt::format(R"({{"kind": {}, "run": 1, "step": 0, "steps": 0, "index": 0, "first": 0,
                                              "total": 0, "fps": 1, "size": {}}})",
                            static_cast<int>(kind), size),
        .data = data};
    EXPECT_THROW(event_of(frame), Error) << size;
  };
  expect_impossible(What::kPicture, "[-1, -1]", "xxx");
  expect_impossible(What::kPreview, "[4294967296, 4294967296]", "");
  expect_impossible(What::kPicture, "[1]", "xxx");
  expect_impossible(What::kFrames, "[1, 1, 2]", "xxx");
  expect_impossible(What::kFrames, "[1048577, 1048577, 1048577]", "");
}

TEST(WorldFrames, APortSeesThatARunWillBeDroppedAndStillReturnsTheOrder) {
  auto [near, far] = FrameSocket::make_pair();
  FrameSocket front(std::move(near));
  SocketPort port(std::move(far));
  const auto send = [&](Kind kind, int64_t run) {
    front.send(frame_of(WorldOrder{.kind = kind, .run = run, .requests = {}, .saved = {}}));
  };
  EXPECT_FALSE(port.will_drop(1));
  send(Kind::kWatch, 1);
  send(Kind::kSave, 1);
  send(Kind::kDrop, 1);
  send(Kind::kDrop, 2);
  EXPECT_FALSE(port.will_drop(1));  // it has to be saved first
  EXPECT_TRUE(port.will_drop(2));
  EXPECT_FALSE(port.will_drop(3));
  std::vector<std::pair<Kind, int64_t>> orders;
  for (const WorldOrder& each : port.orders(std::chrono::seconds(60)))
    orders.emplace_back(each.kind, each.run);
  const std::vector<std::pair<Kind, int64_t>> expected = {
      {Kind::kWatch, 1}, {Kind::kSave, 1}, {Kind::kDrop, 1}, {Kind::kDrop, 2}};
  EXPECT_EQ(orders, expected);
  EXPECT_FALSE(port.will_drop(2));
  EXPECT_TRUE(port.orders(std::chrono::milliseconds(0)).empty());
  send(Kind::kDropAll, 0);
  EXPECT_TRUE(port.will_drop(3));
}

// A front on this thread, and a world of two ranks at the other end of the socket.
TEST(WorldFramesOfRanks, CarryAWorld) {
  auto [near, far] = FrameSocket::make_pair();
  engine::Request request = engine::tiny_request(16, 32, 3);
  const engine::Settings settings = engine::resolve(request, engine::tiny());
  const parallel::ParallelOptions options = parallel::degrees(1, true, 1, 1, 1, 1);
  std::thread world([&, end = std::move(far)]() mutable {
    comm::run_ranks_as_threads(
        2,
        [&](const comm::World& ranks) {
          engine::Engine engine(engine::tiny(), engine::kNoLimit, ranks);
          std::optional<SocketPort> port;
          if (ranks.rank() == 0) port.emplace(std::move(end));
          run_world(engine, ranks, options, port ? &*port : nullptr, std::chrono::milliseconds(20));
        },
        comm::Wire::kShared);
  });
  FrameSocket front(std::move(near));
  WorldOrder begin{.kind = Kind::kBegin, .run = 1, .requests = {}, .saved = {}};
  begin.requests = {write_fields(engine::request_fields(), request).dump()};
  front.send(frame_of(begin));
  Image image;
  std::string failure;
  for (bool is_running = true; is_running;) {
    const auto frame = front.read(std::chrono::seconds(60));
    ASSERT_TRUE(frame);
    const WorldEvent event = event_of(*frame);
    if (event.kind == What::kPicture) image = event.image;
    failure += event.message;
    is_running = event.kind != What::kEnded && event.kind != What::kFailed;
  }
  front.send(frame_of(WorldOrder{.kind = Kind::kEnd, .requests = {}, .saved = {}}));
  world.join();
  EXPECT_EQ(failure, "");
  engine::Engine alone(engine::tiny(), engine::kNoLimit);
  const Image expected = alone.run(settings).images.at(0);
  ASSERT_EQ(image.pixels.size(), expected.pixels.size());
  for (size_t i = 0; i < image.pixels.size(); ++i) EXPECT_NEAR(image.pixels[i], expected.pixels[i], 1) << i;
}

}  // namespace
}  // namespace tessera::serve
