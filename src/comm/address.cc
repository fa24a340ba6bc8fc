#include "comm/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "core/error.h"
#include "core/system_call.h"

namespace tessera::comm {
namespace {

// Returns the local end of a datagram socket connected to `peer`, or an empty text if there is no route to
// it.
std::string own_address(const addrinfo& peer) {
  const int descriptor = ::socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return {};
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  auto* const name = reinterpret_cast<sockaddr*>(&own);
  std::array<char, NI_MAXHOST> text = {};
  const bool found = ::connect(descriptor, peer.ai_addr, peer.ai_addrlen) == 0 &&
                     ::getsockname(descriptor, name, &length) == 0 &&
                     ::getnameinfo(name, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  return found ? text.data() : "";
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses addresses_of(const std::string& host) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* all = nullptr;
  // A socket address needs a port, and any port will do.
  if (const int code = ::getaddrinfo(host.c_str(), "9", &hints, &all); code != 0)
    throw Error(ErrorKind::kPeer, host, fmt::format("has no address: {}", ::gai_strerror(code)));
  return {all, &::freeaddrinfo};
}

}  // namespace

void require_address(const std::string& host) {
  addresses_of(host);
}

bool is_wildcard(const std::string& host) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* all = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &all) != 0) return false;
  const Addresses address(all, &::freeaddrinfo);
  if (all->ai_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(all->ai_addr)->sin_addr.s_addr == INADDR_ANY;
  return all->ai_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(all->ai_addr)->sin6_addr);
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

std::string address_towards(const std::string& host) {
  const Addresses all = addresses_of(host);
  for (const addrinfo* peer = all.get(); peer; peer = peer->ai_next) {
    if (std::string own = own_address(*peer); !own.empty()) return own;
  }
  throw Error(ErrorKind::kPeer, host, fmt::format("there is no route to it: {}", system_reason(errno)));
}

}  // namespace tessera::comm
