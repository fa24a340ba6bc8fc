#include "comm/shared_memory.h"

#include <poll.h>

#include <cstring>
#include <exception>
#include <map>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "comm/heartbeat.h"
#include "comm/shared_queue.h"
#include "core/error.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// How long a rank looks for a message before it sleeps. Less than it takes to be woken twice.
constexpr auto kSpin = std::chrono::microseconds(30);
// How often one that waits looks whether its peer still lives.
constexpr auto kCheck = Milliseconds(50);

// Both ways between this rank and one other.
class Line {
 public:
  Line(int64_t peer, Milliseconds timeout) : peer_(peer), timeout_(timeout) {}

  int file() const { return writer_.descriptor(); }
  int socket() const { return socket_.number(); }
  void watch(const Heartbeat* heartbeat) { heartbeat_ = heartbeat; }
  void require_not_silent() const {
    if (heartbeat_->is_silent(peer_)) silent_peer(peer_, timeout_);
  }
  void connect(Neighbour neighbour) {
    socket_ = std::move(neighbour.socket);
    reader_ = std::make_unique<QueueReader>(neighbour.file.release());
  }

  void send(int64_t tag, const at::Tensor& tensor) {
    if (is_closed()) lost_peer(peer_, "it closed the connection");
    const std::span bytes(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes());
    while (!writer_.write(tag, bytes)) {
      if (is_closed()) lost_peer(peer_, "it closed the connection");
      require_not_silent();
      pollfd nothing = {};
      ::poll(&nothing, 0, 1);
    }
  }

  // The number of the next message that is expected with this tag.
  int64_t expect(int64_t tag) { return channels_[tag].expected++; }

  // Copies message `number` of this tag into the tensor once it is here.
  void receive(int64_t tag, int64_t number, at::Tensor& tensor) {
    Channel& channel = channels_[tag];
    wait_until_arrived(channel, number);
    const auto entry = channel.arrived.extract(number);
    const std::span<const std::byte> bytes = reader_->bytes(entry.mapped());
    TESSERA_CHECK(bytes.size() == tensor.nbytes(), "{} bytes were sent, {} expected", bytes.size(),
                  tensor.nbytes());
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    reader_->drop(entry.mapped());
  }

 private:
  struct Channel {
    int64_t expected = 0, came = 0;  // how many
    std::map<int64_t, QueueEntry> arrived;
  };

  bool is_closed() const {
    pollfd poll = {.fd = socket_.number(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&poll, 1, 0) > 0;
  }

  // Takes what has come, in order, for whichever tag.
  bool take() {
    const std::optional<QueueEntry> entry = reader_->next();
    if (!entry) return false;
    Channel& channel = channels_[entry->tag];
    channel.arrived.emplace(channel.came++, *entry);
    return true;
  }

  void wait_until_arrived(const Channel& channel, int64_t number) {
    const auto has_come = [&] {
      while (channel.came <= number && take()) {
      }
      return channel.came > number;
    };
    const auto begin = Clock::now();
    while (!has_come()) {
      const auto waited = Clock::now() - begin;
      if (waited < kSpin) {
        std::this_thread::yield();
        continue;
      }
      const bool closed = is_closed();  // asked first: what was sent before is here by now
      if (closed && has_come()) return;
      if (closed) lost_peer(peer_, "it closed the connection");
      require_not_silent();
      reader_->sleep(kCheck);
    }
  }

  int64_t peer_;
  Milliseconds timeout_;
  const Heartbeat* heartbeat_ = nullptr;
  Descriptor socket_;
  QueueWriter writer_;
  std::unique_ptr<QueueReader> reader_;
  std::unordered_map<int64_t, Channel> channels_;
};

struct Lines {
  std::map<int64_t, std::unique_ptr<Line>> lines;  // by the peer's number in the world
  std::unique_ptr<Heartbeat> heartbeat;            // of all of them; it ends before they do
};

class SharedExchange : public Exchange {
 public:
  struct Part {
    Line* line;
    int64_t tag, number;
    at::Tensor tensor;
  };
  SharedExchange(std::shared_ptr<Lines> lines, std::vector<Part> parts, std::unique_ptr<Exchange> others)
      : lines_(std::move(lines)), parts_(std::move(parts)), others_(std::move(others)) {}

  ~SharedExchange() override {
    if (std::uncaught_exceptions() > 0) return;
    try {
      receive();
    } catch (const std::exception&) {  // nobody asked
    }
  }

  void wait() override {
    receive();
    if (others_) others_->wait();
  }

 private:
  void receive() {
    for (Part& part : std::exchange(parts_, {})) part.line->receive(part.tag, part.number, part.tensor);
  }

  std::shared_ptr<Lines> lines_;
  std::vector<Part> parts_;
  std::unique_ptr<Exchange> others_;
};

class SharedTransport : public Transport {
 public:
  SharedTransport(std::shared_ptr<Lines> lines, std::vector<int64_t> ranks, int64_t tag,
                  std::shared_ptr<Transport> others)
      : lines_(std::move(lines)), ranks_(std::move(ranks)), tag_(tag), others_(std::move(others)) {}

  std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives,
                                 Posting posting) override {
    std::vector<SharedExchange::Part> parts;
    std::erase_if(receives, [&](const Message& message) {
      Line* const line = line_to(message);
      if (line && message.tensor.numel() > 0)
        parts.push_back({line, tag_, line->expect(tag_), message.tensor});
      return line != nullptr;
    });
    std::vector<Message> here;
    std::erase_if(sends, [&](const Message& message) {
      const bool is_here = line_to(message) != nullptr;
      if (is_here) here.push_back(message);
      return is_here;
    });
    // Other hosts first: their messages travel while these are copied.
    std::unique_ptr<Exchange> others;
    if (others_ && !(sends.empty() && receives.empty()))
      others = others_->post(std::move(sends), std::move(receives), posting);
    for (const Message& message : here) {
      if (message.tensor.numel() > 0) line_to(message)->send(tag_, message.tensor);
    }
    return std::make_unique<SharedExchange>(lines_, std::move(parts), std::move(others));
  }

 private:
  // Nothing to a rank of another host.
  Line* line_to(const Message& message) const {
    TESSERA_CHECK(message.tensor.is_contiguous(), "a message must be contiguous");
    const auto line = lines_->lines.find(ranks_[static_cast<size_t>(message.peer)]);
    return line == lines_->lines.end() ? nullptr : line->second.get();
  }

  std::shared_ptr<Lines> lines_;
  std::vector<int64_t> ranks_;
  int64_t tag_;
  std::shared_ptr<Transport> others_;
};

class SharedFabric : public Fabric {
 public:
  SharedFabric(std::shared_ptr<Lines> lines, std::shared_ptr<Fabric> others)
      : lines_(std::move(lines)), others_(std::move(others)) {}

  std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) override {
    std::shared_ptr<Transport> others = others_ ? others_->transport(ranks, tag) : nullptr;
    return std::make_shared<SharedTransport>(lines_, std::move(ranks), tag, std::move(others));
  }
  void require_alive() override {
    for (const auto& [peer, line] : lines_->lines) line->require_not_silent();
    if (others_) others_->require_alive();
  }

 private:
  std::shared_ptr<Lines> lines_;
  std::shared_ptr<Fabric> others_;
};

}  // namespace

std::shared_ptr<Fabric> share_memory(int64_t rank, const MeetingPlace& own,
                                     const std::vector<std::string>& places, std::shared_ptr<Fabric> others,
                                     Milliseconds timeout) {
  const auto lines = std::make_shared<Lines>();
  const auto file_for = [&](int64_t peer) {
    return lines->lines.emplace(peer, std::make_unique<Line>(peer, timeout)).first->second->file();
  };
  std::map<int64_t, int> sockets;
  for (auto& [peer, neighbour] : meet(rank, own, places, file_for, timeout)) {
    Line& line = *lines->lines.at(peer);
    line.connect(std::move(neighbour));
    sockets[peer] = line.socket();
  }
  lines->heartbeat = std::make_unique<Heartbeat>(sockets, timeout);
  for (const auto& [peer, line] : lines->lines) line->watch(lines->heartbeat.get());
  return std::make_shared<SharedFabric>(lines, std::move(others));
}

}  // namespace tessera::comm
