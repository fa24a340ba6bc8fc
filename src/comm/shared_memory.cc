#include "comm/shared_memory.h"

#include <poll.h>

#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>

#include "comm/heartbeat.h"
#include "comm/peer_error.h"
#include "comm/shared_queue.h"
#include "core/error.h"
#include "core/text.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A rank polls for a message for this long before it sleeps; it is less than the time of two wake-ups.
constexpr auto kSpin = std::chrono::microseconds(30);
// The interval at which a waiting rank checks whether its peer is still alive.
constexpr auto kCheck = Milliseconds(50);
// The tag of an empty message, the last one of a rank that aborts everything in flight.
constexpr int64_t kGivesUp = -1;

// Holds the messages in both directions between this rank and one other.
class Channel {
 public:
  Channel(int64_t peer, Milliseconds timeout) : peer_(peer), timeout_(timeout) {}

  int file() const { return writer_.descriptor(); }
  int socket() const { return socket_.number(); }
  // `take_in_all` calls take_in() of all channels of this rank.
  void watch(const Heartbeat* heartbeat, std::function<void()> take_in_all) {
    heartbeat_ = heartbeat;
    take_in_all_ = std::move(take_in_all);
  }
  void require_not_silent() const {
    if (heartbeat_->is_silent(peer_)) silent_peer(peer_, timeout_);
  }
  void require_connected() const {
    require_not_silent();
    if (is_closed()) lost_peer(peer_, "it closed the connection");
  }
  void connect(PeerConnection connection) {
    socket_ = std::move(connection.socket);
    reader_ = std::make_unique<QueueReader>(connection.file.release(), peer_);
  }

  void send(int64_t tag, const at::Tensor& tensor) {
    send(tag, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }

  void send(int64_t tag, std::span<const std::byte> bytes) {
    if (is_closed()) lost_peer(peer_, "it closed the connection");
    while (!writer_.write(tag, bytes)) {
      if (is_closed()) lost_peer(peer_, "it closed the connection");
      require_not_silent();
      // The peer may be waiting for room too, either here or at a rank that waits for this one.
      take_in_all_();
      pollfd nothing = {};
      ::poll(&nothing, 0, 1);
    }
  }

  // Returns the number of the next expected message with this tag.
  int64_t expect(int64_t tag) { return streams_[tag].expected++; }

  // Waits for message `number` of this tag and copies it into the tensor.
  void receive(int64_t tag, int64_t number, at::Tensor& tensor) {
    Stream& stream = streams_[tag];
    wait_until_arrived(stream, number);
    const auto entry = stream.arrived.extract(number);
    const std::span<const std::byte> bytes = reader_->bytes(entry.mapped());
    if (bytes.size() != tensor.nbytes())
      lost_peer(peer_, fmt::format("it sent {} instead of {}",
                                   counted(static_cast<int64_t>(bytes.size()), "byte"), tensor.nbytes()));
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    reader_->drop(entry.mapped());
  }

  // abort() asks the peer to wait for no more messages; reset() discards the peer's messages up to its own
  // abort().
  void abort() { send(kGivesUp, std::span<const std::byte>()); }
  void reset() {
    wait_until([&] {
      take_in();
      return gave_up_;
    });
    for (auto& [tag, stream] : streams_) {
      for (const auto& [number, entry] : stream.arrived) reader_->drop(entry);
    }
    streams_.clear();
    gave_up_ = false;
  }

  // Makes room in the peer's queue by storing what has arrived until it is asked for.
  void take_in() {
    while (!gave_up_ && take_next()) {
    }
  }

  void trim() { writer_.trim(); }

 private:
  struct Stream {
    int64_t expected = 0, came = 0;  // numbers of messages
    std::map<int64_t, QueueEntry> arrived;
  };

  bool is_closed() const {
    pollfd poll = {.fd = socket_.number(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&poll, 1, 0) > 0;
  }

  // Takes the next arrived message of any tag, in order.
  bool take_next() {
    const std::optional<QueueEntry> entry = reader_->next();
    if (!entry) return false;
    if (entry->tag == kGivesUp) {
      gave_up_ = true;
      reader_->drop(*entry);
      return true;
    }
    Stream& stream = streams_[entry->tag];
    stream.arrived.emplace(stream.came++, *entry);
    return true;
  }

  void wait_until_arrived(const Stream& stream, int64_t number) {
    wait_until([&] {
      while (stream.came <= number && !gave_up_ && take_next()) {
      }
      if (stream.came <= number && gave_up_)
        throw PeerError(peer_, "gave up what it was doing, because it or another rank failed");
      return stream.came > number;
    });
  }

  template <typename HasCome>
  void wait_until(const HasCome& has_come) {
    const auto begin = Clock::now();
    while (!has_come()) {
      const auto waited = Clock::now() - begin;
      if (waited < kSpin) {
        std::this_thread::yield();
        continue;
      }
      const bool closed = is_closed();  // checked first: whatever was sent before closing has arrived by now
      if (closed && has_come()) return;
      if (closed) lost_peer(peer_, "it closed the connection");
      require_not_silent();
      // All channels are read: their ranks may need room before they can send what is awaited here.
      take_in_all_();
      if (has_come()) return;
      reader_->sleep(kCheck);
    }
  }

  int64_t peer_;
  Milliseconds timeout_;
  const Heartbeat* heartbeat_ = nullptr;
  std::function<void()> take_in_all_;
  Descriptor socket_;
  QueueWriter writer_;
  std::unique_ptr<QueueReader> reader_;
  std::unordered_map<int64_t, Stream> streams_;
  bool gave_up_ = false;  // the peer aborted: later messages belong to another request
};

struct Channels {
  std::map<int64_t, std::unique_ptr<Channel>> channels;  // by the peer's rank in the world
  std::unique_ptr<Heartbeat> heartbeat;                  // watches all channels; destroyed before them
};

class SharedExchange : public Exchange {
 public:
  struct Part {
    Channel* channel;
    int64_t tag, number;
    at::Tensor tensor;
  };
  SharedExchange(std::shared_ptr<Channels> channels, std::vector<Part> parts,
                 std::unique_ptr<Exchange> others)
      : channels_(std::move(channels)), parts_(std::move(parts)), others_(std::move(others)) {}

  ~SharedExchange() override {
    if (std::uncaught_exceptions() > 0) return;
    try {
      receive();
    } catch (const std::exception&) {  // nobody waits for the result
    }
  }

  void wait() override {
    receive();
    if (others_) others_->wait();
  }

 private:
  void receive() {
    for (Part& part : std::exchange(parts_, {})) part.channel->receive(part.tag, part.number, part.tensor);
  }

  std::shared_ptr<Channels> channels_;
  std::vector<Part> parts_;
  std::unique_ptr<Exchange> others_;
};

class SharedTransport : public Transport {
 public:
  SharedTransport(std::shared_ptr<Channels> channels, std::vector<int64_t> ranks, int64_t tag,
                  std::shared_ptr<Transport> others)
      : channels_(std::move(channels)), ranks_(std::move(ranks)), tag_(tag), others_(std::move(others)) {}

  std::unique_ptr<Exchange> post(std::vector<Message> sends, std::vector<Message> receives,
                                 Posting posting) override {
    std::vector<SharedExchange::Part> parts;
    std::erase_if(receives, [&](const Message& message) {
      Channel* const channel = channel_to(message);
      if (channel && message.tensor.numel() > 0)
        parts.push_back({channel, tag_, channel->expect(tag_), message.tensor});
      return channel != nullptr;
    });
    std::vector<Message> here;
    std::erase_if(sends, [&](const Message& message) {
      const bool is_here = channel_to(message) != nullptr;
      if (is_here) here.push_back(message);
      return is_here;
    });
    // Messages to other hosts come first, so that they travel while the local ones are copied.
    std::unique_ptr<Exchange> others;
    if (others_ && !(sends.empty() && receives.empty()))
      others = others_->post(std::move(sends), std::move(receives), posting);
    for (const Message& message : here) {
      if (message.tensor.numel() > 0) channel_to(message)->send(tag_, message.tensor);
    }
    return std::make_unique<SharedExchange>(channels_, std::move(parts), std::move(others));
  }

 private:
  // Returns nullptr for a rank of another host.
  Channel* channel_to(const Message& message) const {
    TESSERA_CHECK(message.tensor.is_contiguous(), "a message must be contiguous");
    const auto channel = channels_->channels.find(ranks_[static_cast<size_t>(message.peer)]);
    return channel == channels_->channels.end() ? nullptr : channel->second.get();
  }

  std::shared_ptr<Channels> channels_;
  std::vector<int64_t> ranks_;
  int64_t tag_;
  std::shared_ptr<Transport> others_;
};

class SharedFabric : public Fabric {
 public:
  SharedFabric(std::shared_ptr<Channels> channels, std::shared_ptr<Fabric> others)
      : channels_(std::move(channels)), others_(std::move(others)) {}

  std::shared_ptr<Transport> transport(std::vector<int64_t> ranks, int64_t tag) override {
    std::shared_ptr<Transport> others = others_ ? others_->transport(ranks, tag) : nullptr;
    return std::make_shared<SharedTransport>(channels_, std::move(ranks), tag, std::move(others));
  }
  void require_alive() override {
    for (const auto& [peer, channel] : channels_->channels) channel->require_connected();
    if (others_) others_->require_alive();
  }
  bool abort() override {
    if (others_) return false;
    // If one rank is lost, the others are still notified: they may be waiting for this rank.
    std::exception_ptr lost;
    for (const auto& [peer, channel] : channels_->channels) {
      try {
        channel->abort();
      } catch (const Error&) {
        lost = std::current_exception();
      }
    }
    if (lost) std::rethrow_exception(lost);
    for (const auto& [peer, channel] : channels_->channels) channel->reset();
    return true;
  }
  void trim() override {
    for (const auto& [peer, channel] : channels_->channels) channel->trim();
    if (others_) others_->trim();
  }

 private:
  std::shared_ptr<Channels> channels_;
  std::shared_ptr<Fabric> others_;
};

}  // namespace

std::shared_ptr<Fabric> share_memory(const ConnectPeers& connect, std::shared_ptr<Fabric> others,
                                     Milliseconds timeout) {
  const auto channels = std::make_shared<Channels>();
  const auto file_for = [&](int64_t peer) {
    return channels->channels.emplace(peer, std::make_unique<Channel>(peer, timeout)).first->second->file();
  };
  std::map<int64_t, int> sockets;
  for (auto& [peer, connection] : connect(file_for)) {
    Channel& channel = *channels->channels.at(peer);
    channel.connect(std::move(connection));
    sockets[peer] = channel.socket();
  }
  channels->heartbeat = std::make_unique<Heartbeat>(sockets, timeout);
  const auto take_in_all = [all = channels.get()] {
    for (const auto& [peer, channel] : all->channels) channel->take_in();
  };
  for (const auto& [peer, channel] : channels->channels)
    channel->watch(channels->heartbeat.get(), take_in_all);
  return std::make_shared<SharedFabric>(channels, std::move(others));
}

}  // namespace tessera::comm
