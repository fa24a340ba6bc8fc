#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/system_call.h"
#include "core/text.h"
#include "serve/http.h"

namespace tessera::serve {
namespace {

constexpr std::string_view kUnix = "unix:";
constexpr int kBacklog = 4096, kLastPort = 65535;

Descriptor make_socket(int family) {
  Descriptor made(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (made.number() < 0) usage_error("listen", "cannot make a socket: {}", system_reason(errno));
  return made;
}

// Whether a server answers at the socket file.
bool is_answered(const sockaddr_un& address) {
  const Descriptor client = make_socket(AF_UNIX);
  return ::connect(client.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno == EAGAIN;
}

int listen_on_file(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    usage_error(std::string(kUnix) + path, "the path of a socket has 1 to {} bytes",
                sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.data(), path.size());
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) usage_error(path, "there is a file that is no socket");
    if (is_answered(address)) usage_error(path, "another server listens there");
    ::unlink(path.c_str());
  }
  Descriptor listener = make_socket(AF_UNIX);
  if (::bind(listener.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.number(), kBacklog) != 0)
    usage_error(path, "cannot listen: {}", system_reason(errno));
  return listener.release();
}

}  // namespace

int listen_on(const std::string& address) {
  if (address.starts_with(kUnix)) return listen_on_file(address.substr(kUnix.size()));
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || address.find("://") != std::string::npos)
    usage_error(address, "an address to listen on is HOST:PORT or unix:PATH");
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  // getaddrinfo() accepts larger numbers and truncates them.
  const bool is_number =
      !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
  if (!is_number || std::stoi(port) > kLastPort)
    usage_error(address, "the port must be from 0 to {}, got '{}'", kLastPort, printable(port));
  if (host.starts_with("[") && host.ends_with("]")) host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
    usage_error(address, "cannot listen: {}", ::gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  Descriptor listener = make_socket(found->ai_family);
  const int yes = 1;
  ::setsockopt(listener.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(listener.number(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listener.number(), kBacklog) != 0)
    usage_error(address, "cannot listen: {}", system_reason(errno));
  return listener.release();
}

std::string address_of(int listener) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  if (address.ss_family == AF_UNIX)
    return std::string(kUnix) + reinterpret_cast<const sockaddr_un&>(address).sun_path;
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "";
  const bool is_6 = address.ss_family == AF_INET6;
  return fmt::format("{}{}{}:{}", is_6 ? "[" : "", host, is_6 ? "]" : "", port);
}

}  // namespace tessera::serve
