#include "serve/world_frames.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/json.h"

namespace tessera::serve {
namespace {

// Reads a frame's text. Throws Error(kPeer) if it does not have the form that `read` expects.
template <typename Read>
auto read_text(const Frame& frame, const Read& read) {
  try {
    return read(parse_json(frame.text, "frame"));
  } catch (const Error& error) {
    throw Error(ErrorKind::kPeer, "frame", error.message());
  } catch (const std::exception& error) {  // from Json, or because a list is too short
    throw Error(ErrorKind::kPeer, "frame", error.what());
  }
}

void require_bytes(size_t have, int64_t need) {
  if (static_cast<int64_t>(have) != need)
    throw Error(ErrorKind::kPeer, "frame", fmt::format("{} bytes in place of {}", have, need));
}

// A kind that is at most `last`.
template <typename Kind>
Kind kind_of(const Json& value, Kind last) {
  const int kind = value.get<int>();
  if (kind < 0 || kind > static_cast<int>(last))
    throw Error(ErrorKind::kPeer, "frame", "is of an unknown kind");
  return static_cast<Kind>(kind);
}

// Checks the size of `count` pictures.
void require_pixels(int64_t count, int64_t height, int64_t width, const std::string& data) {
  for (const int64_t size : {count, height, width}) {
    if (size < 0 || size > (1 << 20)) throw Error(ErrorKind::kPeer, "frame", "has an impossible size");
  }
  require_bytes(data.size(), count * height * width * 3);
}

void write_image(const Image& image, Json& text, std::string& data) {
  text["size"] = {image.height, image.width};
  data.assign(image.pixels.begin(), image.pixels.end());
}

Image read_image(const Json& text, const std::string& data) {
  const auto size = text.at("size").get<std::vector<int64_t>>();
  const int64_t height = size.at(0), width = size.at(1);
  require_pixels(1, height, width, data);
  return {.height = height, .width = width, .pixels = {data.begin(), data.end()}};
}

void write_video(const VideoFrames& frames, Json& text, std::string& data) {
  text["first"] = frames.first;
  text["total"] = frames.total;
  text["size"] = {frames.count, frames.height, frames.width};
  text["fps"] = frames.fps;
  data = frames.pixels;
}

VideoFrames read_video(const Json& text, const std::string& data) {
  const auto size = text.at("size").get<std::vector<int64_t>>();
  VideoFrames frames{.first = text.at("first").get<int64_t>(),
                     .count = size.at(0),
                     .total = text.at("total").get<int64_t>(),
                     .height = size.at(1),
                     .width = size.at(2),
                     .fps = text.at("fps").get<double>(),
                     .pixels = {}};
  require_pixels(frames.count, frames.height, frames.width, data);
  frames.pixels = data;
  return frames;
}

Json seconds_json(const engine::Seconds& s) {
  return {s.load, s.encode, s.denoise, s.decode, s.write, s.total};
}

engine::Seconds seconds_of(const std::vector<double>& s) {
  return {.load = s.at(0),
          .encode = s.at(1),
          .denoise = s.at(2),
          .decode = s.at(3),
          .write = s.at(4),
          .total = s.at(5)};
}

}  // namespace

Frame frame_of(const WorldOrder& order) {
  const Json text = {{"kind", static_cast<int>(order.kind)},
                     {"run", order.run},
                     {"requests", order.requests},
                     {"preview_every", order.preview_every}};
  return {.text = text.dump(), .data = order.saved};
}

WorldOrder order_of(const Frame& frame) {
  return read_text(frame, [&](const Json& text) {
    return WorldOrder{.kind = kind_of(text.at("kind"), WorldOrder::Kind::kEnd),
                      .run = text.at("run").get<int64_t>(),
                      .requests = text.at("requests").get<std::vector<std::string>>(),
                      .saved = frame.data,
                      .preview_every = text.at("preview_every").get<int64_t>()};
  });
}

Frame frame_of(const WorldEvent& event) {
  using Kind = WorldEvent::Kind;
  Json text = {{"kind", static_cast<int>(event.kind)},
               {"run", event.run},
               {"step", event.step},
               {"steps", event.steps}};
  Frame frame;
  switch (event.kind) {
    case Kind::kReady:
      text["ranks"] = event.ranks;
      text["weights_bytes"] = event.weights_bytes;
      break;
    case Kind::kAlive:
    case Kind::kBegun:
    case Kind::kStep:
    case Kind::kDropped:
      break;
    case Kind::kPreview:
    case Kind::kPicture:
      text["index"] = event.index;
      write_image(event.image, text, frame.data);
      break;
    case Kind::kFrames:
      text["index"] = event.index;
      write_video(event.frames, text, frame.data);
      break;
    case Kind::kSaved:
      frame.data = event.saved;
      break;
    case Kind::kWarning:
      text["message"] = event.message;
      break;
    case Kind::kEnded:
      text["seconds"] = seconds_json(event.seconds);
      break;
    case Kind::kFailed:
      text["exit_code"] = event.exit_code;
      text["message"] = event.message;
      break;
  }
  frame.text = text.dump(-1, ' ', false, Json::error_handler_t::replace);
  return frame;
}

WorldEvent event_of(const Frame& frame) {
  using Kind = WorldEvent::Kind;
  return read_text(frame, [&](const Json& text) {
    WorldEvent event{.kind = kind_of(text.at("kind"), Kind::kFailed), .run = text.at("run").get<int64_t>()};
    event.step = text.at("step").get<int64_t>();
    event.steps = text.at("steps").get<int64_t>();
    switch (event.kind) {
      case Kind::kReady:
        event.ranks = text.at("ranks").get<int64_t>();
        event.weights_bytes = text.at("weights_bytes").get<uint64_t>();
        break;
      case Kind::kAlive:
      case Kind::kBegun:
      case Kind::kStep:
      case Kind::kDropped:
        break;
      case Kind::kPreview:
      case Kind::kPicture:
        event.index = text.at("index").get<int64_t>();
        event.image = read_image(text, frame.data);
        break;
      case Kind::kFrames:
        event.index = text.at("index").get<int64_t>();
        event.frames = read_video(text, frame.data);
        break;
      case Kind::kSaved:
        event.saved = frame.data;
        break;
      case Kind::kWarning:
        event.message = text.at("message").get<std::string>();
        break;
      case Kind::kEnded:
        event.seconds = seconds_of(text.at("seconds").get<std::vector<double>>());
        break;
      case Kind::kFailed:
        event.exit_code = text.at("exit_code").get<int>();
        event.message = text.at("message").get<std::string>();
        break;
    }
    return event;
  });
}

void SocketPort::read(std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kNotAtAll(0);
  while (const auto frame = socket_.read(read_.empty() ? wait : kNotAtAll)) read_.push_back(order_of(*frame));
}

std::vector<WorldOrder> SocketPort::orders(std::chrono::milliseconds wait) {
  socket_.flush();
  read(wait);
  std::vector<WorldOrder> orders(std::make_move_iterator(read_.begin()),
                                 std::make_move_iterator(read_.end()));
  read_.clear();
  return orders;
}

bool SocketPort::will_drop(int64_t run) {
  using Kind = WorldOrder::Kind;
  read(std::chrono::milliseconds(0));
  const auto first = std::ranges::find_if(read_, [&](const WorldOrder& each) {
    const bool is_of_run = each.run == run && (each.kind == Kind::kDrop || each.kind == Kind::kSave);
    return is_of_run || each.kind == Kind::kDropAll || each.kind == Kind::kEnd;
  });
  return first != read_.end() && first->kind != Kind::kSave;
}

}  // namespace tessera::serve
