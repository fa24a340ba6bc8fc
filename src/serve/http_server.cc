#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>

#include "serve/http_connection.h"

namespace tessera::serve {

constexpr size_t kMostPings = 50;  // in one turn

class HttpServer::Impl : public Shared {
 public:
  Impl(std::vector<int> listeners, std::vector<Route> routes, Options options)
      : Shared{std::move(options), Routes(std::move(routes)), [this] { accept_again(); }},
        ping_timer_(context) {
    for (const int listener : listeners) {
      ::fcntl(listener, F_SETFL, ::fcntl(listener, F_GETFL) | O_NONBLOCK);
      listeners_.emplace_back(context, listener);
    }
    for (auto& listener : listeners_) wait_to_accept(listener);
    ping_later();
  }
  ~Impl();

  void drain();
  void stop() { context.stop(); }
  void watch(int descriptor, std::function<void()> call);
  void unwatch(int descriptor);

 private:
  using Listener = net::posix::stream_descriptor;
  struct Watched {
    net::posix::stream_descriptor descriptor;
    std::function<void()> call;
  };

  void wait_to_accept(Listener& listener);
  void accept(Listener& listener);
  void accept_again();
  void ping_later();
  void ping_some();
  void wait_to_read(const std::shared_ptr<Watched>& watched);

  std::map<int, std::shared_ptr<Watched>> watched_;
  std::deque<Listener> listeners_;
  std::vector<Listener*> paused_;  // listeners that wait until there is room for a connection
  net::steady_timer ping_timer_;
  std::vector<Connection*> to_ping_;  // some of them may have gone
};

HttpServer::Impl::~Impl() {
  // Operations hold connections, and these hold answers; both are destroyed with the context.
  is_over = true;
  for (const auto& [number, watched] : watched_) watched->descriptor.release();
}

void HttpServer::Impl::watch(int descriptor, std::function<void()> call) {
  unwatch(descriptor);
  const auto watched =
      std::make_shared<Watched>(Watched{net::posix::stream_descriptor(context, descriptor), std::move(call)});
  watched_[descriptor] = watched;
  wait_to_read(watched);
}

void HttpServer::Impl::unwatch(int descriptor) {
  const auto found = watched_.find(descriptor);
  if (found == watched_.end()) return;
  found->second->descriptor.release();  // this ends the wait
  watched_.erase(found);
}

void HttpServer::Impl::wait_to_read(const std::shared_ptr<Watched>& watched) {
  watched->descriptor.async_wait(net::posix::descriptor_base::wait_read,
                                 [this, watched](const ErrorCode& code) {
                                   if (code || !watched->descriptor.is_open()) return;
                                   watched->call();
                                   if (watched->descriptor.is_open()) wait_to_read(watched);
                                 });
}

void HttpServer::Impl::wait_to_accept(Listener& listener) {
  listener.async_wait(net::posix::descriptor_base::wait_read, [this, &listener](const ErrorCode& code) {
    if (!code) accept(listener);
  });
}

void HttpServer::Impl::accept(Listener& listener) {
  for (int i = 0; i < 64; ++i) {  // after these, others have their turn
    if (connections.size() >= options.limits.connections) {
      paused_.push_back(&listener);  // until accept_again()
      return;
    }
    sockaddr_storage address = {};
    socklen_t length = sizeof address;
    const int socket = ::accept4(listener.native_handle(), reinterpret_cast<sockaddr*>(&address), &length,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      const int family = address.ss_family, is_on = 1;
      // An event, or the end of a long answer, must not wait until the client has acknowledged earlier data.
      if (family != AF_UNIX) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &is_on, sizeof is_on);
      std::make_shared<Connection>(*this, Protocol(family, 0), socket)->wait_for_request();
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    // The process has run out of descriptors or memory: a connection that ends frees some.
    const auto timer = std::make_shared<net::steady_timer>(context, std::chrono::milliseconds(100));
    timer->async_wait([this, &listener, timer](const ErrorCode& code) {
      if (!code && listener.is_open()) wait_to_accept(listener);
    });
    return;
  }
  wait_to_accept(listener);
}

void HttpServer::Impl::accept_again() {
  for (Listener* const listener : std::exchange(paused_, {})) {
    if (listener->is_open()) wait_to_accept(*listener);
  }
}

void HttpServer::Impl::drain() {
  is_draining = true;
  ErrorCode ignored;
  for (auto& listener : listeners_) listener.close(ignored);
  for (Connection* const connection : std::vector(connections.begin(), connections.end())) {
    if (connection->is_idle()) connection->close();
  }
}

void HttpServer::Impl::ping_later() {
  ping_timer_.expires_after(duration_of(options.limits.ping_time));
  ping_timer_.async_wait([this](const ErrorCode& code) {
    if (code) return;
    to_ping_.assign(streams.begin(), streams.end());
    ping_some();
    ping_later();
  });
}

// Thousands of pings take as many system calls, so other work gets its turn in between.
void HttpServer::Impl::ping_some() {
  for (size_t i = 0; i < kMostPings && !to_ping_.empty(); ++i) {
    Connection* const stream = to_ping_.back();
    to_ping_.pop_back();
    if (streams.contains(stream)) stream->ping();
  }
  if (!to_ping_.empty()) net::post(context, [this] { ping_some(); });
}

HttpServer::HttpServer(std::vector<int> listeners, std::vector<Route> routes, Options options)
    : impl_(std::make_unique<Impl>(std::move(listeners), std::move(routes), std::move(options))) {}
HttpServer::~HttpServer() = default;

void HttpServer::run() {
  impl_->context.run();
}
void HttpServer::stop() {
  impl_->stop();
}
void HttpServer::drain() {
  impl_->drain();
}
void HttpServer::post(std::function<void()> call) {
  net::post(impl_->context, std::move(call));
}
void HttpServer::after(std::chrono::nanoseconds time, std::function<void()> call) {
  const auto timer = std::make_shared<net::steady_timer>(impl_->context, time);
  timer->async_wait([timer, call = std::move(call)](const ErrorCode& code) {
    if (!code) call();
  });
}
void HttpServer::watch(int descriptor, std::function<void()> call) {
  impl_->watch(descriptor, std::move(call));
}
void HttpServer::unwatch(int descriptor) {
  impl_->unwatch(descriptor);
}
size_t HttpServer::connections() const {
  return impl_->connections.size();
}
size_t HttpServer::streams() const {
  return impl_->streams.size();
}

}  // namespace tessera::serve
