#include "serve/control.h"

#include "core/error.h"
#include "core/json.h"

namespace tessera::serve {
namespace {

using Told = ControlMessage::Kind;

[[noreturn]] void refuse() {
  throw Error(ErrorKind::kPeer, "control", "this is no message between the processes of a server");
}

}  // namespace

void ControlSocket::tell(ControlMessage message) {
  const Json text = {
      {"kind", static_cast<int>(message.kind)}, {"world", message.world},     {"restarts", message.restarts},
      {"exit_code", message.exit_code},         {"seconds", message.seconds}, {"text", message.text}};
  socket_.send({.text = text.dump(-1, ' ', false, Json::error_handler_t::replace), .data = {}},
               std::move(message.socket));
}

std::optional<ControlMessage> ControlSocket::read(std::chrono::milliseconds wait) {
  const std::optional<Frame> frame = socket_.read(wait);
  if (!frame) return std::nullopt;
  ControlMessage message;
  try {
    const Json text = Json::parse(frame->text);
    const int kind = text.at("kind").get<int>();
    if (kind < 0 || kind > static_cast<int>(Told::kFailed)) refuse();
    message.kind = static_cast<Told>(kind);
    message.world = text.at("world").get<int64_t>();
    message.restarts = text.at("restarts").get<int64_t>();
    message.exit_code = text.at("exit_code").get<int>();
    message.seconds = text.at("seconds").get<double>();
    message.text = text.at("text").get<std::string>();
  } catch (const Json::exception&) {
    refuse();
  }
  message.socket = socket_.take_passed();
  if (message.kind == Told::kWorld && message.socket.number() < 0) refuse();
  return message;
}

}  // namespace tessera::serve
