#include "comm/recording.h"

namespace tessera::comm {
namespace {

struct Arrived final : Exchange {
  void wait() override {}
};

struct NowhereTransport final : Transport {
  std::unique_ptr<Exchange> post(std::vector<Message> /*sends*/, std::vector<Message> /*receives*/,
                                 Posting /*posting*/) override {
    return std::make_unique<Arrived>();
  }
};

struct NowhereFabric final : Fabric {
  std::shared_ptr<Transport> transport(std::vector<int64_t> /*ranks*/, int64_t /*tag*/) override {
    return std::make_shared<NowhereTransport>();
  }
  void require_alive() override {}
};

}  // namespace

World recording_world(int64_t rank, int64_t size) {
  return {rank, size, std::make_shared<NowhereFabric>()};
}

}  // namespace tessera::comm
