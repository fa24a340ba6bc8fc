#include "launch/worker.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tessera::launch {
namespace {

const WorkerPlace kPlace{.rank = 1,
                         .ranks = 3,
                         .parent = 77,
                         .status_file = 5,
                         .store_file = 6,
                         .sockets = {{0, 9}, {2, 7}},
                         .file_token = "abc"};

TEST(Worker, APlaceIsReadAsItWasWritten) {
  const WorkerPlace read = read_worker_place(write_worker_place(kPlace));
  EXPECT_EQ(read.rank, 1);
  EXPECT_EQ(read.ranks, 3);
  EXPECT_EQ(read.parent, 77);
  EXPECT_EQ(read.status_file, 5);
  EXPECT_EQ(read.store_file, 6);
  EXPECT_EQ(read.sockets, kPlace.sockets);
  EXPECT_EQ(read.file_token, "abc");
}

TEST(Worker, APlaceThatMakesNoSenseIsRefused) {
  const auto refused = [](WorkerPlace place) {
    try {
      read_worker_place(write_worker_place(place));
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kUsage && std::string(error.what()).starts_with("[TESSERA_WORKER]");
    }
    return false;
  };
  const auto changed = [](auto change) {
    WorkerPlace place = kPlace;
    change(place);
    return place;
  };
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.rank = 3; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.rank = -1; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.ranks = 0; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.ranks = 1 << 20; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.ranks = 4; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.rank = 0; })));  // a socket to itself
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.status_file = -1; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.sockets = {{0, 9}, {3, 7}}; })));
  EXPECT_TRUE(refused(changed([](WorkerPlace& place) { place.sockets = {{0, 9}}; })));
  EXPECT_THROW(read_worker_place("no JSON"), Error);
}

}  // namespace
}  // namespace tessera::launch
