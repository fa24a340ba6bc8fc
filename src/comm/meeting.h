// How the ranks of one host find each other, and hand each other memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::comm {

// A descriptor that is closed with its life.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// Where a rank can be met by others of its host. Made before the ranks meet; its text is what others need.
class MeetingPlace {
 public:
  MeetingPlace();  // throws Error(kPeer) when the system refuses a socket

  // The host, as the kernel and the network that a process sees, and a name there.
  const std::string& text() const { return text_; }
  int socket() const { return socket_.number(); }

 private:
  std::string text_;
  Descriptor socket_;
};

// Whether ranks with these texts can meet.
bool same_host(const std::string& place, const std::string& other);

// Another rank of this host: a connection, which ends when that rank does, and the file that it handed over.
struct Neighbour {
  Descriptor socket;
  Descriptor file;
};

// Meets all others of this host; `places` are the texts of all ranks of the world, `file_for` gives the file
// to hand to each. By their numbers in the world. All ranks of the host must call. Throws Error(kPeer) when
// one does not come within the timeout.
std::map<int64_t, Neighbour> meet(int64_t rank, const MeetingPlace& own,
                                  const std::vector<std::string>& places,
                                  const std::function<int(int64_t peer)>& file_for,
                                  std::chrono::milliseconds timeout);

}  // namespace tessera::comm
